/* SPDX-License-Identifier: Apache-2.0 */
/* rabbitmq - events to a RabbitMQ exchange: persistent, mandatory, with publisher confirms. */
#include "sink/rabbitmq/rabbit.h"

#include <stdlib.h>

/* Heartbeats are looked after at least so often. */
#define TURN_MS 1000
/* As the bare loop of the benchmark does: large bursts were never faster, larger segments slower.
 */
#define AT_ONCE 64
#define ROOM_MS 2
#define AT(field) offsetof(struct ob_sink_rabbit_conf, field)

static const struct ob_opt rabbit_opts[] = {
    {.type = OB_OPT_STR,
     .name = "url",
     .def = "amqp://guest:guest@127.0.0.1:5672/",
     .offset = AT(url),
     .help = "One or more hosts, separated by commas: amqp://user:password@host:port/vhost, or "
             "amqps:// for TLS, the same for all. Tried in turn.",
     .flags = OB_OPT_SECRET},
    {.type = OB_OPT_STR, .name = "user", .offset = AT(user), .help = "User, if not in the url."},
    {.type = OB_OPT_STR,
     .name = "password",
     .offset = AT(password),
     .help = "Password, if not in the url.",
     .flags = OB_OPT_SECRET},
    {.type = OB_OPT_STR,
     .name = "name",
     .def = "outbox",
     .offset = AT(name),
     .help = "How the connection is called at the server."},
    {.type = OB_OPT_STR,
     .name = "exchange",
     .def = "",
     .offset = AT(exchange),
     .help = "Exchange where a route names none; empty: the default exchange."},
    {.type = OB_OPT_STR,
     .name = "exchange_type",
     .def = "topic",
     .offset = AT(exchange_type),
     .help = "Its type, where it is made."},
    {.type = OB_OPT_BOOL,
     .name = "durable",
     .def = "true",
     .offset = AT(durable),
     .help = "It survives a restart of the server, where it is made."},
    {.type = OB_OPT_ENUM,
     .name = "declare",
     .def = "check",
     .offset = AT(declare),
     .choices = "off|check|create",
     .help = "What to do with exchange and queues on connecting: nothing, look and warn, or make "
             "them."},
    {.type = OB_OPT_NODE,
     .name = "queues",
     .offset = AT(queues),
     .help = "Queues that must be there: a list of maps with name, bind (routing keys), exchange, "
             "type (classic|quorum), max_length (full: refused, never dropped)."},
    {.type = OB_OPT_ENUM,
     .name = "unroutable",
     .def = "reject",
     .offset = AT(unroutable),
     .choices = "reject|retry|deliver",
     .help = "A message that no queue is bound for: dead at once, tried again, or delivered (and "
             "logged once per routing key)."},
    {.type = OB_OPT_STR,
     .name = "app_id",
     .offset = AT(app_id),
     .help = "Property app-id of every message."},
    {.type = OB_OPT_STR,
     .name = "correlation_header",
     .def = "x-correlation-id",
     .offset = AT(correlation_header),
     .help = "Header that also becomes the property correlation-id."},
    {.type = OB_OPT_STR,
     .name = "priority_header",
     .def = "priority",
     .offset = AT(priority_header),
     .help = "Header (0 to 9) that also becomes the property priority."},
    {.type = OB_OPT_STR,
     .name = "ca",
     .offset = AT(ca),
     .help = "File with the certificates that are trusted."},
    {.type = OB_OPT_STR,
     .name = "cert",
     .offset = AT(cert),
     .help = "File with our own certificate, for servers that ask for one."},
    {.type = OB_OPT_STR, .name = "key", .offset = AT(key), .help = "File with its key."},
    {.type = OB_OPT_BOOL,
     .name = "verify",
     .def = "true",
     .offset = AT(verify),
     .help = "Verify the server's certificate and name. false is for tests."},
    {.type = OB_OPT_INT,
     .name = "window",
     .def = "4096",
     .offset = AT(window),
     .min = 1,
     .max = 65536,
     .help = "Messages sent and not yet confirmed."},
    {.type = OB_OPT_BYTES,
     .name = "max_message",
     .def = "16M",
     .offset = AT(max_message),
     .min = 1024,
     .max = 512 << 20,
     .help = "Largest payload; the server's own limit is learned when it refuses one."},
    {.type = OB_OPT_MS,
     .name = "connect_timeout",
     .def = "5s",
     .offset = AT(connect_timeout_ms),
     .min = 100,
     .max = 60000,
     .help = "How long a host may take to answer a connection or a question."},
    {.type = OB_OPT_MS,
     .name = "heartbeat",
     .def = "10s",
     .offset = AT(heartbeat_ms),
     .min = 1000,
     .max = 600000,
     .help = "A connection silent for twice this long is lost."},
    {0},
};

