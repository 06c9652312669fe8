/* SPDX-License-Identifier: Apache-2.0 */
/* rows_read - the statements of mode rows, on the reader's own session and without waiting: first
 * ids in order, then whole events by id.
 *
 * A pass always starts at the lowest row that waits: who sees a row in its snapshot also sees,
 * lower in the same pass, every earlier row of its key. One statement has one snapshot; where the
 * first page has nothing new (all of it is in the window, or another shard's) the pass is made
 * again in a REPEATABLE READ transaction, page by page, until one has. */
#include "source/postgres/rows.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define PAGE_BYTES ((size_t)8 << 20)
#define SESSION                                                                                    \
    "set jit = off; set max_parallel_workers_per_gather = 0; set synchronous_commit = off"

static const struct {
    const char *name;
    enum pg_map_sql sql;
} statements[] = {
    {"ids", PG_MAP_IDS},   {"ids_next", PG_MAP_IDS_NEXT},
    {"side", PG_MAP_SIDE}, {"side_next", PG_MAP_SIDE_NEXT},
    {"read", PG_MAP_READ}, {"fetch", PG_MAP_FETCH},
};

enum ob_status ob_pg_rows_prepare(struct ob_source *s, struct ob_err *err)
{
    struct rows_state *r = s->state;
    enum ob_status st = ob_pg_exec(&r->rd, SESSION, err);
    for (size_t i = 0; st == OB_OK && i < sizeof(statements) / sizeof(statements[0]); i++)
        st = ob_pg_prepare(&r->rd, statements[i].name, r->map->sql[statements[i].sql], err);
    if (st == OB_OK && PQenterPipelineMode(r->rd.c) != 1)
        st = ob_err_set(err, OB_DOWN, "the connection cannot pipeline");
    return st;
}

enum ob_status ob_pg_rows_lost(struct ob_source *s, const char *what, struct ob_err *err)
{
    struct rows_state *r = s->state;
    if (r)
        ob_pg_fail(&r->rd, NULL, what, err);
    ob_pg_lost(s);
    err->status = OB_FENCED;
    return OB_FENCED;
}

static bool send(struct rows_state *r, const char *name, int n, const char *const *values)
{
    return PQsendQueryPrepared(r->rd.c, name, n, values, NULL, NULL, 1) == 1;
}

static bool send_text(struct rows_state *r, const char *sql)
{
    return PQsendQueryParams(r->rd.c, sql, 0, NULL, NULL, NULL, NULL, 1) == 1;
}

static enum ob_status flush(struct ob_source *s, bool sent, enum rows_asked asked,
                            struct ob_err *err)
{
    struct rows_state *r = s->state;
    if (!sent || PQpipelineSync(r->rd.c) != 1 || PQflush(r->rd.c) < 0)
        return ob_pg_rows_lost(s, "asking for events", err);
    r->asked = asked;
    r->outdated = false;
    s->rung = s->rung && asked != ASKED_IDS;
    return OB_OK;
}

enum ob_status ob_pg_rows_ask_ids(struct ob_source *s, struct ob_err *err)
{
    struct rows_state *r = s->state;
    char limit[24];
    bool next = r->deep && r->last_id, ok = true;
    snprintf(limit, sizeof(limit), "%" PRId64, r->ids_limit);
    const char *const values[] = {limit, r->last_id};
    if (!next)
        r->pass++;
    if (r->deep && !next)
        ok = send_text(r, "begin isolation level repeatable read");
    ok = ok && send(r,
                    r->side ? next ? "side_next" : "side"
                    : next  ? "ids_next"
                            : "ids",
                    next ? 2 : 1, values);
    return flush(s, ok, ASKED_IDS, err);
}

enum ob_status ob_pg_rows_ask_events(struct ob_source *s, size_t max, struct ob_err *err)
{
    struct rows_state *r = s->state;
    struct id_list *l = &r->list;
    char shard[12], epoch[24];
    bool claim = r->map->claims && s->shards == 1;
    ob_pg_array_begin(&r->ids);
    for (size_t k = 0; k < max && l->next < l->n; k++, l->next++) {
        uint32_t from = l->next ? l->ends[l->next - 1] : 0;
        ob_pg_array_add(&r->ids, (struct ob_str){l->text.p + from, l->ends[l->next] - from});
    }
    snprintf(shard, sizeof(shard), "%u", s->shard);
    snprintf(epoch, sizeof(epoch), "%" PRId64, s->epoch);
    const char *const values[] = {ob_pg_array_end(&r->ids), shard, epoch};
    if (r->ids.failed)
        return ob_pg_rows_lost(s, "no memory for a page of ids", err);
    return flush(s, send(r, claim ? "fetch" : "read", claim ? 3 : 1, values), ASKED_EVENTS, err);
}

