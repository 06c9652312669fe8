/* SPDX-License-Identifier: Apache-2.0 */
/* rows_mark - what became of rows, written into the columns of their table: marks inside the
 * settle's transaction, claims and releases outside it, all under our epoch.
 *
 * A mark goes by id and "still ours": one that changes no row was overtaken by somebody else's hand
 * and is counted as fenced. One that a constraint or a trigger of the table refuses must not stop
 * its neighbours: the settle is made again row by row, and such a row is left out of passes until
 * the shard starts anew. The same for one that row-level security or a trigger silently drops
 * (tests/e2e/test_postgres_rows.py::test_a_row_that_cannot_be_marked). */
#include "core/utf8.h"
#include "source/postgres/rows.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define REASON_MAX 1000
#define RELEASE_MAX 1000   /* rows of one statement */
#define SIDE_EVERY_MS 5000 /* looks whether anything still stands aside */
#define FOREIGN_MAX 500000 /* other shards' rows that are remembered */
#define REFUSALS_MAX 100   /* in a row: then no row can be marked, and nothing goes on */

/* Which ops a statement is about. */
enum which { DONE, RETRIED, BACK, DEAD };

static bool is(const struct ob_settle_op *op, enum which which)
{
    switch (which) {
    case DONE:
        return op->kind == OB_SETTLE_PUBLISHED;
    case RETRIED:
        return op->kind == OB_SETTLE_PARK && op->spent;
    case BACK:
        return op->kind == OB_SETTLE_PARK && !op->spent;
    case DEAD:
        return op->kind == OB_SETTLE_DEAD;
    }
    return false;
}

static size_t fill(struct ob_source *s, const struct ob_settle *settle, enum which which)
{
    size_t n = 0;
    for (int i = 0; i < 3; i++)
        ob_pg_array_begin(&s->array[i]);
    for (size_t i = 0; i < settle->n; i++) {
        const struct ob_settle_op *op = &settle->ops[i];
        if (!is(op, which))
            continue;
        n++;
        ob_pg_array_add(&s->array[0], op->event->id);
        if (which == DONE || which == BACK)
            continue;
        struct ob_str reason = ob_str_c(op->reason);
        if (reason.n > REASON_MAX)
            reason.n = ob_utf8_cut(reason.p, REASON_MAX);
        ob_pg_array_add(&s->array[1], reason);
        ob_pg_array_add(&s->array[2], op->exhausted ? OB_STR("t") : OB_STR("f"));
    }
    for (int i = 0; i < 3; i++)
        ob_pg_array_end(&s->array[i]);
    return n;
}

static enum ob_status note_refused(struct ob_source *s, const struct ob_event *ev,
                                   struct ob_err *err)
{
    struct rows_state *r = s->state;
    struct ob_err why = *err;
    if (++r->refusals > REFUSALS_MAX)
        return why.status;
    if (r->n_refused == r->cap_refused) {
        size_t cap = r->cap_refused ? r->cap_refused * 2 : 16;
        uint64_t(*more)[2] = realloc(r->refused, cap * sizeof(*more));
        if (!more)
            return ob_err_set(err, OB_RETRY, "no memory");
        r->refused = more;
        r->cap_refused = cap;
    }
    ob_pg_taken_hash(ev->id, r->refused[r->n_refused++]);
    ob_log(s->log, OB_LOG_ERROR, "source.refused", OB_KS("event", ev->id),
           OB_KC("error", why.text));
    return OB_OK;
}

static const struct ob_event *nth(const struct ob_settle *settle, enum which which, int64_t place)
{
    for (size_t i = 0; i < settle->n; i++)
        if (is(&settle->ops[i], which) && --place == 0)
            return settle->ops[i].event;
    return NULL;
}

/* Of marks that changed nothing most were overtaken. A row that still waits was not: the server
 * threw the mark away without a word, and would be given the same row for ever. */
