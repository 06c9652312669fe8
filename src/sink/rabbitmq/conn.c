/* SPDX-License-Identifier: Apache-2.0 */
/* conn - a connection to one of the hosts, and the channel with confirms on it. */
#include "config/node.h"
#include "sink/rabbitmq/rabbit.h"

#include <amqp_ssl_socket.h>
#include <amqp_tcp_socket.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

/* Bytes that stay unacknowledged so long mean that the host is gone; also with a closed window. */
#define USER_TIMEOUT_MS 20000
#define FRAME_MAX 131072

uint64_t ob_rabbit_hash(struct ob_str s)
{
    uint64_t h = ob_hash64(s.p, s.n);
    return h ? h : 1;
}

amqp_bytes_t ob_rabbit_bytes(struct ob_str s)
{
    return (amqp_bytes_t){.len = s.n, .bytes = (void *)s.p};
}

static void put_reply(char *out, size_t n, int code, amqp_bytes_t text)
{
    snprintf(out, n, "%d %.*s", code, (int)text.len, (const char *)text.bytes);
}

void ob_rabbit_reply(const amqp_rpc_reply_t *r, char *out, size_t n)
{
    if (r->reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION) {
        snprintf(out, n, "%s", amqp_error_string2(r->library_error));
    } else if (r->reply_type == AMQP_RESPONSE_SERVER_EXCEPTION &&
               r->reply.id == AMQP_CHANNEL_CLOSE_METHOD) {
        const amqp_channel_close_t *c = r->reply.decoded;
        put_reply(out, n, c->reply_code, c->reply_text);
    } else if (r->reply_type == AMQP_RESPONSE_SERVER_EXCEPTION &&
               r->reply.id == AMQP_CONNECTION_CLOSE_METHOD) {
        const amqp_connection_close_t *c = r->reply.decoded;
        put_reply(out, n, c->reply_code, c->reply_text);
    } else {
        snprintf(out, n, "unexpected answer");
    }
}

static enum ob_status parse_urls(const struct ob_sink_rabbit_conf *c, struct ob_urls *out,
                                 struct ob_err *err)
{
    static const struct ob_url_scheme schemes[] = {{"amqp", false}, {"amqps", true}, {NULL, false}};
    return ob_urls_parse(out, c->url, schemes, false, err);
}

/* The host-th of the urls; info points into urls. */
static enum ob_status pick(const struct ob_sink_rabbit_conf *c, unsigned host, unsigned *n,
                           struct ob_urls *urls, struct amqp_connection_info *info,
                           struct ob_err *err)
{
    enum ob_status st = parse_urls(c, urls, err);
    *n = (unsigned)urls->n;
    if (st != OB_OK) {
        ob_err_prefix(err, "url");
        return st;
    }
    amqp_default_connection_info(info);
    if (amqp_parse_url((char *)urls->list[host % urls->n].text, info) != AMQP_STATUS_OK)
        return ob_err_set(err, OB_FATAL,
                          "url: not of the form amqp://user:password@host:port/vhost");
    if (!*info->vhost)
        info->vhost = "/"; /* a url that ends with its slash means the default one, as elsewhere */
    return OB_OK;
}

/* TLS is a matter of the url alone, since it also decides the port. */
static enum ob_status validate_tls(const struct ob_sink_rabbit_conf *c, const struct ob_node *map,
                                   struct ob_err *err)
{
    struct ob_urls urls;
    const char *name = c->ca ? "ca" : c->cert ? "cert" : "key";
    enum ob_status st = parse_urls(c, &urls, err);
    bool plain = st == OB_OK && !urls.tls && (c->ca || c->cert || c->key);
    ob_urls_clear(&urls);
    if (!c->cert != !c->key)
        return ob_node_err(ob_wire_pos(map, name), err, "cert and key belong together");
    if (plain)
        return ob_node_err(ob_wire_pos(map, name), err,
                           "%s is set, but the url has no TLS: write amqps://, or remove %s", name,
                           name);
    return st;
}

void ob_rabbit_wire(const void *conf, struct ob_wire *out)
{
    const struct ob_sink_rabbit_conf *c = conf;
    struct ob_urls urls;
    struct ob_err ignored;
    if (parse_urls(c, &urls, &ignored) == OB_OK)
        ob_wire_set(out, &urls, urls.tls, urls.userinfo || c->user || c->password);
    ob_urls_clear(&urls);
}

