/* SPDX-License-Identifier: Apache-2.0 */
/* record - what the ops of a settle change: rows of parked and dead events, and the row of their
 * key. Statements work on arrays: their number does not depend on how many events there are. All
 * inside the settle's transaction.
 *
 * A parked row's own hash counts, not the op's: routes may have changed since it was parked. */
#include "core/utf8.h"
#include "source/postgres/pg.h"
#include "source/postgres/whole.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define REASON_MAX 1000
#define HISTORY_MAX "100"     /* attempts; then the oldest is forgotten */
#define HISTORY_BYTES "32768" /* then it starts anew with the latest attempt */

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
    A_KEY,
    A_TENANT,
    A_SEQ,
    A_HOLD,
    A_EVENT, /* where no table keeps it */
    A_PAYLOAD,
    N_ARRAYS
};
_Static_assert(N_ARRAYS == sizeof(((struct ob_source *)0)->array) / sizeof(struct ob_buf),
               "an array for each");

/* Which ops a statement is about. */
enum which { PUBLISHED_ROWS, PARK_NEW, PARK_AGAIN, DEAD };

struct record {
    struct ob_source *s;
    struct ob_settle *settle;
    int64_t *numbers; /* of ops that get a new row */
    int64_t *touched; /* hashes whose row is derived again */
    size_t n_touched;
};

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

static void add_event(struct ob_source *s, const struct ob_event *ev, struct ob_buf *ref)
{
    ob_buf_reset(ref);
    s->reader->ref(s, ev, ref);
    ob_pg_array_add(&s->array[A_REF], ob_buf_view(ref));
    ob_pg_array_add(&s->array[A_ID], ev->id);
    ob_pg_array_add(&s->array[A_TYPE], ev->type);
    ob_pg_array_add(&s->array[A_KEY], ev->key.n ? ev->key : ev->aggregate_id);
    ob_pg_array_add(&s->array[A_TENANT], ev->tenant);
    if (ev->seq && !s->conf->mapping.table) /* of the native table */
        ob_pg_array_int(&s->array[A_SEQ], (int64_t)ev->seq);
    else
        ob_pg_array_add_null(&s->array[A_SEQ]);
}

/* All of the event, where no table keeps it. */
static void add_whole(struct ob_source *s, const struct ob_event *ev, struct ob_buf *json)
{
    if (!s->whole) {
        ob_pg_array_add_null(&s->array[A_EVENT]);
        ob_pg_array_add_null(&s->array[A_PAYLOAD]);
        return;
    }
    ob_buf_reset(json);
    ob_pg_whole_pack(ev, json);
    ob_pg_array_add(&s->array[A_EVENT], ob_buf_view(json));
    if (ev->payload_kind == OB_PAYLOAD_NULL)
        ob_pg_array_add_null(&s->array[A_PAYLOAD]);
    else
        ob_pg_array_bytes(&s->array[A_PAYLOAD], ev->payload);
}

static void add_op(struct ob_source *s, const struct ob_settle_op *op, struct ob_buf *ref)
{
    struct ob_str reason = ob_str_c(op->reason);
    if (reason.n > REASON_MAX)
        reason.n = ob_utf8_cut(reason.p, REASON_MAX);
    add_event(s, op->event, ref);
    add_whole(s, op->event, ref);
    ob_pg_array_int(&s->array[A_ATTEMPTS], op->attempts);
    ob_pg_array_int(&s->array[A_DUE], op->due_ms);
    ob_pg_array_int(&s->array[A_DEST], (int64_t)op->blocked_dest);
    ob_pg_array_add(&s->array[A_REASON], reason);
    ob_pg_array_add(&s->array[A_DESTINATION], op->destination);
    ob_pg_array_add(&s->array[A_SPENT], op->spent ? OB_STR("t") : OB_STR("f"));
    ob_pg_array_add(&s->array[A_HOLD], op->hold ? OB_STR("t") : OB_STR("f"));
}

