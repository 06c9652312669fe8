/* SPDX-License-Identifier: Apache-2.0 */
/* confirm - what comes back: acks and nacks (multiple, out of order), returns, a channel that was
 * closed, a connection that is blocked. */
#include "sink/rabbitmq/rabbit.h"

#include <stdio.h>
#include <stdlib.h>

#define FRAMES_AT_ONCE 4096

void ob_rabbit_tell(struct ob_sink *s)
{
    if (s->n_taken > 0)
        ob_pump_delivered(s->pump, s->taken, s->n_taken);
    s->n_taken = 0;
}

static void acked(struct ob_sink *s, const struct rabbit_sent *e)
{
    size_t at = e->dest % RABBIT_SEEN;
    if (s->confirmed[at].dest != e->dest || s->confirmed[at].tag < e->tag) {
        s->confirmed[at].dest = e->dest;
        s->confirmed[at].tag = e->tag;
    }
    if (e->returned) {
        static const enum ob_verdict meanings[] = {[OB_RABBIT_REJECT] = OB_V_REJECT,
                                                   [OB_RABBIT_RETRY] = OB_V_RETRY,
                                                   [OB_RABBIT_DELIVER] = OB_V_DELIVERED};
        size_t i = e->tag % RABBIT_RETURNS;
        ob_rabbit_tell(s);
        ob_pump_done(s->pump, e->ticket, meanings[s->conf->unroutable],
                     s->returns[i].tag == e->tag ? s->returns[i].text
                                                 : "unroutable: no queue is bound for it");
    } else {
        s->taken[s->n_taken++] = e->ticket;
    }
    if (s->n_taken == RABBIT_GATHER)
        ob_rabbit_tell(s);
}

/* Something of the same routing key was taken after it: then it is this message. */
static void nacked(struct ob_sink *s, const struct rabbit_sent *e)
{
    size_t at = e->dest % RABBIT_SEEN;
    ob_rabbit_tell(s);
    bool others = s->confirmed[at].dest == e->dest && s->confirmed[at].tag > e->tag;
    ob_pump_done(s->pump, e->ticket, others ? OB_V_RETRY : OB_V_BLOCKED,
                 others ? "RabbitMQ refused it (nack) and took a later one of its routing key"
                        : "RabbitMQ refused it (nack): a queue is full or cannot store it");
}

static void confirm_one(struct ob_sink *s, struct rabbit_sent *e, bool ok)
{
    e->live = false;
    if (ok)
        acked(s, e);
    else
        nacked(s, e);
}

void ob_rabbit_confirm(struct ob_sink *s, uint64_t tag, bool multiple, bool ok)
{
    struct rabbit_sent *e;
    uint64_t at = 0;
    if (!multiple && (e = ob_rabbit_sent_at(s, tag)))
        confirm_one(s, e, ok);
    /* A tag of 0 with multiple means all. */
    while (multiple && (e = ob_rabbit_sent_next(s, &at)) && (tag == 0 || e->tag <= tag))
        confirm_one(s, e, ok);
    ob_rabbit_sent_pass(s);
}

/* Names what nobody takes once for each routing key, and says once when these become too many. */
static void name_unroutable(struct ob_sink *s, uint64_t dest)
{
    char what[100];
    size_t at = dest % RABBIT_SEEN;
    while (s->unroutable[at] != 0 && s->unroutable[at] != dest)
        at = (at + 1) % RABBIT_SEEN;
    if (s->unroutable[at] == dest || s->n_unroutable > RABBIT_SEEN / 2)
        return;
    snprintf(what, sizeof(what), "more than %d routing keys are unroutable: no more are named",
             RABBIT_SEEN / 2);
    if (s->n_unroutable++ < RABBIT_SEEN / 2)
        s->unroutable[at] = dest;
    ob_log(s->env.log, OB_LOG_INFO, "sink.rabbitmq.unroutable",
           OB_KC("what", s->unroutable[at] == dest ? s->return_text : what));
}

