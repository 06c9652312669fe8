/* SPDX-License-Identifier: Apache-2.0 */
/* publish - one message to its subject: what NATS can carry, its headers, its own inbox. */
#include "sink/nats/nats.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#define MAX_HEADERS 65535
#define TOO_LARGE "larger than the server's max_payload"

static bool reject(struct ob_sink *s, uint64_t ticket, const char *why)
{
    ob_pump_done(s->pump, ticket, OB_V_REJECT, why);
    return false;
}

static bool name_fits(struct ob_str t)
{
    for (size_t i = 0; i < t.n; i++)
        if ((unsigned char)t.p[i] <= ' ' || (unsigned char)t.p[i] >= 0x7f || t.p[i] == ':')
            return false;
    return t.n > 0;
}

/* Spaces at its ends would be lost on the way. */
static bool value_fits(struct ob_str t)
{
    for (size_t i = 0; i < t.n; i++)
        if (t.p[i] == '\r' || t.p[i] == '\n' || t.p[i] == '\0')
            return false;
    return t.n == 0 || (!strchr(" \t", t.p[0]) && !strchr(" \t", t.p[t.n - 1]));
}

struct ob_str ob_nats_stream_of(const struct ob_sink_nats_conf *c, const struct ob_msg *m)
{
    struct ob_str best = m->stream;
    size_t longest = 0;
    for (size_t i = 0; m->stream.n == 0 && i < c->stream_prefixes.n; i++) {
        struct ob_str p = ob_str_c(c->stream_prefixes.keys[i]);
        bool fits = m->topic.n >= p.n && memcmp(m->topic.p, p.p, p.n) == 0 &&
                    (m->topic.n == p.n || m->topic.p[p.n] == '.');
        if (fits && p.n >= longest) {
            longest = p.n;
            best = ob_str_c(c->stream_prefixes.values[i]);
        }
    }
    return best;
}

/* Whether the server would take it as an order: what must stand before the message, what becomes of
 * those before it, how long it lives. Only we give orders, so that no event can stop a stream,
 * empty it or take another's id (test_nats: test_headers_of_the_server_are_left_out). */
static bool is_order(struct ob_str name)
{
    return name.n >= 5 && strncasecmp(name.p, "Nats-", 5) == 0;
}

/* Once for each name. */
static void tell_left_out(struct ob_sink *s, struct ob_str name)
{
    uint64_t hash = ob_hash64(name.p, name.n);
    for (size_t i = 0; i < s->n_left_out; i++)
        if (s->left_out[i] == hash)
            return;
    if (s->n_left_out == NATS_LEFT_OUT)
        return;
    s->left_out[s->n_left_out++] = hash;
    ob_log(s->env.log, OB_LOG_WARN, "sink.nats.header", OB_KS("header", name),
           OB_KC("error", "not sent: headers that begin with Nats- are orders to the server"));
}

/* NUL-terminated in s->text; an offset, because the buffer may move. */
static size_t text_put(struct ob_sink *s, struct ob_str t)
{
    size_t at = s->text.n;
    ob_buf_str(&s->text, t);
    ob_buf_char(&s->text, '\0');
    return at;
}

static natsStatus header(struct ob_sink *s, natsMsg *out, struct ob_str name, struct ob_str value)
{
    size_t n = text_put(s, name), v = text_put(s, value);
    s->header_bytes += name.n + value.n + sizeof(": \r\n") - 1;
    if (s->text.failed)
        return NATS_NO_MEMORY;
    return natsMsgHeader_Add(out, s->text.p + n, s->text.p + v);
}

static bool wants_content_type(const struct ob_sink_nats_conf *c, const struct ob_msg *m)
{
    bool event = false;
    for (size_t i = 0; i < m->n_headers; i++)
        event = event || (m->headers[i].name.n > 3 && memcmp(m->headers[i].name.p, "ce", 2) == 0 &&
                          strchr("-_", m->headers[i].name.p[2]));
    return m->content_type.n > 0 && c->content_type_header != OB_NATS_CT_NEVER &&
           (c->content_type_header == OB_NATS_CT_ALWAYS || event);
}

