/* SPDX-License-Identifier: Apache-2.0 */
/* declare - exchange and queues: made, or looked for, on a channel of their own. */
#include "config/node.h"
#include "sink/rabbitmq/rabbit.h"

#include <stdio.h>
#include <stdlib.h>

static enum ob_status keys(struct ob_sink *s, const struct ob_node *v, struct rabbit_queue *q,
                           struct ob_err *err)
{
    if (v->kind != OB_NODE_LIST)
        return ob_node_err(&v->pos, err, "bind: a list of routing keys is needed");
    q->keys = ob_arena_zalloc(s->arena, (v->n + 1) * sizeof(*q->keys));
    if (!q->keys)
        return ob_err_set(err, OB_DOWN, "not enough memory for `queues`");
    for (size_t i = 0; i < v->n; i++) {
        if (v->items[i]->kind != OB_NODE_SCALAR)
            return ob_node_err(&v->items[i]->pos, err, "bind: text is needed");
        q->keys[q->n_keys++] = v->items[i]->text;
    }
    return OB_OK;
}

static enum ob_status field(struct ob_sink *s, const char *key, const struct ob_node *v,
                            struct rabbit_queue *q, struct ob_err *err)
{
    bool text = v->kind == OB_NODE_SCALAR;
    if (strcmp(key, "bind") == 0)
        return keys(s, v, q, err);
    if (strcmp(key, "name") == 0 && text && *v->text)
        q->name = v->text;
    else if (strcmp(key, "exchange") == 0 && text)
        q->exchange = v->text;
    else if (strcmp(key, "type") == 0 && text &&
             (strcmp(v->text, "classic") == 0 || strcmp(v->text, "quorum") == 0))
        q->type = v->text;
    else if (strcmp(key, "max_length") == 0 && text && strtoll(v->text, NULL, 10) > 0)
        q->max_length = strtoll(v->text, NULL, 10);
    else
        return ob_node_err(&v->pos, err,
                           "a queue has name, bind (a list of routing keys), exchange, type "
                           "(classic|quorum), max_length; not this \"%s\"",
                           key);
    return OB_OK;
}

enum ob_status ob_rabbit_queues_load(const struct ob_sink_rabbit_conf *c, struct ob_sink *s,
                                     struct ob_err *err)
{
    const struct ob_node *list = c->queues;
    if (!list || ob_node_is_null(list))
        return OB_OK;
    if (list->kind != OB_NODE_LIST)
        return ob_node_err(&list->pos, err, "queues: a list of queues is needed");
    s->queues = ob_arena_zalloc(s->arena, (list->n + 1) * sizeof(*s->queues));
    if (!s->queues)
        return ob_err_set(err, OB_DOWN, "not enough memory for `queues`");
    for (size_t i = 0; i < list->n; i++) {
        const struct ob_node *n = list->items[i];
        struct rabbit_queue *q = &s->queues[s->n_queues++];
        if (n->kind != OB_NODE_MAP)
            return ob_node_err(&n->pos, err, "a queue is a map with name and bind");
        for (size_t k = 0; k < n->n; k++) {
            enum ob_status st = field(s, n->keys[k], n->items[k], q, err);
            if (st != OB_OK)
                return st;
        }
        if (!q->name)
            return ob_node_err(&n->pos, err, "a queue needs a name");
    }
    return OB_OK;
}

enum ob_status ob_rabbit_queues_valid(const struct ob_sink_rabbit_conf *c, struct ob_err *err)
{
    struct ob_sink s = {.conf = c, .arena = ob_arena_new(4096, 1 << 20)};
    enum ob_status st = s.arena ? ob_rabbit_queues_load(c, &s, err)
                                : ob_err_set(err, OB_DOWN, "not enough memory for `queues`");
    ob_arena_unref(s.arena);
    return st;
}

/* The channel aside, open. A refused question closes it: the next one opens it anew. */
static bool aside(amqp_connection_state_t conn, char why[300])
{
    amqp_channel_open(conn, RABBIT_ASIDE);
    amqp_rpc_reply_t r = amqp_get_rpc_reply(conn);
    if (r.reply_type != AMQP_RESPONSE_NORMAL)
        ob_rabbit_reply(&r, why, 300);
    return r.reply_type == AMQP_RESPONSE_NORMAL;
}

/* Whether the last question was answered well; ends the channel either way. */
static enum rabbit_answer answer(amqp_connection_state_t conn, char why[300])
{
    amqp_rpc_reply_t r = amqp_get_rpc_reply(conn);
    if (r.reply_type == AMQP_RESPONSE_NORMAL) {
        r = amqp_channel_close(conn, RABBIT_ASIDE, AMQP_REPLY_SUCCESS);
        if (r.reply_type == AMQP_RESPONSE_NORMAL)
            return RABBIT_YES;
    }
    ob_rabbit_reply(&r, why, 300);
    if (r.reply_type != AMQP_RESPONSE_SERVER_EXCEPTION || r.reply.id != AMQP_CHANNEL_CLOSE_METHOD)
        return RABBIT_LOST;
    amqp_channel_close_ok_t ok = {0};
    int rc = amqp_send_method(conn, RABBIT_ASIDE, AMQP_CHANNEL_CLOSE_OK_METHOD, &ok);
    return rc == AMQP_STATUS_OK ? RABBIT_NO : RABBIT_LOST;
}

static enum rabbit_answer declare_exchange(amqp_connection_state_t conn, const char *name,
                                           const char *type, bool passive, bool durable,
                                           char why[300])
{
    if (!aside(conn, why))
        return RABBIT_LOST;
    amqp_exchange_declare(conn, RABBIT_ASIDE, amqp_cstring_bytes(name), amqp_cstring_bytes(type),
                          passive, durable, 0, 0, amqp_empty_table);
    return answer(conn, why);
}

