/* SPDX-License-Identifier: Apache-2.0 */
/* check - whether the servers, JetStream and the streams are as the sink needs them. */
#include "sink/nats/nats.h"

#include <stdio.h>

#define WAIT_MS 5000
#define MAX_STREAMS 256

struct looking {
    const struct ob_sink_env *env;
    const struct ob_sink_nats_conf *conf;
    jsCtx *js;
    jsOptions o;
    natsSubscription *answers; /* ends after the connection */
    const char *seen[MAX_STREAMS];
    size_t n_seen;
    bool bad;
};

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

/* declared: in `streams` or `stream_files`. */
static void look_stream(struct looking *l, const char *name, bool declared)
{
    char what[300];
    jsStreamInfo *info = NULL;
    jsErrCode code = 0;
    for (size_t i = 0; i < l->n_seen; i++)
        if (strcmp(l->seen[i], name) == 0)
            return;
    if (l->n_seen < MAX_STREAMS)
        l->seen[l->n_seen++] = name;
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
    look_window(l, c);
    if (c->MaxMsgSize > 0 && l->conf->max_payload > c->MaxMsgSize) {
        snprintf(what, sizeof(what), "stream %s takes messages up to %d bytes, max_payload is %lld",
                 name, (int)c->MaxMsgSize, (long long)l->conf->max_payload);
        tell(l, false, what, "lower max_payload or raise the stream's max_msg_size");
    }
    jsStreamInfo_Destroy(info);
}

/* A topic that routes name must be taken by some stream. */
static void look_topic(struct looking *l, const char *topic)
{
    char what[300];
    jsStreamNamesList *names = NULL;
    jsErrCode code = 0;
    jsOptions o = l->o;
    o.Stream.Info.SubjectsFilter = NULL;
    if (js_StreamNames(&names, l->js, &o, &code) != NATS_OK)
        return;
    bool taken = false;
    for (int i = 0; names && i < names->Count && !taken; i++) {
        jsStreamInfo *info = NULL;
        if (js_GetStreamInfo(&info, l->js, names->List[i], &l->o, &code) != NATS_OK)
            continue;
        for (int k = 0; k < info->Config->SubjectsLen && !taken; k++)
            taken = ob_nats_subject_match(info->Config->Subjects[k], ob_str_c(topic));
        if (taken)
            look_window(l, info->Config);
        jsStreamInfo_Destroy(info);
    }
    jsStreamNamesList_Destroy(names);
    snprintf(what, sizeof(what),
             taken ? "subject %s is taken by a stream" : "no stream takes subject %s", topic);
    tell(l, taken, what, "add the subject to a stream: its events would wait");
}

static void look_right(struct looking *l, natsConnection *nc, const char *inbox,
                       const char *subject)
{
    char why[300], what[500], fix[300];
    switch (ob_nats_may_publish(nc, l->answers, inbox, subject, why)) {
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

/* Subjects that are known: of routes, and declared ones. Where there are wildcards only an event
 * tells. */
static void look_rights(struct looking *l, natsConnection *nc, const struct nats_streams *declared)
{
    char inbox[96], why[300], what[500], fix[200];
    enum nats_right may = ob_nats_may_hear(nc, l->conf, inbox, &l->answers, why);
    if (may == NATS_RIGHT_NO) {
        snprintf(what, sizeof(what), "acknowledgements cannot be heard: %s", why);
        snprintf(fix, sizeof(fix),
                 "in the server's permissions of the user: subscribe: {allow: [\"%.40s.>\"]}",
                 l->conf->inbox_prefix);
        tell(l, false, what, fix);
    }
    for (size_t i = 0; may == NATS_RIGHT_YES && i < l->env->n_topics; i++)
        if (ob_nats_subject_fits(ob_str_c(l->env->topics[i])))
            look_right(l, nc, inbox, l->env->topics[i]);
    for (size_t i = 0; may == NATS_RIGHT_YES && i < declared->n; i++)
        for (size_t k = 0; k < declared->list[i].n_subjects; k++) {
            const char *subject = declared->list[i].subjects[k];
            bool known = !ob_nats_subject_fits(ob_str_c(subject));
            for (size_t t = 0; t < l->env->n_topics; t++)
                known = known || strcmp(subject, l->env->topics[t]) == 0;
            if (!known)
                look_right(l, nc, inbox, subject);
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

static enum ob_status look(struct looking *l, natsConnection *nc, struct ob_err *err)
{
    char what[200];
    jsAccountInfo *account = NULL;
    jsErrCode code = 0;
    struct nats_streams declared = {0};
    snprintf(what, sizeof(what), "connected; a message may have up to %lld bytes",
             (long long)natsConnection_GetMaxPayload(nc));
    tell(l, true, what, NULL);
    if (l->conf->max_payload > natsConnection_GetMaxPayload(nc))
        tell(l, false, "max_payload is larger than the server's",
             "lower it: such messages would be rejected");
    jsOptions_Init(&l->o);
    l->o.Wait = WAIT_MS;
    natsStatus st = natsConnection_JetStream(&l->js, nc, &l->o);
    if (st == NATS_OK)
        st = js_GetAccountInfo(&account, l->js, &l->o, &code);
    if (st != NATS_OK) {
        snprintf(what, sizeof(what), "JetStream cannot be used: %s", nats_GetLastError(NULL));
        tell(l, false, what,
             "enable JetStream for this account and let the user publish to $JS.API.>");
        jsCtx_Destroy(l->js);
        return OB_OK;
    }
    jsAccountInfo_Destroy(account);
    enum ob_status rc = ob_nats_streams_load(l->conf, &declared, err);
    for (size_t i = 0; i < declared.n; i++)
        look_stream(l, declared.list[i].name, true);
    if (rc == OB_OK && declared.n > 0 && l->conf->declare != OB_NATS_DECLARE_OFF)
        rc = ob_nats_streams_declare(&declared, nc, NULL, false, differs, l, err);
    for (size_t i = 0; i < l->conf->stream_prefixes.n; i++)
        look_stream(l, l->conf->stream_prefixes.values[i], false);
    for (size_t i = 0; i < l->env->n_topics; i++)
        look_topic(l, l->env->topics[i]);
    for (size_t i = 0; i < l->env->n_streams; i++)
        look_stream(l, l->env->streams[i], false);
    if (l->env->more_topics)
        tell(l, true, OB_SINK_MORE_TOPICS, NULL);
    look_rights(l, nc, &declared);
    ob_nats_streams_clear(&declared);
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
    st = look(&l, nc, err);
    /* In this order, as ob_nats_disconnect() tells (test_nats:
     * check_ends_well_while_answers_still_come). */
    natsConnection_Close(nc);
    natsSubscription_Destroy(l.answers);
    natsConnection_Destroy(nc);
    return st;
}
