/* SPDX-License-Identifier: Apache-2.0 */
/* check - whether the server, the exchange and the queues are as the sink needs them. */
#include "sink/rabbitmq/rabbit.h"

#include <stdio.h>

/* What the server names in quotes behind a word of its refusal; or the word for it. */
static void named(const char *why, const char *behind, const char *otherwise, char out[100])
{
    const char *from = strstr(why, behind);
    from = from ? from + strlen(behind) : NULL;
    const char *to = from ? strchr(from, '\'') : NULL;
    if (to)
        snprintf(out, 100, "%.*s", (int)(to - from), from);
    else
        snprintf(out, 100, "%s", otherwise);
}

/* A right that is missing. Both commands replace what the user has now. */
static const char *grant(const char *what, char fix[600])
{
    char user[100], vhost[100], exchange[100], key[100];
    named(what, "for user '", "USER", user);
    named(what, "in vhost '", "VHOST", vhost);
    named(what, "exchange '", "EXCHANGE", exchange);
    named(what, "access to topic '", "", key);
    if (*key)
        snprintf(fix, 600,
                 "rabbitmqctl set_topic_permissions -p '%s' '%s' '%s' WRITE READ, where WRITE "
                 "matches %s (list_user_topic_permissions shows what it is now)",
                 vhost, user, exchange, key);
    else
        snprintf(fix, 600,
                 "rabbitmqctl set_permissions -p '%s' '%s' CONFIGURE WRITE READ, where WRITE "
                 "matches %s%s (list_user_permissions shows what it is now)",
                 vhost, user, exchange,
                 strcmp(exchange, "amq.default") == 0 ? ", as the default exchange is called" : "");
    return fix;
}

static void tell(void *user, bool ok, const char *what)
{
    const struct ob_sink_env *env = user;
    const char *fix = "make it, or set `declare: create`";
    char rights[600];
    if (strstr(what, "written to: 403"))
        fix = grant(what, rights);
    else if (strstr(what, ": 403"))
        fix = "give the user rights on it (rabbitmqctl set_permissions)";
    else if (strstr(what, ": 406") && strncmp(what, "queue", 5) == 0)
        fix = "it is there with other properties: make it anew, or change what `queues` says";
    else if (strstr(what, ": 406"))
        fix = "it is there with other properties: make it anew, or change `exchange_type` or "
              "`durable`; its events would wait";
    else if (strstr(what, " of a route: "))
        fix = "make it, or name it as the sink's `exchange`: `declare: create` makes only that "
              "one; its events would wait";
    else if (strncmp(what, "no answer", 9) == 0)
        fix = "rabbitmqctl status shows alarms: while there is one, nothing is taken";
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

/* Says what is wrong, if anything is. False: the connection is of no use any more. */
static bool check_write(const struct ob_sink_env *env, enum rabbit_answer a, const char *where,
                        const char *why)
{
    char what[600];
    if (a == RABBIT_LOST)
        snprintf(what, sizeof(what), "no answer for %.200s: %s", where, why);
    else if (strncmp(why, "403", 3) == 0)
        snprintf(what, sizeof(what), "%.200s: it must not be written to: %s", where, why);
    else
        snprintf(what, sizeof(what), "%.200s: %s", where, why);
    if (a != RABBIT_YES)
        tell((void *)env, false, what);
    return a != RABBIT_LOST;
}

/* With `declare: create` what is there is declared once more, which changes nothing: the server
 * compares. *usable: it is there, and is ours to write to. */
static bool check_exchange(struct ob_sink *s, const struct ob_sink_env *env, bool *usable)
{
    char why[300] = "is there", where[120], what[500];
    const char *exchange = s->conf->exchange;
    *usable = false;
    if (!exchange || !*exchange)
        return !env->streamless ||
               check_write(env, ob_rabbit_may_publish(s->conn, "", "outbox.check", why),
                           "the default exchange", why);
    snprintf(where, sizeof(where), "exchange %.100s", exchange);
    enum rabbit_answer a = ob_rabbit_make_exchange(s, s->conn, false, why);
    bool later = will_be_made(s, &a, why);
    if (a == RABBIT_YES && !later && s->conf->declare == OB_RABBIT_DECLARE_CREATE)
        a = ob_rabbit_make_exchange(s, s->conn, true, why);
    snprintf(what, sizeof(what), "%s: %s", where, why);
    tell((void *)env, a == RABBIT_YES, what);
    if (a != RABBIT_YES || later)
        return a != RABBIT_LOST;
    a = ob_rabbit_may_write(s->conn, exchange, why);
    *usable = a == RABBIT_YES;
    return check_write(env, a, where, why);
}

/* Exchanges that routes name; those in use are marked. Only the sink's own is ever made by us. */
static bool check_streams(struct ob_sink *s, const struct ob_sink_env *env, bool *usable)
{
    bool there = true;
    for (size_t i = 0; i < env->n_streams && there; i++) {
        char why[300] = "", where[140], what[160];
        const char *name = env->streams[i];
        if (strcmp(name, s->conf->exchange) == 0)
            continue;
        snprintf(where, sizeof(where), "exchange %.100s of a route", name);
        enum rabbit_answer a = ob_rabbit_exchange_is(s->conn, name, why);
        if (a == RABBIT_YES)
            a = ob_rabbit_may_write(s->conn, name, why);
        usable[i] = a == RABBIT_YES;
        snprintf(what, sizeof(what), "%s: is there", where);
        if (usable[i])
            tell((void *)env, true, what);
        there = check_write(env, a, where, why);
    }
    return there;
}

/* Routing keys that are known before there is an event: what topic permissions forbid. On the
 * default exchange every routing key is as good as another. own: that of the sink can be used;
 * usable: those of routes. */
static bool check_keys(const struct ob_sink *s, const struct ob_sink_env *env, bool own,
                       const bool *usable)
{
    bool there = true;
    for (size_t i = 0; i < env->n_places && there; i++) {
        char why[300], where[220], what[300];
        const struct ob_place *p = &env->places[i];
        const char *exchange = p->stream ? p->stream : s->conf->exchange;
        bool can = own && strcmp(exchange, s->conf->exchange) == 0;
        for (size_t k = 0; p->stream && k < env->n_streams; k++)
            can = can || (usable[k] && strcmp(p->stream, env->streams[k]) == 0);
        if (!can || strlen(p->topic) > 255)
            continue;
        snprintf(where, sizeof(where), "routing key %.90s of exchange %.90s", p->topic, exchange);
        enum rabbit_answer a = ob_rabbit_may_publish(s->conn, exchange, p->topic, why);
        snprintf(what, sizeof(what), "%s: this user may publish with it", where);
        if (a == RABBIT_YES)
            tell((void *)env, true, what);
        there = check_write(env, a, where, why);
    }
    return there;
}

static bool check_queues(const struct ob_sink *s, const struct ob_sink_env *env)
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
    return a != RABBIT_LOST;
}

/* False: the connection is of no use any more. */
static bool check_all(struct ob_sink *s, const struct ob_sink_env *env)
{
    bool own = false, *usable = ob_arena_alloc(s->arena, env->n_streams + 1);
    if (!usable)
        return true;
    memset(usable, 0, env->n_streams + 1);
    return check_exchange(s, env, &own) && check_streams(s, env, usable) && check_queues(s, env) &&
           check_keys(s, env, own, usable);
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
        s.broken = !one && !check_all(&s, env);
        one = true;
        ob_rabbit_disconnect(&s);
    }
    if (st == OB_OK && !one)
        st = OB_DOWN;
    ob_arena_unref(s.arena);
    return st;
}
