/* SPDX-License-Identifier: Apache-2.0 */
/* lease - the one worker of a collection. One document says who it is, until when (server time) and
 * under which epoch; every beat makes it last longer. Who finds it over takes it with a higher
 * epoch, and takes back at once what the owners before it had locked: they are named in `previous`
 * until that is done (tests/e2e/test_mongodb_owner.py).
 *
 * Who was the worker and slept is kept from harm by three things: it looks at its own monotonic
 * clock before it hands out what it claimed, its marks go by `_id` and locked_by, which the new
 * worker has cleared, and its transactions begin with its epoch and name (lease_doc.c). */
#include "source/mongodb/mongo.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define REST_MS 500 /* a stand-by waits for its reader: it tries again as often anyway */

mongoc_collection_t *ob_mongo_coll(const struct ob_source *s, const char *name)
{
    return mongoc_client_get_collection(s->client, s->conf->database, name);
}

static int64_t now_ms(const struct ob_source *s)
{
    return ob_clock_mono_ms(s->clock);
}

void ob_mongo_lost(struct ob_source *s)
{
    struct ob_err ignored;
    s->leaked = s->leaked || s->owned;
    s->owned = false;
    atomic_store(&s->lease_until, 0);
    ob_mongo_stream_set(s->stream, false);
    if (s->reader && ob_mongo_reader_rest(s->reader, 0, &ignored) != OB_OK) /* own() waits for it */
        ob_log(s->log, OB_LOG_DEBUG, "source.rest", OB_KC("error", ignored.text));
    ob_mongo_page_free(s->page);
    s->page = NULL;
    ob_mongo_window_clear(&s->window);
    s->shown_back = s->probed = s->unsure = false;
}

enum ob_status ob_mongo_owned(struct ob_source *s, struct ob_err *err)
{
    return s->owned ? OB_OK : ob_err_set(err, OB_FENCED, "the lease is not ours");
}

enum ob_status ob_mongo_in_time(struct ob_source *s, struct ob_err *err)
{
    if (now_ms(s) < atomic_load(&s->lease_until))
        return OB_OK;
    ob_mongo_lost(s);
    return ob_err_set(err, OB_FENCED, "the lease ran out before events were handed out");
}

enum ob_status ob_mongo_rest(struct ob_source *s, struct ob_err *err)
{
    int64_t left = atomic_load(&s->lease_until) - now_ms(s), most = s->conf->timeout_ms;
    enum ob_status st = ob_mongo_reader_rest(s->reader, left < most ? left : most, err);
    if (st == OB_OK)
        return OB_OK;
    ob_mongo_lost(s);
    return err->status = OB_FENCED;
}

/* ---- locks ---- */

/* All that these owners have locked goes back to the status it had. */
static enum ob_status take_back(struct ob_source *s, const bson_t *owners, struct ob_err *err)
{
    const struct mongo_model *m = s->model;
    mongoc_collection_t *coll = ob_mongo_coll(s, m->events);
    bson_t filter, in;
    size_t n = 0;
    bson_init(&filter);
    BSON_APPEND_UTF8(&filter, m->f[OB_MAP_STATUS], m->claimed);
    BSON_APPEND_DOCUMENT_BEGIN(&filter, m->f[OB_MAP_LOCKED_BY], &in);
    BSON_APPEND_ARRAY(&in, "$in", owners);
    bson_append_document_end(&filter, &in);
    enum ob_status st = ob_mongo_update_many(coll, &filter, m->u_back, s->conf->timeout_ms, NULL,
                                             &n, "taking locks back", err);
    if (st == OB_OK && n > 0)
        ob_log(s->log, OB_LOG_INFO, "source.taken_back", OB_KI("documents", n));
    bson_destroy(&filter);
    mongoc_collection_destroy(coll);
    return st;
}

enum ob_status ob_mongo_give_back(struct ob_source *s, struct ob_err *err)
{
    bson_t owners;
    bson_init(&owners);
    BSON_APPEND_UTF8(&owners, "0", s->owner);
    enum ob_status st = take_back(s, &owners, err);
    bson_destroy(&owners);
    return st;
}

