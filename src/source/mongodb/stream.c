/* SPDX-License-Identifier: Apache-2.0 */
/* stream - a thread that watches the collection and wakes the reader. It only wakes: the query is
 * the truth. So no resume token is kept; a stream that ends for whatever reason is opened again at
 * the present, and the reader looks once when that is done
 * (tests/e2e/test_mongodb_stream.py). */
#include "source/mongodb/mongo.h"

#include <stdlib.h>
#include <time.h>

#define AWAIT_MS 500 /* a look at `quit` as often */
#define AGAIN_FIRST_MS 100
#define AGAIN_MAX_MS 2000

struct mongo_stream {
    struct ob_source *s;
    mongoc_client_t *client;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool quit, on; /* under the lock */
    bool down;     /* the thread's own: that it is was said */
};

static bool goes_on(struct mongo_stream *st)
{
    pthread_mutex_lock(&st->lock);
    bool on = st->on && !st->quit;
    pthread_mutex_unlock(&st->lock);
    return on;
}

/* What may make a document claimable, and what ends a stream. Our own marks are left out by the
 * server. */
static bson_t *pipeline(const struct mongo_model *m)
{
    bson_t *all = bson_new(), list, stage, match, either, one;
    char field[200];
    snprintf(field, sizeof(field), "updateDescription.updatedFields.%s", m->f[OB_MAP_STATUS]);
    BSON_APPEND_ARRAY_BEGIN(all, "pipeline", &list);
    BSON_APPEND_DOCUMENT_BEGIN(&list, "0", &stage);
    BSON_APPEND_DOCUMENT_BEGIN(&stage, "$match", &match);
    BSON_APPEND_ARRAY_BEGIN(&match, "$or", &either);
    BSON_APPEND_DOCUMENT_BEGIN(&either, "0", &one);
    BCON_APPEND(&one, "operationType", "{", "$in", "[", "insert", "replace", "drop", "rename",
                "dropDatabase", "invalidate", "]", "}");
    bson_append_document_end(&either, &one);
    BSON_APPEND_DOCUMENT_BEGIN(&either, "1", &one);
    BCON_APPEND(&one, "operationType", "update", field, BCON_UTF8(m->pending));
    bson_append_document_end(&either, &one);
    bson_append_array_end(&match, &either);
    bson_append_document_end(&stage, &match);
    bson_append_document_end(&list, &stage);
    BSON_APPEND_DOCUMENT_BEGIN(&list, "1", &stage);
    BSON_APPEND_DOCUMENT_BEGIN(&stage, "$project", &one);
    BSON_APPEND_INT32(&one, "operationType", 1);
    struct ob_buf small; /* of what was inserted; an update does not bring it */
    ob_buf_init(&small, 4096);
    bson_t *entity = ob_mongo_small_entity(m, "fullDocument.", &small)
                         ? ob_mongo_bson("%s", ob_buf_z(&small))
                         : NULL;
    if (entity)
        BSON_APPEND_DOCUMENT(&one, "e", entity);
    bson_destroy(entity);
    ob_buf_clear(&small);
    bson_append_document_end(&stage, &one);
    bson_append_document_end(&list, &stage);
    bson_append_array_end(all, &list);
    return all;
}

static void say(struct mongo_stream *st, bool down, const char *why)
{
    if (st->down == down)
        return;
    st->down = down;
    ob_log(st->s->log, down ? OB_LOG_WARN : OB_LOG_INFO, down ? "stream.down" : "stream.up",
           OB_KC("collection", st->s->model->events), OB_KC("error", why));
}