/* Whether a header of the message is sent. An event with one that NATS cannot carry is rejected;
 * its dead letter goes without. */
static bool header_fits(const struct ob_header *h)
{
    return name_fits(h->name) && value_fits(h->value);
}

static bool message_fits(struct ob_sink *s, uint64_t ticket, const struct ob_msg *m)
{
    if (!ob_nats_subject_fits(m->topic))
        return reject(s, ticket,
                      "the topic cannot be a NATS subject: tokens between single dots, "
                      "no spaces, no wildcards, at most 4000 bytes");
    if (ob_nats_subject_reserved(s->conf, m->topic) && !ob_nats_subject_allowed(s->conf, m->topic))
        return reject(s, ticket,
                      "the topic is a reserved NATS subject ($…, _INBOX… or below inbox_prefix); "
                      "the sink's allow_subjects can allow it");
    if (!m->letter && !ob_nats_stream_fits(m->stream))
        return reject(s, ticket,
                      "its stream cannot be the name of a NATS stream: at most 255 characters "
                      "without spaces and . * > / \\");
    for (size_t i = 0; i < m->n_headers; i++)
        if (!m->letter && !is_order(m->headers[i].name) && !header_fits(&m->headers[i]))
            return reject(s, ticket,
                          "a header cannot be carried by NATS: its name has a space, a "
                          "colon or a control character, or its value a line break");
    if (!value_fits(m->id) || m->id.n == 0 || !value_fits(m->content_type))
        return reject(s, ticket, "its id or content type cannot be a NATS header");
    return true;
}

/* With all its headers, as they stand in s->header_bytes: to the byte what the server counts
 * (test_nats: test_the_largest_message_is_as_the_server_says). */
static bool size_fits(struct ob_sink *s, uint64_t ticket, size_t value)
{
    char why[200];
    int64_t max = s->session->max_payload, own = s->conf->max_payload;
    max = own > 0 && (max <= 0 || own < max) ? own : max;
    if (s->header_bytes > MAX_HEADERS)
        return reject(s, ticket, "its headers are larger than the 64 KiB that JetStream takes");
    if (max <= 0 || value + s->header_bytes <= (size_t)max)
        return true;
    snprintf(why, sizeof(why), "too large: %zu bytes%s, max_payload is %lld",
             value + s->header_bytes, s->header_bytes > 0 ? " with headers" : "", (long long)max);
    return reject(s, ticket, why);
}

/* What goes with a message besides what is in it. */
struct orders {
    struct ob_str stream; /* that must take it; empty: any */
    bool linked;          /* it is a link of that stream's chain */
    struct nats_expect expect;
};

static natsStatus fill(struct ob_sink *s, natsMsg *out, const struct ob_msg *m,
                       const struct orders *o)
{
    char seq[24];
    s->header_bytes = sizeof("NATS/1.0\r\n\r\n") - 1;
    natsStatus st = header(s, out, OB_STR("Nats-Msg-Id"), m->id);
    if (st == NATS_OK && o->stream.n > 0)
        st = header(s, out, OB_STR("Nats-Expected-Stream"), o->stream);
    if (st == NATS_OK && o->expect.id[0])
        st = header(s, out, OB_STR("Nats-Expected-Last-Msg-Id"), ob_str_c(o->expect.id));
    if (st == NATS_OK && o->expect.has_seq) {
        snprintf(seq, sizeof(seq), "%llu", (unsigned long long)o->expect.seq);
        st = header(s, out, OB_STR("Nats-Expected-Last-Sequence"), ob_str_c(seq));
    }
    if (st == NATS_OK && wants_content_type(s->conf, m))
        st = header(s, out, OB_STR("Content-Type"), m->content_type);
    for (size_t i = 0; st == NATS_OK && i < m->n_headers; i++) {
        if (is_order(m->headers[i].name))
            tell_left_out(s, m->headers[i].name);
        else if (!m->letter || header_fits(&m->headers[i]))
            st = header(s, out, m->headers[i].name, m->headers[i].value);
    }
    return st;
}

