/* SPDX-License-Identifier: Apache-2.0 */
/* admin_tail - events as they become visible, for people who watch.
 *
 * Numbers become visible out of order, so `number > last` would never show who commits late. The
 * native table is followed as mode log reads it, by a position and a snapshot: what stands at or
 * below the position and was not visible in the snapshot comes first, then what stands above. A
 * look has one snapshot from its start to its end, however many calls and pages it takes.
 *
 * Rows of another table have no transaction id that stays. There a stretch of the last numbers is
 * looked at again, and what of it was shown is remembered; so is everything that has the number
 * (or time) at which the stretch begins. (tests/e2e/test_postgres_tail.py) */
#include "source/postgres/admin.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define PAGE 500
#define STRETCH 500      /* rows that are looked at again */
#define SHOWN_MAX 100000 /* as many may have the same time */

struct shown {
    int64_t number;
    uint64_t hash; /* of the id */
};

struct pg_tail {
    bool begun;
    /* native: all that `snap` shows up to `pos` was shown. `next`: of the look under way */
    char *snap, *next;
    int64_t pos, top, late_pos; /* top: pos when the look began */
    bool late;
    /* mapped, by number and hash: all that was shown from number `floor` on */
    int64_t floor;
    struct shown *shown;
    size_t n, cap;
};

void ob_pg_tail_free(struct pg_tail *t)
{
    if (!t)
        return;
    free(t->snap);
    free(t->next);
    free(t->shown);
    free(t);
}

static enum ob_status no_memory(struct ob_err *err)
{
    return ob_err_set(err, OB_DOWN, "no memory");
}

/* ---- the native table ---- */

static enum ob_status look_now(struct ob_admin *a, char **snap, int64_t *newest, struct ob_err *err)
{
    PGresult *res = NULL;
    enum ob_status st = ob_pg_query(
        &a->db,
        "select pg_current_snapshot()::text, coalesce((select max(seq) from outbox.event), 0)",
        NULL, 0, false, &res, err);
    if (st == OB_OK) {
        *snap = strdup(PQgetvalue(res, 0, 0));
        *newest = strtoll(PQgetvalue(res, 0, 1), NULL, 10);
        st = *snap ? OB_OK : no_memory(err);
    }
    PQclear(res);
    return st;
}

/* Numbers of a page of late ones, as an array in out; *n 0: there are none. */
static enum ob_status late_numbers(struct ob_admin *a, struct ob_buf *out, int *n, int64_t *last,
                                   struct ob_err *err)
{
    const struct pg_tail *t = a->tail;
    char top[24], from[24];
    PGresult *res = NULL;
    snprintf(top, sizeof(top), "%" PRId64, t->top);
    snprintf(from, sizeof(from), "%" PRId64, t->late_pos);
    const struct pg_param p[] = {PG_TEXT(top), PG_TEXT(t->snap), PG_TEXT(from), PG_TEXT(t->next)};
    enum ob_status st = ob_pg_query(
        &a->db,
        "with l as materialized (select x from pg_snapshot_xip($2::pg_snapshot) x where "
        "pg_visible_in_snapshot(x, $4::pg_snapshot) union select xid from outbox.event where xid "
        ">= pg_snapshot_xmax($2::pg_snapshot) and xid < pg_snapshot_xmax($4::pg_snapshot) and seq "
        "<= $1::bigint and pg_visible_in_snapshot(xid, $4::pg_snapshot)), k as (select e.seq from "
        "l cross join lateral (select seq from outbox.event where (xid, seq) > (l.x, $3::bigint) "
        "and (xid, seq) <= (l.x, $1::bigint) order by xid, seq limit 500) e order by e.seq limit "
        "500) select array_agg(seq order by seq)::text, count(*), coalesce(max(seq), 0) from k",
        p, 4, false, &res, err);
    if (st == OB_OK) {
        ob_buf_reset(out);
        ob_buf_c(out, PQgetvalue(res, 0, 0));
        *n = (int)strtol(PQgetvalue(res, 0, 1), NULL, 10);
        *last = strtoll(PQgetvalue(res, 0, 2), NULL, 10);
    }
    PQclear(res);
    return st;
}

