/* SPDX-License-Identifier: Apache-2.0 */
/* driver - the MongoDB source as the registry sees it, and handing out. */
#include "event/mongo_native.h"
#include "source/mongodb/mongo.h"

#include <stdio.h>
#include <stdlib.h>

static const struct ob_opt opts[] = {
    {.type = OB_OPT_STR,
     .name = "uri",
     .def = "mongodb://127.0.0.1/?replicaSet=rs0",
     .offset = offsetof(struct mongo_conf, uri),
     .help = "A connection string of libmongoc. Time-outs that it does not name are ours.",
     .flags = OB_OPT_SECRET},
    {.type = OB_OPT_STR,
     .name = "database",
     .def = "outbox",
     .offset = offsetof(struct mongo_conf, database),
     .help = "The database of the events."},
    {.type = OB_OPT_STR,
     .name = "collection",
     .def = OB_MONGO_NATIVE,
     .offset = offsetof(struct mongo_conf, collection),
     .help = "The collection of native events; one of your own is named by `mapping`."},
    {.type = OB_OPT_ENUM,
     .name = "mode",
     .def = "rows",
     .offset = offsetof(struct mongo_conf, mode),
     .choices = "rows",
     .help = "Documents with their own state; there is no other."},
    {.type = OB_OPT_STR,
     .name = "worker_id",
     .def = "",
     .offset = offsetof(struct mongo_conf, worker_id),
     .help = "Who locks documents. Empty: host, process and a random number. A name that two "
             "processes could share makes every settle a transaction."},
    {.type = OB_OPT_MS,
     .name = "poll_max",
     .def = "1s",
     .offset = offsetof(struct mongo_conf, poll_max_ms),
     .min = 1,
     .max = 60000,
     .help = "An idle collection is looked at again after at most so long, if its change stream "
             "did not wake us."},
    {.type = OB_OPT_BOOL,
     .name = "change_stream",
     .def = "true",
     .offset = offsetof(struct mongo_conf, change_stream),
     .help = "Watch the collection, to be woken when a document is written."},
    {.type = OB_OPT_MS,
     .name = "timeout",
     .def = "10s",
     .offset = offsetof(struct mongo_conf, timeout_ms),
     .min = 100,
     .max = 600000,
     .help = "A server that does not answer within this time is taken for gone."},
    {.type = OB_OPT_MS,
     .name = "lease",
     .def = "5s",
     .offset = offsetof(struct mongo_conf, lease_ms),
     .min = 2000,
     .max = 600000,
     .help = "How long the one worker of a collection may be silent before another takes over. It "
             "tells that it lives once a second."},
    {.type = OB_OPT_INT,
     .name = "page",
     .def = "1000",
     .offset = offsetof(struct mongo_conf, page),
     .min = 1,
     .max = 10000,
     .help = "Documents claimed at once."},
    {.type = OB_OPT_ENUM,
     .name = "payload_json",
     .def = "plain",
     .offset = offsetof(struct mongo_conf, payload_json),
     .choices = "plain|relaxed|canonical",
     .help = "How a payload that is a document is written: plain JSON, or MongoDB's Extended JSON "
             "in one of its two forms."},
    {.type = OB_OPT_GROUP,
     .name = "mapping",
     .offset = offsetof(struct mongo_conf, mapping),
     .group = ob_mapping_opts,
     .help = "A collection of your own (`table`) in place of the native one: which field is what; "
             "see below."},
    {0},
};

static void mongo_close(struct ob_source *s)
{
    if (!s)
        return;
    if (s->reader)
        ob_mongo_disown(s);
    ob_mongo_stream_free(s->stream);
    ob_mongo_reader_free(s->reader);
    ob_mongo_page_free(s->page);
    ob_mongo_window_clear(&s->window);
    ob_mongo_ours_clear(&s->ours);
    if (s->session)
        mongoc_client_session_destroy(s->session);
    bson_destroy(s->session_name);
    if (s->client)
        mongoc_client_pool_push(s->pool, s->client);
    if (s->pool)
        mongoc_client_pool_destroy(s->pool);
    ob_mongo_model_free(s->model);
    free(s->pipeline);
    free(s->token);
    free(s->owner);
    free(s);
}