/* Until it ends, or we shall. True: it worked at least once. */
static bool watch(struct mongo_stream *st)
{
    mongoc_collection_t *coll =
        mongoc_client_get_collection(st->client, st->s->conf->database, st->s->model->events);
    bson_t *stages = pipeline(st->s->model);
    bson_t *opts = BCON_NEW("maxAwaitTimeMS", BCON_INT64(AWAIT_MS));
    mongoc_change_stream_t *cs = mongoc_collection_watch(coll, stages, opts);
    const bson_t *doc, *reply = NULL;
    bson_error_t e = {0};
    bool worked = false;
    while (goes_on(st)) {
        bool got = mongoc_change_stream_next(cs, &doc);
        if (!got && mongoc_change_stream_error_document(cs, &e, &reply)) {
            say(st, true, e.message);
            break;
        }
        if (!worked) /* what was written before it was open */
            ob_mongo_reader_kick(st->s->reader, NULL);
        worked = true;
        say(st, false, "");
        if (!got)
            continue;
        bson_iter_t it;
        ob_mongo_reader_kick(st->s->reader,
                             bson_iter_init_find(&it, doc, "e") ? bson_iter_value(&it) : NULL);
        if (bson_iter_init_find(&it, doc, "operationType") &&
            strcmp(bson_iter_utf8(&it, NULL), "invalidate") == 0) {
            say(st, true, "the collection was dropped or renamed");
            break;
        }
    }
    mongoc_change_stream_destroy(cs);
    bson_destroy(stages);
    bson_destroy(opts);
    mongoc_collection_destroy(coll);
    return worked;
}

static void pause_ms(struct mongo_stream *st, int64_t ms)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += ms / 1000;
    t.tv_nsec += ms % 1000 * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&st->lock);
    if (!st->quit)
        pthread_cond_timedwait(&st->changed, &st->lock, &t);
    pthread_mutex_unlock(&st->lock);
}

static void *stream_main(void *arg)
{
    struct mongo_stream *st = arg;
    int64_t wait_ms = AGAIN_FIRST_MS;
    pthread_mutex_lock(&st->lock);
    while (!st->quit) {
        if (!st->on) {
            pthread_cond_wait(&st->changed, &st->lock);
            continue;
        }
        pthread_mutex_unlock(&st->lock);
        wait_ms = watch(st) ? AGAIN_FIRST_MS : wait_ms * 2;
        wait_ms = wait_ms > AGAIN_MAX_MS ? AGAIN_MAX_MS : wait_ms;
        if (goes_on(st))
            pause_ms(st, wait_ms);
        pthread_mutex_lock(&st->lock);
    }
    pthread_mutex_unlock(&st->lock);
    return NULL;
}

enum ob_status ob_mongo_stream_new(struct ob_source *s, struct ob_err *err)
{
    struct mongo_stream *st = calloc(1, sizeof(*st));
    pthread_condattr_t attr;
    if (!st)
        return ob_err_set(err, OB_DOWN, "no memory");
    st->s = s;
    st->client = mongoc_client_pool_pop(s->pool);
    pthread_mutex_init(&st->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&st->changed, &attr);
    pthread_condattr_destroy(&attr);
    s->stream = st;
    if (pthread_create(&st->thread, NULL, stream_main, st) != 0)
        return ob_err_set(err, OB_DOWN, "no thread for the change stream");
    st->started = true;
    return OB_OK;
}

void ob_mongo_stream_set(struct mongo_stream *st, bool on)
{
    if (!st)
        return;
    pthread_mutex_lock(&st->lock);
    st->on = on;
    pthread_cond_broadcast(&st->changed);
    pthread_mutex_unlock(&st->lock);
}

void ob_mongo_stream_free(struct mongo_stream *st)
{
    if (!st)
        return;
    pthread_mutex_lock(&st->lock);
    st->quit = true;
    pthread_cond_broadcast(&st->changed);
    pthread_mutex_unlock(&st->lock);
    if (st->started)
        pthread_join(st->thread, NULL);
    mongoc_client_pool_push(st->s->pool, st->client);
    pthread_cond_destroy(&st->changed);
    pthread_mutex_destroy(&st->lock);
    free(st);
}