/* Fills the arrays with the ops of one kind. *n of them; OB_RETRY: no memory. */
static enum ob_status fill(struct record *r, enum which which, size_t *n, struct ob_err *err)
{
    struct ob_source *s = r->s;
    struct ob_buf ref;
    bool failed = false;
    *n = 0;
    ob_buf_init(&ref, 64 << 20);
    for (int i = 0; i < N_ARRAYS; i++)
        ob_pg_array_begin(&s->array[i]);
    for (size_t i = 0; i < r->settle->n; i++) {
        const struct ob_settle_op *op = &r->settle->ops[i];
        if (!is(op, which))
            continue;
        (*n)++;
        ob_pg_array_int(&s->array[A_N], op->park_n ? op->park_n : r->numbers[i]);
        ob_pg_array_int(&s->array[A_HASH], (int64_t)op->hash);
        if (which != PUBLISHED_ROWS)
            add_op(s, op, &ref);
        if (op->park_n == 0 || which == DEAD)
            r->touched[r->n_touched++] = (int64_t)op->hash;
    }
    for (int i = 0; i < N_ARRAYS; i++) {
        ob_pg_array_end(&s->array[i]);
        failed = failed || s->array[i].failed;
    }
    failed = failed || ref.failed;
    ob_buf_clear(&ref);
    return failed ? ob_err_set(err, OB_RETRY, "no memory for a settle of %zu", r->settle->n)
                  : OB_OK;
}

static struct pg_param arr(struct record *r, int which)
{
    return PG_TEXT(ob_buf_z(&r->s->array[which]));
}

/* Runs a statement whose rows are hashes that it touched. */
static enum ob_status touch(struct record *r, const char *sql, const struct pg_param *p, size_t n,
                            struct ob_err *err)
{
    PGresult *res = NULL;
    enum ob_status st = ob_pg_query(&r->s->sql, sql, p, n, true, &res, err);
    for (int i = 0; st == OB_OK && i < PQntuples(res); i++)
        r->touched[r->n_touched++] = ob_pg_i64(res, i, 0);
    PQclear(res);
    return st;
}

static enum ob_status delete_published(struct record *r, struct ob_err *err)
{
    size_t n;
    enum ob_status st = fill(r, PUBLISHED_ROWS, &n, err);
    if (st != OB_OK || n == 0)
        return st;
    const struct pg_param p[] = {PG_TEXT(r->s->pipeline), arr(r, A_N)};
    return touch(r,
                 "delete from outbox.parked where pipeline = $1 and n = any($2::bigint[]) "
                 "returning hash",
                 p, 2, err);
}

/* Numbers for new rows, in the order of the ops. */
static enum ob_status draw_numbers(struct record *r, struct ob_err *err)
{
    const struct ob_settle *settle = r->settle;
    size_t n = 0;
    char text[24];
    PGresult *res = NULL;
    for (size_t i = 0; i < settle->n; i++)
        n += settle->ops[i].kind != OB_SETTLE_PUBLISHED && settle->ops[i].park_n == 0;
    if (n == 0)
        return OB_OK;
    snprintf(text, sizeof(text), "%zu", n);
    const struct pg_param p[] = {PG_TEXT(r->s->pipeline), PG_TEXT(text)};
    enum ob_status st =
        ob_pg_query(&r->s->sql,
                    "update outbox.pipeline set last_n = last_n + $2::bigint where name = $1 "
                    "returning last_n",
                    p, 2, true, &res, err);
    if (st != OB_OK)
        return st;
    int64_t at = PQntuples(res) == 1 ? ob_pg_i64(res, 0, 0) - (int64_t)n : -1;
    PQclear(res);
    if (at < 0)
        return ob_err_set(err, OB_FATAL, "outbox.pipeline has no row for %s", r->s->pipeline);
    for (size_t i = 0; i < settle->n; i++)
        if (settle->ops[i].kind != OB_SETTLE_PUBLISHED && settle->ops[i].park_n == 0)
            r->numbers[i] = ++at;
    return OB_OK;
}

#define ATTEMPT                                                                                    \
    "jsonb_build_array(jsonb_build_object('at', " PG_NOW ", 'attempt', t.attempts, 'error', "      \
    "t.reason))"
/* RFC 3339, UTC, milliseconds. */
#define PG_NOW "to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')"
#define HISTORY(old)                                                                               \
    "case when not t.spent then " old " when octet_length((" old ")::text) > " HISTORY_BYTES       \
    " then " ATTEMPT " when jsonb_array_length(" old ") >= " HISTORY_MAX " then (" old             \
    " - 0) || " ATTEMPT " else " old " || " ATTEMPT " end"

