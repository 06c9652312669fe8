/* SPDX-License-Identifier: Apache-2.0 */
/* conn - a connection to the NATS servers and the inbox that its acknowledgements come to.
 *
 * The library's own reconnecting is off: what it would keep for later could be sent after the flow
 * has decided anew. A lost connection is the end of all that was in flight on it, and the next one
 * has another inbox. */
#include "core/uuid.h"
#include "sink/nats/nats.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* A server that takes no bytes for so long is lost. */
#define WRITE_DEADLINE_MS 5000

static enum ob_status bad(natsStatus st, const char *what, struct ob_err *err)
{
    const char *more = nats_GetLastError(NULL);
    return ob_err_set(err, OB_DOWN, "%s: %s%s%s", what, natsStatus_GetText(st),
                      more && *more ? ": " : "", more ? more : "");
}

enum ob_status ob_nats_no_connection(natsStatus st, struct ob_err *err)
{
    if (st == NATS_INVALID_ARG)
        return ob_err_set(err, OB_FATAL,
                          "cannot connect to NATS: the url cannot be understood; it is "
                          "nats://user:password@host:port, with what is special in it as %%40");
    return bad(st, "cannot connect to NATS", err);
}

enum ob_status ob_nats_urls(const struct ob_sink_nats_conf *c, struct ob_urls *out,
                            struct ob_err *err)
{
    static const struct ob_url_scheme schemes[] = {{"nats", false}, {"tls", true}, {NULL, false}};
    return ob_urls_parse(out, c->url, schemes, true, err);
}

const char *ob_nats_tls(const struct ob_sink_nats_conf *c, const struct ob_urls *urls)
{
    return urls->tls     ? "a tls:// url"
           : c->ca       ? "ca"
           : c->cert     ? "cert"
           : c->key      ? "key"
           : c->tls_name ? "tls_name"
           : c->tls      ? "tls"
                         : NULL;
}

static natsStatus set_servers(natsOptions *o, const struct ob_urls *urls)
{
    const char *servers[OB_URLS_MAX];
    for (size_t i = 0; i < urls->n; i++)
        servers[i] = urls->list[i].text;
    return natsOptions_SetServers(o, servers, (int)urls->n);
}

static natsStatus set_auth(natsOptions *o, const struct ob_sink_nats_conf *c)
{
    natsStatus st = NATS_OK;
    if (c->user)
        st = natsOptions_SetUserInfo(o, c->user, c->password ? c->password : "");
    if (st == NATS_OK && c->token)
        st = natsOptions_SetToken(o, c->token);
    if (st == NATS_OK && c->credentials)
        st = natsOptions_SetUserCredentialsFromFiles(o, c->credentials, NULL);
    if (st == NATS_OK && c->nkey)
        st = natsOptions_SetNKeyFromSeed(o, c->nkey, c->nkey_seed);
    return st;
}

static natsStatus set_tls(natsOptions *o, const struct ob_sink_nats_conf *c, const char **what)
{
    *what = "tls";
    natsStatus st = natsOptions_SetSecure(o, true);
    if (st == NATS_OK && c->ca) {
        *what = "ca";
        st = natsOptions_LoadCATrustedCertificates(o, c->ca);
    }
    if (st == NATS_OK && c->cert) {
        *what = "cert and key";
        st = natsOptions_LoadCertificatesChain(o, c->cert, c->key);
    }
    if (st == NATS_OK && c->tls_name)
        st = natsOptions_SetExpectedHostname(o, c->tls_name);
    if (st == NATS_OK && !c->verify)
        st = natsOptions_SkipServerVerification(o, true);
    return st;
}

/* Servers, login and TLS. */
static natsStatus set_wire(natsOptions *o, const struct ob_sink_nats_conf *c,
                           const struct ob_urls *urls, const char **what)
{
    natsStatus st = set_servers(o, urls);
    if (st == NATS_OK) {
        *what = "user, token, credentials or nkey";
        st = set_auth(o, c);
    }
    if (st == NATS_OK && ob_nats_tls(c, urls))
        st = set_tls(o, c, what);
    return st;
}