static enum ob_status open_all(struct ob_source *s, const struct ob_source_env *env,
                               struct ob_err *err)
{
    if (!s->pipeline || !s->token || !s->owner)
        return ob_err_set(err, OB_DOWN, "no memory");
    if (env->shards > 1)
        return ob_err_set(err, OB_FATAL,
                          "shards: one worker reads a collection of MongoDB, others stand by");
    enum ob_status st =
        ob_mongo_model_new(s->conf, s->owner, env->retry, env->limits, &s->model, err);
    if (st == OB_OK)
        st = ob_mongo_pool(s->conf, &s->pool, err);
    if (st != OB_OK)
        return st;
    s->client = mongoc_client_pool_pop(s->pool);
    st = ob_mongo_server(s->client, s->conf->database, err);
    if (st == OB_OK)
        st = ob_mongo_reader_new(s, err);
    if (st == OB_OK && s->conf->change_stream)
        st = ob_mongo_stream_new(s, err);
    return st;
}

/* Two pipelines of a process, and two processes with one worker_id, are two workers. The end of an
 * ObjectId is a counter of the process. */
static char *make_token(const char *process)
{
    char oid[25], *token = NULL;
    bson_oid_t id;
    bson_oid_init(&id, NULL);
    bson_oid_to_string(&id, oid);
    return asprintf(&token, "%s-%s", process, oid + 18) < 0 ? NULL : token;
}

static enum ob_status mongo_open(const struct ob_source_env *env, const void *conf,
                                 struct ob_source **out, struct ob_source_caps *caps,
                                 struct ob_err *err)
{
    struct ob_source *s = calloc(1, sizeof(*s));
    if (!s)
        return ob_err_set(err, OB_DOWN, "no memory");
    s->conf = conf;
    s->clock = env->clock;
    s->log = env->log;
    s->dlt = env->dlt;
    ob_mongo_ours_init(&s->ours);
    s->window.ours = &s->ours;
    s->pipeline = strdup(env->pipeline);
    s->owner_unique = !s->conf->worker_id || !*s->conf->worker_id;
    s->token = make_token(env->owner);
    s->owner = strdup(!s->owner_unique ? s->conf->worker_id : s->token ? s->token : "");
    enum ob_status st = open_all(s, env, err);
    if (st != OB_OK) {
        mongo_close(s);
        return st;
    }
    const char *fix, *weak = ob_mongo_weak_tls(s->conf->uri, &fix);
    if (weak)
        ob_log(s->log, OB_LOG_WARN, "source.tls", OB_KC("error", weak), OB_KC("fix", fix));
    *caps = (struct ob_source_caps){.settle_every_ms = 5, .page = (size_t)s->conf->page};
    *out = s;
    return OB_OK;
}

static int mongo_wait_fd(const struct ob_source *s)
{
    return s->owned ? ob_mongo_reader_fd(s->reader) : -1;
}

static int64_t mongo_wake_at(const struct ob_source *s)
{
    return s->owned && s->page ? 0 : INT64_MAX;
}

static bool mongo_looking(const struct ob_source *s)
{
    return s->owned && !s->shown_back && (s->page || ob_mongo_reader_looking(s->reader));
}

/* ---- handing out ---- */

static bool own_cols(struct ob_event *ev, struct ob_arena *arena)
{
    struct ob_col *cols = ob_arena_alloc(arena, (ev->n_cols + 1) * sizeof(*cols));
    if (!cols)
        return false;
    for (size_t i = 0; i < ev->n_cols; i++) {
        cols[i] = ev->cols[i];
        cols[i].name = ob_arena_copy(arena, ev->cols[i].name);
        cols[i].value = ob_arena_copy(arena, ev->cols[i].value);
        if (!cols[i].name.p || !cols[i].value.p)
            return false;
    }
    ev->cols = cols;
    ev->fault = ev->fault.n ? ob_arena_copy(arena, ev->fault) : ev->fault;
    return !ev->fault.n || ev->fault.p;
}

/* The first events of a page, with bytes of their own. */
static struct ob_batch *part_of(const struct mongo_page *page, size_t n)
{
    struct ob_batch *batch = ob_batch_new(n, (size_t)2 << 30);
    for (; batch && batch->n < n; batch->n++) {
        struct ob_event *ev = &batch->events[batch->n];
        *ev = page->batch->events[page->next + batch->n];
        if (!ob_event_own(ev, batch->arena) || !own_cols(ev, batch->arena)) {
            ob_batch_unref(batch);
            return NULL;
        }
    }
    return batch;
}

