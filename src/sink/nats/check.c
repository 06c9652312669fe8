/* SPDX-License-Identifier: Apache-2.0 */
/* check - whether the servers, JetStream and the streams are as the sink needs them. */
#include "sink/nats/nats.h"

#include <stdio.h>

#define WAIT_MS 5000
/* Where one request had no answer, which is how a missing right looks, the next ones have less
 * time. */
#define AGAIN_MS 500
#define MAX_STREAMS 256

struct names {
    const char *list[MAX_STREAMS];
    size_t n;
};

struct looking {
    const struct ob_sink_env *env;
    const struct ob_sink_nats_conf *conf;
    natsConnection *nc;
    jsCtx *js;
    jsOptions o;
    natsSubscription *answers; /* ends after the connection */
    struct nats_streams declared;
    jsStreamInfo *infos[MAX_STREAMS]; /* of the server's streams, as far as they could be seen */
    size_t n_infos;
    bool unlisted;                      /* there may be others */
    char hidden[300];                   /* a stream that is there and could not be seen */
    struct names seen, limits, untaken; /* streams that were told about; subjects of no stream */
    bool bad;
};

/* False: it was in the list, or there is no place. */
static bool add_name(struct names *names, const char *name)
{
    for (size_t i = 0; i < names->n; i++)
        if (strcmp(names->list[i], name) == 0)
            return false;
    if (names->n == MAX_STREAMS)
        return false;
    names->list[names->n++] = name;
    return true;
}

static bool has_name(const struct names *names, const char *name)
{
    for (size_t i = 0; i < names->n; i++)
        if (strcmp(names->list[i], name) == 0)
            return true;
    return false;
}

static void tell(struct looking *l, bool ok, const char *what, const char *fix)
{
    l->bad = l->bad || !ok;
    if (l->env->found)
        l->env->found(l->env->found_user, ok, what, ok ? NULL : fix);
}

static void look_window(struct looking *l, const jsStreamConfig *c)
{
    char what[300], fix[200];
    int64_t have = c->Duplicates / 1000000;
    if (have >= l->conf->outage_ms)
        return;
    snprintf(what, sizeof(what),
             "stream %s forgets message ids after %lld s; an outage of %lld s may leave duplicates",
             c->Name, (long long)(have / 1000), (long long)(l->conf->outage_ms / 1000));
    snprintf(fix, sizeof(fix),
             "set its duplicate window to %llds or more, or `outage` to what you expect",
             (long long)(l->conf->outage_ms / 1000));
    tell(l, false, what, fix);
}

static void look_size(struct looking *l, const jsStreamConfig *c)
{
    char what[300];
    int64_t own = l->conf->max_payload;
    if (c->MaxMsgSize <= 0 || natsConnection_GetMaxPayload(l->nc) <= c->MaxMsgSize)
        return;
    if (own > c->MaxMsgSize) {
        snprintf(what, sizeof(what),
                 "stream %.200s takes messages up to %d bytes, max_payload is %lld", c->Name,
                 (int)c->MaxMsgSize, (long long)own);
        tell(l, false, what, "lower max_payload or raise the stream's max_msg_size");
    } else if (own == 0) {
        snprintf(what, sizeof(what),
                 "stream %.200s takes messages up to %d bytes: larger ones will be rejected",
                 c->Name, (int)c->MaxMsgSize);
        tell(l, true, what, NULL);
    }
}

/* name: lives as long as l. */
static void look_limits(struct looking *l, const char *name, const jsStreamConfig *c)
{
    if (!add_name(&l->limits, name))
        return;
    look_window(l, c);
    look_size(l, c);
}

/* declared: in `streams` or `stream_files`. */
static void look_stream(struct looking *l, const char *name, bool declared)
{
    char what[300];
    jsStreamInfo *info = NULL;
    jsErrCode code = 0;
    if (!add_name(&l->seen, name))
        return;
    natsStatus st = js_GetStreamInfo(&info, l->js, name, &l->o, &code);
    if (st == NATS_NOT_FOUND) {
        snprintf(what, sizeof(what), "stream %s: there is none", name);
        bool made = declared && l->conf->declare == OB_NATS_DECLARE_CREATE;
        if (made)
            snprintf(what, sizeof(what), "stream %.200s: there is none; it will be made", name);
        tell(l, made, what, "make it, or declare it in `streams` with `declare: create`");
        return;
    }
    if (st != NATS_OK) {
        snprintf(what, sizeof(what), "stream %s cannot be looked at: %s", name,
                 nats_GetLastError(NULL));
        tell(l, false, what, "let the user publish to $JS.API.STREAM.INFO.>");
        return;
    }
    const jsStreamConfig *c = info->Config;
    snprintf(what, sizeof(what), "stream %s is there: %d subject%s, %lld replica%s, %s", name,
             c->SubjectsLen, c->SubjectsLen == 1 ? "" : "s", (long long)c->Replicas,
             c->Replicas == 1 ? "" : "s", c->Storage == js_MemoryStorage ? "memory" : "file");
    tell(l, true, what, NULL);
    look_limits(l, name, c);
    jsStreamInfo_Destroy(info);
}

