/* SPDX-License-Identifier: Apache-2.0 */
/* record - what the ops of a settle change: rows of parked and dead events, and the row of their
 * key. Statements work on arrays: their number does not depend on how many events there are. All
 * inside the settle's transaction. */
#include "source/postgres/pg.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define REASON_MAX 1000

enum {
    A_N,
    A_HASH,
    A_REF,
    A_ATTEMPTS,
    A_DUE,
    A_DEST,
    A_REASON,
    A_DESTINATION,
    A_SPENT,
    A_ID,
    A_TYPE,
    A_KEY
};

/* Which ops a statement is about. */
enum which { PUBLISHED_ROWS, PARK_NEW, PARK_AGAIN, DEAD };

static bool is(const struct ob_settle_op *op, enum which which)
{
    switch (which) {
    case PUBLISHED_ROWS:
        return op->kind == OB_SETTLE_PUBLISHED && op->park_n != 0;
    case PARK_NEW:
        return op->kind == OB_SETTLE_PARK && op->park_n == 0;
    case PARK_AGAIN:
        return op->kind == OB_SETTLE_PARK && op->park_n != 0;
    case DEAD:
        return op->kind == OB_SETTLE_DEAD;
    }
    return false;
}

static void add_int(struct ob_buf *buf, int64_t v)
{
    char text[24];
    int n = snprintf(text, sizeof(text), "%" PRId64, v);
    ob_pg_array_add(buf, (struct ob_str){text, (size_t)n});
}

/* Fills the arrays with the ops of one kind; n of op i is numbers[i] where it is not known yet. */
static size_t fill(struct ob_source *s, const struct ob_settle *settle, enum which which,
                   const int64_t *numbers)
{
    struct ob_buf ref;
    size_t count = 0;
    ob_buf_init(&ref, 1 << 20);
    for (int i = A_N; i <= A_KEY; i++)
        ob_pg_array_begin(&s->array[i]);
    for (size_t i = 0; i < settle->n; i++) {
        const struct ob_settle_op *op = &settle->ops[i];
        if (!is(op, which))
            continue;
        count++;
        add_int(&s->array[A_N], op->park_n ? op->park_n : numbers[i]);
        add_int(&s->array[A_HASH], (int64_t)op->hash);
        if (which == PUBLISHED_ROWS)
            continue;
        struct ob_str reason = ob_str_c(op->reason);
        reason.n = reason.n > REASON_MAX ? REASON_MAX : reason.n;
        ob_buf_reset(&ref);
        s->reader->ref(s, op->event, &ref);
        ob_pg_array_add(&s->array[A_REF], ob_buf_view(&ref));
        add_int(&s->array[A_ATTEMPTS], op->attempts);
        add_int(&s->array[A_DUE], op->due_ms);
        add_int(&s->array[A_DEST], (int64_t)op->blocked_dest);
        ob_pg_array_add(&s->array[A_REASON], reason);
        ob_pg_array_add(&s->array[A_DESTINATION], op->destination);
        ob_pg_array_add(&s->array[A_SPENT], op->spent ? OB_STR("t") : OB_STR("f"));
        ob_pg_array_add(&s->array[A_ID], op->event->id);
        ob_pg_array_add(&s->array[A_TYPE], op->event->type);
        ob_pg_array_add(&s->array[A_KEY],
                        op->event->key.n ? op->event->key : op->event->aggregate_id);
    }
    for (int i = A_N; i <= A_KEY; i++)
        ob_pg_array_end(&s->array[i]);
    ob_buf_clear(&ref);
    return count;
}

static const char *arr(struct ob_source *s, int which)
{
    return ob_buf_z(&s->array[which]);
}

static enum ob_status delete_published(struct ob_source *s, const struct ob_settle *settle,
                                       struct ob_err *err)
{
    if (fill(s, settle, PUBLISHED_ROWS, NULL) == 0)
        return OB_OK;
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(arr(s, A_N))};
    return ob_pg_query(&s->sql,
                       "delete from outbox.parked where pipeline = $1 and n = any($2::bigint[])", p,
                       2, false, NULL, err);
}