/* ---- answers ---- */

void ob_pg_rows_list_clear(struct rows_state *r)
{
    ob_buf_reset(&r->list.text);
    r->list.n = r->list.next = 0;
}

static bool list_add(struct id_list *l, struct ob_str id)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 1024;
        uint32_t *more = realloc(l->ends, cap * sizeof(*more));
        if (!more)
            return false;
        l->ends = more;
        l->cap = cap;
    }
    ob_buf_str(&l->text, id);
    l->ends[l->n++] = (uint32_t)l->text.n;
    return !l->text.failed;
}

bool ob_pg_rows_note_released(struct rows_state *r, struct ob_str id)
{
    if (r->n_released == r->cap_released) {
        size_t cap = r->cap_released ? r->cap_released * 2 : 16;
        char **more = realloc(r->released, cap * sizeof(*more));
        if (!more)
            return false;
        r->released = more;
        r->cap_released = cap;
    }
    r->released[r->n_released] = strndup(id.p, id.n);
    return r->released[r->n_released++] != NULL;
}

/* What is in the window is left out. */
static bool take_ids(struct rows_state *r, const PGresult *res)
{
    int n = PQntuples(res);
    bool ok = true;
    for (int i = 0; i < n && ok; i++) {
        struct ob_str id = ob_pg_str(res, i, 0);
        uint64_t hash[2];
        ob_pg_taken_hash(id, hash);
        struct taken *t = ob_pg_taken_find(&r->taken, hash);
        if (t)
            t->pass = r->pass;
        else if (PQnfields(res) > 1 && ob_pg_bool(res, i, 1)) /* asked with the side tables */
            ok = ob_pg_rows_note_released(r, id);
        else
            ok = list_add(&r->list, id);
    }
    r->full = n >= r->ids_limit;
    free(r->last_id);
    struct ob_str last = n > 0 ? ob_pg_str(res, n - 1, 0) : (struct ob_str){0};
    r->last_id = n > 0 ? strndup(last.p, last.n) : NULL;
    return ok && (n == 0 || r->last_id);
}

/* The pass is over: its snapshot is, too. */
static enum ob_status end_pass(struct ob_source *s, struct ob_err *err)
{
    struct rows_state *r = s->state;
    ob_pg_taken_purge(&r->taken, TAKEN_SETTLED, UINT32_MAX);
    if (!r->full) /* it saw all that wait: what it did not see was settled by its shard */
        ob_pg_taken_purge(&r->taken, TAKEN_FOREIGN, r->pass);
    free(r->last_id);
    r->last_id = NULL;
    if (!r->deep)
        return OB_OK;
    r->deep = false;
    if (!send_text(r, "commit") || PQpipelineSync(r->rd.c) != 1)
        return ob_pg_rows_lost(s, "ending a pass", err);
    ob_pg_rows_cancel(s); /* waits for it: a transaction must not stay open */
    return s->state ? OB_OK : ob_err_set(err, OB_FENCED, "the reader's session was lost");
}

/* As many rows as fit into `most` bytes if they are like those of this answer. */
static void fit_limit(int64_t *limit, int64_t max, const PGresult *res, size_t most)
{
    size_t bytes = PQresultMemorySize(res);
    if (PQntuples(res) > 1 && bytes > most)
        *limit = 1 + (int64_t)(most / (bytes / (size_t)PQntuples(res) + 1));
    else if (*limit < max && bytes < most / 2)
        *limit = 2 * *limit < max ? 2 * *limit : max;
}

static enum ob_status ids_here(struct ob_source *s, struct ob_err *err)
{
    struct rows_state *r = s->state;
    PGresult *res = r->answer;
    r->answer = NULL;
    ob_pg_rows_list_clear(r);
    bool ok = take_ids(r, res);
    fit_limit(&r->ids_limit, ROWS_IDS, res, 2 * PAGE_BYTES);
    PQclear(res);
    if (!ok)
        return ob_pg_rows_lost(s, "no memory for a page of ids", err);
    if (r->list.n > 0 || !r->full)
        return end_pass(s, err);
    if (!r->deep) { /* all of it is in the window: again, with one snapshot for all pages */
        free(r->last_id);
        r->last_id = NULL;
        r->deep = true;
    }
    enum ob_status st = ob_pg_rows_ask_ids(s, err);
    return st == OB_OK ? OB_AGAIN : st;
}