/* What streams there are. A right that is missing is told, and not taken for a stream that is. */
static void look_streams(struct looking *l)
{
    char what[400];
    jsErrCode code = 0;
    jsStreamNamesList *names = NULL;
    jsOptions o = l->o;
    natsStatus st = js_StreamNames(&names, l->js, &o, &code);
    l->unlisted = st != NATS_OK && st != NATS_NOT_FOUND;
    if (l->unlisted) {
        snprintf(what, sizeof(what), "streams cannot be listed: %.200s", natsStatus_GetText(st));
        tell(l, false, what, "let the user publish to $JS.API.STREAM.NAMES");
    }
    for (int i = 0; names && i < names->Count; i++) {
        jsStreamInfo *info = NULL;
        st = js_GetStreamInfo(&info, l->js, names->List[i], &o, &code);
        if (st == NATS_OK && l->n_infos < MAX_STREAMS)
            l->infos[l->n_infos++] = info;
        else
            jsStreamInfo_Destroy(info);
        if (st != NATS_OK && st != NATS_NOT_FOUND && !l->hidden[0])
            snprintf(l->hidden, sizeof(l->hidden), "stream %.150s cannot be looked at: %.100s",
                     names->List[i], natsStatus_GetText(st));
        if (st == NATS_TIMEOUT)
            o.Wait = AGAIN_MS;
    }
    jsStreamNamesList_Destroy(names);
}

static const jsStreamConfig *taker(const struct looking *l, const char *topic)
{
    for (size_t i = 0; i < l->n_infos; i++)
        for (int k = 0; k < l->infos[i]->Config->SubjectsLen; k++)
            if (ob_nats_subject_match(l->infos[i]->Config->Subjects[k], ob_str_c(topic)))
                return l->infos[i]->Config;
    return NULL;
}

static const char *maker(const struct looking *l, const char *topic)
{
    bool make = l->conf->declare == OB_NATS_DECLARE_CREATE;
    for (size_t i = 0; make && i < l->declared.n; i++)
        for (size_t k = 0; k < l->declared.list[i].n_subjects; k++)
            if (ob_nats_subject_match(l->declared.list[i].subjects[k], ob_str_c(topic)))
                return l->declared.list[i].name;
    return NULL;
}

/* A topic that routes name must be taken by some stream. Where not all could be seen, the answer to
 * a publish tells (look_right). */
static void look_topic(struct looking *l, const char *topic)
{
    char what[400];
    if (ob_nats_subject_reserved(l->conf, ob_str_c(topic))) {
        bool allowed = ob_nats_subject_allowed(l->conf, ob_str_c(topic));
        snprintf(what, sizeof(what), "subject %.150s is %s", topic,
                 allowed ? "allowed by allow_subjects; not tried, since a publish may change the "
                           "server"
                         : "reserved: its events would be rejected");
        tell(l, allowed, what, "use another topic, or name the subject in allow_subjects");
        return;
    }
    const jsStreamConfig *c = taker(l, topic);
    const char *made = c ? NULL : maker(l, topic);
    if (c)
        look_limits(l, c->Name, c);
    if (!c && !made && l->hidden[0] && add_name(&l->limits, l->hidden))
        tell(l, false, l->hidden, "let the user publish to $JS.API.STREAM.INFO.>");
    if (!c && !made && (l->unlisted || l->hidden[0]))
        return;
    if (c)
        snprintf(what, sizeof(what), "subject %s is taken by a stream", topic);
    else if (made)
        snprintf(what, sizeof(what), "subject %.150s will be taken by stream %.150s", topic, made);
    else
        snprintf(what, sizeof(what), "no stream takes subject %s", topic);
    if (!c)
        (void)add_name(&l->untaken, topic);
    tell(l, c || made, what, "add the subject to a stream: its events would wait");
}

