/* SPDX-License-Identifier: Apache-2.0 */
/* record - what one op of a settle changes: rows of parked and dead events, and the row of their
 * key. All of it inside the settle's transaction, and all of it may be repeated. */
#include "core/json.h"
#include "source/sqlite/sqlite.h"

#define HISTORY_MAX 32768 /* then it starts anew with the latest attempt */
#define ERROR_MAX 1000

enum ob_status ob_sqlite_step_one(struct db *db, sqlite3_stmt *st, int64_t *value, const char *what,
                                  struct ob_err *err)
{
    bool row = false;
    int rc;

    while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
        *value = sqlite3_column_int64(st, 0);
        row = true;
    }
    sqlite3_reset(st);
    if (rc != SQLITE_DONE)
        return ob_sqlite_fail(err, db->h, rc, what);
    return row ? OB_OK : OB_AGAIN;
}

/* ---- the row of a key ---- */

static enum ob_status set_key(struct db *db, const char *pipeline, uint64_t hash, int64_t dest,
                              int64_t due, struct ob_err *err)
{
    sqlite3_stmt *st = db->st[ST_KEY_SET];

    ob_sqlite_bind_str(st, 1, ob_str_c(pipeline));
    sqlite3_bind_int64(st, 2, (int64_t)hash);
    sqlite3_bind_int64(st, 3, dest);
    sqlite3_bind_int64(st, 4, due);
    return ob_sqlite_run(db, ST_KEY_SET, err);
}

static enum ob_status delete_key(struct db *db, const char *pipeline, uint64_t hash,
                                 struct ob_err *err)
{
    sqlite3_stmt *st = db->st[ST_KEY_DELETE];

    ob_sqlite_bind_str(st, 1, ob_str_c(pipeline));
    sqlite3_bind_int64(st, 2, (int64_t)hash);
    return ob_sqlite_run(db, ST_KEY_DELETE, err);
}

/* The lowest parked row of a hash. n stays INT64_MAX if there is none. */
static enum ob_status head(struct db *db, const char *pipeline, uint64_t hash, int64_t *n,
                           int64_t *due, int64_t *dest, struct ob_err *err)
{
    sqlite3_stmt *st = db->st[ST_HEAD_PARKED];
    int rc;

    ob_sqlite_bind_str(st, 1, ob_str_c(pipeline));
    sqlite3_bind_int64(st, 2, (int64_t)hash);
    rc = sqlite3_step(st);
    if (rc == SQLITE_ROW) {
        *n = sqlite3_column_int64(st, 0);
        *due = sqlite3_column_int64(st, 1);
        *dest = sqlite3_column_int64(st, 2);
    }
    sqlite3_reset(st);
    return rc == SQLITE_ROW || rc == SQLITE_DONE
               ? OB_OK
               : ob_sqlite_fail(err, db->h, rc, "reading the first event of a key");
}

enum ob_status ob_sqlite_rekey(struct db *db, const char *pipeline, uint64_t hash, bool *held,
                               struct ob_err *err)
{
    int64_t n = INT64_MAX, due = 0, dest = 0, dead = INT64_MAX;
    sqlite3_stmt *st = db->st[ST_HEAD_DEAD];
    enum ob_status ret;

    ob_sqlite_bind_str(st, 1, ob_str_c(pipeline));
    sqlite3_bind_int64(st, 2, (int64_t)hash);
    ret = ob_sqlite_step_one(db, st, &dead, "reading the first event of a key", err);
    if (ret == OB_AGAIN || ret == OB_OK)
        ret = head(db, pipeline, hash, &n, &due, &dest, err);
    if (ret != OB_OK)
        return ret;
    *held = n != INT64_MAX || dead != INT64_MAX;
    if (!*held)
        return delete_key(db, pipeline, hash, err);
    if (dead < n)
        return set_key(db, pipeline, hash, (int64_t)OB_DEST_DEAD, 0, err);
    return set_key(db, pipeline, hash, dest, due, err);
}

/* ---- one op ---- */