/* The inbox of a ticket: "…%llx", with NATS_ONCE after it where the subject is a reserved one.
 * snprintf() took a thirtieth of the sink's time here. */
static void reply_of(const struct nats_session *x, uint64_t ticket, bool once, char *out)
{
    unsigned n = 1;
    for (uint64_t rest = ticket >> 4; rest; rest >>= 4)
        n++;
    memcpy(out, x->inbox, x->inbox_n);
    out += x->inbox_n;
    out[n] = once ? NATS_ONCE : '\0';
    out[n + 1] = '\0';
    for (; n > 0; ticket >>= 4)
        out[--n] = "0123456789abcdef"[ticket & 15];
}

static natsStatus build(struct ob_sink *s, uint64_t ticket, const struct ob_msg *m, size_t value,
                        const struct orders *o, natsMsg **out)
{
    char reply[sizeof(s->session->inbox) + 20];
    reply_of(s->session, ticket, ob_nats_subject_reserved(s->conf, m->topic), reply);
    ob_buf_reset(&s->text);
    size_t subject = text_put(s, m->topic);
    natsStatus st = s->text.failed
                        ? NATS_NO_MEMORY
                        : natsMsg_Create(out, s->text.p + subject, reply, m->value.p, (int)value);
    return st == NATS_OK ? fill(s, *out, m, o) : st;
}

/* A letter is right wherever its subject is taken. Where that is a stream with a chain it is a link
 * of it, for it would break the chain from outside (test_dlt: test_letters_beside_a_chain).
 * OVER: it has its verdict. */
static enum nats_link_to give_orders(struct ob_sink *s, uint64_t ticket, const struct ob_msg *m,
                                     struct orders *o)
{
    struct ob_str named = ob_nats_stream_of(s->conf, m);
    if (!ob_nats_stream_fits(named))
        named = OB_STR(""); /* of a dead letter; message_fits() rejected the event for it */
    o->stream = m->letter ? OB_STR("") : named;
    o->linked = s->conf->single_writer;
    if (o->linked && m->letter) {
        if (ob_nats_chain_of(s, m->topic, named, &o->stream) != OB_OK) {
            ob_pump_done(s->pump, ticket, OB_V_BLOCKED,
                         "a stream cannot be asked for its subjects");
            return NATS_LINK_OVER;
        }
        o->linked = o->stream.n > 0;
    }
    return o->linked ? ob_nats_chain_next(s, ticket, o->stream, &o->expect) : NATS_LINK_SEND;
}

enum ob_status ob_nats_send(struct ob_sink *s, uint64_t ticket, const struct ob_msg *m,
                            struct ob_err *err)
{
    natsMsg *out = NULL;
    struct orders o = {.linked = false};
    size_t value = m->value_null ? 0 : m->value.n;
    if (atomic_load(&s->session->lost))
        return ob_err_set(err, OB_DOWN, "the connection to NATS is lost");
    s->header_bytes = 0;
    if (!message_fits(s, ticket, m) || !size_fits(s, ticket, value))
        return OB_OK;
    enum nats_link_to to = give_orders(s, ticket, m, &o);
    if (to != NATS_LINK_SEND)
        return to == NATS_LINK_WAIT ? OB_AGAIN : OB_OK;
    natsStatus st = build(s, ticket, m, value, &o, &out);
    bool fits = st != NATS_OK || size_fits(s, ticket, value);
    if (st == NATS_OK && fits && o.linked)
        ob_nats_chain_sent(s, ticket, m, o.stream, &o.expect); /* its answer may come at once */
    if (st == NATS_OK && fits)
        st = natsConnection_PublishMsg(s->session->nc, out);
    if (out)
        ob_nats_spent_add(&s->sent, out, value);
    if (st == NATS_OK)
        return OB_OK;
    if (st == NATS_MAX_PAYLOAD) {
        if (o.linked)
            ob_nats_chain_answer(s, ticket, OB_V_REJECT, 0, TOO_LARGE);
        else
            reject(s, ticket, TOO_LARGE);
        return OB_OK;
    }
    return ob_err_set(err, OB_DOWN, "publish to NATS: %s", natsStatus_GetText(st));
}
