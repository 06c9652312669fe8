/* SPDX-License-Identifier: Apache-2.0 */
/* nats - events to NATS JetStream: an own inbox per message, one answer each, the event's id as
 * Nats-Msg-Id. */
#include "sink/nats/nats.h"
#include "config/node.h"

#include <limits.h>
#include <stdlib.h>

/* A stream that went away is made again, or looked at, so often at most. */
#define DECLARE_EVERY_MS 5000
/* Twice as long after each time that one did not answer, up to this. Nothing is sent meanwhile, so
 * all of them together have this time to answer. */
#define DECLARE_RARELY_MS 60000
#define DECLARE_WAIT_MS 2000
#define AT(field) offsetof(struct ob_sink_nats_conf, field)

static const struct ob_opt nats_opts[] = {
    {.type = OB_OPT_STR,
     .name = "url",
     .def = "nats://127.0.0.1:4222",
     .offset = AT(url),
     .help = "One or more servers, separated by commas: nats://user:password@host:port, or tls:// "
             "for TLS, the same for all. Tried in turn.",
     .flags = OB_OPT_SECRET},
    {.type = OB_OPT_STR,
     .name = "name",
     .def = "outbox",
     .offset = AT(name),
     .help = "How the connection is called at the server."},
    {.type = OB_OPT_STR, .name = "user", .offset = AT(user), .help = "User."},
    {.type = OB_OPT_STR,
     .name = "password",
     .offset = AT(password),
     .help = "Password of the user.",
     .flags = OB_OPT_SECRET},
    {.type = OB_OPT_STR,
     .name = "token",
     .offset = AT(token),
     .help = "Token instead of a user.",
     .flags = OB_OPT_SECRET},
    {.type = OB_OPT_STR,
     .name = "credentials",
     .offset = AT(credentials),
     .help = "File with a user's JWT and seed (.creds)."},
    {.type = OB_OPT_STR,
     .name = "nkey",
     .offset = AT(nkey),
     .help = "Public nkey of the user (U…)."},
    {.type = OB_OPT_STR,
     .name = "nkey_seed",
     .offset = AT(nkey_seed),
     .help = "File with the seed of that nkey."},
    {.type = OB_OPT_BOOL,
     .name = "tls",
     .def = "false",
     .offset = AT(tls),
     .help = "Use TLS. Also on with a tls:// url, ca, cert, key or tls_name."},
    {.type = OB_OPT_STR,
     .name = "ca",
     .offset = AT(ca),
     .help = "File with the certificates that are trusted; without it the system's."},
    {.type = OB_OPT_STR,
     .name = "cert",
     .offset = AT(cert),
     .help = "File with our own certificate, for servers that ask for one."},
    {.type = OB_OPT_STR, .name = "key", .offset = AT(key), .help = "File with its key."},
    {.type = OB_OPT_STR,
     .name = "tls_name",
     .offset = AT(tls_name),
     .help = "Name that the server's certificate must have, if not the host's."},
    {.type = OB_OPT_BOOL,
     .name = "verify",
     .def = "true",
     .offset = AT(verify),
     .help = "Verify the server's certificate. false is for tests."},
    {.type = OB_OPT_STR,
     .name = "inbox_prefix",
     .def = "_INBOX",
     .offset = AT(inbox_prefix),
     .help = "Where acknowledgements come to; the user must be allowed to subscribe below it."},
    {.type = OB_OPT_LIST,
     .name = "allow_subjects",
     .offset = AT(allow_subjects),
     .help = "Reserved subjects that events may be published to, with NATS wildcards, for example "
             "`$KV.prices.>`. Reserved are subjects that begin with `$` or `_INBOX` and those "
             "below inbox_prefix; events with such a topic are rejected unless listed here."},
    {.type = OB_OPT_NODE,
     .name = "streams",
     .offset = AT(streams),
     .help = "Streams that must be there: a list of maps with name, subjects, replicas, storage, "
             "duplicate_window, max_bytes, max_msgs, max_age, discard."},
    {.type = OB_OPT_LIST,
     .name = "stream_files",
     .offset = AT(stream_files),
     .help = "JSON files with such streams, one or a list in each."},
    {.type = OB_OPT_ENUM,
     .name = "declare",
     .def = "check",
     .offset = AT(declare),
     .choices = "off|check|create",
     .help = "What to do with declared streams on connecting: nothing, compare and warn, or make "
             "the missing ones. A stream that is there is never changed."},
    {.type = OB_OPT_MAP,
     .name = "stream_prefixes",
     .offset = AT(stream_prefixes),
     .help = "Prefix of subjects (whole words) to the stream that must take them, where the route "
             "names none; the longest wins."},
    {.type = OB_OPT_BOOL,
     .name = "single_writer",
     .def = "false",
     .offset = AT(single_writer),
     .help = "Nobody else writes to the streams: many events of a key may be in flight in strict "
             "order, each naming the one before it. Every message needs its stream."},
    {.type = OB_OPT_ENUM,
     .name = "content_type_header",
     .def = "auto",
     .offset = AT(content_type_header),
     .choices = "auto|always|never",
     .help = "Send Content-Type; auto: where the message is a binary CloudEvent."},
    {.type = OB_OPT_INT,
     .name = "window",
     .def = "4096",
     .offset = AT(window),
     .min = 1,
     .max = 65536,
     .help = "Messages sent and not yet acknowledged."},
    {.type = OB_OPT_BYTES,
     .name = "max_payload",
     .def = "0",
     .offset = AT(max_payload),
     .min = 0,
     .max = 64 << 20,
     .help = "Largest message with its headers; 0: what the server says."},
    {.type = OB_OPT_MS,
     .name = "connect_timeout",
     .def = "2s",
     .offset = AT(connect_timeout_ms),
     .min = 100,
     .max = 60000,
     .help = "How long one server may take to answer a connection."},
    {.type = OB_OPT_MS,
     .name = "ping_interval",
     .def = "5s",
     .offset = AT(ping_interval_ms),
     .min = 500,
     .max = 600000,
     .help = "A connection without an answer to two pings is lost."},
    {.type = OB_OPT_MS,
     .name = "outage",
     .def = "10m",
     .offset = AT(outage_ms),
     .min = 0,
     .max = INT64_MAX / 2000000,
     .help = "Longest outage to be expected: `check` compares it with the duplicate window of the "
             "streams."},
    {0},
};

