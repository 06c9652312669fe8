/* SPDX-License-Identifier: Apache-2.0 */
/* collector - events that objects raise before any transaction exists. Each is one block of memory
 * of its own, so that those raised inside a transaction that was rolled back can be taken back. */
#include "core/uuid.h"
#include "produce/produce.h"

#include <stdlib.h>

#define EVENTS_MAX 100000
#define BYTES_MAX ((size_t)64 << 20)

struct raised {
    struct outbox_event event; /* its pointers lead into bytes */
    int64_t entity_version, schema_version;
    size_t size;
    char bytes[];
};

struct outbox_collector {
    struct raised **of;
    size_t n, cap, bytes;
};

struct outbox_collector *outbox_collector_new(void)
{
    return calloc(1, sizeof(struct outbox_collector));
}

size_t outbox_collector_count(const struct outbox_collector *c)
{
    return c->n;
}

const struct outbox_event *ob_collector_event(const struct outbox_collector *c, size_t i)
{
    return &c->of[i]->event;
}

void ob_collector_cut(struct outbox_collector *c, size_t n)
{
    while (c->n > n) {
        struct raised *r = c->of[--c->n];
        c->bytes -= r->size;
        free(r);
    }
}

void outbox_collector_clear(struct outbox_collector *c)
{
    ob_collector_cut(c, 0);
}

void outbox_collector_free(struct outbox_collector *c)
{
    if (!c)
        return;
    ob_collector_cut(c, 0);
    free(c->of);
    free(c);
}

/* Copies with a NUL; NULL stays NULL. */
static const char *put(char **at, const char *from, size_t n)
{
    char *to = *at;

    if (!from)
        return NULL;
    if (n)
        memcpy(to, from, n);
    to[n] = '\0';
    *at = to + n + 1;
    return to;
}

static size_t room(const char *z)
{
    return z ? strlen(z) + 1 : 0;
}

/* row: the event as it was checked; its payload has its size. */
static struct raised *copy(const struct outbox_event *e, const struct ob_row *row, const char *id)
{
    const char *const *const from[] = {&e->type,    &e->aggregate_type, &e->aggregate_id,
                                       &e->key,     &e->tenant,         &e->topic,
                                       &e->headers, &e->metadata};
    size_t n = room(id) + row->payload.n + 1;
    struct raised *r;
    char *at;

    for (size_t i = 0; i < sizeof(from) / sizeof(from[0]); i++)
        n += room(*from[i]);
    r = calloc(1, sizeof(*r) + n);
    if (!r)
        return NULL;
    const char **const to[] = {&r->event.type,    &r->event.aggregate_type, &r->event.aggregate_id,
                               &r->event.key,     &r->event.tenant,         &r->event.topic,
                               &r->event.headers, &r->event.metadata};
    at = r->bytes;
    r->size = sizeof(*r) + n;
    for (size_t i = 0; i < sizeof(from) / sizeof(from[0]); i++)
        *to[i] = put(&at, *from[i], *from[i] ? strlen(*from[i]) : 0);
    r->event.id = put(&at, id, strlen(id));
    r->event.payload = put(&at, row->payload.p, row->payload.n);
    r->event.payload_size = row->payload.n;
    r->event.payload_kind = e->payload_kind;
    r->event.max_attempts = e->max_attempts;
    r->entity_version = row->entity_version;
    r->schema_version = row->schema_version;
    r->event.entity_version = e->entity_version ? &r->entity_version : NULL;
    r->event.schema_version = e->schema_version ? &r->schema_version : NULL;
    return r;
}

static enum ob_status add(struct outbox_collector *c, struct raised *r, struct ob_err *err)
{
    if (c->n == EVENTS_MAX || c->bytes + r->size > BYTES_MAX)
        return ob_err_set(err, OB_REJECT, "the collector is full: %zu events, %zu bytes", c->n,
                          c->bytes);
    if (c->n == c->cap) {
        size_t cap = c->cap ? 2 * c->cap : 16;
        struct raised **of = realloc(c->of, cap * sizeof(*of));
        if (!of)
            return ob_err_set(err, OB_DOWN, "no memory");
        c->of = of;
        c->cap = cap;
    }
    c->of[c->n++] = r;
    c->bytes += r->size;
    return OB_OK;
}

enum outbox_status outbox_collector_raise(struct outbox_collector *c,
                                          const struct outbox_event *event, char *id,
                                          struct outbox_error *err)
{
    struct ob_err why = {.text = ""};
    struct ob_row row;
    struct raised *r = NULL;
    char made[OB_UUID_TEXT];
    enum ob_status st = ob_produce_row(NULL, event, NULL, &row, &why);

    if (st == OB_OK) {
        ob_uuid7_text(made);
        r = copy(event, &row, event->id && *event->id ? event->id : made);
        st = r ? add(c, r, &why) : ob_err_set(&why, OB_DOWN, "no memory");
    }
    if (st != OB_OK)
        free(r);
    else if (id)
        memcpy(id, r->event.id, strlen(r->event.id) + 1);
    return ob_produce_give(st, &why, err);
}