/* old + this attempt into s->history. */
static void write_history(struct ob_source *s, struct ob_str old, const struct ob_settle_op *op)
{
    struct ob_str why = ob_str_c(op->reason);
    char at[OB_RFC3339_MAX];
    struct ob_json j;

    ob_buf_reset(&s->history);
    ob_buf_char(&s->history, '[');
    if (old.n > 2 && old.n < HISTORY_MAX) {
        ob_buf_put(&s->history, old.p + 1, old.n - 2);
        ob_buf_char(&s->history, ',');
    }
    if (why.n > ERROR_MAX)
        why.n = ERROR_MAX;
    ob_json_init(&j, &s->history);
    ob_json_open(&j, '{');
    ob_json_keyc(&j, "at");
    ob_json_str(&j, (struct ob_str){at, ob_rfc3339(ob_clock_wall_us(s->clock), at)});
    ob_json_keyc(&j, "attempt");
    ob_json_uint(&j, op->attempts);
    ob_json_keyc(&j, "error");
    ob_json_str(&j, why);
    ob_json_close(&j, '}');
    ob_buf_char(&s->history, ']');
}

/* Reads a parked row and leaves in s->history what it will be after op (empty: unchanged). *hash
 * is the row's. OB_AGAIN: there is no such row. */
static enum ob_status read_parked(struct ob_source *s, const struct ob_settle_op *op,
                                  uint64_t *hash, struct ob_err *err)
{
    sqlite3_stmt *st = s->db.st[ST_PARK_GET];
    enum ob_status ret = OB_OK;
    int rc;

    ob_buf_reset(&s->history);
    ob_sqlite_bind_str(st, 1, ob_str_c(s->pipeline));
    sqlite3_bind_int64(st, 2, op->park_n);
    rc = sqlite3_step(st);
    if (rc == SQLITE_ROW) {
        struct ob_str old = ob_sqlite_column_str(&s->db, st, 2);
        *hash = (uint64_t)sqlite3_column_int64(st, 0);
        if (op->spent && op->attempts > (uint64_t)sqlite3_column_int64(st, 1))
            write_history(s, old, op);
        else if (op->kind == OB_SETTLE_DEAD)
            ob_buf_str(&s->history, old);
    } else {
        ret = rc == SQLITE_DONE ? OB_AGAIN
                                : ob_sqlite_fail(err, s->db.h, rc, "reading a parked event");
    }
    sqlite3_reset(st);
    return ret;
}

static void bind_history(struct ob_source *s, sqlite3_stmt *st, int i)
{
    if (s->history.n && !s->history.failed)
        ob_sqlite_bind_str(st, i, ob_buf_view(&s->history));
    else
        sqlite3_bind_null(st, i);
}

/* *hash becomes the row's, if there is one. */
enum ob_status ob_sqlite_delete_parked(struct ob_source *s, int64_t n, uint64_t *hash,
                                       struct ob_err *err)
{
    sqlite3_stmt *st = s->db.st[ST_PARK_DELETE];
    enum ob_status ret;
    int64_t found = 0;

    ob_sqlite_bind_str(st, 1, ob_str_c(s->pipeline));
    sqlite3_bind_int64(st, 2, n);
    ret = ob_sqlite_step_one(&s->db, st, &found, "deleting a parked event", err);
    if (ret == OB_OK)
        *hash = (uint64_t)found;
    return ret == OB_AGAIN ? OB_OK : ret;
}

/* gone: its row is not in the table any more, so nobody can retry it. */
static enum ob_status insert_dead(struct ob_source *s, const struct ob_settle_op *op, uint64_t hash,
                                  int64_t n, bool gone, int64_t *given, struct ob_err *err)
{
    const struct ob_event *ev = op->event;
    sqlite3_stmt *st = s->db.st[ST_DEAD];

    ob_sqlite_bind_str(st, 1, ob_str_c(s->pipeline));
    sqlite3_bind_int64(st, 2, n);
    sqlite3_bind_int64(st, 3, (int64_t)ev->ref);
    sqlite3_bind_int64(st, 4, (int64_t)hash);
    ob_sqlite_bind_str(st, 5, ev->id);
    ob_sqlite_bind_str(st, 6, ev->type);
    ob_sqlite_bind_str(st, 7, ev->key.n ? ev->key : ev->aggregate_id);
    ob_sqlite_bind_str(st, 8, ev->tenant);
    sqlite3_bind_int64(st, 9, op->attempts);
    ob_sqlite_bind_str(st, 10, gone ? OB_STR(DELETED_ROW) : ob_str_c(op->reason));
    bind_history(s, st, 11);
    ob_sqlite_bind_str(st, 12, op->destination);
    sqlite3_bind_int64(st, 13, ob_sqlite_wall_ms(s));
    sqlite3_bind_int64(st, 14, !gone && op->hold);
    ob_sqlite_bind_str(st, 15, gone ? OB_STR("discarded") : OB_STR("dead"));
    return ob_sqlite_step_one(&s->db, st, given, "recording a dead event", err);
}

