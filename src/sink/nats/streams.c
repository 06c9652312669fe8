/* SPDX-License-Identifier: Apache-2.0 */
/* streams - streams as they are declared in the config or in JSON files, made or checked. */
#include "config/node.h"
#include "config/units.h"
#include "sink/nats/nats.h"

#include <stdio.h>
#include <stdlib.h>

static enum ob_status number(const struct ob_node *v, const char *key, int64_t *out,
                             struct ob_err *err)
{
    char *end = NULL;
    long long n = v->kind == OB_NODE_SCALAR ? strtoll(v->text, &end, 10) : 0;
    if (!end || end == v->text || *end)
        return ob_node_err(&v->pos, err, "%s: a number is needed", key);
    *out = n;
    return OB_OK;
}

/* Durations as in the config (2m), or as NATS writes them: a number of nanoseconds. */
static enum ob_status duration(const struct ob_node *v, const char *key, int64_t *ms,
                               struct ob_err *err)
{
    struct ob_err why;
    int64_t ns;
    if (number(v, key, &ns, &why) == OB_OK && (ns == 0 || ns >= 1000000)) {
        *ms = ns / 1000000;
        return OB_OK;
    }
    if (v->kind != OB_NODE_SCALAR || ob_units_parse(OB_OPT_MS, v->text, ms) != OB_UNITS_OK)
        return ob_node_err(&v->pos, err, "%s: a duration such as 2m or 1h is needed", key);
    return OB_OK;
}

static enum ob_status subjects(struct ob_arena *arena, const struct ob_node *v,
                               struct nats_stream *s, struct ob_err *err)
{
    if (v->kind != OB_NODE_LIST || v->n == 0)
        return ob_node_err(&v->pos, err, "subjects: a list of subjects is needed");
    s->subjects = ob_arena_zalloc(arena, v->n * sizeof(*s->subjects));
    if (!s->subjects)
        return ob_err_set(err, OB_FATAL, "no memory");
    for (size_t i = 0; i < v->n; i++) {
        if (v->items[i]->kind != OB_NODE_SCALAR)
            return ob_node_err(&v->items[i]->pos, err, "subjects: text is needed");
        s->subjects[s->n_subjects++] = v->items[i]->text;
    }
    return OB_OK;
}

static enum ob_status field(struct ob_arena *arena, const char *key, const struct ob_node *v,
                            struct nats_stream *s, struct ob_err *err)
{
    bool text = v->kind == OB_NODE_SCALAR;
    if (strcmp(key, "subjects") == 0)
        return subjects(arena, v, s, err);
    if (strcmp(key, "replicas") == 0 || strcmp(key, "num_replicas") == 0)
        return number(v, key, &s->replicas, err);
    if (strcmp(key, "duplicate_window") == 0)
        return duration(v, key, &s->duplicates_ms, err);
    if (strcmp(key, "max_age") == 0)
        return duration(v, key, &s->max_age_ms, err);
    if (strcmp(key, "max_bytes") == 0)
        return number(v, key, &s->max_bytes, err);
    if (strcmp(key, "max_msgs") == 0)
        return number(v, key, &s->max_msgs, err);
    if (strcmp(key, "name") == 0 && text && *v->text) {
        s->name = v->text;
        return OB_OK;
    }
    if (strcmp(key, "storage") == 0 && text &&
        (strcmp(v->text, "file") == 0 || strcmp(v->text, "memory") == 0)) {
        s->memory = *v->text == 'm';
        return OB_OK;
    }
    if (strcmp(key, "discard") == 0 && text &&
        (strcmp(v->text, "old") == 0 || strcmp(v->text, "new") == 0)) {
        s->discard = v->text;
        return OB_OK;
    }
    return ob_node_err(&v->pos, err,
                       "a stream has name, subjects, replicas, storage (file|memory), "
                       "duplicate_window, max_bytes, max_msgs, max_age, discard (old|new); not "
                       "this \"%s\"",
                       key);
}

