/* SPDX-License-Identifier: Apache-2.0 */
/* reader - the thread that looks for work, so that the shard's thread never waits for a look.
 *
 * The shard asks for a page and is told by an eventfd; the question stays open until there is
 * something. Meanwhile the reader looks again: when it is kicked (the change stream, a settle that
 * freed a key), and by itself after 2 ms, doubling to `poll_max`. When a page was taken the next
 * one is claimed at once, so that reading and publishing overlap: one page is ahead at most.
 *
 * Where the stream has named the entities of what was written, and no look is due anyway, a short
 * look at these alone comes first. It only shortens the way: if it finds nothing a whole look
 * follows at once, and if it finds something after 2 ms. */
#include "source/mongodb/mongo.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define RECOVER_MS 1000  /* failed and locked documents are looked for as often */
#define RECOVER_SHARE 20 /* … but not for more than a twentieth of the time */
#define SLICE_MS 250     /* between two slices of the failed or locked ones */
#define SWEEP_MS 500     /* between two pages of a sweep */
#define HEAD_MS 1000     /* waiting ones at the head are passed over for as long … */
#define HEAD_SHARE 4     /* … and so many times as long as it took to look at them */
#define HEAD_LEAST_MS 100
#define ERROR_MS 200
#define BUSY_LOOKS 3
#define HINTS_MAX 16 /* more entities than this are looked at as all are */

struct mongo_reader {
    struct ob_source *s;
    mongoc_client_t *client;
    pthread_t thread;
    bool started;
    int fd;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under the lock */
    bool quit, go, busy, wanted, kicked, empty; /* empty: a look since the question found nothing */
    size_t max, max_bytes;
    struct mongo_page *found;
    enum ob_status failed;
    struct ob_err why;
    bson_value_t hints[HINTS_MAX]; /* entities of what was written; none while kicked */
    size_t n_hints;
    unsigned rest_no; /* rises with every rest: what was begun before it counts no more */
    /* the thread's own */
    int64_t idle_ms, look_at, recover_at, sweep_at;
    struct mongo_sweep sweep;
    bool sweep_more; /* its round is not over */
    bool recover_first;
    bool partly;                     /* failed or locked ones are left that were not read … */
    bool locked_first, failed_first; /* … since the reader began: there may be something */
    struct mongo_place pending_at, failed_at, locked_at;
    int64_t head_at, head_soon; /* when a look begins at the first pending one; if it shall */
    bool head;                  /* it shall */
    size_t slice;
    size_t most;         /* documents of a page, after there was no memory for more; 0: as asked */
    unsigned busy_looks; /* that found as much as they may, one after the other */
    bson_t *unsure;
    struct mongo_set refused;
};

void ob_mongo_page_free(struct mongo_page *page)
{
    if (!page)
        return;
    for (size_t i = 0; i < page->n; i++) {
        ob_mongo_ours_remove(page->ours, &page->ids[i]); /* those that were not handed out */
        bson_value_destroy(&page->ids[i]);
    }
    free(page->ids);
    ob_batch_unref(page->batch);
    free(page);
}

static int64_t real_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void signal_shard(const struct mongo_reader *r)
{
    uint64_t one = 1;
    ssize_t put = write(r->fd, &one, sizeof(one));
    (void)put;
}

/* ---- the thread ---- */

static void wait_until(struct mongo_reader *r, int64_t at_ms)
{
    struct timespec t = {.tv_sec = at_ms / 1000, .tv_nsec = at_ms % 1000 * 1000000};
    pthread_cond_timedwait(&r->changed, &r->lock, &t);
}

/* What a claim whose answer was lost may have locked is given back before anything else. */
static enum ob_status settle_unsure(struct mongo_reader *r, struct ob_err *err)
{
    const struct mongo_model *m = r->s->model;
    if (bson_empty(r->unsure))
        return OB_OK;
    mongoc_collection_t *coll =
        mongoc_client_get_collection(r->client, r->s->conf->database, m->events);
    bson_t filter, in;
    bson_init(&filter);
    BSON_APPEND_DOCUMENT_BEGIN(&filter, "_id", &in);
    BSON_APPEND_ARRAY(&in, "$in", r->unsure);
    bson_append_document_end(&filter, &in);
    BSON_APPEND_UTF8(&filter, m->f[OB_MAP_STATUS], m->claimed);
    BSON_APPEND_UTF8(&filter, m->f[OB_MAP_LOCKED_BY], r->s->owner);
    enum ob_status st = ob_mongo_update_many(coll, &filter, m->u_back, r->s->conf->timeout_ms, NULL,
                                             NULL, "giving back", err);
    if (st == OB_OK)
        bson_reinit(r->unsure);
    bson_destroy(&filter);
    mongoc_collection_destroy(coll);
    return st;
}