/* Numbers for new rows, in the order of the ops. */
static enum ob_status draw_numbers(struct ob_source *s, const struct ob_settle *settle,
                                   int64_t *numbers, struct ob_err *err)
{
    size_t n = 0;
    char text[24];
    PGresult *res = NULL;
    for (size_t i = 0; i < settle->n; i++)
        n += settle->ops[i].kind != OB_SETTLE_PUBLISHED && settle->ops[i].park_n == 0;
    if (n == 0)
        return OB_OK;
    snprintf(text, sizeof(text), "%zu", n);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(text)};
    enum ob_status st =
        ob_pg_query(&s->sql,
                    "update outbox.pipeline set last_n = last_n + $2::bigint where name = $1 "
                    "returning last_n",
                    p, 2, true, &res, err);
    if (st != OB_OK)
        return st;
    int64_t at = PQntuples(res) == 1 ? ob_pg_i64(res, 0, 0) - (int64_t)n : -1;
    PQclear(res);
    if (at < 0)
        return ob_err_set(err, OB_FATAL, "outbox.pipeline has no row for %s", s->pipeline);
    for (size_t i = 0; i < settle->n; i++)
        if (settle->ops[i].kind != OB_SETTLE_PUBLISHED && settle->ops[i].park_n == 0)
            numbers[i] = ++at;
    return OB_OK;
}

/* Where no table keeps the event, the reader's rows are copied: see wal.c. */
static enum ob_status park_new(struct ob_source *s, const struct ob_settle *settle,
                               const int64_t *numbers, struct ob_err *err)
{
    if (fill(s, settle, PARK_NEW, numbers) == 0)
        return OB_OK;
    const struct pg_param p[] = {PG_TEXT(s->pipeline),           PG_TEXT(arr(s, A_N)),
                                 PG_TEXT(arr(s, A_HASH)),        PG_TEXT(arr(s, A_REF)),
                                 PG_TEXT(arr(s, A_ATTEMPTS)),    PG_TEXT(arr(s, A_DUE)),
                                 PG_TEXT(arr(s, A_DEST)),        PG_TEXT(arr(s, A_REASON)),
                                 PG_TEXT(arr(s, A_DESTINATION)), PG_TEXT(arr(s, A_SPENT))};
    return ob_pg_query(
        &s->sql,
        "insert into outbox.parked (pipeline, n, hash, ref, attempts, due_at, blocked_dest, "
        "reason, destination, history) "
        "select $1, n, hash, ref, attempts, to_timestamp(due / 1000.0), dest, reason, destination, "
        "case when spent then jsonb_build_array(jsonb_build_object('at', clock_timestamp(), "
        "'attempt', attempts, "
        "'error', reason)) else '[]'::jsonb end "
        "from unnest($2::bigint[], $3::bigint[], $4::text[], $5::int[], $6::bigint[], "
        "$7::bigint[], $8::text[], "
        "$9::text[], $10::bool[]) as t(n, hash, ref, attempts, due, dest, reason, destination, "
        "spent) "
        "on conflict (pipeline, ref) do update set n = excluded.n, attempts = excluded.attempts, "
        "due_at = excluded.due_at, blocked_dest = excluded.blocked_dest, reason = excluded.reason",
        p, 10, false, NULL, err);
}

static enum ob_status park_again(struct ob_source *s, const struct ob_settle *settle,
                                 struct ob_err *err)
{
    if (fill(s, settle, PARK_AGAIN, NULL) == 0)
        return OB_OK;
    const struct pg_param p[] = {PG_TEXT(s->pipeline),        PG_TEXT(arr(s, A_N)),
                                 PG_TEXT(arr(s, A_ATTEMPTS)), PG_TEXT(arr(s, A_DUE)),
                                 PG_TEXT(arr(s, A_DEST)),     PG_TEXT(arr(s, A_REASON)),
                                 PG_TEXT(arr(s, A_SPENT))};
    return ob_pg_query(
        &s->sql,
        "update outbox.parked p set attempts = t.attempts, due_at = to_timestamp(t.due / 1000.0), "
        "blocked_dest = t.dest, reason = t.reason, history = case when t.spent then p.history || "
        "jsonb_build_object('at', clock_timestamp(), 'attempt', t.attempts, 'error', t.reason) "
        "else p.history end "
        "from unnest($2::bigint[], $3::int[], $4::bigint[], $5::bigint[], $6::text[], $7::bool[]) "
        "as t(n, attempts, due, dest, reason, spent) where p.pipeline = $1 and p.n = t.n",
        p, 7, false, NULL, err);
}