static enum ob_status look_for_ignored(struct ob_source *s, const struct ob_settle *settle,
                                       enum which which, size_t *fenced, struct ob_err *err)
{
    const struct rows_state *r = s->state;
    PGresult *res = NULL;
    const struct pg_param p[] = {PG_TEXT(ob_buf_z(&s->array[0]))};
    enum ob_status st = ob_pg_query(&s->sql, r->map->sql[PG_MAP_STILL], p, 1, true, &res, err);
    for (int i = 0; st == OB_OK && i < PQntuples(res); i++) {
        const struct ob_event *ev = nth(settle, which, ob_pg_i64(res, i, 0));
        ob_err_set(err, OB_REJECT,
                   "a mark has not changed the row, which still waits: is it hidden from updates "
                   "by row-level security, or does a trigger throw the change away?");
        if (ev)
            st = note_refused(s, ev, err);
        *fenced -= *fenced > 0;
    }
    PQclear(res);
    return st;
}

static enum ob_status mark_some(struct ob_source *s, const struct ob_settle *settle,
                                enum which which, enum pg_map_sql sql, size_t *fenced,
                                struct ob_err *err)
{
    struct rows_state *r = s->state;
    char shard[12], epoch[24];
    PGresult *res = NULL;
    if (!*r->map->sql[sql])
        return OB_OK;
    size_t n = fill(s, settle, which);
    if (n == 0)
        return OB_OK;
    for (int i = 0; i < 3; i++)
        if (s->array[i].failed)
            return ob_err_set(err, OB_RETRY, "no memory for %zu marks", n);
    snprintf(shard, sizeof(shard), "%u", s->shard);
    snprintf(epoch, sizeof(epoch), "%" PRId64, s->epoch);
    const char *a = ob_buf_z(&s->array[0]), *b = ob_buf_z(&s->array[1]);
    const struct pg_param p[][3] = {
        [DONE] = {PG_TEXT(a)},
        [RETRIED] = {PG_TEXT(a), PG_TEXT(b)},
        [BACK] = {PG_TEXT(a), PG_TEXT(shard), PG_TEXT(epoch)},
        [DEAD] = {PG_TEXT(a), PG_TEXT(b), PG_TEXT(ob_buf_z(&s->array[2]))},
    };
    static const size_t n_params[] = {[DONE] = 1, [RETRIED] = 2, [BACK] = 3, [DEAD] = 3};
    enum ob_status st =
        ob_pg_query(&s->sql, r->map->sql[sql], p[which], n_params[which], false, &res, err);
    size_t changed = st == OB_OK ? (size_t)strtoull(PQcmdTuples(res), NULL, 10) : 0;
    if (changed > 0)
        r->refusals = 0;
    if (st == OB_OK && changed < n && which != BACK)
        *fenced += n - changed;
    PQclear(res);
    if (st == OB_OK && changed < n && (which == DONE || (which == DEAD && r->map->dead_hides)))
        st = look_for_ignored(s, settle, which, fenced, err);
    return st;
}

static enum ob_status count_fenced(struct ob_source *s, size_t n, struct ob_err *err)
{
    char shard[12], count[24];
    snprintf(shard, sizeof(shard), "%u", s->shard);
    snprintf(count, sizeof(count), "%zu", n);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(shard), PG_TEXT(count)};
    ob_log(s->log, OB_LOG_WARN, "source.fenced", OB_KI("marks", n),
           OB_KC("error", "rows were changed by others while they were published"));
    return ob_pg_query(&s->sql,
                       "update outbox.cursor set fenced = fenced + $3::bigint where pipeline = $1 "
                       "and shard = $2::int",
                       p, 3, false, NULL, err);
}

static const struct {
    enum which which;
    enum pg_map_sql sql;
} steps[] = {
    {DONE, PG_MAP_DONE}, {RETRIED, PG_MAP_RETRY}, {BACK, PG_MAP_BACK}, {DEAD, PG_MAP_DEAD}};

