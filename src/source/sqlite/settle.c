/* SPDX-License-Identifier: Apache-2.0 */
/* settle - the one transaction that records what became of events: cursor, parked and dead rows
 * change together or not at all.
 *
 * It takes the application's only write lock, so it waits for it at most busy_ms and does nothing
 * but writes. The first statement is the fence: the cursor's row under our epoch.
 *
 * A COMMIT that fails (a failed fsync, say) may still turn out to be in the log when the database
 * is opened again. So everything may be repeated: a row is found again by its event's number, and
 * the counters by settle_no (tests: "a settle whose outcome is not known"). */
#include "source/sqlite/sqlite.h"

#include <stdlib.h>

static bool needs_number(const struct ob_settle *settle)
{
    for (size_t i = 0; i < settle->n; i++)
        if (settle->ops[i].kind != OB_SETTLE_PUBLISHED && !settle->ops[i].park_n)
            return true;
    return false;
}

static enum ob_status apply_all(struct ob_source *s, const struct ob_settle *settle,
                                struct ob_err *err)
{
    bool numbers = needs_number(settle);
    sqlite3_stmt *get = s->db.st[ST_LAST_N], *set = s->db.st[ST_LAST_N_SET];
    enum ob_status st = OB_OK;
    int64_t last_n = 0;

    if (numbers) {
        ob_sqlite_bind_str(get, 1, ob_str_c(s->pipeline));
        st = ob_sqlite_step_one(&s->db, get, &last_n, "reading the last number", err);
        if (st == OB_AGAIN)
            st = ob_err_set(err, OB_FATAL, "outbox_pipeline has no row for %s", s->pipeline);
    }
    for (size_t i = 0; i < settle->n && st == OB_OK; i++) {
        const struct ob_settle_op *op = &settle->ops[i];
        uint64_t hash;
        st = ob_sqlite_record(s, op, &last_n, &s->given[i], &hash, err);
        if (op->kind != OB_SETTLE_PUBLISHED || op->park_n)
            s->touched[s->n_touched++] = hash;
    }
    if (st == OB_OK && numbers) {
        ob_sqlite_bind_str(set, 1, ob_str_c(s->pipeline));
        sqlite3_bind_int64(set, 2, last_n);
        st = ob_sqlite_run(&s->db, ST_LAST_N_SET, err);
    }
    return st;
}