static enum ob_status take_back_previous(struct ob_source *s, const bson_t *lease,
                                         struct ob_err *err)
{
    bson_iter_t it;
    bson_t list, out;
    uint32_t len;
    const uint8_t *data;
    if (!bson_iter_init_find(&it, lease, "previous") || !BSON_ITER_HOLDS_ARRAY(&it))
        return OB_OK;
    bson_iter_array(&it, &len, &data);
    if (!bson_init_static(&list, data, len) || bson_count_keys(&list) == 0)
        return OB_OK;
    enum ob_status st = take_back(s, &list, err);
    if (st != OB_OK)
        return st;
    bson_t *query = ob_mongo_fence(s->epoch, s->token);
    st = ob_mongo_lease_change(s, query, "{\"previous\":[]}", &out, err);
    bson_destroy(query);
    bson_destroy(&out);
    return st;
}

/* ---- becoming the worker ---- */

static enum ob_status prepare(struct ob_source *s, struct ob_err *err)
{
    if (s->ready)
        return OB_OK;
    enum ob_status st = ob_mongo_server(s->client, s->conf->database, err);
    if (st == OB_OK)
        st = ob_mongo_side(s->client, s->conf->database, s->model, s->conf->timeout_ms, err);
    if (st == OB_OK)
        st = ob_mongo_lease_make(s->client, s->conf->database, s->model, s->conf->timeout_ms, err);
    s->ready = st == OB_OK;
    return st;
}

static void literal(const char *text, char *out, size_t size)
{
    bson_t b;
    bson_init(&b);
    BSON_APPEND_UTF8(&b, "v", text);
    char *json = bson_as_relaxed_extended_json(&b, NULL); /* { "v" : "…" } */
    const char *from = json ? strchr(json, ':') : NULL;
    snprintf(out, size, "{\"$literal\":%.*s}", from ? (int)strlen(from + 2) - 2 : 2,
             from ? from + 2 : "\"\"");
    bson_free(json);
    bson_destroy(&b);
}

/* A lease that is over, or our own from before: by a name that nobody else has, whatever the
 * configuration says. Whose locks are to be taken back is told by what they were written with. */

static enum ob_status take_lease(struct ob_source *s, bson_t *lease, struct ob_err *err)
{
    char me[600], worker[600], name[600], set[3000];
    char *session = bson_as_canonical_extended_json(s->session_name, NULL);
    literal(s->token, me, sizeof(me));
    literal(s->owner, worker, sizeof(worker));
    literal(s->pipeline, name, sizeof(name));
    bson_t *query = ob_mongo_bson("{\"_id\":\"lease\",\"$expr\":{\"$or\":[{\"$lt\":[\"$until\","
                                  "\"$$NOW\"]},{\"$eq\":[\"$owner\",%s]}]}}",
                                  me);
    snprintf(set, sizeof(set),
             "{\"previous\":{\"$setUnion\":[\"$previous\",{\"$cond\":[{\"$eq\":[\"$owner\",\"\"]},"
             "[],[{\"$ifNull\":[\"$worker\",\"$owner\"]}]]}]},\"owner\":%s,\"worker\":%s,"
             "\"pipeline\":%s,\"epoch\":{\"$add\":[\"$epoch\",1]},\"until\":{\"$add\":[\"$$NOW\","
             "%" PRId64 "]},\"beat_at\":\"$$NOW\",\"state\":\"running\",\"in_flight\":0,\"dlt\":%s,"
             "\"session\":{\"$literal\":%s}}",
             me, worker, name, s->conf->lease_ms, s->dlt ? "true" : "false", session);
    if (!query)
        bson_init(lease);
    enum ob_status st = query ? ob_mongo_lease_change(s, query, set, lease, err)
                              : ob_err_set(err, OB_DOWN, "no memory");
    bson_destroy(query);
    bson_free(session);
    return st;
}

/* The session of all our transactions, for as long as the source is open. */
static enum ob_status need_session(struct ob_source *s, struct ob_err *err)
{
    bson_t name;
    if (!s->session)
        s->session = ob_mongo_session_new(s->client, s->conf->timeout_ms, err);
    if (!s->session)
        return OB_DOWN;
    if (s->session_name)
        return OB_OK;
    enum ob_status st = ob_mongo_session_name(s->client, s->conf->database, s->session, &name, err);
    if (st == OB_OK)
        s->session_name = bson_copy(&name);
    bson_destroy(&name);
    return st;
}