enum ob_status ob_rabbit_validate(const void *conf, const struct ob_node *map, struct ob_err *err)
{
    const struct ob_sink_rabbit_conf *c = conf;
    struct amqp_connection_info info;
    struct ob_urls urls;
    struct ob_err why;
    unsigned n = 1;
    for (unsigned i = 0; i < n; i++) {
        enum ob_status st = pick(c, i, &n, &urls, &info, &why);
        ob_urls_clear(&urls);
        if (st != OB_OK)
            return ob_node_err(ob_wire_pos(map, "url"), err, "%s", why.text);
    }
    if (validate_tls(c, map, err) != OB_OK)
        return OB_FATAL;
    return ob_rabbit_queues_valid(c, err);
}

static enum ob_status open_socket(const struct ob_sink_rabbit_conf *c, amqp_connection_state_t conn,
                                  const struct amqp_connection_info *info, struct ob_err *err)
{
    struct timeval limit = {.tv_sec = c->connect_timeout_ms / 1000,
                            .tv_usec = c->connect_timeout_ms % 1000 * 1000};
    amqp_socket_t *sock = info->ssl ? amqp_ssl_socket_new(conn) : amqp_tcp_socket_new(conn);
    if (!sock)
        return ob_err_set(err, OB_DOWN, "no memory");
    if (info->ssl) {
        amqp_ssl_socket_set_verify_peer(sock, c->verify);
        amqp_ssl_socket_set_verify_hostname(sock, c->verify);
        if (c->ca && amqp_ssl_socket_set_cacert(sock, c->ca) != AMQP_STATUS_OK)
            return ob_err_set(err, OB_DOWN, "ca: %s cannot be read", c->ca);
        if (c->cert && amqp_ssl_socket_set_key(sock, c->cert, c->key) != AMQP_STATUS_OK)
            return ob_err_set(err, OB_DOWN, "cert and key cannot be used");
    }
    int rc = amqp_socket_open_noblock(sock, info->host, info->port, &limit);
    if (rc != AMQP_STATUS_OK)
        return ob_err_set(err, OB_DOWN, "cannot connect to RabbitMQ at %s:%d: %s", info->host,
                          info->port, amqp_error_string2(rc));
    int ms = USER_TIMEOUT_MS;
    setsockopt(amqp_get_sockfd(conn), IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
    amqp_set_handshake_timeout(conn, &limit);
    amqp_set_rpc_timeout(conn, &limit);
    return OB_OK;
}

static amqp_table_entry_t text_entry(const char *key, const char *text)
{
    return (amqp_table_entry_t){
        .key = amqp_cstring_bytes(key),
        .value = {.kind = AMQP_FIELD_KIND_UTF8, .value = {.bytes = amqp_cstring_bytes(text)}}};
}

/* Without these capabilities the server would not tell that it blocks us. */
static enum ob_status login(const struct ob_sink_rabbit_conf *c, amqp_connection_state_t conn,
                            const struct amqp_connection_info *info, struct ob_err *err)
{
    static const char *const wanted[] = {"connection.blocked", "publisher_confirms",
                                         "authentication_failure_close", "basic.nack"};
    amqp_table_entry_t caps[4], props[3];
    for (size_t i = 0; i < 4; i++)
        caps[i] = (amqp_table_entry_t){
            .key = amqp_cstring_bytes(wanted[i]),
            .value = {.kind = AMQP_FIELD_KIND_BOOLEAN, .value = {.boolean = 1}}};
    props[0] = (amqp_table_entry_t){
        .key = amqp_cstring_bytes("capabilities"),
        .value = {.kind = AMQP_FIELD_KIND_TABLE, .value = {.table = {4, caps}}}};
    props[1] = text_entry("product", "outbox");
    props[2] = text_entry("connection_name", c->name ? c->name : "outbox");
    const amqp_table_t table = {3, props};
    amqp_rpc_reply_t r = amqp_login_with_properties(
        conn, info->vhost, 0, FRAME_MAX, (int)((c->heartbeat_ms + 999) / 1000), &table,
        AMQP_SASL_METHOD_PLAIN, c->user ? c->user : info->user,
        c->password ? c->password : info->password);
    if (r.reply_type == AMQP_RESPONSE_NORMAL)
        return OB_OK;
    char why[300];
    ob_rabbit_reply(&r, why, sizeof(why));
    bool refused = strncmp(why, "403", 3) == 0;
    return ob_err_set(err, OB_DOWN, "cannot log in to RabbitMQ at %s:%d: %s%s", info->host,
                      info->port, why,
                      refused ? "; check user and password (rabbitmqctl authenticate_user)" : "");
}

enum ob_status ob_rabbit_dial(const struct ob_sink_rabbit_conf *c, unsigned host, unsigned *n,
                              amqp_connection_state_t *out, struct ob_err *err)
{
    struct amqp_connection_info info;
    struct ob_urls urls;
    amqp_connection_state_t conn = NULL;
    enum ob_status st = pick(c, host, n, &urls, &info, err);
    if (st == OB_OK) {
        conn = amqp_new_connection();
        st = conn ? open_socket(c, conn, &info, err) : ob_err_set(err, OB_DOWN, "no memory");
    }
    if (st == OB_OK)
        st = login(c, conn, &info, err);
    ob_urls_clear(&urls);
    if (st != OB_OK) {
        if (conn)
            amqp_destroy_connection(conn);
        return st;
    }
    *out = conn;
    return OB_OK;
}

enum ob_status ob_rabbit_channel(struct ob_sink *s, struct ob_err *err)
{
    char why[300];
    amqp_channel_open(s->conn, RABBIT_CHANNEL);
    amqp_rpc_reply_t r = amqp_get_rpc_reply(s->conn);
    if (r.reply_type == AMQP_RESPONSE_NORMAL) {
        amqp_confirm_select(s->conn, RABBIT_CHANNEL);
        r = amqp_get_rpc_reply(s->conn);
    }
    if (r.reply_type != AMQP_RESPONSE_NORMAL) {
        ob_rabbit_reply(&r, why, sizeof(why));
        return ob_err_set(err, OB_DOWN, "cannot open a channel: %s", why);
    }
    ob_rabbit_sent_reset(s);
    s->asked = s->asked_tag = 0;
    memset(s->confirmed, 0, sizeof(s->confirmed));
    memset(s->returns, 0, sizeof(s->returns));
    s->returning = false;
    s->return_left = 0;
    return OB_OK;
}

static void log_declared(void *user, bool ok, const char *what)
{
    const struct ob_sink *s = user;
    if (!ok)
        ob_log(s->env.log, OB_LOG_WARN, "sink.rabbitmq.declare", OB_KC("error", what));
}

/* An exchange that is there with other properties would route in another way than was asked for:
 * its events wait, and are neither unroutable nor lost (test_rabbitmq: an_exchange_with_other_…).
 */
static void declare(struct ob_sink *s, bool create)
{
    char why[300], what[500];
    const char *exchange = s->conf->exchange;
    enum rabbit_answer a = RABBIT_YES;
    if (exchange && *exchange)
        a = ob_rabbit_make_exchange(s, s->conn, create, why);
    if (a == RABBIT_NO && create && strncmp(why, "406", 3) == 0) {
        ob_rabbit_refuse(s, ob_str_c(exchange), NULL, NULL, why);
    } else if (a != RABBIT_YES) {
        snprintf(what, sizeof(what), "exchange %.100s: %s", exchange, why);
        log_declared(s, false, what);
    }
    if (a != RABBIT_LOST)
        ob_rabbit_declare_queues(s, s->conn, create, log_declared, s);
}

enum ob_status ob_rabbit_connect(struct ob_sink *s, struct ob_err *err)
{
    unsigned n = 1;
    enum ob_status st = ob_rabbit_dial(s->conf, s->host, &n, &s->conn, err);
    for (unsigned i = 1; st != OB_OK && i < n; i++) /* each host once */
        st = ob_rabbit_dial(s->conf, ++s->host, &n, &s->conn, err);
    if (st != OB_OK)
        return st;
    s->broken = s->full = false;
    s->n_refused = 0;
    s->known.n = 0;
    socklen_t len = sizeof(s->sndbuf);
    s->room = s->n_taken = 0;
    if (getsockopt(amqp_get_sockfd(s->conn), SOL_SOCKET, SO_SNDBUF, &s->sndbuf, &len) != 0)
        s->sndbuf = 65536;
    if (s->conf->declare != OB_RABBIT_DECLARE_OFF)
        declare(s, s->conf->declare == OB_RABBIT_DECLARE_CREATE);
    st = ob_rabbit_channel(s, err);
    if (st != OB_OK) {
        s->broken = true;
        ob_rabbit_disconnect(s);
        s->host++; /* it lets us in and is of no use: another one may be */
    }
    return st;
}

void ob_rabbit_disconnect(struct ob_sink *s)
{
    if (!s->broken) {
        struct timeval limit = {.tv_sec = 1};
        amqp_set_rpc_timeout(s->conn, &limit);
        amqp_connection_close(s->conn, AMQP_REPLY_SUCCESS);
    }
    amqp_destroy_connection(s->conn);
    s->conn = NULL;
}