/* ---- in the pump's thread ---- */

static enum ob_status connect_op(void *user, struct ob_err *err)
{
    return ob_rabbit_connect(user, err);
}

static void disconnect_op(void *user)
{
    ob_rabbit_disconnect(user);
}

static enum ob_status send_op(void *user, uint64_t ticket, const struct ob_msg *m,
                              struct ob_err *err)
{
    return ob_rabbit_send(user, ticket, m, err);
}

static enum ob_status turn_op(void *user, struct ob_err *err)
{
    return ob_rabbit_turn(user, err);
}

static void wait_op(void *user, struct pollfd *fd, int64_t *until_ms)
{
    struct ob_sink *s = user;
    *fd = (struct pollfd){.fd = amqp_get_sockfd(s->conn), .events = POLLIN};
    *until_ms = ob_pump_now_ms() + (s->full ? ROOM_MS : TURN_MS);
}

static const struct ob_pump_ops ops = {connect_op, disconnect_op, send_op,
                                       turn_op,    wait_op,       AT_ONCE};

/* ---- the driver ---- */

static void rabbit_close(struct ob_sink *s, int grace_ms)
{
    if (!s)
        return;
    ob_pump_close(s->pump, grace_ms);
    free(s->known.hashes);
    ob_arena_unref(s->arena);
    ob_rabbit_sent_clear(s);
    free(s);
}

static enum ob_status rabbit_open(const struct ob_sink_env *env, const void *conf,
                                  struct ob_sink **out, struct ob_sink_caps *caps,
                                  struct ob_err *err)
{
    const struct ob_sink_rabbit_conf *c = conf;
    enum ob_status st = ob_rabbit_validate(c, NULL, err);
    if (st != OB_OK)
        return st;
    struct ob_sink *s = calloc(1, sizeof(*s));
    if (!s)
        return ob_err_set(err, OB_DOWN, "not enough memory for the RabbitMQ sink");
    s->env = *env;
    s->conf = c;
    s->arena = ob_arena_new(4096, 1 << 20);
    if (!s->arena)
        st = ob_err_set(err, OB_DOWN, "not enough memory for the RabbitMQ sink");
    if (st == OB_OK)
        st = ob_rabbit_sent_init(s, (size_t)c->window, err);
    if (st == OB_OK)
        st = ob_rabbit_queues_load(c, s, err);
    if (st == OB_OK)
        st = ob_pump_open(env, &ops, s, (size_t)c->window, &s->pump, err);
    if (st != OB_OK) {
        rabbit_close(s, 0);
        return st;
    }
    *caps = (struct ob_sink_caps){
        .ordered = false, .max_in_flight = (size_t)c->window, .max_bytes = (size_t)c->max_message};
    *out = s;
    return OB_OK;
}

static int rabbit_wait_fd(const struct ob_sink *s)
{
    return ob_pump_fd(s->pump);
}

static int64_t rabbit_wake_at(const struct ob_sink *s)
{
    (void)s;
    return INT64_MAX;
}

static enum ob_status rabbit_submit(struct ob_sink *s, const struct ob_msg *const *msgs,
                                    const uint64_t *tokens, size_t *n, struct ob_err *err)
{
    return ob_pump_submit(s->pump, msgs, tokens, n, err);
}

static void rabbit_poll(struct ob_sink *s)
{
    ob_pump_poll(s->pump);
}

static void rabbit_cancel(struct ob_sink *s, uint64_t token)
{
    ob_pump_cancel(s->pump, token);
}

static void rabbit_reset(struct ob_sink *s)
{
    ob_pump_reset(s->pump);
}

const struct ob_sink_driver ob_sink_rabbitmq = {
    .name = "rabbitmq",
    .summary = "RabbitMQ: persistent, mandatory, with publisher confirms; the event's id as "
               "message-id.",
    .opts = rabbit_opts,
    .conf_size = sizeof(struct ob_sink_rabbit_conf),
    .validate = ob_rabbit_validate,
    .wire = ob_rabbit_wire,
    .open = rabbit_open,
    .check = ob_rabbit_check,
    .wait_fd = rabbit_wait_fd,
    .wake_at = rabbit_wake_at,
    .submit = rabbit_submit,
    .poll = rabbit_poll,
    .cancel = rabbit_cancel,
    .reset = rabbit_reset,
    .close = rabbit_close,
};