static size_t fitting(const struct mongo_page *page, size_t max, size_t max_bytes)
{
    size_t n = 0, bytes = 0;
    while (page->next + n < page->n && n < max) {
        bytes += 64 + ob_event_bytes(&page->batch->events[page->next + n]);
        if (n > 0 && bytes > max_bytes)
            break;
        n++;
    }
    return n;
}

static enum ob_status hand_out(struct ob_source *s, size_t max, size_t max_bytes,
                               struct ob_batch **out, struct ob_err *err)
{
    struct mongo_page *page = s->page;
    size_t n = fitting(page, max, max_bytes);
    bool whole = page->next == 0 && n == page->n;
    struct ob_batch *batch = whole ? ob_batch_ref(page->batch) : part_of(page, n);
    int64_t now = ob_clock_mono_ms(s->clock);
    if (!batch)
        return ob_err_set(err, OB_DOWN, "no memory for a page of events");
    for (size_t i = 0; i < n; i++) {
        batch->events[i].ref = ob_mongo_window_add(&s->window, &page->ids[page->next + i], now);
        if (batch->events[i].ref == 0) { /* some count as handed out already: begin anew */
            ob_batch_unref(batch);
            ob_mongo_lost(s);
            return ob_err_set(err, OB_FENCED, "no memory for the window");
        }
    }
    page->next += n;
    if (page->next == page->n) {
        ob_mongo_page_free(page);
        s->page = NULL;
    }
    *out = batch;
    return OB_OK;
}

static enum ob_status mongo_claim(struct ob_source *s, size_t max, size_t max_bytes,
                                  struct ob_batch **out, struct ob_err *err)
{
    enum ob_status st = ob_mongo_owned(s, err);
    if (st != OB_OK || max == 0)
        return st == OB_OK ? OB_AGAIN : st;
    if (s->shown_back) /* with the next beat */
        return OB_AGAIN;
    if (!s->page) {
        st = ob_mongo_reader_take(s->reader, (size_t)s->conf->page, max_bytes, &s->page, err);
        if (st == OB_FATAL)
            st = err->status = OB_DOWN;
    }
    if (st == OB_OK)
        st = ob_mongo_in_time(s, err);
    if (st == OB_OK && s->page->next == 0 && s->page->was_dead)
        st = ob_mongo_release(s, s->page, err);
    if (st == OB_OK && s->page->n == 0) { /* all of it was parked */
        ob_mongo_page_free(s->page);
        s->page = NULL;
        st = OB_AGAIN;
    }
    return st == OB_OK ? hand_out(s, max, max_bytes, out, err) : st;
}

static void mongo_rewind(struct ob_source *s)
{
    struct ob_err err;
    if (!s->owned)
        return;
    if (ob_mongo_rest(s, &err) != OB_OK)
        return;
    ob_mongo_page_free(s->page);
    s->page = NULL;
    ob_mongo_window_clear(&s->window);
    s->shown_back = false;
    if (ob_mongo_give_back(s, &err) != OB_OK)
        ob_mongo_lost(s); /* locked by us and not in the window: nobody would claim it */
    else
        ob_mongo_reader_go(s->reader, true);
}

const struct ob_source_driver ob_source_mongodb = {
    .name = "mongodb",
    .summary = "MongoDB: native documents, or a collection of your own.",
    .opts = opts,
    .conf_size = sizeof(struct mongo_conf),
    .open = mongo_open,
    .close = mongo_close,
    .wait_fd = mongo_wait_fd,
    .wake_at = mongo_wake_at,
    .own = ob_mongo_own,
    .beat = ob_mongo_beat,
    .disown = ob_mongo_disown,
    .claim = mongo_claim,
    .looking = mongo_looking,
    .rewind = mongo_rewind,
    .held = ob_mongo_held,
    .drain = ob_mongo_drain,
    .blocked = ob_mongo_blocked,
    .settle = ob_mongo_settle,
    .status = ob_mongo_status,
    .admin = &ob_mongo_admin,
};