/* Some of the failed or locked ones were not read yet since the reader began. */
static bool first_round(const struct mongo_reader *r)
{
    return r->locked_first || r->failed_first;
}

/* Looks for failed and locked ones that may be claimed now. */
static enum ob_status recover(struct mongo_reader *r, struct mongo_pass *p,
                              struct mongo_page **found, struct ob_err *err)
{
    int64_t began = real_ms();
    p->kind = MONGO_LOCKED;
    p->place = &r->locked_at;
    enum ob_status st = ob_mongo_pass(p, found, err);
    if (st == OB_AGAIN) {
        bool locked_left = p->partly;
        r->locked_first = r->locked_first && locked_left;
        p->kind = MONGO_FAILED;
        p->place = &r->failed_at;
        st = ob_mongo_pass(p, found, err);
        r->partly = st == OB_AGAIN && (locked_left || p->partly);
        r->failed_first = r->failed_first && (st != OB_AGAIN || p->partly);
    }
    int64_t now = real_ms(), took = (now - began) * RECOVER_SHARE,
            least = r->partly ? SLICE_MS : RECOVER_MS;
    r->recover_at =
        p->more || (r->partly && first_round(r)) ? 0 : now + (took > least ? took : least);
    return st;
}

/* Looks for pending ones: behind those that were passed over, or from the first one on. */
static enum ob_status pending(struct mongo_reader *r, struct mongo_pass *p,
                              struct mongo_page **found, struct ob_err *err)
{
    int64_t began = real_ms();
    bool head = began >= (r->head ? r->head_soon : r->head_at);
    if (head) {
        ob_mongo_place_clear(&r->pending_at);
        r->head = false;
    }
    p->kind = MONGO_PENDING;
    p->place = &r->pending_at;
    enum ob_status st = ob_mongo_pass(p, found, err);
    if (head) {
        int64_t now = real_ms(), took = now - began;
        r->head_at = now + (HEAD_SHARE * took > HEAD_MS ? HEAD_SHARE * took : HEAD_MS);
        r->head_soon = now + (took > HEAD_LEAST_MS ? took : HEAD_LEAST_MS);
    }
    return st;
}

static void forget_hints(bson_value_t *hints, size_t *n)
{
    for (size_t i = 0; i < *n; i++)
        bson_value_destroy(&hints[i]);
    *n = 0;
}

/* What a look is asked for. */
struct question {
    size_t max, max_bytes;
    bson_value_t hints[HINTS_MAX];
    size_t n_hints;
    bool more;      /* out: there may be more of the same */
    bool no_memory; /* out: for a page of that many */
};

/* One look, without the lock. */
static enum ob_status look(struct mongo_reader *r, struct question *q, struct mongo_page **found,
                           struct ob_err *err)
{
    struct mongo_pass p = {.s = r->s,
                           .client = r->client,
                           .max = q->max,
                           .max_bytes = q->max_bytes,
                           .entities = q->hints,
                           .n_entities = q->n_hints,
                           .refused = &r->refused,
                           .no_memory = &q->no_memory,
                           .unsure = r->unsure};
    enum ob_status st = settle_unsure(r, err);
    int64_t began = real_ms();
    if (st == OB_OK && began >= r->sweep_at) {
        st = ob_mongo_sweep(&p, &r->sweep, &r->sweep_more, err);
        r->sweep_at = began + (r->sweep_more ? SWEEP_MS : r->s->model->conf->lease_ms / 3);
    }
    if (st != OB_OK)
        return st;
    st = OB_AGAIN;
    if (q->n_hints > 0) {
        st = ob_mongo_pass(&p, found, err);
        q->more = p.more;
        p.n_entities = 0;
    }
    if (st != OB_AGAIN)
        return st;
    forget_hints(q->hints, &q->n_hints); /* it is a whole look now */
    p.slice = r->slice;
    if (began >= r->recover_at && r->recover_first) {
        st = recover(r, &p, found, err);
        r->recover_first = false;
    }
    if (st == OB_AGAIN) {
        st = pending(r, &p, found, err);
        q->more = p.more;
        r->slice = p.slice;
    }
    if (began >= r->recover_at && st == OB_AGAIN)
        st = recover(r, &p, found, err);
    else if (began >= r->recover_at)
        r->recover_first = true; /* those that were just written are not kept waiting */
    return st;
}