static enum ob_status show_late(struct ob_admin *a, struct pg_show *show, struct ob_err *err)
{
    struct pg_tail *t = a->tail;
    struct ob_buf numbers;
    enum ob_status st = OB_OK;
    ob_buf_init(&numbers, 65536);
    while (st == OB_OK && t->late && show->more) {
        int n = 0;
        int64_t last = 0;
        st = late_numbers(a, &numbers, &n, &last, err);
        if (st == OB_OK && n > 0)
            st = ob_pg_events_page(
                a, &(struct pg_span){.after = t->late_pos, .numbers = ob_buf_z(&numbers)}, PAGE,
                show, &t->late_pos, NULL, err);
        if (st == OB_OK && show->more)
            t->late_pos = last > t->late_pos ? last : t->late_pos; /* some may be retired */
        t->late = st != OB_OK || !show->more || n == PAGE;
    }
    ob_buf_clear(&numbers);
    return st;
}

static enum ob_status tail_native(struct ob_admin *a, uint64_t from, struct pg_show *show,
                                  struct ob_err *err)
{
    struct pg_tail *t = a->tail;
    int64_t newest;
    int n = PAGE;
    enum ob_status st = OB_OK;
    if (!t->begun) {
        st = look_now(a, &t->snap, &newest, err);
        if (st != OB_OK)
            return st;
        t->pos = from == OB_TAIL_NOW ? newest : (int64_t)from - (from > 0);
        t->begun = true;
    }
    if (!t->next) {
        st = look_now(a, &t->next, &newest, err);
        t->late = true;
        t->late_pos = 0;
        t->top = t->pos;
    }
    if (st == OB_OK && strcmp(t->snap, t->next) != 0)
        st = show_late(a, show, err);
    while (st == OB_OK && show->more && n == PAGE)
        st = ob_pg_events_page(a, &(struct pg_span){.after = t->pos, .visible = t->next}, PAGE,
                               show, &t->pos, &n, err);
    if (st == OB_OK && show->more) {
        free(t->snap);
        t->snap = t->next;
        t->next = NULL;
    }
    return st;
}

/* ---- another table ---- */

static int by_number(const void *a, const void *b)
{
    const struct shown *x = a, *y = b;
    if (x->number != y->number)
        return x->number < y->number ? -1 : 1;
    return x->hash < y->hash ? -1 : x->hash > y->hash;
}

static bool remember(struct pg_tail *t, int64_t number, struct ob_str id)
{
    if (t->n == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 1024;
        struct shown *more = realloc(t->shown, cap * sizeof(*more));
        if (!more)
            return false;
        t->shown = more;
        t->cap = cap;
    }
    t->shown[t->n++] = (struct shown){number, ob_hash64(id.p, id.n)};
    return true;
}

/* Sorted again, and no more of it than is needed. */
static void tidy(struct pg_tail *t)
{
    size_t from = 0;
    qsort(t->shown, t->n, sizeof(*t->shown), by_number);
    if (t->n > STRETCH && t->shown[t->n - STRETCH].number > t->floor)
        t->floor = t->shown[t->n - STRETCH].number;
    if (t->n > SHOWN_MAX)
        t->floor = t->shown[t->n - 1].number + 1;
    while (from < t->n && t->shown[from].number < t->floor)
        from++;
    t->n -= from;
    memmove(t->shown, t->shown + from, t->n * sizeof(*t->shown));
}

/* The newest ones count as shown. What is as old as the oldest of these is past. */
static enum ob_status pass_over(struct ob_admin *a, struct ob_err *err)
{
    struct pg_tail *t = a->tail;
    PGresult *res = NULL;
    enum ob_status st = ob_pg_map_newest(a, STRETCH, &res, err);
    for (int i = 0; st == OB_OK && i < PQntuples(res); i++)
        if (!ob_pg_null(res, i, 1) && !remember(t, ob_pg_i64(res, i, 1), ob_pg_str(res, i, 0)))
            st = no_memory(err);
    if (st == OB_OK && PQntuples(res) == STRETCH && t->n > 0) {
        qsort(t->shown, t->n, sizeof(*t->shown), by_number);
        t->floor = t->shown[0].number + 1;
    }
    PQclear(res);
    if (st == OB_OK && t->n > 0)
        tidy(t);
    return st;
}

