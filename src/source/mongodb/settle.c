/* SPDX-License-Identifier: Apache-2.0 */
/* settle - recording what became of events.
 *
 * Where all were delivered and none stands elsewhere, one updateMany is all of it: it can be
 * repeated, so that an answer that was lost costs nothing. Everything else is one transaction whose
 * first statement is the fence: the lease document under our epoch. A commit whose outcome stays
 * unknown ends our work: what is in memory is thrown away and read again. */
#include "source/mongodb/mongo.h"

#include <stdlib.h>

static void count(struct ob_source *s, const struct ob_settle *settle)
{
    s->delivered += settle->delivered;
    for (size_t i = 0; i < settle->n; i++)
        s->failed += settle->ops[i].kind != OB_SETTLE_PUBLISHED && settle->ops[i].spent;
}

/* How many new numbers it needs; -1: none, and all is plainly delivered. */
static int64_t numbers_of(const struct ob_settle *settle)
{
    int64_t n = 0;
    bool plain = true;
    for (size_t i = 0; i < settle->n; i++) {
        const struct ob_settle_op *op = &settle->ops[i];
        plain = plain && op->kind == OB_SETTLE_PUBLISHED && op->park_n == 0;
        n += op->kind != OB_SETTLE_PUBLISHED && op->park_n == 0;
    }
    return plain ? -1 : n;
}

struct settling {
    struct ob_source *s;
    struct ob_settle *settle;
    struct ob_settled *out;
    int64_t *numbers; /* one per op */
    size_t fenced;
};

static enum ob_status run(void *user, mongoc_client_session_t *session, int64_t first,
                          struct ob_err *err)
{
    struct settling *g = user;
    g->out->n_released = 0;
    g->fenced = 0;
    enum ob_status st = ob_mongo_mark(g->s, g->settle, session, &g->fenced, err);
    return st == OB_OK ? ob_mongo_record(g->s, g->settle, session, first, g->numbers, g->out, err)
                       : st;
}

static enum ob_status in_transaction(struct ob_source *s, struct ob_settle *settle, int64_t n,
                                     struct ob_settled *out, struct ob_err *err)
{
    struct settling g = {
        .s = s, .settle = settle, .out = out, .numbers = calloc(settle->n + 1, sizeof(*g.numbers))};
    struct mongo_txn t = {.client = s->client,
                          .session = s->session,
                          .conf = s->conf,
                          .model = s->model,
                          .clock = s->clock,
                          .epoch = s->epoch,
                          .owner = s->token,
                          .numbers = n,
                          .run = run,
                          .user = &g};
    if (!g.numbers)
        return ob_err_set(err, OB_RETRY, "no memory");
    atomic_store(&s->side, true); /* before anything can be seen */
    enum ob_status st = ob_mongo_transaction(&t, err);
    for (size_t i = 0; st == OB_OK && i < settle->n; i++)
        if (settle->ops[i].kind != OB_SETTLE_PUBLISHED && settle->ops[i].park_n == 0)
            settle->ops[i].park_n = g.numbers[i];
    if (st == OB_OK)
        ob_mongo_count_fenced(s, g.fenced);
    free(g.numbers);
    return st;
}

enum ob_status ob_mongo_settle(struct ob_source *s, struct ob_settle *settle,
                               struct ob_settled *out, struct ob_err *err)
{
    int64_t n = numbers_of(settle);
    enum ob_status st = ob_mongo_owned(s, err);
    out->n_released = 0;
    out->next_due_ms = INT64_MAX;
    if (st == OB_OK && s->shown_back) /* what was given back is ours again before it is marked … */
        st = ob_mongo_in_time(s, err); /* … unless it may be another's by now */
    if (st == OB_OK && s->shown_back)
        st = ob_mongo_claim_again(s, err);
    if (st == OB_OK && settle->n > 0)
        st = n < 0 && s->owner_unique ? ob_mongo_mark_done(s, settle, err)
                                      : in_transaction(s, settle, n < 0 ? 0 : n, out, err);
    if (st == OB_FENCED)
        ob_mongo_lost(s);
    if (st == OB_FATAL) /* may be over when a person has looked at it; nothing is lost */
        st = err->status = OB_DOWN;
    if (st != OB_OK) {
        out->n_released = 0;
        return st;
    }
    count(s, settle);
    for (size_t i = 0; i < settle->n; i++)
        ob_mongo_window_remove(&s->window, settle->ops[i].event->ref);
    if (n >= 0)
        ob_mongo_reader_kick(s->reader, NULL); /* what stood behind may go */
    return OB_OK;
}