static int by_hash(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static enum ob_status rekey_all(struct ob_source *s, struct ob_settled *out, size_t *n_released,
                                struct ob_err *err)
{
    enum ob_status st = OB_OK;

    *n_released = 0;
    if (s->n_touched)
        qsort(s->touched, s->n_touched, sizeof(*s->touched), by_hash);
    for (size_t i = 0; i < s->n_touched && st == OB_OK; i++) {
        bool held;
        if (i && s->touched[i] == s->touched[i - 1])
            continue;
        st = ob_sqlite_rekey(&s->db, s->pipeline, s->touched[i], &held, err);
        if (st == OB_OK && !held)
            out->released[(*n_released)++] = s->touched[i];
    }
    return st;
}

/* The outcome of the last try: committed after all? */
static enum ob_status look_back(struct ob_source *s, struct ob_err *err)
{
    sqlite3_stmt *st = s->db.st[ST_CURSOR];
    int rc;

    ob_sqlite_bind_str(st, 1, ob_str_c(s->pipeline));
    sqlite3_bind_int64(st, 2, s->shard);
    rc = sqlite3_step(st);
    if (rc == SQLITE_ROW && sqlite3_column_int64(st, 0) == s->epoch &&
        sqlite3_column_int64(st, 2) == s->settle_no) {
        s->credit.delivered += s->tried.delivered;
        s->credit.failed += s->tried.failed;
    }
    sqlite3_reset(st);
    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        return ob_sqlite_fail(err, s->db.h, rc, "reading the cursor");
    s->unsure = false;
    return OB_OK;
}

static struct counted count(const struct ob_source *s, const struct ob_settle *settle)
{
    struct counted c = {.delivered = settle->delivered};

    for (size_t i = 0; i < settle->n; i++)
        c.failed += settle->ops[i].kind != OB_SETTLE_PUBLISHED && settle->ops[i].spent;
    c.delivered -= c.delivered < s->credit.delivered ? c.delivered : s->credit.delivered;
    c.failed -= c.failed < s->credit.failed ? c.failed : s->credit.failed;
    return c;
}

/* The fence, and the cursor with it. */
static enum ob_status move(struct ob_source *s, const struct ob_settle *settle, struct ob_err *err)
{
    sqlite3_stmt *st = s->db.st[ST_SETTLE];
    enum ob_status ret = ob_sqlite_ahead_next(s, settle, err);

    if (ret != OB_OK)
        return ret;
    s->tried = count(s, settle);
    ob_sqlite_bind_str(st, 1, ob_str_c(s->pipeline));
    sqlite3_bind_int64(st, 2, s->shard);
    sqlite3_bind_int64(st, 3, s->epoch);
    sqlite3_bind_int64(st, 4, settle->moved ? (int64_t)settle->ref : 0);
    sqlite3_bind_int64(st, 5, ++s->settle_no);
    sqlite3_bind_int64(st, 6, ob_sqlite_wall_ms(s));
    sqlite3_bind_int64(st, 7, (int64_t)s->tried.delivered);
    sqlite3_bind_int64(st, 8, (int64_t)s->tried.failed);
    if (s->ahead_next.n)
        sqlite3_bind_blob64(st, 9, s->ahead_bytes.p, s->ahead_bytes.n, SQLITE_STATIC);
    else
        sqlite3_bind_null(st, 9);
    sqlite3_bind_int64(st, 10, (int64_t)s->ahead_next.n);
    ret = ob_sqlite_run(&s->db, ST_SETTLE, err);
    if (ret == OB_OK && sqlite3_changes(s->db.h) == 0)
        ret = ob_err_set(err, OB_FENCED, "another owner took over: nothing was recorded");
    return ret;
}

static enum ob_status make_room(struct ob_source *s, size_t n, struct ob_err *err)
{
    uint64_t *touched;
    int64_t *given;

    s->n_touched = 0;
    if (n <= s->cap)
        return OB_OK;
    touched = realloc(s->touched, n * sizeof(*touched));
    if (touched)
        s->touched = touched;
    given = touched ? realloc(s->given, n * sizeof(*given)) : NULL;
    if (!given)
        return ob_err_set(err, OB_RETRY, "no memory for a settle of %zu", n);
    s->given = given;
    s->cap = n;
    return OB_OK;
}

static enum ob_status record(struct ob_source *s, const struct ob_settle *settle,
                             struct ob_settled *out, size_t *n_released, int64_t *due,
                             struct ob_err *err)
{
    enum ob_status st = OB_OK;

    if (s->unsure)
        st = look_back(s, err);
    if (st == OB_OK)
        st = move(s, settle, err);
    if (st == OB_OK)
        st = apply_all(s, settle, err);
    if (st == OB_OK)
        st = rekey_all(s, out, n_released, err);
    if (st == OB_OK)
        st = ob_sqlite_next_due(s, NULL, NULL, due, err);
    return st;
}

static void committed(struct ob_source *s, struct ob_settle *settle)
{
    for (size_t i = 0; i < settle->n; i++)
        settle->ops[i].park_n = s->given[i];
    if (settle->moved && settle->ref > s->pos)
        s->pos = settle->ref;
    ob_sqlite_ahead_stored(s);
    s->credit = (struct counted){0};
}

enum ob_status ob_sqlite_settle(struct ob_source *s, struct ob_settle *settle,
                                struct ob_settled *out, struct ob_err *err)
{
    enum ob_status st = ob_sqlite_owned(s, err);
    size_t n_released = 0;
    int64_t due = INT64_MAX;

    if (st == OB_OK)
        st = make_room(s, settle->n, err);
    if (st == OB_OK) /* attempts and reasons survive a power cut; a lost move only repeats */
        st = ob_sqlite_sync(&s->db, settle->n == 0, err);
    if (st == OB_OK)
        st = ob_sqlite_begin(&s->db, err);
    if (st != OB_OK)
        return st;
    st = record(s, settle, out, &n_released, &due, err);
    if (st == OB_OK) {
        st = ob_sqlite_commit(&s->db, err);
        s->unsure = st != OB_OK && st != OB_RETRY;
    }
    ob_sqlite_rollback(&s->db);
    if (st == OB_FENCED)
        ob_sqlite_lost(s);
    if (st == OB_REJECT) /* a value that the side tables refuse: ours, not the event's */
        st = OB_FATAL;
    if (st == OB_OK) {
        committed(s, settle);
        out->n_released = n_released;
        out->next_due_ms = due;
    }
    return st;
}

enum ob_status ob_sqlite_settle_lost(struct ob_source *s, const int64_t *n, size_t count_n,
                                     struct ob_err *err)
{
    sqlite3_stmt *st = s->db.st[ST_LOST];
    const struct ob_settle nothing = {0};
    enum ob_status ret;
    bool held;

    ret = make_room(s, count_n, err);
    if (ret == OB_OK)
        memset(s->touched, 0, count_n * sizeof(*s->touched));
    if (ret == OB_OK)
        ret = ob_sqlite_sync(&s->db, false, err);
    if (ret == OB_OK)
        ret = ob_sqlite_begin(&s->db, err);
    if (ret == OB_OK)
        ret = move(s, &nothing, err);
    for (size_t i = 0; i < count_n && ret == OB_OK; i++) {
        ob_sqlite_bind_str(st, 1, ob_str_c(s->pipeline));
        sqlite3_bind_int64(st, 2, n[i]);
        ob_sqlite_bind_str(st, 3, OB_STR(DELETED_ROW));
        sqlite3_bind_int64(st, 4, ob_sqlite_wall_ms(s));
        ret = ob_sqlite_run(&s->db, ST_LOST, err);
        if (ret == OB_OK)
            ret = ob_sqlite_delete_parked(s, n[i], &s->touched[s->n_touched++], err);
    }
    for (size_t i = 0; i < s->n_touched && ret == OB_OK; i++)
        ret = ob_sqlite_rekey(&s->db, s->pipeline, s->touched[i], &held, err);
    if (ret == OB_OK)
        ret = ob_sqlite_commit(&s->db, err);
    if (ret == OB_OK)
        ob_sqlite_ahead_stored(s);
    ob_sqlite_rollback(&s->db);
    if (ret == OB_FENCED)
        ob_sqlite_lost(s);
    return ret;
}
