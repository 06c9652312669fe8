/* SPDX-License-Identifier: Apache-2.0 */
/* confirm - what comes back: acks and nacks (multiple, out of order), returns, a channel that was
 * closed, a connection that is blocked. */
#include "sink/rabbitmq/rabbit.h"

#include <stdio.h>
#include <stdlib.h>

#define FRAMES_AT_ONCE 4096

static struct rabbit_sent *entry(struct ob_sink *s, uint64_t tag)
{
    return &s->sent[tag & (s->n_sent - 1)];
}

static void acked(struct ob_sink *s, const struct rabbit_sent *e)
{
    size_t at = e->dest % RABBIT_SEEN;
    if (s->confirmed[at].dest != e->dest || s->confirmed[at].tag < e->tag) {
        s->confirmed[at].dest = e->dest;
        s->confirmed[at].tag = e->tag;
    }
    if (e->returned && s->conf->unroutable != OB_RABBIT_DELIVER)
        ob_pump_done(s->pump, e->ticket,
                     s->conf->unroutable == OB_RABBIT_REJECT ? OB_V_REJECT : OB_V_RETRY,
                     s->return_text[0] ? s->return_text : "unroutable: no queue is bound for it");
    else
        ob_pump_done(s->pump, e->ticket, OB_V_DELIVERED, NULL);
}

/* Something of the same routing key was taken after it: then it is this message. */
static void nacked(struct ob_sink *s, const struct rabbit_sent *e)
{
    size_t at = e->dest % RABBIT_SEEN;
    bool others = s->confirmed[at].dest == e->dest && s->confirmed[at].tag > e->tag;
    ob_pump_done(s->pump, e->ticket, others ? OB_V_RETRY : OB_V_BLOCKED,
                 others ? "RabbitMQ refused it (nack) and took a later one of its routing key"
                        : "RabbitMQ refused it (nack): a queue is full or cannot store it");
}

void ob_rabbit_confirm(struct ob_sink *s, uint64_t tag, bool multiple, bool ok)
{
    /* A tag of 0 with multiple means all. */
    uint64_t last = multiple && tag == 0 ? s->next - 1 : tag;
    for (uint64_t t = multiple ? s->low : tag; t <= last && t < s->next; t++) {
        struct rabbit_sent *e = entry(s, t);
        if (!e->live || e->tag != t)
            continue;
        e->live = false;
        if (ok)
            acked(s, e);
        else
            nacked(s, e);
    }
    while (s->low < s->next && !entry(s, s->low)->live)
        s->low++;
}

/* A return comes before the confirm of its message and has its id. */
static void returned(struct ob_sink *s, amqp_bytes_t id)
{
    uint64_t hash = ob_rabbit_hash((struct ob_str){id.bytes, id.len});
    for (uint64_t t = s->low; t < s->next; t++) {
        struct rabbit_sent *e = entry(s, t);
        if (!e->live || e->returned || e->id_hash != hash)
            continue;
        e->returned = true;
        size_t at = e->dest % RABBIT_SEEN;
        if (s->conf->unroutable == OB_RABBIT_DELIVER && s->unroutable[at] != e->dest) {
            s->unroutable[at] = e->dest;
            ob_log(s->env.log, OB_LOG_INFO, "sink.rabbitmq.unroutable",
                   OB_KC("what", s->return_text));
        }
        return;
    }
}

static void begin_return(struct ob_sink *s, const amqp_basic_return_t *r)
{
    s->returning = true;
    snprintf(s->return_text, sizeof(s->return_text),
             "unroutable: no queue is bound to exchange %.*s for routing key %.*s",
             (int)(r->exchange.len < 60 ? r->exchange.len : 60), (const char *)r->exchange.bytes,
             (int)(r->routing_key.len < 60 ? r->routing_key.len : 60),
             (const char *)r->routing_key.bytes);
}

/* ---- a closed channel ---- */

/* The text between the first pair of quotes. */
static struct ob_str quoted(const char *text)
{
    const char *from = strchr(text, '\''), *to = from ? strchr(from + 1, '\'') : NULL;
    return to ? (struct ob_str){from + 1, (size_t)(to - from - 1)} : (struct ob_str){0};
}

/* Each that has no confirm: blocked if it is for the exchange in question, rejected if it is what
 * was too large, else given back, because the server threw away what came behind. */
static void end_all(struct ob_sink *s, int code, const char *why)
{
    struct ob_str exchange = code == 404 || code == 403 ? quoted(why) : (struct ob_str){0};
    uint64_t hash = exchange.n > 0 ? ob_rabbit_hash(exchange) : 0, n = 0;
    const char *size = strstr(why, "max size ");
    if (size)
        s->server_max = strtoull(size + 9, NULL, 10);
    for (uint64_t t = s->low; t < s->next; t++)
        n += entry(s, t)->live;
    for (uint64_t t = s->low; t < s->next; t++) {
        struct rabbit_sent *e = entry(s, t);
        if (!e->live)
            continue;
        enum ob_verdict v = OB_V_RETURNED;
        if (hash != 0 && e->exchange == hash)
            v = OB_V_BLOCKED;
        else if (size && s->server_max > 0 && e->size > s->server_max)
            v = OB_V_REJECT;
        else if (hash == 0 && !size && n == 1)
            v = OB_V_RETRY; /* it was alone: it is the one */
        e->live = false;
        ob_pump_done(s->pump, e->ticket, v, why);
    }
    if (exchange.n > 0)
        ob_rabbit_refuse(s, exchange, code == 404, why);
    else if (!size)
        s->alone = n; /* one at a time tells which */
}