static enum ob_status validate_wire(const struct ob_sink_nats_conf *c, const struct ob_node *map,
                                    struct ob_err *err)
{
    struct ob_urls urls;
    struct ob_err why;
    enum ob_status st = ob_nats_urls(c, &urls, &why);
    if (st != OB_OK)
        st = ob_node_err(ob_wire_pos(map, "url"), err, "url: %s", why.text);
    else
        st = ob_wire_agree(map, ob_nats_tls(c, &urls), err);
    ob_urls_clear(&urls);
    return st;
}

static void nats_wire(const void *conf, struct ob_wire *out)
{
    const struct ob_sink_nats_conf *c = conf;
    struct ob_urls urls;
    struct ob_err ignored;
    if (ob_nats_urls(c, &urls, &ignored) == OB_OK)
        ob_wire_set(out, &urls, ob_nats_tls(c, &urls) != NULL,
                    urls.userinfo || c->user || c->password || c->token || c->credentials ||
                        c->nkey);
    ob_urls_clear(&urls);
}

static enum ob_status validate(const void *conf, const struct ob_node *map, struct ob_err *err)
{
    const struct ob_sink_nats_conf *c = conf;
    const struct ob_opt_map *prefixes = &c->stream_prefixes;
    size_t streams = 0;
    if (validate_wire(c, map, err) != OB_OK || ob_nats_subject_validate(c, map, err) != OB_OK)
        return OB_FATAL;
    for (size_t i = 0; c->single_writer && i < prefixes->n; i++) {
        bool known = false;
        for (size_t k = 0; k < i && !known; k++)
            known = strcmp(prefixes->values[k], prefixes->values[i]) == 0;
        if (!known && ++streams > NATS_CHAINS)
            return ob_node_err(&prefixes->pos[i], err,
                               "stream_prefixes: single_writer serves at most %d streams",
                               NATS_CHAINS);
    }
    return OB_OK;
}

static unsigned max_shards(const void *conf, const char **why)
{
    const struct ob_sink_nats_conf *c = conf;
    *why = "single_writer: with several shards there are several writers; it needs shards: 1";
    return c->single_writer ? 1 : UINT_MAX;
}

/* ---- in the pump's thread ---- */

/* What is not as declared: its destinations are blocked or less safe than was asked for, the others
 * flow. */
static void differs(void *user, const struct nats_stream *d, enum nats_stream_is is,
                    const char *what)
{
    struct ob_sink *s = user;
    (void)is;
    ob_log(s->env.log, OB_LOG_WARN, "sink.nats.stream", OB_KC("stream", d->name),
           OB_KC("error", what));
}

static void declare(struct ob_sink *s, natsConnection *nc)
{
    struct ob_err err;
    const struct nats_declaring how = {.wait_ms = DECLARE_WAIT_MS,
                                       .change = s->conf->declare == OB_NATS_DECLARE_CREATE,
                                       .told = differs,
                                       .user = s};
    enum ob_status st = OB_OK;
    if (s->conf->declare != OB_NATS_DECLARE_OFF && s->streams.n > 0)
        st = ob_nats_streams_declare(&s->streams, nc, s->env.log, &how, &err);
    if (st == OB_DOWN)
        ob_log(s->env.log, OB_LOG_WARN, "sink.nats.stream", OB_KC("error", err.text));
    atomic_store(&s->session->refused, st == OB_AGAIN);
    s->declare_every =
        st == OB_AGAIN && s->declare_every > 0 ? s->declare_every * 2 : DECLARE_EVERY_MS;
    if (s->declare_every > DECLARE_RARELY_MS)
        s->declare_every = DECLARE_RARELY_MS;
    s->declare_ms = ob_pump_now_ms() + s->declare_every;
}