/* routed: events go there; what is only declared was told with its stream. */
static void look_right(struct looking *l, const char *inbox, const char *subject, bool routed)
{
    char why[300], what[500], fix[300];
    switch (ob_nats_may_publish(l->nc, l->answers, inbox, subject, why)) {
    case NATS_RIGHT_UNHEARD:
        if (routed && !has_name(&l->untaken, subject)) {
            snprintf(what, sizeof(what), "no stream takes subject %.150s: nobody answers there",
                     subject);
            tell(l, false, what, "add the subject to a stream: its events would wait");
            return;
        } /* fall through */
    case NATS_RIGHT_YES:
        snprintf(what, sizeof(what), "subject %.150s: this user may publish to it", subject);
        tell(l, true, what, NULL);
        return;
    case NATS_RIGHT_NO:
        snprintf(what, sizeof(what), "subject %.150s: this user may not publish to it: %s", subject,
                 why);
        snprintf(fix, sizeof(fix),
                 "in the server's permissions of the user: publish: {allow: [\"%.100s\", "
                 "\"$JS.API.>\"]}, and nothing in deny that covers it",
                 subject);
        tell(l, false, what, fix);
        return;
    case NATS_RIGHT_STORED:
        snprintf(what, sizeof(what), "subject %.150s: %s: an empty message", subject, why);
        tell(l, false, what, "use a server that knows Nats-Expected-Stream (2.2 or newer)");
        return;
    default:
        snprintf(what, sizeof(what),
                 "subject %.150s: no right is missing, as far as is known (%.200s)", subject, why);
        tell(l, true, what, NULL);
    }
}

/* An empty message to a reserved subject could be a request to the server's API. */
static bool may_try(const struct looking *l, const char *subject)
{
    return ob_nats_subject_fits(ob_str_c(subject)) &&
           !ob_nats_subject_reserved(l->conf, ob_str_c(subject));
}

/* Subjects that are known: of routes, and declared ones. Where there are wildcards only an event
 * tells. */
static void look_rights(struct looking *l)
{
    const struct nats_streams *declared = &l->declared;
    char inbox[96], why[300], what[500], fix[200];
    enum nats_right may = ob_nats_may_hear(l->nc, l->conf, inbox, &l->answers, why);
    if (may == NATS_RIGHT_NO) {
        snprintf(what, sizeof(what), "acknowledgements cannot be heard: %s", why);
        snprintf(fix, sizeof(fix),
                 "in the server's permissions of the user: subscribe: {allow: [\"%.40s.>\"]}",
                 l->conf->inbox_prefix);
        tell(l, false, what, fix);
    }
    for (size_t i = 0; may == NATS_RIGHT_YES && i < l->env->n_topics; i++)
        if (may_try(l, l->env->topics[i]))
            look_right(l, inbox, l->env->topics[i], true);
    for (size_t i = 0; may == NATS_RIGHT_YES && i < declared->n; i++)
        for (size_t k = 0; k < declared->list[i].n_subjects; k++) {
            const char *subject = declared->list[i].subjects[k];
            bool known = !may_try(l, subject);
            for (size_t t = 0; t < l->env->n_topics; t++)
                known = known || strcmp(subject, l->env->topics[t]) == 0;
            if (!known)
                look_right(l, inbox, subject, false);
        }
}

/* That one is missing, or cannot be looked at, was told. */
static void differs(void *user, const struct nats_stream *d, enum nats_stream_is is,
                    const char *what)
{
    (void)d;
    if (is == NATS_STREAM_OTHER)
        tell(user, false, what, "change the stream, or what is declared");
}

static bool is_letters(const struct looking *l, const char *topic)
{
    size_t n = strlen(topic);
    for (size_t i = 0; n > 4 && strcmp(topic + n - 4, ".dlt") == 0 && i < l->env->n_topics; i++)
        if (strlen(l->env->topics[i]) == n - 4 && strncmp(l->env->topics[i], topic, n - 4) == 0)
            return true;
    return false;
}

/* single_writer: every event needs its stream, and there are not too many. */
static void look_chains(struct looking *l)
{
    struct names streams = {.n = 0};
    char what[400];
    static const char fix[] = "name it in the route (stream:) or in stream_prefixes";
    bool none = l->env->streamless && !l->env->row_streams && l->conf->stream_prefixes.n == 0;
    for (size_t i = 0; i < l->conf->stream_prefixes.n; i++)
        (void)add_name(&streams, l->conf->stream_prefixes.values[i]);
    for (size_t i = 0; i < l->env->n_streams; i++)
        (void)add_name(&streams, l->env->streams[i]);
    if (streams.n > NATS_CHAINS) {
        snprintf(what, sizeof(what),
                 "single_writer: %zu streams; events of more than %d would wait", streams.n,
                 NATS_CHAINS);
        tell(l, false, what, "use fewer streams, several pipelines, or no single_writer");
    }
    for (size_t i = 0; i < l->env->n_places; i++) {
        const struct ob_msg m = {.topic = ob_str_c(l->env->places[i].topic)};
        if (l->env->places[i].stream || l->env->row_streams || is_letters(l, m.topic.p) ||
            ob_nats_stream_of(l->conf, &m).n > 0)
            continue;
        none = false;
        snprintf(what, sizeof(what), "single_writer: subject %.200s has no stream", m.topic.p);
        tell(l, false, what, fix);
    }
    if (none)
        tell(l, false, "single_writer: a route names no stream", fix);
}