enum rabbit_answer ob_rabbit_exchange_is(amqp_connection_state_t conn, const char *name,
                                         char why[300])
{
    return declare_exchange(conn, name, "topic", true, true, why);
}

enum rabbit_answer ob_rabbit_make_exchange(struct ob_sink *s, amqp_connection_state_t conn,
                                           bool create, char why[300])
{
    return declare_exchange(conn, s->conf->exchange, s->conf->exchange_type, !create,
                            s->conf->durable, why);
}

static enum rabbit_answer bind_keys(struct ob_sink *s, amqp_connection_state_t conn,
                                    const struct rabbit_queue *q, char why[300])
{
    const char *exchange = q->exchange ? q->exchange : s->conf->exchange;
    enum rabbit_answer a = RABBIT_YES;
    if (!exchange || !*exchange || ob_rabbit_is_refused(s, exchange))
        return RABBIT_YES; /* that is another's exchange: bound when it is ours */
    for (size_t i = 0; i < q->n_keys && a == RABBIT_YES; i++) {
        if (!aside(conn, why))
            return RABBIT_LOST;
        amqp_queue_bind(conn, RABBIT_ASIDE, amqp_cstring_bytes(q->name),
                        amqp_cstring_bytes(exchange), amqp_cstring_bytes(q->keys[i]),
                        amqp_empty_table);
        a = answer(conn, why);
    }
    return a;
}

static amqp_table_entry_t text_entry(const char *key, const char *text)
{
    return (amqp_table_entry_t){
        .key = amqp_cstring_bytes(key),
        .value = {.kind = AMQP_FIELD_KIND_UTF8, .value = {.bytes = amqp_cstring_bytes(text)}}};
}

enum rabbit_answer ob_rabbit_make_queue(amqp_connection_state_t conn, const struct rabbit_queue *q,
                                        bool create, char why[300])
{
    amqp_table_entry_t args[3];
    amqp_table_t table = {0, args};
    if (q->type)
        args[table.num_entries++] = text_entry("x-queue-type", q->type);
    if (q->max_length > 0) {
        args[table.num_entries++] = (amqp_table_entry_t){
            .key = amqp_cstring_bytes("x-max-length"),
            .value = {.kind = AMQP_FIELD_KIND_I64, .value = {.i64 = q->max_length}}};
        /* drop-head would discard messages that were confirmed */
        args[table.num_entries++] = text_entry("x-overflow", "reject-publish");
    }
    if (!aside(conn, why))
        return RABBIT_LOST;
    amqp_queue_declare(conn, RABBIT_ASIDE, amqp_cstring_bytes(q->name), !create, 1, 0, 0, table);
    return answer(conn, why);
}

/* The server asks for the right to write to the destination first; a binding that is not there may
 * be removed by whoever has it, and nothing changes. */
enum rabbit_answer ob_rabbit_may_write(amqp_connection_state_t conn, const char *name,
                                       char why[300])
{
    if (!aside(conn, why))
        return RABBIT_LOST;
    amqp_exchange_unbind(conn, RABBIT_ASIDE, amqp_cstring_bytes(name),
                         amqp_cstring_bytes("amq.topic"),
                         amqp_cstring_bytes("outbox.check.no-such-binding"), amqp_empty_table);
    enum rabbit_answer a = answer(conn, why);
    char quoted[300]; /* and not a part of the other one's name */
    snprintf(quoted, sizeof(quoted), "'%s'", name);
    if (a == RABBIT_NO && (strncmp(why, "403", 3) != 0 || !strstr(why, quoted)))
        a = RABBIT_YES; /* it cannot be known: the first publish tells */
    return a;
}

enum rabbit_answer ob_rabbit_may_publish(amqp_connection_state_t conn, const char *name,
                                         const char *key, char why[300])
{
    if (!aside(conn, why))
        return RABBIT_LOST;
    if (!amqp_tx_select(conn, RABBIT_ASIDE))
        return answer(conn, why);
    int rc = amqp_basic_publish(conn, RABBIT_ASIDE, amqp_cstring_bytes(name),
                                amqp_cstring_bytes(key), 0, 0, NULL, amqp_empty_bytes);
    if (rc != AMQP_STATUS_OK) {
        snprintf(why, 300, "%s", amqp_error_string2(rc));
        return RABBIT_LOST;
    }
    amqp_tx_rollback(conn, RABBIT_ASIDE);
    return answer(conn, why);
}

void ob_rabbit_declare_queues(struct ob_sink *s, amqp_connection_state_t conn, bool create,
                              void (*told)(void *user, bool ok, const char *what), void *user)
{
    char why[300], more[300], what[500];
    enum rabbit_answer a = RABBIT_YES;
    for (size_t i = 0; i < s->n_queues && a != RABBIT_LOST; i++) {
        snprintf(why, sizeof(why), "is there");
        a = ob_rabbit_make_queue(conn, &s->queues[i], create, why);
        if (create && a != RABBIT_LOST) {
            enum rabbit_answer bound = bind_keys(s, conn, &s->queues[i], more);
            if (bound != RABBIT_YES && a == RABBIT_YES)
                snprintf(why, sizeof(why), "%s", more);
            a = bound != RABBIT_YES ? bound : a;
        }
        snprintf(what, sizeof(what), "queue %.100s: %s", s->queues[i].name, why);
        told(user, a == RABBIT_YES, what);
    }
}