/* Is anything parked or dead? */
static enum ob_status look_aside(struct ob_source *s, struct ob_err *err)
{
    const char *names[] = {s->model->parked, s->model->dead};
    bson_t none = BSON_INITIALIZER, *opts = BCON_NEW("limit", BCON_INT64(1));
    enum ob_status st = OB_OK;
    bool any = false;
    for (size_t i = 0; i < 2 && st == OB_OK && !any; i++) {
        mongoc_collection_t *coll = ob_mongo_coll(s, names[i]);
        bson_error_t e;
        const bson_t *doc;
        mongoc_cursor_t *c = mongoc_collection_find_with_opts(coll, &none, opts, NULL);
        any = mongoc_cursor_next(c, &doc);
        if (!any && mongoc_cursor_error(c, &e))
            st = ob_mongo_fail(err, "what stands aside", &e, NULL);
        mongoc_cursor_destroy(c);
        mongoc_collection_destroy(coll);
    }
    bson_destroy(opts);
    atomic_store(&s->side, any);
    return st;
}

/* Takes the lease if it is over: OB_AGAIN: it is not, or cannot be had now. */
static enum ob_status become_worker(struct ob_source *s, struct ob_err *err)
{
    struct ob_err unended = {.text = ""};
    bson_t lease;
    enum ob_status st = ob_mongo_lease_vacant(s, &unended, err);
    if (st != OB_OK)
        return st;
    st = take_lease(s, &lease, err);
    if (st == OB_OK && bson_empty(&lease)) {
        st = ob_err_set(err, OB_AGAIN, "another worker has taken the lease of collection %s",
                        s->model->events);
    } else if (st == OB_OK) {
        s->epoch = ob_mongo_i64(&lease, "epoch", 0);
        st = take_back_previous(s, &lease, err);
    } else if (st == OB_AGAIN) { /* locked by a transaction that is open */
        ob_mongo_lease_unlock(s);
        if (unended.text[0])
            ob_err_set(err, OB_AGAIN, "%s", unended.text);
    }
    bson_destroy(&lease);
    return st;
}

enum ob_status ob_mongo_own(struct ob_source *s, struct ob_err *err)
{
    if (s->owned)
        return OB_OK;
    enum ob_status st = ob_mongo_reader_rest(s->reader, REST_MS, err);
    if (st == OB_OK)
        st = prepare(s, err);
    if (st == OB_OK)
        st = need_session(s, err);
    if (st != OB_OK)
        return st;
    /* What a look that was under way may have locked after the lease was lost; whoever works now
     * would wait for it. */
    if (s->leaked && s->owner_unique)
        st = ob_mongo_give_back(s, err);
    if (st != OB_OK)
        return st;
    s->leaked = false;
    int64_t asked = now_ms(s);
    st = become_worker(s, err);
    if (st == OB_OK)
        st = look_aside(s, err);
    if (st != OB_OK)
        return st;
    s->owned = true;
    s->renew_at = 0;
    atomic_store(&s->lease_until, asked + s->conf->lease_ms);
    ob_mongo_reader_go(s->reader, true);
    ob_mongo_stream_set(s->stream, true);
    return OB_OK;
}

/* ---- being it ---- */

/* Locks of what is in flight last longer. */
static void renew_locks(struct ob_source *s)
{
    const struct mongo_model *m = s->model;
    struct ob_err err;
    int64_t now = now_ms(s);
    if (s->renew_at == 0)
        s->renew_at = now + m->conf->lease_ms / 3;
    if (now < s->renew_at || s->shown_back)
        return;
    s->renew_at = now + m->conf->lease_ms / 3;
    if (ob_mongo_renew_locks(s, &err) != OB_OK)
        ob_log(s->log, OB_LOG_WARN, "source.renew", OB_KC("error", err.text));
}

/* While the sink is down, or we are paused, what was claimed is shown as waiting. */
static enum ob_status show_claims(struct ob_source *s, const char *state, struct ob_err *fenced)
{
    struct ob_err err;
    bool back = strcmp(state, "down") == 0 || strcmp(state, "paused") == 0;
    if (back && (!s->shown_back || s->probed)) {
        if (ob_mongo_rest(s, fenced) != OB_OK)
            return OB_FENCED;
        ob_mongo_page_free(s->page);
        s->page = NULL;
        s->probed = false;
        s->shown_back = true; /* even if it fails: then some may be back */
        if (ob_mongo_give_back(s, &err) != OB_OK)
            ob_log(s->log, OB_LOG_WARN, "source.claims", OB_KC("error", err.text));
    } else if (!back && s->shown_back && ob_mongo_claim_again(s, &err) != OB_OK) {
        ob_log(s->log, OB_LOG_WARN, "source.claims", OB_KC("error", err.text));
    }
    return OB_OK;
}