/* Takes what has come. OB_AGAIN: not all yet. */
static enum ob_status receive(struct ob_source *s, struct ob_err *err)
{
    struct rows_state *r = s->state;
    if (!PQconsumeInput(r->rd.c) || PQflush(r->rd.c) < 0)
        return ob_pg_rows_lost(s, "reading events", err);
    while (!PQisBusy(r->rd.c)) {
        PGresult *res = PQgetResult(r->rd.c);
        ExecStatusType got = res ? PQresultStatus(res) : PGRES_EMPTY_QUERY;
        if (!res)
            continue; /* the end of one statement */
        if (got == PGRES_TUPLES_OK) {
            PQclear(r->answer);
            r->answer = res;
            continue;
        }
        if (got != PGRES_COMMAND_OK && got != PGRES_PIPELINE_SYNC &&
            got != PGRES_PIPELINE_ABORTED && r->failed == OB_OK)
            r->failed = ob_pg_fail(&r->rd, res, "reading events", &r->why);
        PQclear(res);
        if (PQstatus(r->rd.c) == CONNECTION_BAD)
            return ob_pg_rows_lost(s, "reading events", err);
        if (got == PGRES_PIPELINE_SYNC)
            return OB_OK;
    }
    return OB_AGAIN;
}

/* There was no memory for the answer: ask for half as many rows, down to one. */
static bool halve_limit(struct ob_source *s, enum rows_asked asked)
{
    struct rows_state *r = s->state;
    int64_t *limit = asked == ASKED_IDS ? &r->ids_limit : &r->limit;
    if (!ob_pg_no_memory(&r->why) || *limit <= 1)
        return false;
    *limit /= 2;
    r->poll_at = 0;
    ob_log(s->log, OB_LOG_WARN, "source.page", OB_KI("rows", *limit),
           OB_KC("error", "no memory for a page of events: reading fewer rows at a time"));
    return true;
}

/* A statement failed: what it was for is asked again, from the beginning. */
static enum ob_status failed(struct ob_source *s, enum rows_asked asked, struct ob_err *err)
{
    struct rows_state *r = s->state;
    enum ob_status st = r->failed;
    bool halved = halve_limit(s, asked);
    *err = r->why;
    r->failed = OB_OK;
    PQclear(r->answer);
    r->answer = NULL;
    ob_pg_rows_list_clear(r);
    free(r->last_id);
    r->last_id = NULL;
    /* A transaction that has to end; or a table that is not what it was: look at it again. */
    if (r->deep || st == OB_FATAL) {
        ob_pg_lost(s);
        err->status = OB_FENCED;
        return OB_FENCED;
    }
    /* It met a lock that is gone by now: rows were marked since. That is no news. */
    return halved || (st == OB_RETRY && r->outdated) ? OB_AGAIN : st;
}

enum ob_status ob_pg_rows_take(struct ob_source *s, struct ob_err *err)
{
    struct rows_state *r = s->state;
    enum ob_status st = receive(s, err);
    if (st != OB_OK)
        return st;
    enum rows_asked asked = r->asked;
    r->asked = ASKED_NOTHING;
    if (r->failed == OB_OK && !r->answer)
        r->failed = ob_err_set(&r->why, OB_RETRY, "the server gave no rows");
    if (r->failed != OB_OK)
        return failed(s, asked, err);
    if (asked == ASKED_IDS)
        return ids_here(s, err);
    fit_limit(&r->limit, s->conf->page, r->answer, PAGE_BYTES);
    r->page = r->answer;
    r->answer = NULL;
    r->row = 0;
    return OB_OK;
}

void ob_pg_rows_cancel(struct ob_source *s)
{
    struct rows_state *r = s->state;
    struct ob_err err;
    int64_t until = ob_clock_mono_ms(s->clock) + s->conf->timeout_ms;
    while (s->state && receive(s, &err) == OB_AGAIN)
        if (ob_pg_wait(&r->rd, until, &err) != OB_OK)
            ob_pg_lost(s);
    if (!s->state)
        return;
    r->asked = ASKED_NOTHING;
    r->failed = OB_OK;
    PQclear(r->answer);
    r->answer = NULL;
}
