/* SPDX-License-Identifier: Apache-2.0 */
/* publish - one message to its exchange: what AMQP can carry, its properties, room in the socket.
 */
#include "sink/rabbitmq/rabbit.h"

#include <linux/sockios.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/ioctl.h>

#define SHORT_MAX 255
/* The frame of a message's header without its table: five short strings, and what is around them.
 */
#define PROPERTIES_MAX 1500

static enum ob_status reject(struct ob_sink *s, uint64_t ticket, const char *why)
{
    ob_pump_done(s->pump, ticket, OB_V_REJECT, why);
    return OB_OK;
}

/* A short string of AMQP is UTF-8 of at most 255 bytes. */
static bool short_fits(struct ob_str t)
{
    return t.n <= SHORT_MAX && ob_utf8_valid(t);
}

/* The reason why it can never be sent, or NULL. */
static const char *misfit(const struct ob_sink *s, const struct ob_msg *m, char why[160])
{
    uint64_t max = (uint64_t)s->conf->max_message;
    if (s->server_max > 0 && s->server_max < max)
        max = s->server_max;
    if (m->value.n > max) {
        snprintf(why, 160, "too large: %zu bytes, at most %llu are sent", m->value.n,
                 (unsigned long long)max);
        return why;
    }
    if (!short_fits(m->topic))
        return "its topic cannot be a routing key: longer than 255 bytes, or not UTF-8";
    if (!short_fits(m->stream))
        return "its stream cannot be an exchange: longer than 255 bytes, or not UTF-8";
    if (!short_fits(m->id) || !short_fits(m->content_type) || !short_fits(m->event->type))
        return "its id, type or content type is longer than 255 bytes, or not UTF-8";
    if (m->n_headers > RABBIT_HEADERS)
        return "it has more than 256 headers";
    size_t all = 0;
    for (size_t i = 0; i < m->n_headers; i++) {
        if (m->headers[i].name.n == 0 || !short_fits(m->headers[i].name))
            return "the name of a header is empty, longer than 255 bytes, or not UTF-8";
        all += m->headers[i].name.n + m->headers[i].value.n + 6;
    }
    if (all > (size_t)amqp_get_frame_max(s->conn) - PROPERTIES_MAX)
        return "its headers are larger than a frame of AMQP";
    return NULL;
}

static const struct ob_header *header_of(const struct ob_msg *m, const char *name)
{
    for (size_t i = 0; name && *name && i < m->n_headers; i++)
        if (ob_str_eqc(m->headers[i].name, name))
            return &m->headers[i];
    return NULL;
}

/* Headers on which the server acts. CC and BCC name further routing keys, past the routes; as text,
 * which is all that a header of ours can be, they close the channel. The others are the server's
 * own record of where a message has been: by them it detects cycles, and consumers count deliveries
 * (test_rabbitmq: test_headers_of_the_server_are_left_out). */
static bool is_reserved(struct ob_str name)
{
    static const struct {
        const char *text;
        bool prefix;
    } reserved[] = {
        {"CC", false},           {"BCC", false},         {"x-death", false},
        {"x-first-death", true}, {"x-last-death", true}, {"x-received-from", false},
    };
    if (name.n == 0 || !strchr("BCXbcx", name.p[0]))
        return false;
    for (size_t i = 0; i < sizeof(reserved) / sizeof(reserved[0]); i++) {
        size_t n = strlen(reserved[i].text);
        if ((name.n == n || (reserved[i].prefix && name.n > n)) &&
            strncasecmp(name.p, reserved[i].text, n) == 0)
            return true;
    }
    return false;
}

/* One warning per name. */
static void warn_left_out(struct ob_sink *s, struct ob_str name)
{
    uint64_t hash = ob_rabbit_hash(name);
    for (size_t i = 0; i < s->n_left_out; i++)
        if (s->left_out[i] == hash)
            return;
    if (s->n_left_out == RABBIT_LEFT_OUT)
        return;
    s->left_out[s->n_left_out++] = hash;
    ob_log(s->env.log, OB_LOG_WARN, "sink.rabbitmq.header", OB_KS("header", name),
           OB_KC("error", "not sent: RabbitMQ acts on headers of this name"));
}

static int fill_headers(struct ob_sink *s, const struct ob_msg *m, amqp_table_entry_t *entries)
{
    int n = 0;
    for (size_t i = 0; i < m->n_headers; i++) {
        if (is_reserved(m->headers[i].name)) {
            warn_left_out(s, m->headers[i].name);
            continue;
        }
        entries[n++] = (amqp_table_entry_t){
            .key = ob_rabbit_bytes(m->headers[i].name),
            .value = {.kind = AMQP_FIELD_KIND_UTF8,
                      .value = {.bytes = ob_rabbit_bytes(m->headers[i].value)}}};
    }
    return n;
}