static enum ob_status one(struct ob_arena *arena, const struct ob_node *n, struct nats_streams *out,
                          struct ob_err *err)
{
    struct nats_stream s = {.replicas = 1, .max_bytes = -1, .max_msgs = -1};
    enum ob_status st = OB_OK;
    if (n->kind != OB_NODE_MAP)
        return ob_node_err(&n->pos, err, "a stream is a map with name and subjects");
    for (size_t i = 0; st == OB_OK && i < n->n; i++)
        st = field(arena, n->keys[i], n->items[i], &s, err);
    if (st == OB_OK && (!s.name || s.n_subjects == 0))
        st = ob_node_err(&n->pos, err, "a stream needs a name and subjects");
    if (st != OB_OK)
        return st;
    struct nats_stream *list = realloc(out->list, (out->n + 1) * sizeof(*list));
    if (!list)
        return ob_err_set(err, OB_FATAL, "no memory");
    out->list = list;
    list[out->n++] = s;
    return OB_OK;
}

/* One stream, or a list of them. */
static enum ob_status many(struct ob_arena *arena, const struct ob_node *n,
                           struct nats_streams *out, struct ob_err *err)
{
    enum ob_status st = OB_OK;
    if (n->kind == OB_NODE_MAP)
        return one(arena, n, out, err);
    if (n->kind != OB_NODE_LIST)
        return ob_node_err(&n->pos, err, "streams: a list of streams is needed");
    for (size_t i = 0; st == OB_OK && i < n->n; i++)
        st = one(arena, n->items[i], out, err);
    return st;
}

enum ob_status ob_nats_streams_load(const struct ob_sink_nats_conf *c, struct nats_streams *out,
                                    struct ob_err *err)
{
    enum ob_status st = OB_OK;
    *out = (struct nats_streams){.arena = ob_arena_new(4096, 16 << 20)};
    if (!out->arena)
        return ob_err_set(err, OB_FATAL, "no memory");
    if (c->streams && !ob_node_is_null(c->streams))
        st = many(out->arena, c->streams, out, err);
    for (size_t i = 0; st == OB_OK && i < c->stream_files.n; i++) {
        struct ob_node *n = NULL;
        st = ob_yaml_load(out->arena, c->stream_files.values[i], NULL, &n, err);
        if (st == OB_OK && !n)
            st = ob_err_set(err, OB_FATAL, "%s: is empty", c->stream_files.values[i]);
        if (st == OB_OK)
            st = many(out->arena, n, out, err);
    }
    if (st != OB_OK) {
        ob_nats_streams_clear(out);
        return OB_FATAL;
    }
    return OB_OK;
}

void ob_nats_streams_clear(struct nats_streams *s)
{
    free(s->list);
    ob_arena_unref(s->arena);
    *s = (struct nats_streams){0};
}

static natsStatus make(jsCtx *js, const struct nats_stream *d, jsOptions *o,
                       const struct ob_log *log, struct ob_err *err)
{
    jsStreamConfig c;
    jsErrCode code = 0;
    jsStreamConfig_Init(&c);
    c.Name = d->name;
    c.Subjects = d->subjects;
    c.SubjectsLen = (int)d->n_subjects;
    c.Replicas = d->replicas;
    c.Storage = d->memory ? js_MemoryStorage : js_FileStorage;
    c.Duplicates = d->duplicates_ms * 1000000;
    c.MaxAge = d->max_age_ms * 1000000;
    c.MaxBytes = d->max_bytes;
    c.MaxMsgs = d->max_msgs;
    c.Discard = d->discard && *d->discard == 'n' ? js_DiscardNew : js_DiscardOld;
    natsStatus st = js_AddStream(NULL, js, &c, o, &code);
    if (st != NATS_OK)
        ob_err_set(err, OB_DOWN, "stream %s cannot be made: %s (%d)", d->name,
                   nats_GetLastError(NULL), (int)code);
    else
        ob_log(log, OB_LOG_INFO, "sink.nats.stream", OB_KC("stream", d->name),
               OB_KC("what", "created"));
    return st;
}

struct telling {
    const struct nats_stream *d;
    nats_told *told;
    void *user;
};

