/* SPDX-License-Identifier: Apache-2.0 */
/* check - whether the server, the exchange and the queues are as the sink needs them. */
#include "sink/rabbitmq/rabbit.h"

#include <stdio.h>

static void tell(void *user, bool ok, const char *what)
{
    const struct ob_sink_env *env = user;
    const char *fix = "make it, or set `declare: create`";
    if (strstr(what, "403"))
        fix = "give the user rights on it (rabbitmqctl set_permissions)";
    else if (strstr(what, "406"))
        fix = "it is there with other properties: change it, or what is declared";
    if (env->found)
        env->found(env->found_user, ok, what, ok ? NULL : fix);
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
        if (!one)
            ob_rabbit_declare(&s, s.conn, false, tell, (void *)env);
        one = true;
        ob_rabbit_disconnect(&s);
    }
    if (st == OB_OK && !one)
        st = OB_DOWN;
    ob_arena_unref(s.arena);
    return st;
}
