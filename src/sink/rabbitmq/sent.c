/* SPDX-License-Identifier: Apache-2.0 */
/* sent - what was published and is not confirmed, by tag. A ring has the last ones. One that is
 * still live when the ring comes round to its place is late and put by, so that a confirm that
 * never comes holds up nobody else (test_rabbitmq_flow: a_confirm_that_never_comes_…). Those that
 * are late are in the order of their tags, which are all lower than `low`. */
#include "sink/rabbitmq/rabbit.h"

#include <stdlib.h>

static struct rabbit_sent *in_ring(struct ob_sink *s, uint64_t tag)
{
    return &s->sent[tag & (s->n_sent - 1)];
}

enum ob_status ob_rabbit_sent_init(struct ob_sink *s, size_t window, struct ob_err *err)
{
    for (s->n_sent = 1; s->n_sent < window * 4;)
        s->n_sent *= 2;
    s->sent = calloc(s->n_sent, sizeof(*s->sent));
    s->max_late = window;
    s->late = calloc(window, sizeof(*s->late));
    ob_rabbit_sent_reset(s);
    return s->sent && s->late ? OB_OK : ob_err_set(err, OB_DOWN, "not enough memory for `window`");
}

void ob_rabbit_sent_clear(struct ob_sink *s)
{
    free(s->sent);
    free(s->late);
    s->sent = s->late = NULL;
}

void ob_rabbit_sent_reset(struct ob_sink *s)
{
    s->low = s->next = 1;
    s->n_late = 0;
    if (s->sent)
        memset(s->sent, 0, s->n_sent * sizeof(*s->sent));
}

/* Forgets those that are confirmed, and those whose message is no longer waited for. */
static void tidy(struct ob_sink *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_late; i++)
        if (s->late[i].live && ob_pump_waits(s->pump, s->late[i].ticket))
            s->late[n++] = s->late[i];
    s->n_late = n;
}

/* The pump has as many places as there are here, and one of them is of the message that is about to
 * be sent: so there is one left. */
static void put_by(struct ob_sink *s, struct rabbit_sent *e)
{
    if (s->n_late == s->max_late)
        tidy(s);
    if (s->n_late < s->max_late && ob_pump_waits(s->pump, e->ticket))
        s->late[s->n_late++] = *e;
    e->live = false;
}

void ob_rabbit_sent_add(struct ob_sink *s, const struct rabbit_sent *one)
{
    struct rabbit_sent *e = in_ring(s, s->next);
    if (e->live) {
        put_by(s, e);
        ob_rabbit_sent_pass(s);
    }
    *e = *one;
    e->tag = s->next++;
    e->live = true;
}

void ob_rabbit_sent_pass(struct ob_sink *s)
{
    while (s->low < s->next && !in_ring(s, s->low)->live)
        s->low++;
    while (s->n_late > 0 && !s->late[s->n_late - 1].live)
        s->n_late--;
}

static int by_tag(const void *key, const void *entry)
{
    uint64_t tag = *(const uint64_t *)key, other = ((const struct rabbit_sent *)entry)->tag;
    return tag < other ? -1 : tag > other;
}

struct rabbit_sent *ob_rabbit_sent_at(struct ob_sink *s, uint64_t tag)
{
    struct rabbit_sent *e = NULL;
    if (tag >= s->low && tag < s->next)
        e = in_ring(s, tag);
    else if (s->n_late > 0)
        e = bsearch(&tag, s->late, s->n_late, sizeof(*s->late), by_tag);
    return e && e->live && e->tag == tag ? e : NULL;
}

struct rabbit_sent *ob_rabbit_sent_next(struct ob_sink *s, uint64_t *at)
{
    for (; *at < s->n_late; ++*at)
        if (s->late[*at].live)
            return &s->late[(*at)++];
    for (; s->low + (*at - s->n_late) < s->next; ++*at) {
        struct rabbit_sent *e = in_ring(s, s->low + (*at - s->n_late));
        if (e->live) {
            ++*at;
            return e;
        }
    }
    return NULL;
}