static void fill(struct ob_sink *s, const struct ob_msg *m, amqp_basic_properties_t *p,
                 amqp_table_entry_t *entries)
{
    const struct ob_sink_rabbit_conf *c = s->conf;
    *p = (amqp_basic_properties_t){._flags =
                                       AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_MESSAGE_ID_FLAG,
                                   .delivery_mode = 2,
                                   .message_id = ob_rabbit_bytes(m->id)};
    if (m->content_type.n > 0) {
        p->_flags |= AMQP_BASIC_CONTENT_TYPE_FLAG;
        p->content_type = ob_rabbit_bytes(m->content_type);
    }
    if (m->event->type.n > 0) {
        p->_flags |= AMQP_BASIC_TYPE_FLAG;
        p->type = ob_rabbit_bytes(m->event->type);
    }
    if (m->event->created_us > 0) {
        p->_flags |= AMQP_BASIC_TIMESTAMP_FLAG;
        p->timestamp = (uint64_t)m->event->created_us / 1000000;
    }
    if (c->app_id && *c->app_id) {
        p->_flags |= AMQP_BASIC_APP_ID_FLAG;
        p->app_id = amqp_cstring_bytes(c->app_id);
    }
    const struct ob_header *h = header_of(m, c->correlation_header);
    if (h && short_fits(h->value)) {
        p->_flags |= AMQP_BASIC_CORRELATION_ID_FLAG;
        p->correlation_id = ob_rabbit_bytes(h->value);
    }
    h = header_of(m, c->priority_header);
    if (h && h->value.n == 1 && h->value.p[0] >= '0' && h->value.p[0] <= '9') {
        p->_flags |= AMQP_BASIC_PRIORITY_FLAG;
        p->priority = (uint8_t)(h->value.p[0] - '0');
    }
    int n = fill_headers(s, m, entries);
    if (n == 0)
        return;
    p->_flags |= AMQP_BASIC_HEADERS_FLAG;
    p->headers = (amqp_table_t){.num_entries = n, .entries = entries};
}

/* The library's publish waits for room in the socket for ever: so there must be room. What is
 * larger than the socket's buffer goes alone; TCP_USER_TIMEOUT bounds it. */
static bool has_room(struct ob_sink *s, const struct ob_msg *m)
{
    int queued = 0;
    size_t need = 512 + m->topic.n + m->value.n, half = (size_t)s->sndbuf / 2;
    for (size_t i = 0; i < m->n_headers; i++)
        need += m->headers[i].name.n + m->headers[i].value.n + 8;
    if (s->room < need) { /* what was sent may be gone by now */
        if (ioctl(amqp_get_sockfd(s->conn), SIOCOUTQ, &queued) != 0)
            queued = 0;
        s->room = (size_t)queued < half ? half - (size_t)queued : 0;
        if (s->room < need && queued > 0)
            return false;
    }
    s->room -= need < s->room ? need : s->room;
    return true;
}

/* A question that changes nothing, and that the server answers behind what was sent before it. */
static enum ob_status ask_behind(struct ob_sink *s, struct ob_err *err)
{
    amqp_basic_qos_t q = {0};
    int rc = amqp_send_method(s->conn, RABBIT_CHANNEL, AMQP_BASIC_QOS_METHOD, &q);
    if (rc != AMQP_STATUS_OK) {
        s->broken = true;
        return ob_err_set(err, OB_DOWN, "question to RabbitMQ: %s", amqp_error_string2(rc));
    }
    s->alone--;
    s->asked++;
    s->asked_tag = s->next - 1;
    return OB_OK;
}

static bool nothing_live(struct ob_sink *s)
{
    uint64_t at = 0;
    return ob_rabbit_sent_next(s, &at) == NULL;
}

enum ob_status ob_rabbit_send(struct ob_sink *s, uint64_t ticket, const struct ob_msg *m,
                              struct ob_err *err)
{
    char why[300];
    const char *bad = misfit(s, m, why);
    if (bad)
        return reject(s, ticket, bad);
    struct ob_str exchange = m->stream.n > 0 ? m->stream : ob_str_c(s->conf->exchange);
    uint64_t hash = ob_rabbit_hash(exchange);
    if (s->n_refused > 0 || (exchange.n > 0 && !ob_rabbit_knows(&s->known, hash))) {
        enum rabbit_answer a = ob_rabbit_may_send(s, m, exchange, hash, why);
        if (a == RABBIT_LOST) {
            s->broken = true;
            return ob_err_set(err, OB_DOWN, "RabbitMQ does not answer: %s", why);
        }
        if (a == RABBIT_NO) {
            ob_pump_done(s->pump, ticket, OB_V_BLOCKED, why);
            return OB_OK;
        }
    }
    s->full = (s->asked > 0 && !nothing_live(s)) || !has_room(s, m);
    if (s->full)
        return OB_AGAIN;
    amqp_table_entry_t entries[RABBIT_HEADERS];
    amqp_basic_properties_t props;
    fill(s, m, &props, entries);
    amqp_bytes_t body = ob_rabbit_bytes(m->value);
    if (m->value_null)
        body.len = 0;
    int rc = amqp_basic_publish(s->conn, RABBIT_CHANNEL, ob_rabbit_bytes(exchange),
                                ob_rabbit_bytes(m->topic), 1, 0, &props, body);
    if (rc != AMQP_STATUS_OK) {
        s->broken = true;
        return ob_err_set(err, OB_DOWN, "publish to RabbitMQ: %s", amqp_error_string2(rc));
    }
    const struct rabbit_sent one = {.ticket = ticket,
                                    .id_hash = ob_rabbit_hash(m->id),
                                    .dest = m->dest_hash,
                                    .exchange = hash,
                                    .size = m->value.n};
    ob_rabbit_sent_add(s, &one);
    return s->alone > 0 ? ask_behind(s, err) : OB_OK;
}