#define NEW_HISTORY HISTORY("'[]'::jsonb")
#define PARKED_HISTORY HISTORY("p.history")
#define GONE_HISTORY HISTORY("coalesce(gone.history, '[]'::jsonb)")

/* An event that has a row already keeps it, and its number. */
static enum ob_status park_new(struct record *r, struct ob_err *err)
{
    size_t n, k = 0;
    PGresult *res = NULL;
    enum ob_status st = fill(r, PARK_NEW, &n, err);
    if (st != OB_OK || n == 0)
        return st;
    const struct pg_param p[] = {PG_TEXT(r->s->pipeline), arr(r, A_N),        arr(r, A_HASH),
                                 arr(r, A_REF),           arr(r, A_ATTEMPTS), arr(r, A_DUE),
                                 arr(r, A_DEST),          arr(r, A_REASON),   arr(r, A_DESTINATION),
                                 arr(r, A_SPENT),         arr(r, A_SEQ),      arr(r, A_EVENT),
                                 arr(r, A_PAYLOAD)};
    st = ob_pg_query(
        &r->s->sql,
        "with t as (select * from unnest($2::bigint[], $3::bigint[], $4::text[], $5::int[], "
        "$6::bigint[], $7::bigint[], $8::text[], $9::text[], $10::bool[], $11::bigint[], "
        "$12::jsonb[], $13::bytea[]) with ordinality as u(n, hash, ref, attempts, due, dest, "
        "reason, destination, spent, seq, event, payload, i)), "
        "made as (insert into outbox.parked as p (pipeline, n, hash, ref, seq, attempts, due_at, "
        "blocked_dest, reason, destination, event, payload, history) select $1, t.n, t.hash, "
        "t.ref, t.seq, t.attempts, to_timestamp(t.due / 1000.0), t.dest, t.reason, "
        "t.destination, t.event, t.payload, " NEW_HISTORY
        " from t on conflict (pipeline, ref) do update set attempts = "
        "greatest(p.attempts, excluded.attempts), due_at = excluded.due_at, "
        "blocked_dest = excluded.blocked_dest, reason = excluded.reason "
        "returning p.ref, p.n) "
        "select made.n from t join made on made.ref = t.ref order by t.i",
        p, 13, true, &res, err);
    for (size_t i = 0; st == OB_OK && i < r->settle->n; i++)
        if (is(&r->settle->ops[i], PARK_NEW) && (int)k < PQntuples(res))
            r->numbers[i] = ob_pg_i64(res, (int)k++, 0);
    PQclear(res);
    return st;
}

static enum ob_status park_again(struct record *r, struct ob_err *err)
{
    size_t n;
    enum ob_status st = fill(r, PARK_AGAIN, &n, err);
    if (st != OB_OK || n == 0)
        return st;
    const struct pg_param p[] = {PG_TEXT(r->s->pipeline), arr(r, A_N),          arr(r, A_ATTEMPTS),
                                 arr(r, A_DUE),           arr(r, A_DEST),       arr(r, A_REASON),
                                 arr(r, A_SPENT),         arr(r, A_DESTINATION)};
    return touch(
        r,
        "update outbox.parked p set attempts = t.attempts, due_at = to_timestamp(t.due / 1000.0), "
        "blocked_dest = t.dest, reason = t.reason, destination = t.destination, history "
        "= " PARKED_HISTORY " from unnest($2::bigint[], $3::int[], $4::bigint[], $5::bigint[], "
        "$6::text[], $7::bool[], $8::text[]) as t(n, attempts, due, dest, reason, "
        "spent, destination) where p.pipeline = $1 and p.n = t.n returning p.hash",
        p, 8, err);
}