/* After a look, with the lock. */
static void looked(struct mongo_reader *r, const struct question *q, enum ob_status st,
                   struct mongo_page *found, const struct ob_err *err)
{
    int64_t now = real_ms(), next = now + (q->more ? 0 : 2);
    if (st == OB_OK) {
        r->found = found;
        r->wanted = false;
        r->idle_ms = 0;
        /* Short looks, one after the other, do not put off the whole one. */
        r->look_at = q->n_hints > 0 && r->look_at < next ? r->look_at : next;
        r->busy_looks = q->more ? r->busy_looks + 1 : 0;
        signal_shard(r);
    } else if (st == OB_AGAIN) {
        int64_t most = r->s->conf->poll_max_ms;
        r->idle_ms = r->idle_ms ? r->idle_ms * 2 : 2;
        r->idle_ms = r->idle_ms > most ? most : r->idle_ms;
        r->look_at = now + r->idle_ms;
        if (r->partly && r->look_at > r->recover_at)
            r->look_at = r->recover_at;
        if (r->sweep_more && r->look_at > r->sweep_at)
            r->look_at = r->sweep_at;
        r->empty = !first_round(r);
        r->busy_looks = 0;
    } else {
        r->failed = st;
        r->why = *err;
        r->wanted = false;
        r->look_at = now + ERROR_MS;
        signal_shard(r);
    }
}

static void one_look(struct mongo_reader *r)
{
    struct mongo_page *found = NULL;
    struct ob_err err = {.text = ""};
    struct question q = {.max = r->most && r->most < r->max ? r->most : r->max,
                         .max_bytes = r->max_bytes};
    unsigned no = r->rest_no;
    r->busy = true;
    if (r->kicked || r->n_hints > 0)
        r->idle_ms = 0;
    if (!r->kicked && r->look_at > real_ms()) {
        memcpy(q.hints, r->hints, sizeof(q.hints)); /* they are moved */
        q.n_hints = r->n_hints;
        r->n_hints = 0;
    }
    r->head = r->head || r->kicked;
    r->kicked = false;
    forget_hints(r->hints, &r->n_hints);
    pthread_mutex_unlock(&r->lock);
    ob_mongo_ours_look(&r->s->ours, true);
    enum ob_status st = look(r, &q, &found, &err);
    if (q.no_memory)
        r->most = (q.max + 1) / 2;
    else if (st == OB_OK)
        r->most = r->most < r->max ? r->most * 2 : 0;
    ob_mongo_ours_look(&r->s->ours, false);
    pthread_mutex_lock(&r->lock);
    r->busy = false;
    if (no == r->rest_no)
        looked(r, &q, st, found, &err);
    if (no == r->rest_no && (st == OB_OK || st == OB_AGAIN)) /* who has work needs no waking */
        ob_mongo_stream_set(r->s->stream, r->busy_looks < BUSY_LOOKS);
    else
        ob_mongo_page_free(found); /* whoever let us rest gives back what is locked */
    forget_hints(q.hints, &q.n_hints);
    pthread_cond_broadcast(&r->changed);
}

static int64_t next_look(const struct mongo_reader *r)
{
    return r->kicked || r->n_hints > 0 ? 0 : r->look_at;
}

