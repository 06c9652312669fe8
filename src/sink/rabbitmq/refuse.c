/* SPDX-License-Identifier: Apache-2.0 */
/* refuse - exchanges, and routing keys of them, that the server does not let us write to now. They
 * are asked for beside the traffic: a publish to one closes the channel, and with it go the
 * confirms of all others. */
#include "sink/rabbitmq/rabbit.h"

#include <stdio.h>

/* What was refused is asked for again after so long. */
#define REFUSED_MS 1000

static bool is_own(const struct ob_sink *s, struct ob_str exchange)
{
    return s->conf->declare == OB_RABBIT_DECLARE_CREATE && exchange.n > 0 &&
           ob_str_eqc(exchange, s->conf->exchange);
}

void ob_rabbit_refuse(struct ob_sink *s, struct ob_str exchange, const struct ob_str *key,
                      const struct ob_str *tried, const char *why)
{
    struct rabbit_refused *r = &s->refused[0];
    if (s->n_refused < RABBIT_REFUSED)
        r = &s->refused[s->n_refused++];
    else /* the one that was looked at longest ago makes place */
        for (size_t i = 1; i < RABBIT_REFUSED; i++)
            if (s->refused[i].until_ms < r->until_ms)
                r = &s->refused[i];
    *r = (struct rabbit_refused){.exchange = ob_rabbit_hash(exchange),
                                 .key = key ? ob_rabbit_hash(*key) : 0,
                                 .until_ms = ob_pump_now_ms() + REFUSED_MS};
    if (strncmp(why, "404", 3) == 0)
        r->again = is_own(s, exchange) ? RABBIT_MAKE : RABBIT_LOOK;
    else if (strncmp(why, "406", 3) == 0)
        r->again = RABBIT_MAKE;
    else
        r->again = tried || exchange.n == 0 ? RABBIT_TRY : RABBIT_WRITE;
    snprintf(r->name, sizeof(r->name), "%.*s", OB_STR_ARG(exchange));
    snprintf(r->key_name, sizeof(r->key_name), "%.*s", tried ? (int)tried->n : 0,
             tried ? tried->p : "");
    snprintf(r->why, sizeof(r->why), "%s", why);
    ob_rabbit_forget(&s->known, r->exchange);
    ob_log(s->env.log, OB_LOG_WARN, "sink.rabbitmq.refused", OB_KS("exchange", exchange),
           OB_KC("error", why));
}

bool ob_rabbit_is_refused(const struct ob_sink *s, const char *exchange)
{
    uint64_t hash = ob_rabbit_hash(ob_str_c(exchange));
    for (size_t i = 0; i < s->n_refused; i++)
        if (s->refused[i].exchange == hash && s->refused[i].key == 0)
            return true;
    return false;
}

static void log_queue(void *user, bool ok, const char *what)
{
    const struct ob_sink *s = user;
    if (!ok)
        ob_log(s->env.log, OB_LOG_WARN, "sink.rabbitmq.declare", OB_KC("error", what));
}

/* Whether it may be used now. */
static enum rabbit_answer ask(struct ob_sink *s, const struct rabbit_refused *r, char why[300])
{
    switch (r->again) {
    case RABBIT_MAKE:
        return ob_rabbit_make_exchange(s, s->conn, true, why);
    case RABBIT_LOOK:
        return ob_rabbit_exchange_is(s->conn, r->name, why);
    case RABBIT_WRITE:
        return ob_rabbit_may_write(s->conn, r->name, why);
    default:
        return ob_rabbit_may_publish(s->conn, r->name, r->key_name, why);
    }
}

/* The first message of an exchange on this connection. */
static enum rabbit_answer look(struct ob_sink *s, struct ob_str exchange, uint64_t hash,
                               char why[300])
{
    char name[256];
    snprintf(name, sizeof(name), "%.*s", OB_STR_ARG(exchange));
    enum rabbit_answer a = ob_rabbit_exchange_is(s->conn, name, why);
    if (a == RABBIT_YES || (a == RABBIT_NO && strncmp(why, "403", 3) == 0))
        a = ob_rabbit_may_write(s->conn, name, why); /* it needs no right to look */
    if (a == RABBIT_NO)
        ob_rabbit_refuse(s, exchange, NULL, NULL, why);
    else
        ob_rabbit_learn(&s->known, hash);
    return a;
}

enum rabbit_answer ob_rabbit_may_send(struct ob_sink *s, const struct ob_msg *m,
                                      struct ob_str exchange, uint64_t hash, char why[300])
{
    uint64_t key = s->n_refused > 0 ? ob_rabbit_hash(m->topic) : 0;
    for (size_t i = 0; i < s->n_refused; i++) {
        struct rabbit_refused *r = &s->refused[i];
        if (r->exchange != hash || (r->key != 0 && r->key != key))
            continue;
        int64_t now = ob_pump_now_ms();
        enum rabbit_answer a = RABBIT_NO;
        if (now >= r->until_ms)
            a = ask(s, r, why);
        if (a == RABBIT_LOST)
            return a;
        if (a == RABBIT_YES) {
            bool made = r->again == RABBIT_MAKE;
            *r = s->refused[--s->n_refused];
            if (made) /* bindings go with an exchange */
                ob_rabbit_declare_queues(s, s->conn, true, log_queue, s);
            i = SIZE_MAX; /* another one may be about it too: from the first again */
            continue;
        }
        if (now >= r->until_ms)
            r->until_ms = now + REFUSED_MS;
        snprintf(why, 300, "%s", r->why);
        return RABBIT_NO;
    }
    if (exchange.n == 0 || ob_rabbit_knows(&s->known, hash))
        return RABBIT_YES;
    return look(s, exchange, hash, why);
}