static enum ob_status channel_closed(struct ob_sink *s, const amqp_channel_close_t *c,
                                     struct ob_err *err)
{
    char why[300];
    snprintf(why, sizeof(why), "%d %.*s", c->reply_code,
             (int)(c->reply_text.len < 250 ? c->reply_text.len : 250),
             (const char *)c->reply_text.bytes);
    int code = c->reply_code;
    amqp_channel_close_ok_t ok = {0};
    ob_log(s->env.log, OB_LOG_WARN, "sink.rabbitmq.channel_closed", OB_KC("error", why));
    if (amqp_send_method(s->conn, RABBIT_CHANNEL, AMQP_CHANNEL_CLOSE_OK_METHOD, &ok) !=
        AMQP_STATUS_OK)
        return ob_err_set(err, OB_DOWN, "%s", why);
    end_all(s, code, why);
    amqp_maybe_release_buffers(s->conn);
    return ob_rabbit_channel(s, err);
}

/* ---- frames ---- */

static enum ob_status method(struct ob_sink *s, const amqp_method_t *m, struct ob_err *err)
{
    struct ob_err why;
    switch (m->id) {
    case AMQP_BASIC_ACK_METHOD: {
        const amqp_basic_ack_t *a = m->decoded;
        ob_rabbit_confirm(s, a->delivery_tag, a->multiple, true);
        return OB_OK;
    }
    case AMQP_BASIC_NACK_METHOD: {
        const amqp_basic_nack_t *a = m->decoded;
        ob_rabbit_confirm(s, a->delivery_tag, a->multiple, false);
        return OB_OK;
    }
    case AMQP_BASIC_RETURN_METHOD:
        begin_return(s, m->decoded);
        return OB_OK;
    case AMQP_CHANNEL_CLOSE_METHOD:
        return channel_closed(s, m->decoded, err);
    case AMQP_CONNECTION_BLOCKED_METHOD: {
        const amqp_connection_blocked_t *b = m->decoded;
        ob_err_set(&why, OB_DOWN, "RabbitMQ blocks publishers: %.*s", (int)b->reason.len,
                   (const char *)b->reason.bytes);
        s->broken = true; /* it reads nothing now: no polite goodbye */
        ob_pump_hold(s->pump, &why);
        return OB_OK;
    }
    case AMQP_CONNECTION_UNBLOCKED_METHOD:
        s->broken = false;
        ob_pump_unhold(s->pump);
        return OB_OK;
    case AMQP_CONNECTION_CLOSE_METHOD: {
        const amqp_connection_close_t *c = m->decoded;
        return ob_err_set(err, OB_DOWN, "RabbitMQ closed the connection: %d %.*s", c->reply_code,
                          (int)c->reply_text.len, (const char *)c->reply_text.bytes);
    }
    default:
        return OB_OK;
    }
}

static enum ob_status frame(struct ob_sink *s, const amqp_frame_t *f, struct ob_err *err)
{
    if (f->frame_type == AMQP_FRAME_METHOD)
        return method(s, &f->payload.method, err);
    if (f->frame_type == AMQP_FRAME_HEADER && s->returning) {
        const amqp_basic_properties_t *p = f->payload.properties.decoded;
        s->return_left = f->payload.properties.body_size;
        s->returning = false;
        if (p->_flags & AMQP_BASIC_MESSAGE_ID_FLAG)
            returned(s, p->message_id);
    } else if (f->frame_type == AMQP_FRAME_BODY) {
        size_t n = f->payload.body_fragment.len;
        s->return_left -= n < s->return_left ? n : s->return_left;
    }
    return OB_OK;
}

enum ob_status ob_rabbit_turn(struct ob_sink *s, struct ob_err *err)
{
    enum ob_status st = OB_OK;
    for (int i = 0; st == OB_OK && i < FRAMES_AT_ONCE; i++) {
        struct timeval none = {0};
        amqp_frame_t f;
        int rc = amqp_simple_wait_frame_noblock(s->conn, &f, &none);
        if (rc == AMQP_STATUS_TIMEOUT)
            break;
        if (rc != AMQP_STATUS_OK)
            st = ob_err_set(err, OB_DOWN, "the connection to RabbitMQ is lost: %s",
                            amqp_error_string2(rc));
        else
            st = frame(s, &f, err);
        amqp_maybe_release_buffers(s->conn);
    }
    s->broken = s->broken || st != OB_OK;
    return st;
}