static void *reader_main(void *arg)
{
    struct mongo_reader *r = arg;
    pthread_mutex_lock(&r->lock);
    while (!r->quit) {
        int64_t at = next_look(r);
        if (!r->go || !r->wanted || r->found)
            pthread_cond_wait(&r->changed, &r->lock);
        else if (at > real_ms())
            wait_until(r, at);
        else
            one_look(r);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* ---- the shard's side ---- */

enum ob_status ob_mongo_reader_new(struct ob_source *s, struct ob_err *err)
{
    struct mongo_reader *r = calloc(1, sizeof(*r));
    pthread_condattr_t attr;
    if (!r)
        return ob_err_set(err, OB_DOWN, "no memory");
    r->s = s;
    r->unsure = bson_new();
    r->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r->client = mongoc_client_pool_pop(s->pool);
    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&r->changed, &attr);
    pthread_condattr_destroy(&attr);
    s->reader = r;
    if (r->fd < 0 || pthread_create(&r->thread, NULL, reader_main, r) != 0)
        return ob_err_set(err, OB_DOWN, "no thread or descriptor for the reader");
    r->started = true;
    return OB_OK;
}

void ob_mongo_reader_free(struct mongo_reader *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    r->quit = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    if (r->started)
        pthread_join(r->thread, NULL);
    ob_mongo_page_free(r->found);
    forget_hints(r->hints, &r->n_hints);
    mongoc_client_pool_push(r->s->pool, r->client);
    if (r->fd >= 0)
        close(r->fd);
    bson_destroy(r->unsure);
    ob_mongo_set_clear(&r->refused);
    ob_mongo_sweep_clear(&r->sweep);
    ob_mongo_place_clear(&r->locked_at);
    ob_mongo_place_clear(&r->pending_at);
    ob_mongo_place_clear(&r->failed_at);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

void ob_mongo_reader_go(struct mongo_reader *r, bool fresh)
{
    pthread_mutex_lock(&r->lock);
    if (fresh)
        ob_mongo_set_clear(&r->refused);
    r->go = true;
    r->empty = false;
    r->kicked = true;
    forget_hints(r->hints, &r->n_hints);
    r->recover_at = 0;
    r->locked_first = r->failed_first = true;
    signal_shard(r); /* it asks again: it may have been told that there is nothing */
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

enum ob_status ob_mongo_reader_rest(struct mongo_reader *r, int64_t wait_ms, struct ob_err *err)
{
    enum ob_status st = OB_OK;
    int64_t until = real_ms() + wait_ms;
    uint64_t count;
    pthread_mutex_lock(&r->lock);
    r->go = r->wanted = false;
    r->failed = OB_OK;
    r->rest_no++;
    ob_mongo_page_free(r->found);
    r->found = NULL;
    while (r->busy && real_ms() < until)
        wait_until(r, until);
    if (r->busy)
        st = ob_err_set(err, OB_AGAIN, "the reader waits for the server");
    pthread_mutex_unlock(&r->lock);
    ssize_t got = read(r->fd, &count, sizeof(count));
    (void)got;
    return st;
}

/* Numbers, texts and ObjectIds name an entity as they are; for all else a whole look is taken. */
static bool names_entity(const bson_value_t *v)
{
    if (!v)
        return false;
    if (v->value_type == BSON_TYPE_UTF8)
        return v->value.v_utf8.len > 0 && v->value.v_utf8.len <= 1024;
    return v->value_type == BSON_TYPE_OID || v->value_type == BSON_TYPE_INT32 ||
           v->value_type == BSON_TYPE_INT64;
}

void ob_mongo_reader_kick(struct mongo_reader *r, const bson_value_t *entity)
{
    pthread_mutex_lock(&r->lock);
    if (!r->kicked && names_entity(entity) && r->n_hints < HINTS_MAX) {
        bson_value_copy(entity, &r->hints[r->n_hints++]);
    } else {
        r->kicked = true;
        forget_hints(r->hints, &r->n_hints);
    }
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

const struct mongo_page *ob_mongo_reader_found(struct mongo_reader *r)
{
    pthread_mutex_lock(&r->lock);
    const struct mongo_page *page = r->found;
    pthread_mutex_unlock(&r->lock);
    return page;
}

int ob_mongo_reader_fd(const struct mongo_reader *r)
{
    return r->fd;
}

bool ob_mongo_reader_looking(struct mongo_reader *r)
{
    pthread_mutex_lock(&r->lock);
    /* A failure that was not fetched yet is an answer too: who is not told of it asks no more
     * (tests/e2e/test_mongodb_faults.py::test_a_claim_of_many_whose_outcome_is_not_known). */
    bool looking = r->found || r->failed != OB_OK || r->busy || r->kicked || r->n_hints > 0 ||
                   (r->wanted && !r->empty);
    pthread_mutex_unlock(&r->lock);
    return looking;
}

enum ob_status ob_mongo_reader_take(struct mongo_reader *r, size_t max, size_t max_bytes,
                                    struct mongo_page **out, struct ob_err *err)
{
    enum ob_status st = OB_AGAIN;
    uint64_t count;
    ssize_t got = read(r->fd, &count, sizeof(count));
    (void)got;
    pthread_mutex_lock(&r->lock);
    r->max = max;
    r->max_bytes = max_bytes;
    if (r->failed != OB_OK) {
        st = r->failed;
        *err = r->why;
        r->failed = OB_OK;
    } else if (r->found) {
        *out = r->found;
        r->found = NULL;
        st = OB_OK;
    }
    if (st != OB_AGAIN || !r->wanted)
        r->empty = false;
    r->wanted = true; /* the next page, while this one is published */
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    return st;
}