static enum ob_status mark_ops(struct ob_source *s, const struct ob_settle *settle, size_t *fenced,
                               struct ob_err *err)
{
    enum ob_status st = OB_OK;
    for (size_t i = 0; st == OB_OK && i < sizeof(steps) / sizeof(steps[0]); i++)
        st = mark_some(s, settle, steps[i].which, steps[i].sql, fenced, err);
    return st;
}

/* Each in a transaction of its own inside the settle's. */
static enum ob_status mark_each(struct ob_source *s, const struct ob_settle *settle, size_t *fenced,
                                struct ob_err *err)
{
    enum ob_status st = OB_OK;
    for (size_t i = 0; st == OB_OK && i < settle->n; i++) {
        struct ob_settle one = *settle;
        struct ob_err gone;
        one.ops = &settle->ops[i];
        one.n = 1;
        st = ob_pg_exec(&s->sql, "savepoint row", err);
        if (st == OB_OK)
            st = mark_ops(s, &one, fenced, err);
        if (st == OB_OK)
            st = ob_pg_exec(&s->sql, "release row", err);
        else if (st == OB_REJECT && ob_pg_exec(&s->sql, "rollback to row", &gone) == OB_OK)
            st = note_refused(s, one.ops->event, err);
    }
    return st;
}

enum ob_status ob_pg_rows_mark(struct ob_source *s, const struct ob_settle *settle,
                               struct ob_err *err)
{
    struct rows_state *r = s->state;
    size_t fenced = 0;
    bool careful = r->careful;
    r->n_refused = 0;
    enum ob_status st =
        careful ? mark_each(s, settle, &fenced, err) : mark_ops(s, settle, &fenced, err);
    r->careful = st == OB_REJECT || (careful && (st != OB_OK || r->n_refused > 0));
    if (st == OB_OK && fenced > 0)
        st = count_fenced(s, fenced, err);
    return st;
}

static bool was_refused(const struct rows_state *r, const uint64_t hash[2])
{
    for (size_t i = 0; i < r->n_refused; i++)
        if (r->refused[i][0] == hash[0] && r->refused[i][1] == hash[1])
            return true;
    return false;
}

/* A pass that is under way may have a snapshot from before the commit: what was settled meanwhile
 * is remembered until it is over
 * (pg_rows_test: settled_while_a_pass_is_under_way). */
void ob_pg_rows_settled(struct ob_source *s, const struct ob_settle *settle)
{
    struct rows_state *r = s->state;
    bool passing = r->asked == ASKED_IDS;
    r->outdated = r->outdated || settle->n > 0;
    for (size_t i = 0; i < settle->n; i++) {
        const struct ob_settle_op *op = &settle->ops[i];
        uint64_t hash[2];
        ob_pg_taken_hash(op->event->id, hash);
        struct taken *t = ob_pg_taken_find(&r->taken, hash);
        bool refused = r->n_refused > 0 && was_refused(r, hash);
        if (op->kind != OB_SETTLE_PUBLISHED)
            r->side = true;
        if (t && !passing && !refused)
            ob_pg_taken_remove(&r->taken, t);
        if (!passing && !refused)
            continue;
        if (!t)
            t = ob_pg_taken_add(&r->taken, hash); /* a drained one */
        if (t) {
            r->taken.n_foreign -= t->state == TAKEN_FOREIGN;
            t->state = refused ? TAKEN_REFUSED : TAKEN_SETTLED;
        }
    }
}

/* ---- outside a settle ---- */

enum ob_status ob_pg_rows_look_aside(struct ob_source *s, struct ob_err *err)
{
    struct rows_state *r = s->state;
    PGresult *res = NULL;
    const struct pg_param p[] = {PG_TEXT(s->pipeline)};
    enum ob_status st = ob_pg_query(
        &s->sql,
        "select exists (select 1 from outbox.parked where pipeline = $1) or exists (select 1 from "
        "outbox.dead where pipeline = $1 and state in ('dead', 'discarded'))",
        p, 1, true, &res, err);
    if (st == OB_OK)
        r->side = ob_pg_bool(res, 0, 0);
    PQclear(res);
    return st;
}