/* Ids of a page that were not shown yet, as an array; *n: rows of the page, last: its last id. */
static enum ob_status new_ids(struct ob_admin *a, struct ob_buf *last, struct ob_buf *ids, int *n,
                              size_t *found, struct ob_err *err)
{
    struct pg_tail *t = a->tail;
    PGresult *res = NULL;
    size_t sorted = t->n;
    enum ob_status st = ob_pg_map_numbers(a, t->floor, last, PAGE, &res, err);
    *n = st == OB_OK ? PQntuples(res) : 0;
    *found = 0;
    ob_pg_array_begin(ids);
    for (int i = 0; i < *n && st == OB_OK; i++) {
        struct ob_str id = ob_pg_str(res, i, 0);
        struct shown key = {ob_pg_i64(res, i, 1), ob_hash64(id.p, id.n)};
        if (sorted && bsearch(&key, t->shown, sorted, sizeof(key), by_number))
            continue;
        ob_pg_array_add(ids, id);
        ++*found;
    }
    ob_pg_array_end(ids);
    ob_buf_reset(last);
    if (*n > 0)
        ob_buf_str(last, ob_pg_str(res, *n - 1, 0));
    PQclear(res);
    return st;
}

struct remembering {
    struct pg_tail *t;
    struct pg_show *show;
    bool failed;
};

static bool show_and_remember(void *user, const struct ob_event *ev, const char *state)
{
    struct remembering *r = user;
    r->failed = r->failed || !remember(r->t, (int64_t)ev->seq, ev->id);
    return r->show->fn(r->show->user, ev, state) && !r->failed;
}

static enum ob_status tail_mapped(struct ob_admin *a, uint64_t from, struct pg_show *show,
                                  struct ob_err *err)
{
    struct pg_tail *t = a->tail;
    struct remembering r = {t, show, false};
    struct pg_show inner = {show->payload, show_and_remember, &r, true};
    struct ob_buf last, ids;
    enum ob_status st = OB_OK;
    if (!t->begun) {
        t->floor = from == OB_TAIL_NOW || from == 0 ? INT64_MIN : (int64_t)from;
        st = from == OB_TAIL_NOW ? pass_over(a, err) : OB_OK;
        t->begun = st == OB_OK;
    }
    ob_buf_init(&last, 1 << 20);
    ob_buf_init(&ids, (size_t)64 << 20);
    for (int n = PAGE; st == OB_OK && inner.more && n == PAGE;) {
        size_t found;
        st = new_ids(a, &last, &ids, &n, &found, err);
        if (st == OB_OK && found > 0)
            st = ob_pg_map_show(a, ob_buf_z(&ids), &inner, err);
        if (st == OB_OK && r.failed)
            st = no_memory(err);
        if (found > 0)
            tidy(t);
    }
    ob_buf_clear(&last);
    ob_buf_clear(&ids);
    show->more = inner.more;
    return st;
}

enum ob_status ob_pg_tail(struct ob_admin *a, uint64_t from, bool payload, ob_event_fn *fn,
                          void *user, struct ob_err *err)
{
    struct pg_show show = {payload, fn, user, true};
    if (ob_pg_admin_stream(a))
        return ob_err_set(err, OB_REJECT,
                          "its events are in the WAL only and cannot be followed here: `outbox "
                          "events` shows those that wait or are dead, `outbox status` how far it "
                          "is, and the sink has the others");
    enum ob_status st = ob_pg_admin_need(a, err);
    if (st == OB_OK && !a->tail)
        a->tail = calloc(1, sizeof(*a->tail));
    if (st == OB_OK && !a->tail)
        st = no_memory(err);
    if (st != OB_OK)
        return st;
    return ob_pg_admin_mapped(a) ? tail_mapped(a, from, &show, err)
                                 : tail_native(a, from, &show, err);
}