static enum ob_status bury(struct ob_source *s, const struct ob_settle *settle,
                           const int64_t *numbers, struct ob_err *err)
{
    if (fill(s, settle, DEAD, numbers) == 0)
        return OB_OK;
    bool hold = false; /* one setting for the whole pipeline */
    for (size_t i = 0; i < settle->n; i++)
        hold = hold || (is(&settle->ops[i], DEAD) && settle->ops[i].hold);
    const struct pg_param p[] = {
        PG_TEXT(s->pipeline),           PG_TEXT(arr(s, A_N)),        PG_TEXT(arr(s, A_HASH)),
        PG_TEXT(arr(s, A_REF)),         PG_TEXT(arr(s, A_ATTEMPTS)), PG_TEXT(arr(s, A_REASON)),
        PG_TEXT(arr(s, A_DESTINATION)), PG_TEXT(arr(s, A_SPENT)),    PG_TEXT(arr(s, A_ID)),
        PG_TEXT(arr(s, A_TYPE)),        PG_TEXT(arr(s, A_KEY)),      PG_TEXT(hold ? "t" : "f")};
    enum ob_status st = ob_pg_query(
        &s->sql,
        "with gone as (delete from outbox.parked where pipeline = $1 and n = any($2::bigint[]) "
        "returning n, history, event, payload) "
        "insert into outbox.dead as d (pipeline, n, hash, ref, attempts, error, destination, id, "
        "type, key, tenant, event, payload, "
        "history, hold, state) "
        "select $1, t.n, t.hash, t.ref, t.attempts, t.reason, t.destination, t.id, t.type, t.key, "
        "'', gone.event, gone.payload, "
        "coalesce(gone.history, '[]'::jsonb) || case when t.spent then "
        "jsonb_build_array(jsonb_build_object("
        "'at', clock_timestamp(), 'attempt', t.attempts, 'error', t.reason)) else '[]'::jsonb end, "
        "$12::bool, 'dead' "
        "from unnest($2::bigint[], $3::bigint[], $4::text[], $5::int[], $6::text[], $7::text[], "
        "$8::bool[], $9::text[], "
        "$10::text[], $11::text[]) as t(n, hash, ref, attempts, reason, destination, spent, id, "
        "type, key) "
        "left join gone on gone.n = t.n "
        "on conflict (pipeline, n) do update set error = excluded.error, attempts = "
        "excluded.attempts, "
        "history = d.history || excluded.history, state = 'dead', at = clock_timestamp(), hold = "
        "excluded.hold",
        p, 12, false, NULL, err);
    return st;
}

/* The key's row follows its first parked row, or the dead one that holds it. What is not held any
 * more comes back. */
static enum ob_status rekey(struct ob_source *s, const struct ob_settle *settle,
                            struct ob_settled *out, struct ob_err *err)
{
    PGresult *res = NULL;
    bool any = false;
    ob_pg_array_begin(&s->array[A_HASH]);
    for (size_t i = 0; i < settle->n; i++) {
        const struct ob_settle_op *op = &settle->ops[i];
        if (op->kind == OB_SETTLE_PUBLISHED && op->park_n == 0)
            continue;
        any = true;
        add_int(&s->array[A_HASH], (int64_t)op->hash);
    }
    ob_pg_array_end(&s->array[A_HASH]);
    if (!any)
        return OB_OK;
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(arr(s, A_HASH))};
    enum ob_status st = ob_pg_query(
        &s->sql, "select hash from outbox.rekey($1, $2::bigint[]) as hash", p, 2, true, &res, err);
    if (st != OB_OK)
        return st;
    for (int i = 0; i < PQntuples(res) && (size_t)i < settle->n; i++)
        out->released[out->n_released++] = (uint64_t)ob_pg_i64(res, i, 0);
    PQclear(res);
    return OB_OK;
}

enum ob_status ob_pg_record(struct ob_source *s, struct ob_settle *settle, struct ob_settled *out,
                            struct ob_err *err)
{
    int64_t *numbers = calloc(settle->n ? settle->n : 1, sizeof(*numbers));
    enum ob_status st =
        numbers ? OB_OK : ob_err_set(err, OB_RETRY, "no memory for a settle of %zu", settle->n);
    if (st == OB_OK)
        st = delete_published(s, settle, err);
    if (st == OB_OK)
        st = draw_numbers(s, settle, numbers, err);
    if (st == OB_OK)
        st = park_new(s, settle, numbers, err);
    if (st == OB_OK)
        st = park_again(s, settle, err);
    if (st == OB_OK)
        st = bury(s, settle, numbers, err);
    if (st == OB_OK)
        st = rekey(s, settle, out, err);
    if (st == OB_OK)
        st = ob_pg_next_due(s, &out->next_due_ms, err);
    for (size_t i = 0; st == OB_OK && i < settle->n; i++)
        if (settle->ops[i].kind != OB_SETTLE_PUBLISHED && settle->ops[i].park_n == 0)
            settle->ops[i].park_n = numbers[i];
    free(numbers);
    return st;
}