static void report_stuck(struct ob_source *s)
{
    size_t stuck = 0;
    int64_t now = now_ms(s), limit = s->model->conf->claim_stuck_ms;
    for (size_t i = 0; i < s->window.cap; i++)
        if (s->window.at[i].ref && now - s->window.at[i].since_ms >= limit) {
            s->window.at[i].since_ms = now; /* said again after as long */
            stuck++;
        }
    if (stuck > 0)
        ob_log(s->log, OB_LOG_ERROR, "source.stuck", OB_KI("documents", stuck),
               OB_KI("for_ms", limit));
}

enum ob_status ob_mongo_beat(struct ob_source *s, const struct ob_beat *beat, bool *paused,
                             struct ob_err *err)
{
    char set[800];
    bson_t lease;
    bson_iter_t it;
    enum ob_status st = ob_mongo_owned(s, err);
    if (st != OB_OK)
        return st;
    bson_t *query = ob_mongo_fence(s->epoch, s->token);
    snprintf(set, sizeof(set),
             "{\"until\":{\"$add\":[\"$$NOW\",%" PRId64 "]},\"beat_at\":\"$$NOW\",\"state\":"
             "\"%.15s\",\"in_flight\":%" PRId64 ",\"published\":{\"$add\":[\"$published\",%" PRIu64
             "]},\"failed\":{\"$add\":[\"$failed\",%" PRIu64
             "]},\"fenced\":{\"$add\":[\"$fenced\",%" PRIu64 "]}}",
             s->conf->lease_ms, beat->state, beat->in_flight, s->delivered, s->failed, s->fenced);
    int64_t asked = now_ms(s);
    st = ob_mongo_lease_change(s, query, set, &lease, err);
    bson_destroy(query);
    if (st == OB_OK && bson_empty(&lease))
        st = ob_err_set(err, OB_FENCED, "another worker took over");
    if (st == OB_AGAIN) {
        ob_mongo_lease_unlock(s);
        st = err->status = OB_RETRY;
    }
    if (st == OB_OK) {
        s->delivered = s->failed = s->fenced = 0;
        atomic_store(&s->lease_until, asked + s->conf->lease_ms);
        *paused = bson_iter_init_find(&it, &lease, "paused") && bson_iter_as_bool(&it);
    } else if (st != OB_FENCED && now_ms(s) >= atomic_load(&s->lease_until)) {
        ob_err_prefix(err, "the lease ran out");
        st = OB_FENCED;
    }
    bson_destroy(&lease);
    if (st == OB_FENCED)
        ob_mongo_lost(s);
    if (st != OB_OK)
        return st;
    st = show_claims(s, beat->state, err);
    if (st != OB_OK)
        return st;
    renew_locks(s);
    report_stuck(s);
    return OB_OK;
}

void ob_mongo_disown(struct ob_source *s)
{
    bson_t lease;
    struct ob_err err;
    bool was = s->owned;
    if (was && ob_mongo_rest(s, &err) != OB_OK)
        ob_log(s->log, OB_LOG_WARN, "source.disown", OB_KC("error", err.text));
    ob_mongo_lost(s);
    if (!was)
        return;
    if (ob_mongo_give_back(s, &err) != OB_OK)
        ob_log(s->log, OB_LOG_WARN, "source.claims", OB_KC("error", err.text));
    bson_t *query = ob_mongo_fence(s->epoch, s->token);
    char set[500];
    snprintf(set, sizeof(set),
             "{\"until\":{\"$subtract\":[\"$$NOW\",1]},\"state\":\"stopped\",\"in_flight\":0,"
             "\"session\":\"$$REMOVE\",\"published\":{"
             "\"$add\":[\"$published\",%" PRIu64 "]},\"failed\":{\"$add\":[\"$failed\",%" PRIu64
             "]},\"fenced\":{\"$add\":[\"$fenced\",%" PRIu64 "]}}",
             s->delivered, s->failed, s->fenced);
    if (ob_mongo_lease_change(s, query, set, &lease, &err) == OB_OK)
        s->delivered = s->failed = s->fenced = 0;
    else
        ob_log(s->log, OB_LOG_WARN, "source.disown", OB_KC("error", err.text));
    bson_destroy(query);
    bson_destroy(&lease);
}
