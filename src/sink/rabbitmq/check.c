/* SPDX-License-Identifier: Apache-2.0 */
/* check - whether the server, the exchange and the queues are as the sink needs them. */
#include "sink/rabbitmq/rabbit.h"

#include <stdio.h>

static void tell(void *user, bool ok, const char *what)
{
    const struct ob_sink_env *env = user;
    const char *fix = "make it, or set `declare: create`";
    if (strstr(what, ": 403"))
        fix = "give the user rights on it (rabbitmqctl set_permissions)";
    else if (strstr(what, ": 406") && strncmp(what, "queue", 5) == 0)
        fix = "it is there with other properties: make it anew, or change what `queues` says";
    else if (strstr(what, ": 406"))
        fix = "it is there with other properties: make it anew, or change `exchange_type` or "
              "`durable`; its events would wait";
    if (env->found)
        env->found(env->found_user, ok, what, ok ? NULL : fix);
}

static bool will_be_made(const struct ob_sink *s, enum rabbit_answer *a, char why[300])
{
    if (*a != RABBIT_NO || s->conf->declare != OB_RABBIT_DECLARE_CREATE ||
        strncmp(why, "404", 3) != 0)
        return false;
    snprintf(why, 300, "is not there yet and will be made");
    *a = RABBIT_YES;
    return true;
}

/* With `declare: create` what is there is declared once more, which changes nothing: the server
 * compares. */
static bool check_exchange(struct ob_sink *s, const struct ob_sink_env *env)
{
    char why[300] = "is there", what[500];
    const char *exchange = s->conf->exchange;
    if (!exchange || !*exchange)
        return true;
    enum rabbit_answer a = ob_rabbit_make_exchange(s, s->conn, false, why);
    bool later = will_be_made(s, &a, why);
    if (a == RABBIT_YES && !later && s->conf->declare == OB_RABBIT_DECLARE_CREATE)
        a = ob_rabbit_make_exchange(s, s->conn, true, why);
    snprintf(what, sizeof(what), "exchange %.100s: %s", exchange, why);
    tell((void *)env, a == RABBIT_YES, what);
    if (a == RABBIT_YES && !later)
        a = ob_rabbit_may_write(s->conn, exchange, why);
    if (a == RABBIT_NO && strncmp(why, "403", 3) == 0) {
        snprintf(what, sizeof(what), "exchange %.100s: it must not be written to: %s", exchange,
                 why);
        tell((void *)env, false, what);
    }
    return a != RABBIT_LOST;
}

/* Exchanges that routes name. Only the sink's own is ever made by us. */
static bool check_streams(struct ob_sink *s, const struct ob_sink_env *env)
{
    enum rabbit_answer a = RABBIT_YES;
    for (size_t i = 0; i < env->n_streams && a != RABBIT_LOST; i++) {
        char why[300] = "is there", what[500];
        const char *name = env->streams[i];
        if (s->conf->exchange && strcmp(name, s->conf->exchange) == 0)
            continue;
        a = ob_rabbit_exchange_is(s->conn, name, why);
        if (a == RABBIT_YES)
            a = ob_rabbit_may_write(s->conn, name, why);
        snprintf(what, sizeof(what), "exchange %.100s of a route: %s", name, why);
        if (env->found)
            env->found(env->found_user, a == RABBIT_YES, what,
                       a == RABBIT_YES ? NULL
                       : strncmp(why, "403", 3) == 0
                           ? "give the user rights on it (rabbitmqctl set_permissions)"
                           : "make it, or name it as the sink's `exchange`: `declare: create` "
                             "makes only that one; its events would wait");
    }
    return a != RABBIT_LOST;
}

static void check_queues(const struct ob_sink *s, const struct ob_sink_env *env)
{
    enum rabbit_answer a = RABBIT_YES;
    for (size_t i = 0; i < s->n_queues && a != RABBIT_LOST; i++) {
        char why[300] = "is there", what[500];
        a = ob_rabbit_make_queue(s->conn, &s->queues[i], false, why);
        if (!will_be_made(s, &a, why) && a == RABBIT_YES &&
            s->conf->declare == OB_RABBIT_DECLARE_CREATE)
            a = ob_rabbit_make_queue(s->conn, &s->queues[i], true, why);
        snprintf(what, sizeof(what), "queue %.100s: %s", s->queues[i].name, why);
        tell((void *)env, a == RABBIT_YES, what);
    }
}

enum ob_status ob_rabbit_check(const struct ob_sink_env *env, const void *conf, struct ob_err *err)
{
    const struct ob_sink_rabbit_conf *c = conf;
    struct ob_sink s = {.conf = c, .arena = ob_arena_new(4096, 1 << 20)};
    unsigned n = 1;
    enum ob_status st =
        s.arena ? ob_rabbit_queues_load(c, &s, err) : ob_err_set(err, OB_FATAL, "no memory");
    bool one = false;
    for (unsigned i = 0; st == OB_OK && i < n; i++) {
        struct ob_err why = {.text = ""};
        enum ob_status dialled = ob_rabbit_dial(c, i, &n, &s.conn, &why);
        if (dialled != OB_OK) { /* the last one is what the caller tells */
            *err = why;
            if (n > 1 && env->found)
                env->found(env->found_user, false, why.text, "see that this host is there");
            continue;
        }
        if (env->found)
            env->found(env->found_user, true, "connected and logged in", NULL);
        if (!one && check_exchange(&s, env) && check_streams(&s, env))
            check_queues(&s, env);
        one = true;
        ob_rabbit_disconnect(&s);
    }
    if (st == OB_OK && !one)
        st = OB_DOWN;
    ob_arena_unref(s.arena);
    return st;
}