enum ob_status ob_pg_rows_claims(struct ob_source *s, bool shown, struct ob_err *err)
{
    struct rows_state *r = s->state;
    char shard[12], epoch[24];
    size_t n = 0;
    ob_pg_array_begin(&s->array[0]);
    for (size_t i = 0; i < r->taken.cap; i++) {
        struct taken *t = &r->taken.at[i];
        if (t->state != TAKEN_OURS || !t->id || t->claimed == shown)
            continue;
        ob_pg_array_add(&s->array[0], ob_str_c(t->id));
        n++;
    }
    r->lazy_claims = false;
    snprintf(shard, sizeof(shard), "%u", s->shard);
    snprintf(epoch, sizeof(epoch), "%" PRId64, s->epoch);
    const struct pg_param p[] = {PG_TEXT(ob_pg_array_end(&s->array[0])), PG_TEXT(shard),
                                 PG_TEXT(epoch)};
    if (n == 0)
        return OB_OK;
    enum ob_status st = ob_pg_query(&s->sql, r->map->sql[shown ? PG_MAP_AGAIN : PG_MAP_BACK], p, 3,
                                    false, NULL, err);
    for (size_t i = 0; st == OB_OK && i < r->taken.cap; i++)
        if (r->taken.at[i].state == TAKEN_OURS)
            r->taken.at[i].claimed = shown;
    return st;
}

static void renew(struct ob_source *s, int64_t now)
{
    struct rows_state *r = s->state;
    struct ob_err err;
    if (!r->map->col[OB_MAP_LOCKED_UNTIL] || now < r->renew_at)
        return;
    r->renew_at = now + r->map->conf->lease_ms / 3;
    for (size_t i = 0; i < r->taken.cap; i++)
        if (r->taken.at[i].state == TAKEN_OURS)
            r->taken.at[i].claimed = false; /* so that it is written again */
    if (ob_pg_rows_claims(s, true, &err) != OB_OK)
        ob_log(s->log, OB_LOG_WARN, "source.claims", OB_KC("error", err.text));
}

static void report_stuck(struct ob_source *s, int64_t now)
{
    struct rows_state *r = s->state;
    size_t stuck = 0;
    for (size_t i = 0; i < r->taken.cap; i++)
        stuck += r->taken.at[i].state == TAKEN_OURS &&
                 now - r->taken.at[i].since_ms >= r->map->conf->claim_stuck_ms;
    if (stuck > 0 && !r->stuck_said)
        ob_log(s->log, OB_LOG_ERROR, "source.stuck", OB_KI("rows", stuck),
               OB_KI("for_ms", r->map->conf->claim_stuck_ms));
    r->stuck_said = stuck > 0;
}

/* While the sink is down, or we are paused, rows that were claimed are shown as waiting. */
void ob_pg_rows_beat(struct ob_source *s, const struct ob_beat *beat)
{
    struct rows_state *r = s->state;
    struct ob_err err;
    int64_t now = ob_clock_mono_ms(s->clock);
    bool back = strcmp(beat->state, "down") == 0 || strcmp(beat->state, "paused") == 0;
    if (r->map->claims && (back || r->shown_back)) {
        if (ob_pg_rows_claims(s, !back, &err) != OB_OK)
            ob_log(s->log, OB_LOG_WARN, "source.claims", OB_KC("error", err.text));
        r->shown_back = back;
    }
    if (r->map->claims && !back)
        renew(s, now);
    report_stuck(s, now);
    if (r->taken.n_foreign > FOREIGN_MAX)
        ob_pg_taken_purge(&r->taken, TAKEN_FOREIGN, UINT32_MAX);
    if (r->side && now >= r->side_at && r->asked != ASKED_IDS) {
        r->side_at = now + SIDE_EVERY_MS;
        if (ob_pg_rows_look_aside(s, &err) != OB_OK)
            r->side = true;
    }
}