/* Whether JetStream is there. Who may not ask may still be able to use it. */
static bool look_account(struct looking *l)
{
    char what[400], why[300];
    jsAccountInfo *account = NULL;
    jsErrCode code = 0;
    natsStatus st = natsConnection_JetStream(&l->js, l->nc, &l->o);
    if (st == NATS_OK)
        st = js_GetAccountInfo(&account, l->js, &l->o, &code);
    jsAccountInfo_Destroy(account);
    if (st == NATS_OK)
        return true;
    if (l->js && ob_nats_violated(l->nc, "$JS.API.INFO", why)) {
        snprintf(what, sizeof(what), "the account's JetStream cannot be looked at: %s", why);
        tell(l, false, what, "let the user publish to $JS.API.INFO");
        l->o.Wait = AGAIN_MS;
        return true;
    }
    snprintf(what, sizeof(what), "JetStream cannot be used: %.200s", nats_GetLastError(NULL));
    tell(l, false, what, "enable JetStream for this account and let the user publish to $JS.API.>");
    return false;
}

static enum ob_status look_all(struct looking *l, struct ob_err *err)
{
    const struct nats_declaring how = {.wait_ms = l->o.Wait, .told = differs, .user = l};
    enum ob_status rc = ob_nats_streams_load(l->conf, &l->declared, err);
    for (size_t i = 0; i < l->declared.n; i++)
        look_stream(l, l->declared.list[i].name, true);
    if (rc == OB_OK && l->declared.n > 0 && l->conf->declare != OB_NATS_DECLARE_OFF)
        rc = ob_nats_streams_declare(&l->declared, l->nc, NULL, &how, err);
    rc = rc == OB_AGAIN ? OB_OK : rc; /* what cannot be looked at was told */
    for (size_t i = 0; i < l->conf->stream_prefixes.n; i++)
        look_stream(l, l->conf->stream_prefixes.values[i], false);
    if (l->env->n_topics > 0)
        look_streams(l);
    for (size_t i = 0; i < l->env->n_topics; i++)
        look_topic(l, l->env->topics[i]);
    for (size_t i = 0; i < l->env->n_streams; i++)
        look_stream(l, l->env->streams[i], false);
    if (l->env->more_topics)
        tell(l, true, OB_SINK_MORE_TOPICS, NULL);
    look_rights(l);
    return rc;
}

static enum ob_status look(struct looking *l, struct ob_err *err)
{
    char what[200];
    enum ob_status rc = OB_OK;
    snprintf(what, sizeof(what), "connected; a message may have up to %lld bytes",
             (long long)natsConnection_GetMaxPayload(l->nc));
    tell(l, true, what, NULL);
    if (l->conf->max_payload > natsConnection_GetMaxPayload(l->nc))
        tell(l, false, "max_payload is larger than the server's",
             "lower it: such messages would be rejected");
    if (l->conf->single_writer)
        look_chains(l);
    jsOptions_Init(&l->o);
    l->o.Wait = WAIT_MS;
    if (look_account(l))
        rc = look_all(l, err);
    for (size_t i = 0; i < l->n_infos; i++)
        jsStreamInfo_Destroy(l->infos[i]);
    ob_nats_streams_clear(&l->declared);
    jsCtx_Destroy(l->js);
    return rc;
}

enum ob_status ob_nats_check(const struct ob_sink_env *env, const void *conf, struct ob_err *err)
{
    struct looking l = {.env = env, .conf = conf};
    natsOptions *o = NULL;
    natsConnection *nc = NULL;
    enum ob_status st = ob_nats_options(conf, &o, err);
    if (st != OB_OK)
        return st;
    natsStatus ns = natsConnection_Connect(&nc, o);
    natsOptions_Destroy(o);
    if (ns != NATS_OK)
        return ob_nats_no_connection(ns, err);
    l.nc = nc;
    st = look(&l, err);
    /* In this order, as ob_nats_disconnect() tells (test_nats:
     * check_ends_well_while_answers_still_come). */
    natsConnection_Close(nc);
    natsSubscription_Destroy(l.answers);
    natsConnection_Destroy(nc);
    return st;
}