static enum ob_status bury(struct record *r, struct ob_err *err)
{
    size_t n;
    enum ob_status st = fill(r, DEAD, &n, err);
    if (st != OB_OK || n == 0)
        return st;
    const struct pg_param p[] = {PG_TEXT(r->s->pipeline), arr(r, A_N),        arr(r, A_HASH),
                                 arr(r, A_REF),           arr(r, A_ATTEMPTS), arr(r, A_REASON),
                                 arr(r, A_DESTINATION),   arr(r, A_SPENT),    arr(r, A_ID),
                                 arr(r, A_TYPE),          arr(r, A_KEY),      arr(r, A_TENANT),
                                 arr(r, A_SEQ),           arr(r, A_HOLD),     arr(r, A_EVENT),
                                 arr(r, A_PAYLOAD)};
    return touch(
        r,
        "with gone as (delete from outbox.parked where pipeline = $1 and n = any($2::bigint[]) "
        "returning n, hash, history, event, payload) "
        "insert into outbox.dead as d (pipeline, n, hash, ref, seq, attempts, error, destination, "
        "id, type, key, tenant, event, payload, history, hold, state) select $1, t.n, "
        "coalesce(gone.hash, t.hash), t.ref, t.seq, t.attempts, t.reason, t.destination, t.id, "
        "t.type, t.key, t.tenant, coalesce(gone.event, t.event), coalesce(gone.payload, "
        "t.payload), " GONE_HISTORY ", t.hold, 'dead' from unnest($2::bigint[], "
        "$3::bigint[], $4::text[], $5::int[], "
        "$6::text[], $7::text[], $8::bool[], "
        "$9::text[], $10::text[], $11::text[], "
        "$12::text[], $13::bigint[], $14::bool[], $15::jsonb[], $16::bytea[]) as t(n, hash, ref, "
        "attempts, reason, destination, spent, id, "
        "type, key, tenant, seq, hold, event, payload) left join gone on "
        "gone.n = t.n on conflict (pipeline, n) do "
        "update set error = excluded.error, attempts = "
        "excluded.attempts, history = case when "
        "excluded.history = '[]' then d.history else "
        "excluded.history end, destination = "
        "excluded.destination, state = 'dead', at = "
        "clock_timestamp(), hold = excluded.hold "
        "returning hash",
        p, 16, err);
}

/* The key's row follows its first parked row, or the dead one that holds it. What is not held any
 * more comes back. */
static enum ob_status rekey(struct record *r, struct ob_settled *out, struct ob_err *err)
{
    struct ob_source *s = r->s;
    PGresult *res = NULL;
    if (r->n_touched == 0)
        return OB_OK;
    ob_pg_array_i64(&s->array[A_HASH], r->touched, r->n_touched);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), arr(r, A_HASH)};
    enum ob_status st = ob_pg_query(
        &s->sql, "select hash from outbox.rekey($1, $2::bigint[]) as hash", p, 2, true, &res, err);
    for (int i = 0; st == OB_OK && i < PQntuples(res) && out->n_released < r->settle->n; i++)
        out->released[out->n_released++] = (uint64_t)ob_pg_i64(res, i, 0);
    PQclear(res);
    return st;
}

enum ob_status ob_pg_record(struct ob_source *s, struct ob_settle *settle, struct ob_settled *out,
                            struct ob_err *err)
{
    struct record r = {.s = s,
                       .settle = settle,
                       .numbers = calloc(settle->n + 1, sizeof(*r.numbers)),
                       .touched = calloc(2 * settle->n + 1, sizeof(*r.touched))};
    enum ob_status st = r.numbers && r.touched
                            ? OB_OK
                            : ob_err_set(err, OB_RETRY, "no memory for a settle of %zu", settle->n);
    if (st == OB_OK)
        st = delete_published(&r, err);
    if (st == OB_OK)
        st = draw_numbers(&r, err);
    if (st == OB_OK)
        st = park_new(&r, err);
    if (st == OB_OK)
        st = park_again(&r, err);
    if (st == OB_OK)
        st = bury(&r, err);
    if (st == OB_OK)
        st = rekey(&r, out, err);
    if (st == OB_OK)
        st = ob_pg_next_due(s, &out->next_due_ms, err);
    for (size_t i = 0; st == OB_OK && i < settle->n; i++)
        if (settle->ops[i].kind != OB_SETTLE_PUBLISHED && settle->ops[i].park_n == 0)
            settle->ops[i].park_n = r.numbers[i];
    free(r.numbers);
    free(r.touched);
    return st;
}