void ob_rabbit_returned(struct ob_sink *s, amqp_bytes_t id)
{
    uint64_t hash = ob_rabbit_hash((struct ob_str){id.bytes, id.len});
    struct rabbit_sent *e;
    for (uint64_t at = 0; (e = ob_rabbit_sent_next(s, &at));) {
        if (e->returned || e->id_hash != hash)
            continue;
        e->returned = true;
        s->returns[e->tag % RABBIT_RETURNS].tag = e->tag;
        snprintf(s->returns[e->tag % RABBIT_RETURNS].text, sizeof(s->returns[0].text), "%s",
                 s->return_text);
        if (s->conf->unroutable == OB_RABBIT_DELIVER)
            name_unroutable(s, e->dest);
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

/* What stands in quotes behind a word, up to the last thing the server says of it. */
static struct ob_str quoted(const char *text, const char *word, const char *end)
{
    const char *from = strstr(text, word), *to = from ? strstr(from + strlen(word), end) : NULL;
    return to ? (struct ob_str){from + strlen(word), (size_t)(to - from) - strlen(word)}
              : (struct ob_str){0};
}

/* Why a channel was closed, and for which messages. */
struct closing {
    struct ob_sink *s;
    int code;
    struct ob_str exchange, key; /* as the server named them; key: of one routing key only */
    struct rabbit_sent *e;       /* the next one to be judged, and where it is */
    uint64_t at;
    uint64_t n, suspects, guilty;
    bool keyed;
    char exchange_name[256], key_name[256];
};

static struct ob_str exchange_of(const struct ob_sink *s, const struct ob_msg *m)
{
    return m->stream.n > 0 ? m->stream : ob_str_c(s->conf->exchange);
}

/* One message in flight, in the order of sending. One that is the only suspect is the one. */
static void judge(void *arg, uint64_t ticket, const struct ob_msg *m)
{
    struct closing *c = arg;
    while (c->e && c->e->ticket < ticket)
        c->e = ob_rabbit_sent_next(c->s, &c->at);
    struct rabbit_sent *e = c->e;
    if (!e || e->ticket != ticket)
        return;
    struct ob_str exchange = exchange_of(c->s, m);
    bool named = c->exchange.n > 0 && ob_str_eq(exchange, c->exchange) &&
                 (!c->keyed || ob_str_eq(m->topic, c->key));
    if (!named && (c->suspects > 1 || e->cleared))
        return;
    e->guilty = true;
    c->guilty++;
    snprintf(c->exchange_name, sizeof(c->exchange_name), "%.*s", OB_STR_ARG(exchange));
    snprintf(c->key_name, sizeof(c->key_name), "%.*s", OB_STR_ARG(m->topic));
}

/* The texts of the server: "no exchange 'x' in vhost '/'", "access to exchange 'x' in vhost '/'
 * refused …", "access to topic 'k' in exchange 'x' in vhost …". Long ones are cut, and the default
 * exchange has another name there: then nothing is found here, and one at a time tells. */
static void find_guilty(struct closing *c, const char *why)
{
    struct ob_sink *s = c->s;
    if (c->code == 403 || c->code == 404) {
        c->keyed = strstr(why, "access to topic '") != NULL;
        c->exchange = quoted(why, "exchange '", "' in vhost '");
        if (c->keyed)
            c->key = quoted(why, "access to topic '", "' in exchange '");
    }
    const struct rabbit_sent *e;
    for (uint64_t at = 0; (e = ob_rabbit_sent_next(s, &at)); c->n++)
        c->suspects += !e->cleared;
    c->e = ob_rabbit_sent_next(s, &c->at);
    ob_pump_each(s->pump, judge, c);
}

/* The verdict on the one for which the channel was closed. */
static enum ob_verdict verdict(int code)
{
    if (code == 403 || code == 404)
        return OB_V_BLOCKED;
    /* The server says what cannot be in a message: it never will be taken. */
    return code == 406 ? OB_V_REJECT : OB_V_RETRY;
}

/* Each that has no confirm: the guilty one as above, rejected if it is what was too large, else
 * given back, because the server threw away what came behind. */
static void end_all(struct ob_sink *s, int code, const char *why)
{
    struct closing c = {.s = s, .code = code};
    ob_rabbit_tell(s);
    find_guilty(&c, why);
    const char *size = strstr(why, "max size ");
    if (size)
        s->server_max = strtoull(size + 9, NULL, 10);
    struct rabbit_sent *e;
    for (uint64_t at = 0; (e = ob_rabbit_sent_next(s, &at));) {
        enum ob_verdict v = e->guilty ? verdict(code) : OB_V_RETURNED;
        if (size && s->server_max > 0 && e->size > s->server_max) {
            v = OB_V_REJECT;
            c.guilty++;
        }
        e->live = false;
        ob_pump_done(s->pump, e->ticket, v, why);
    }
    if (c.guilty == 0) {
        s->alone = c.n; /* one at a time tells which */
    } else if (verdict(code) == OB_V_BLOCKED) {
        struct ob_str key = ob_str_c(c.key_name);
        ob_rabbit_refuse(s, ob_str_c(c.exchange_name), c.keyed ? &key : NULL, &key, why);
    }
}

void ob_rabbit_outlived(struct ob_sink *s)
{
    struct rabbit_sent *e;
    s->asked -= s->asked > 0;
    for (uint64_t at = 0; s->asked == 0 && (e = ob_rabbit_sent_next(s, &at));)
        e->cleared = e->cleared || e->tag <= s->asked_tag;
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
    case AMQP_BASIC_QOS_OK_METHOD:
        ob_rabbit_outlived(s);
        return OB_OK;
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
            ob_rabbit_returned(s, p->message_id);
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
    ob_rabbit_tell(s);
    s->broken = s->broken || st != OB_OK;
    return st;
}
