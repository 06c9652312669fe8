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
        return ob_err_set(err, OB_FATAL, "no memory");
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
        return ob_err_set(err, OB_FATAL, "no memory");
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
static bool said_ok(amqp_connection_state_t conn, char why[300])
{
    amqp_rpc_reply_t r = amqp_get_rpc_reply(conn);
    if (r.reply_type == AMQP_RESPONSE_NORMAL) {
        amqp_channel_close(conn, RABBIT_ASIDE, AMQP_REPLY_SUCCESS);
        return true;
    }
    ob_rabbit_reply(&r, why, 300);
    if (r.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION && r.reply.id == AMQP_CHANNEL_CLOSE_METHOD) {
        amqp_channel_close_ok_t ok = {0};
        amqp_send_method(conn, RABBIT_ASIDE, AMQP_CHANNEL_CLOSE_OK_METHOD, &ok);
    }
    return false;
}

static bool declare_exchange(amqp_connection_state_t conn, const char *name, const char *type,
                             bool passive, bool durable, char why[300])
{
    if (!aside(conn, why))
        return false;
    amqp_exchange_declare(conn, RABBIT_ASIDE, amqp_cstring_bytes(name), amqp_cstring_bytes(type),
                          passive, durable, 0, 0, amqp_empty_table);
    return said_ok(conn, why);
}

bool ob_rabbit_exchange_is(amqp_connection_state_t conn, const char *name, char why[300])
{
    return declare_exchange(conn, name, "topic", true, true, why);
}

static bool bind_keys(struct ob_sink *s, amqp_connection_state_t conn, const struct rabbit_queue *q,
                      char why[300])
{
    const char *exchange = q->exchange ? q->exchange : s->conf->exchange;
    for (size_t i = 0; exchange && *exchange && i < q->n_keys; i++) {
        if (!aside(conn, why))
            return false;
        amqp_queue_bind(conn, RABBIT_ASIDE, amqp_cstring_bytes(q->name),
                        amqp_cstring_bytes(exchange), amqp_cstring_bytes(q->keys[i]),
                        amqp_empty_table);
        if (!said_ok(conn, why))
            return false;
    }
    return true;
}

static amqp_table_entry_t text_entry(const char *key, const char *text)
{
    return (amqp_table_entry_t){
        .key = amqp_cstring_bytes(key),
        .value = {.kind = AMQP_FIELD_KIND_UTF8, .value = {.bytes = amqp_cstring_bytes(text)}}};
}

static bool declare_queue(struct ob_sink *s, amqp_connection_state_t conn,
                          const struct rabbit_queue *q, bool create, char why[300])
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
        return false;
    amqp_queue_declare(conn, RABBIT_ASIDE, amqp_cstring_bytes(q->name), !create, 1, 0, 0, table);
    return said_ok(conn, why) && (!create || bind_keys(s, conn, q, why));
}

void ob_rabbit_declare(struct ob_sink *s, amqp_connection_state_t conn, bool create,
                       void (*told)(void *user, bool ok, const char *what), void *user)
{
    char why[300], what[500];
    const char *exchange = s->conf->exchange;
    if (exchange && *exchange) {
        snprintf(why, sizeof(why), "is there");
        bool ok = declare_exchange(conn, exchange, s->conf->exchange_type, !create,
                                   s->conf->durable, why);
        snprintf(what, sizeof(what), "exchange %.100s: %s", exchange, why);
        told(user, ok, what);
    }
    for (size_t i = 0; i < s->n_queues; i++) {
        snprintf(why, sizeof(why), "is there");
        bool ok = declare_queue(s, conn, &s->queues[i], create, why);
        snprintf(what, sizeof(what), "queue %.100s: %s", s->queues[i].name, why);
        told(user, ok, what);
    }
}