static enum ob_status insert_parked(struct ob_source *s, const struct ob_settle_op *op, int64_t n,
                                    int64_t *given, struct ob_err *err)
{
    sqlite3_stmt *st = s->db.st[ST_PARK];

    ob_sqlite_bind_str(st, 1, ob_str_c(s->pipeline));
    sqlite3_bind_int64(st, 2, n);
    sqlite3_bind_int64(st, 3, (int64_t)op->hash);
    sqlite3_bind_int64(st, 4, (int64_t)op->event->ref);
    sqlite3_bind_int64(st, 5, op->attempts);
    sqlite3_bind_int64(st, 6, op->due_ms);
    sqlite3_bind_int64(st, 7, (int64_t)op->blocked_dest);
    ob_sqlite_bind_str(st, 8, ob_str_c(op->reason));
    ob_sqlite_bind_str(st, 9, s->history.n ? ob_buf_view(&s->history) : OB_STR("[]"));
    ob_sqlite_bind_str(st, 10, op->destination);
    sqlite3_bind_int64(st, 11, ob_sqlite_wall_ms(s));
    return ob_sqlite_step_one(&s->db, st, given, "parking an event", err);
}

/* The application may delete a row that was claimed; nothing is left then that could wait. */
static enum ob_status park_new(struct ob_source *s, const struct ob_settle_op *op, int64_t n,
                               int64_t *given, struct ob_err *err)
{
    sqlite3_stmt *st = s->db.st[ST_EVENT_THERE];
    enum ob_status ret;
    int64_t there;

    ob_buf_reset(&s->history);
    if (op->spent)
        write_history(s, (struct ob_str){0}, op);
    sqlite3_bind_int64(st, 1, (int64_t)op->event->ref);
    ret = ob_sqlite_step_one(&s->db, st, &there, "parking an event", err);
    if (ret == OB_OK)
        return insert_parked(s, op, n, given, err);
    return ret == OB_AGAIN ? insert_dead(s, op, op->hash, n, true, given, err) : ret;
}

static enum ob_status park_again(struct ob_source *s, const struct ob_settle_op *op, uint64_t *hash,
                                 struct ob_err *err)
{
    enum ob_status ret = read_parked(s, op, hash, err);
    sqlite3_stmt *st = s->db.st[ST_PARK_UPDATE];

    if (ret != OB_OK)
        return ret == OB_AGAIN ? OB_OK : ret;
    ob_sqlite_bind_str(st, 1, ob_str_c(s->pipeline));
    sqlite3_bind_int64(st, 2, op->park_n);
    sqlite3_bind_int64(st, 3, op->attempts);
    sqlite3_bind_int64(st, 4, op->due_ms);
    sqlite3_bind_int64(st, 5, (int64_t)op->blocked_dest);
    ob_sqlite_bind_str(st, 6, ob_str_c(op->reason));
    bind_history(s, st, 7);
    ob_sqlite_bind_str(st, 8, op->destination);
    return ob_sqlite_run(&s->db, ST_PARK_UPDATE, err);
}

static enum ob_status die(struct ob_source *s, const struct ob_settle_op *op, int64_t n,
                          uint64_t *hash, int64_t *given, struct ob_err *err)
{
    enum ob_status ret = OB_OK;

    if (op->park_n) {
        ret = read_parked(s, op, hash, err);
        if (ret == OB_OK || ret == OB_AGAIN)
            ret = ob_sqlite_delete_parked(s, op->park_n, hash, err);
    } else {
        ob_buf_reset(&s->history);
        if (op->spent)
            write_history(s, (struct ob_str){0}, op);
    }
    return ret == OB_OK ? insert_dead(s, op, *hash, n, false, given, err) : ret;
}

enum ob_status ob_sqlite_record(struct ob_source *s, const struct ob_settle_op *op, int64_t *last_n,
                                int64_t *given, uint64_t *hash, struct ob_err *err)
{
    *given = op->park_n;
    *hash = op->hash;
    switch (op->kind) {
    case OB_SETTLE_PUBLISHED:
        return op->park_n ? ob_sqlite_delete_parked(s, op->park_n, hash, err) : OB_OK;
    case OB_SETTLE_PARK:
        return op->park_n ? park_again(s, op, hash, err) : park_new(s, op, ++*last_n, given, err);
    case OB_SETTLE_DEAD:
        return die(s, op, op->park_n ? op->park_n : ++*last_n, hash, given, err);
    }
    return ob_err_set(err, OB_FATAL, "a settle of unknown kind");
}