/* Inside a transaction: OB_FENCED if the shard is not ours any more. */
static enum ob_status fence(struct ob_source *s, struct ob_err *err)
{
    char shard[12], epoch[24];
    PGresult *res = NULL;
    snprintf(shard, sizeof(shard), "%u", s->shard);
    snprintf(epoch, sizeof(epoch), "%" PRId64, s->epoch);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(shard), PG_TEXT(epoch)};
    enum ob_status st = ob_pg_query(&s->sql,
                                    "select 1 from outbox.cursor where pipeline = $1 and shard = "
                                    "$2::int and epoch = $3::bigint for update",
                                    p, 3, true, &res, err);
    if (st == OB_OK && PQntuples(res) == 0)
        st = ob_err_set(err, OB_FENCED, "another owner took over");
    PQclear(res);
    return st;
}

/* A statement whose only column is a hash of a key that it touched; the keys are derived again. */
static enum ob_status change(struct ob_source *s, const char *sql, const char *refs,
                             const char *more, struct ob_err *err)
{
    PGresult *res = NULL;
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(refs)};
    enum ob_status st = ob_pg_exec(&s->sql, "begin", err);
    if (st == OB_OK)
        st = fence(s, err);
    if (st == OB_OK)
        st = ob_pg_query(&s->sql, sql, p, 2, true, &res, err);
    if (st == OB_OK) {
        ob_pg_array_begin(&s->array[2]);
        for (int i = 0; i < PQntuples(res); i++)
            ob_pg_array_int(&s->array[2], ob_pg_i64(res, i, 0));
        const struct pg_param k[] = {PG_TEXT(s->pipeline), PG_TEXT(ob_pg_array_end(&s->array[2]))};
        st = ob_pg_query(&s->sql, "select outbox.rekey($1, $2::bigint[])", k, 2, false, NULL, err);
    }
    if (st == OB_OK && *more)
        st = ob_pg_query(&s->sql, more, &p[1], 1, false, NULL, err);
    PQclear(res);
    if (st == OB_OK)
        st = ob_pg_exec(&s->sql, "commit", err);
    ob_pg_rollback(&s->sql);
    if (st == OB_FENCED)
        ob_pg_lost(s);
    return st;
}

enum ob_status ob_pg_rows_close(struct ob_source *s, const char *refs, struct ob_err *err)
{
    ob_log(s->log, OB_LOG_INFO, "source.closed",
           OB_KC("error", "parked rows do not wait any more by their columns"));
    return change(s,
                  "delete from outbox.parked where pipeline = $1 and ref = any($2::text[]) "
                  "returning hash",
                  refs, "", err);
}

enum ob_status ob_pg_rows_release(struct ob_source *s, struct ob_err *err)
{
    struct rows_state *r = s->state;
    enum ob_status st = OB_OK;
    while (st == OB_OK && r->n_released > 0) {
        size_t n = 0;
        ob_pg_array_begin(&s->array[0]);
        for (; n < RELEASE_MAX && r->n_released > 0; n++) {
            char *id = r->released[--r->n_released];
            ob_pg_array_add(&s->array[0], ob_str_c(id));
            free(id);
        }
        ob_log(s->log, OB_LOG_INFO, "source.released", OB_KI("events", n));
        st =
            change(s,
                   "with changed as (update outbox.dead set state = 'released', hold = false where "
                   "pipeline = $1 and ref = any($2::text[]) and state in ('dead', 'discarded') "
                   "returning *), parked as (insert into outbox.parked (pipeline, n, hash, ref, "
                   "attempts, due_at, blocked_dest, reason, history, destination) select "
                   "pipeline, n, hash, ref, 0, clock_timestamp(), 0, 'released by its row', "
                   "history, destination from changed on conflict do nothing) select hash from "
                   "changed",
                   ob_pg_array_end(&s->array[0]), r->map->sql[PG_MAP_RELEASE], err);
    }
    return st;
}