enum ob_status ob_nats_options(const struct ob_sink_nats_conf *c, natsOptions **out,
                               struct ob_err *err)
{
    natsOptions *o = NULL;
    struct ob_urls urls;
    const char *what = "url";
    if (!c->nkey != !c->nkey_seed)
        return ob_err_set(err, OB_FATAL, "nkey and nkey_seed belong together");
    if (!c->cert != !c->key)
        return ob_err_set(err, OB_FATAL, "cert and key belong together");
    if (ob_nats_urls(c, &urls, err) != OB_OK) {
        ob_urls_clear(&urls);
        return OB_FATAL;
    }
    natsStatus st = natsOptions_Create(&o);
    if (st == NATS_OK)
        st = set_wire(o, c, &urls, &what);
    ob_urls_clear(&urls);
    if (st == NATS_OK && c->name)
        st = natsOptions_SetName(o, c->name);
    if (st == NATS_OK)
        st = natsOptions_SetAllowReconnect(o, false);
    if (st == NATS_OK) /* and should it ever: a publish while disconnected fails */
        st = natsOptions_SetReconnectBufSize(o, 1);
    if (st == NATS_OK)
        st = natsOptions_SetTimeout(o, c->connect_timeout_ms);
    if (st == NATS_OK)
        st = natsOptions_SetPingInterval(o, c->ping_interval_ms);
    if (st == NATS_OK)
        st = natsOptions_SetMaxPingsOut(o, 2);
    if (st == NATS_OK)
        st = natsOptions_SetWriteDeadline(o, WRITE_DEADLINE_MS);
    if (st != NATS_OK) {
        bad(st, what, err);
        err->status = OB_FATAL;
        natsOptions_Destroy(o);
        return OB_FATAL;
    }
    *out = o;
    return OB_OK;
}

void ob_nats_spent_free(struct nats_spent *t)
{
    for (size_t i = 0; i < t->n; i++)
        natsMsg_Destroy(t->msgs[i]);
    t->n = t->bytes = 0;
}

void ob_nats_spent_add(struct nats_spent *t, natsMsg *msg, size_t bytes)
{
    t->msgs[t->n++] = msg;
    t->bytes += bytes;
    if (t->n == NATS_GATHER || t->bytes > NATS_SPENT_BYTES)
        ob_nats_spent_free(t);
}

/* ---- callbacks, in threads of the library ---- */

static void session_unref(struct nats_session *x)
{
    if (atomic_fetch_sub(&x->refs, 1) != 1)
        return;
    ob_nats_spent_free(&x->answers);
    pthread_mutex_destroy(&x->lock);
    free(x);
}

static void on_sub_over(void *closure)
{
    session_unref(closure);
}

static void on_closed(natsConnection *nc, void *closure)
{
    (void)nc;
    struct nats_session *x = closure;
    pthread_mutex_lock(&x->lock);
    atomic_store(&x->lost, true);
    if (x->sink)
        ob_pump_wake(x->sink->pump);
    pthread_mutex_unlock(&x->lock);
    session_unref(x);
}

static void give_verdict(struct ob_sink *s, uint64_t ticket, enum ob_verdict v, int code,
                         const char *why)
{
    if (s->conf->single_writer)
        ob_nats_chain_answer(s, ticket, v, code, why);
    else
        ob_pump_done(s->pump, ticket, v, v == OB_V_DELIVERED ? NULL : why);
}

struct same_topic {
    struct ob_str topic;
    uint64_t *tickets;
    size_t n, max;
};

static void collect(void *arg, uint64_t ticket, const struct ob_msg *m)
{
    struct same_topic *t = arg;
    if (t->n < t->max && ob_str_eq(m->topic, t->topic))
        t->tickets[t->n++] = ticket;
}

/* A publish that is not permitted has no answer but this. */
static void on_error(natsConnection *nc, natsSubscription *sub, natsStatus st, void *closure)
{
    (void)sub;
    struct nats_session *x = closure;
    const char *text = NULL;
    if (st != NATS_NOT_PERMITTED || natsConnection_GetLastError(nc, &text) == NATS_INVALID_ARG ||
        !text)
        return;
    const char *from = strchr(text, '"'), *to = from ? strchr(from + 1, '"') : NULL;
    if (!to)
        return;
    char why[300];
    snprintf(why, sizeof(why), "%.250s", text);
    pthread_mutex_lock(&x->lock);
    size_t max = x->sink ? (size_t)x->sink->conf->window : 0;
    struct same_topic t = {.topic = {from + 1, (size_t)(to - from - 1)},
                           .tickets = max ? malloc(max * sizeof(uint64_t)) : NULL,
                           .max = max};
    if (t.tickets) {
        ob_pump_each(x->sink->pump, collect, &t);
        for (size_t i = 0; i < t.n; i++)
            give_verdict(x->sink, t.tickets[i], OB_V_BLOCKED, 0, why);
    }
    pthread_mutex_unlock(&x->lock);
    free(t.tickets);
}

/* With the session's lock. */
static void tell_taken(struct nats_session *x)
{
    if (x->sink && x->n_taken > 0)
        ob_pump_delivered(x->sink->pump, x->taken, x->n_taken);
    x->n_taken = 0;
}