static void tell(const struct telling *t, enum nats_stream_is is, const char *what)
{
    t->told(t->user, t->d, is, what);
}

/* Each thing that is less than declared, or of another kind, by itself. */
static void compare(const struct telling *t, const jsStreamConfig *have)
{
    const struct nats_stream *d = t->d;
    char what[400];
    for (size_t i = 0; i < d->n_subjects; i++) {
        bool there = false;
        for (int k = 0; k < have->SubjectsLen; k++)
            there = there || strcmp(d->subjects[i], have->Subjects[k]) == 0;
        if (there)
            continue;
        snprintf(what, sizeof(what), "stream %.150s does not take subject %.150s", d->name,
                 d->subjects[i]);
        tell(t, NATS_STREAM_OTHER, what);
    }
    if (d->replicas > have->Replicas) {
        snprintf(what, sizeof(what), "stream %.150s has %lld replica%s, %lld are declared", d->name,
                 (long long)have->Replicas, have->Replicas == 1 ? "" : "s", (long long)d->replicas);
        tell(t, NATS_STREAM_OTHER, what);
    }
    if (d->duplicates_ms > 0 && have->Duplicates < d->duplicates_ms * 1000000) {
        snprintf(what, sizeof(what),
                 "stream %.150s forgets message ids after %lld s, %lld s are declared", d->name,
                 (long long)(have->Duplicates / 1000000000), (long long)(d->duplicates_ms / 1000));
        tell(t, NATS_STREAM_OTHER, what);
    }
    if (d->memory != (have->Storage == js_MemoryStorage)) {
        snprintf(what, sizeof(what), "stream %.150s is stored in %s, %s is declared", d->name,
                 d->memory ? "files" : "memory", d->memory ? "memory" : "file");
        tell(t, NATS_STREAM_OTHER, what);
    }
}

/* One stream is made or compared, with what time is left. */
static natsStatus declare_one(jsCtx *js, jsOptions *o, const struct telling *t, bool change,
                              const struct ob_log *log)
{
    struct ob_err why = {.text = ""};
    jsStreamInfo *info = NULL;
    jsErrCode code = 0;
    natsStatus ns = js_GetStreamInfo(&info, js, t->d->name, o, &code);
    if (ns == NATS_OK) {
        compare(t, info->Config);
    } else if (ns == NATS_NOT_FOUND && change) {
        ns = make(js, t->d, o, log, &why);
        if (ns != NATS_OK)
            tell(t, NATS_STREAM_MISSING, why.text);
    } else {
        ob_err_set(&why, OB_DOWN, "stream %s: %s", t->d->name,
                   ns == NATS_NOT_FOUND ? "there is none" : nats_GetLastError(NULL));
        tell(t, ns == NATS_NOT_FOUND ? NATS_STREAM_MISSING : NATS_STREAM_UNKNOWN, why.text);
    }
    jsStreamInfo_Destroy(info);
    return ns;
}

enum ob_status ob_nats_streams_declare(struct nats_streams *s, natsConnection *nc,
                                       const struct ob_log *log, const struct nats_declaring *how,
                                       struct ob_err *err)
{
    jsCtx *js = NULL;
    jsOptions o;
    int64_t until_ms = ob_pump_now_ms() + how->wait_ms;
    enum ob_status st = OB_OK;
    jsOptions_Init(&o);
    o.Wait = how->wait_ms;
    if (natsConnection_JetStream(&js, nc, &o) != NATS_OK)
        return ob_err_set(err, OB_DOWN, "JetStream: %s", nats_GetLastError(NULL));
    for (size_t i = 0, at = s->next; i < s->n && st == OB_OK; i++, at++) {
        const struct telling t = {&s->list[at % s->n], how->told, how->user};
        o.Wait = until_ms - ob_pump_now_ms();
        if (o.Wait <= 0 || declare_one(js, &o, &t, how->change, log) == NATS_TIMEOUT) {
            st = OB_AGAIN;
            s->next = (at + (o.Wait > 0)) % s->n; /* who is silent keeps nobody else waiting */
        }
    }
    jsCtx_Destroy(js);
    return st;
}