static enum ob_status connect_op(void *user, struct ob_err *err)
{
    struct ob_sink *s = user;
    enum ob_status st = ob_nats_connect(s, err);
    if (st == OB_OK)
        declare(s, s->session->nc);
    return st;
}

static void disconnect_op(void *user)
{
    ob_nats_disconnect(user);
}

static enum ob_status send_op(void *user, uint64_t ticket, const struct ob_msg *m,
                              struct ob_err *err)
{
    return ob_nats_send(user, ticket, m, err);
}

static bool may_declare(const struct ob_sink *s)
{
    return s->conf->declare == OB_NATS_DECLARE_CREATE && atomic_load(&s->session->refused);
}

static enum ob_status turn_op(void *user, struct ob_err *err)
{
    struct ob_sink *s = user;
    ob_nats_spent_free(&s->sent);
    if (atomic_load(&s->session->lost)) {
        const char *why = NULL;
        natsConnection_GetLastError(s->session->nc, &why);
        return ob_err_set(err, OB_DOWN, "the connection to NATS is lost%s%s",
                          why && *why ? ": " : "", why ? why : "");
    }
    if (may_declare(s) && ob_pump_now_ms() >= s->declare_ms)
        declare(s, s->session->nc);
    s->mend_ms = INT64_MAX;
    if (s->conf->single_writer)
        ob_nats_chains_mend(s, &s->mend_ms);
    return OB_OK;
}

static void wait_op(void *user, struct pollfd *fd, int64_t *until_ms)
{
    struct ob_sink *s = user;
    (void)fd; /* the library has its own threads; they wake us */
    if (may_declare(s))
        *until_ms = s->declare_ms;
    if (s->mend_ms < *until_ms)
        *until_ms = s->mend_ms;
}

static const struct ob_pump_ops ops = {connect_op, disconnect_op, send_op,
                                       turn_op,    wait_op,       OB_PUMP_HAND};

/* ---- the driver ---- */

static void nats_close(struct ob_sink *s, int grace_ms)
{
    if (!s)
        return;
    ob_pump_close(s->pump, grace_ms);
    ob_nats_streams_clear(&s->streams);
    ob_buf_clear(&s->text);
    ob_nats_chains_clear(&s->chains);
    ob_nats_spent_free(&s->sent);
    free(s);
}

static enum ob_status nats_open(const struct ob_sink_env *env, const void *conf,
                                struct ob_sink **out, struct ob_sink_caps *caps, struct ob_err *err)
{
    const struct ob_sink_nats_conf *c = conf;
    natsOptions *o = NULL;
    enum ob_status st = ob_nats_options(c, &o, err); /* what cannot work is said now */
    natsOptions_Destroy(o);
    if (st != OB_OK)
        return st;
    struct ob_sink *s = calloc(1, sizeof(*s));
    if (!s)
        return ob_err_set(err, OB_FATAL, "no memory");
    s->env = *env;
    s->conf = c;
    ob_buf_init(&s->text, 1 << 20);
    const char *why;
    if (env->shards > max_shards(c, &why))
        st = ob_err_set(err, OB_FATAL, "%s", why);
    else if (!ob_nats_chains_init(&s->chains, (size_t)c->window))
        st = ob_err_set(err, OB_FATAL, "no memory");
    else
        st = ob_nats_streams_load(c, &s->streams, err);
    if (st == OB_OK)
        st = ob_pump_open(env, &ops, s, (size_t)c->window, &s->pump, err);
    if (st != OB_OK) {
        nats_close(s, 0);
        return st;
    }
    *caps = (struct ob_sink_caps){.ordered = c->single_writer,
                                  .max_in_flight = (size_t)c->window,
                                  .max_bytes = (size_t)c->max_payload};
    *out = s;
    return OB_OK;
}

static int nats_wait_fd(const struct ob_sink *s)
{
    return ob_pump_fd(s->pump);
}

static int64_t nats_wake_at(const struct ob_sink *s)
{
    (void)s;
    return INT64_MAX;
}

static enum ob_status nats_submit(struct ob_sink *s, const struct ob_msg *const *msgs,
                                  const uint64_t *tokens, size_t *n, struct ob_err *err)
{
    return ob_pump_submit(s->pump, msgs, tokens, n, err);
}

static void nats_poll(struct ob_sink *s)
{
    ob_pump_poll(s->pump);
}

static void nats_cancel(struct ob_sink *s, uint64_t token)
{
    ob_pump_cancel(s->pump, token);
}

static void nats_reset(struct ob_sink *s)
{
    ob_pump_reset(s->pump);
}

const struct ob_sink_driver ob_sink_nats = {
    .name = "nats",
    .summary = "NATS JetStream: one acknowledgement per message, the event's id as Nats-Msg-Id.",
    .opts = nats_opts,
    .conf_size = sizeof(struct ob_sink_nats_conf),
    .validate = validate,
    .wire = nats_wire,
    .max_shards = max_shards,
    .open = nats_open,
    .check = ob_nats_check,
    .wait_fd = nats_wait_fd,
    .wake_at = nats_wake_at,
    .submit = nats_submit,
    .poll = nats_poll,
    .cancel = nats_cancel,
    .reset = nats_reset,
    .close = nats_close,
};