/* Good answers are gathered while more of them wait, so that the shard is woken once for many. */
static void gather(struct nats_session *x, natsSubscription *sub, uint64_t ticket)
{
    int waiting = 0, bytes = 0;
    x->taken[x->n_taken++] = ticket;
    if (x->n_taken < NATS_GATHER && natsSubscription_GetPending(sub, &waiting, &bytes) == NATS_OK &&
        waiting > 0)
        return;
    pthread_mutex_lock(&x->lock);
    tell_taken(x);
    pthread_mutex_unlock(&x->lock);
    ob_nats_spent_free(&x->answers);
}

static void on_answer(natsConnection *nc, natsSubscription *sub, natsMsg *msg, void *closure)
{
    (void)nc;
    struct nats_session *x = closure;
    const char *subject = natsMsg_GetSubject(msg);
    char why[256];
    int code;
    bool none = natsMsg_IsNoResponders(msg);
    char *end;
    uint64_t ticket = strtoull(subject + x->inbox_n, &end, 16);
    struct ob_str data = {natsMsg_GetData(msg), (size_t)natsMsg_GetDataLength(msg)};
    enum ob_verdict v = ob_nats_answer(data, none, *end == NATS_ONCE, &code, why);
    if (v == OB_V_DELIVERED && !x->chained) {
        ob_nats_spent_add(&x->answers, msg, (size_t)natsMsg_GetDataLength(msg));
        gather(x, sub, ticket);
        return;
    }
    pthread_mutex_lock(&x->lock);
    tell_taken(x);
    if (x->sink) {
        give_verdict(x->sink, ticket, v, code, why);
        if (none && !atomic_exchange(&x->refused, true))
            ob_pump_wake(x->sink->pump);
    }
    pthread_mutex_unlock(&x->lock);
    natsMsg_Destroy(msg);
}

/* ---- the pump's thread ---- */

static struct nats_session *session_new(struct ob_sink *s)
{
    struct nats_session *x = calloc(1, sizeof(*x));
    if (!x)
        return NULL;
    pthread_mutex_init(&x->lock, NULL);
    x->sink = s;
    x->chained = s->conf->single_writer;
    atomic_store(&x->refs, 1);
    char id[OB_UUID_TEXT];
    ob_uuid7_text(id);
    int n = snprintf(x->inbox, sizeof(x->inbox) - 4, "%s.%s.", s->conf->inbox_prefix, id);
    x->inbox_n = (size_t)n;
    return x;
}

static natsStatus subscribe(struct nats_session *x)
{
    char all[sizeof(x->inbox) + 1];
    snprintf(all, sizeof(all), "%s*", x->inbox);
    natsStatus st = natsConnection_Subscribe(&x->sub, x->nc, all, on_answer, x);
    if (st == NATS_OK)
        st = natsSubscription_SetPendingLimits(x->sub, -1, -1); /* never drop an answer */
    if (st == NATS_OK) {
        atomic_fetch_add(&x->refs, 1);
        st = natsSubscription_SetOnCompleteCB(x->sub, on_sub_over, x);
        if (st != NATS_OK)
            atomic_fetch_sub(&x->refs, 1);
    }
    return st;
}

enum ob_status ob_nats_connect(struct ob_sink *s, struct ob_err *err)
{
    natsOptions *o = NULL;
    enum ob_status st = ob_nats_options(s->conf, &o, err);
    if (st != OB_OK)
        return st;
    struct nats_session *x = session_new(s);
    natsStatus ns = x ? natsOptions_SetClosedCB(o, on_closed, x) : NATS_NO_MEMORY;
    if (ns == NATS_OK)
        ns = natsOptions_SetErrorHandler(o, on_error, x);
    if (ns == NATS_OK) {
        atomic_fetch_add(&x->refs, 1); /* of on_closed() */
        ns = natsConnection_Connect(&x->nc, o);
        if (ns != NATS_OK)
            atomic_fetch_sub(&x->refs, 1);
    }
    natsOptions_Destroy(o);
    if (ns == NATS_OK)
        ns = subscribe(x);
    if (ns != NATS_OK) {
        (void)ob_nats_no_connection(ns, err);
        s->session = x;
        if (x)
            ob_nats_disconnect(s);
        return OB_DOWN;
    }
    x->max_payload = natsConnection_GetMaxPayload(x->nc);
    s->session = x;
    return OB_OK;
}

void ob_nats_disconnect(struct ob_sink *s)
{
    struct nats_session *x = s->session;
    s->session = NULL;
    pthread_mutex_lock(&x->lock);
    x->sink = NULL;
    pthread_mutex_unlock(&x->lock);
    if (s->conf->single_writer)
        ob_nats_chains_reset(&s->chains);
    /* In this order: libnats 3.4 hands a message that is just coming in to the subscription without
     * holding it, so that must outlive the thread which reads (contract: close with messages in
     * flight; it ended the process). */
    natsConnection_Close(x->nc);
    natsSubscription_Destroy(x->sub);
    natsConnection_Destroy(x->nc);
    session_unref(x);
}
