/* SPDX-License-Identifier: Apache-2.0 */
/* db - the connection: opened with clear words about what is wrong, statements prepared once. */
#include "source/sqlite/sqlite.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#define P " WHERE pipeline = ?1"

static const char *const sql[ST_MAX] = {
    [ST_BEGIN] = "BEGIN IMMEDIATE",
    [ST_READ] = "BEGIN",
    [ST_COMMIT] = "COMMIT",
    [ST_ROLLBACK] = "ROLLBACK",
    [ST_CLAIM] = "SELECT " TAKE_ROW "(" EVENT_COLUMNS ") FROM outbox_event AS e"
                 " WHERE e.seq > ?1 ORDER BY e.seq LIMIT ?2",
    [ST_EVENT] = "SELECT " EVENT_COLUMNS " FROM outbox_event AS e WHERE e.seq = ?1",
    [ST_EVENT_BARE] = "SELECT " EVENT_COLUMNS_ONLY " FROM outbox_event AS e WHERE e.seq = ?1",
    [ST_SHAPE] = OB_SQLITE_SHAPE,
    [ST_NEXT] = "SELECT seq FROM outbox_event WHERE seq > ?1 ORDER BY seq LIMIT 1",
    [ST_RECORDED] = "SELECT 1 FROM outbox_parked" P " AND seq = ?2"
                    " UNION ALL SELECT 1 FROM outbox_dead" P " AND seq = ?2 LIMIT 1",
    [ST_RECORDED_MAX] = "SELECT max(coalesce((SELECT max(seq) FROM outbox_parked" P "), 0),"
                        " coalesce((SELECT max(seq) FROM outbox_dead" P "), 0))",
    [ST_CURSOR] =
        "SELECT epoch, pos, settle_no, owner, beat FROM outbox_cursor" P " AND shard = ?2",
    [ST_CURSORS] =
        "SELECT shard, shards, pos, epoch, beat, owner FROM outbox_cursor" P " ORDER BY shard",
    [ST_AHEAD] = "SELECT ahead FROM outbox_cursor" P " AND shard = ?2",
    [ST_ANY_KEY] = "SELECT 1 FROM outbox_parked_key" P " LIMIT 1",
    [ST_HELD] = "SELECT 1 FROM outbox_parked_key" P " AND hash = ?2",
    [ST_KEYS] = "SELECT hash, due_ms FROM outbox_parked_key" P " AND blocked_dest = ?2"
                " ORDER BY due_ms",
    /* Rows behind a dead event that holds the key are not there. */
    [ST_KEY_ROWS] =
        "SELECT p.n, p.attempts, p.seq, p.blocked_dest, p.due_ms FROM outbox_parked AS p"
        " WHERE p.pipeline = ?1 AND p.hash = ?2 AND p.n < coalesce("
        "(SELECT min(d.n) FROM outbox_dead AS d WHERE d.pipeline = ?1 AND d.hash = ?2"
        " AND d.hold = 1), 9223372036854775807) ORDER BY p.n LIMIT ?3",
    /* Anything of the hash above this number, waiting or dead and holding. */
    [ST_KEY_MORE] = "SELECT 1 FROM outbox_parked" P " AND hash = ?2 AND n > ?3"
                    " UNION ALL SELECT 1 FROM outbox_dead" P " AND hash = ?2 AND hold = 1"
                    " AND n > ?3 LIMIT 1",
    [ST_DEST_NEXT] =
        "SELECT min(blocked_dest) FROM outbox_parked_key" P " AND blocked_dest BETWEEN ?2 AND ?3",
    [ST_DEST_KEYS] = "SELECT hash FROM outbox_parked_key" P " AND blocked_dest = ?2",
    [ST_SETTLE] = "UPDATE outbox_cursor SET pos = max(pos, ?4), settle_no = ?5, beat = beat + 1,"
                  " beat_at = ?6, published = published + ?7, failed = failed + ?8, ahead = ?9,"
                  " ahead_n = ?10" P " AND shard = ?2 AND epoch = ?3",
    [ST_BEAT] = "UPDATE outbox_cursor SET beat = beat + 1, beat_at = ?4, state = ?5,"
                " in_flight = ?6" P " AND shard = ?2 AND epoch = ?3",
    [ST_PAUSED] = "SELECT paused FROM outbox_pipeline WHERE name = ?1",
    [ST_LAST_N] = "SELECT last_n FROM outbox_pipeline WHERE name = ?1",
    [ST_LAST_N_SET] = "UPDATE outbox_pipeline SET last_n = ?2 WHERE name = ?1",
    /* An event that has a row already keeps it, and its number. */
    [ST_PARK] = "INSERT INTO outbox_parked (pipeline, n, hash, seq, attempts, due_ms, blocked_dest,"
                " reason, history, destination, parked_at)"
                " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)"
                " ON CONFLICT (pipeline, seq) DO UPDATE SET attempts = max(attempts, ?5),"
                " due_ms = ?6, blocked_dest = ?7, reason = ?8 RETURNING n",
    [ST_PARK_UPDATE] =
        "UPDATE outbox_parked SET attempts = ?3, due_ms = ?4, blocked_dest = ?5,"
        " reason = ?6, history = coalesce(?7, history), destination = ?8" P " AND n = ?2",
    [ST_PARK_GET] = "SELECT hash, attempts, history FROM outbox_parked" P " AND n = ?2",
    [ST_PARK_DELETE] = "DELETE FROM outbox_parked" P " AND n = ?2 RETURNING hash",
    [ST_EVENT_THERE] = "SELECT 1 FROM outbox_event WHERE seq = ?1",
    [ST_DEAD] = "INSERT INTO outbox_dead (pipeline, n, seq, hash, id, type, key, tenant, attempts,"
                " error, history, destination, at, hold, state) VALUES (?1, ?2, ?3, ?4, ?5, ?6,"
                " ?7, ?8, ?9, ?10, coalesce(?11, '[]'), ?12, ?13, ?14, ?15)"
                " ON CONFLICT DO UPDATE SET attempts = ?9, error = ?10,"
                " history = coalesce(?11, history), destination = ?12, at = ?13, hold = ?14,"
                " state = ?15 RETURNING n",
    [ST_LOST] = "INSERT INTO outbox_dead (pipeline, n, seq, hash, id, type, key, tenant, attempts,"
                " error, history, destination, at, hold, state) SELECT pipeline, n, seq, hash, '',"
                " '', '', '', attempts, ?3, history, destination, ?4, 0, 'dead'"
                " FROM outbox_parked" P " AND n = ?2"
                " ON CONFLICT DO UPDATE SET error = ?3, at = ?4, hold = 0, state = 'dead'",
    [ST_HEAD_PARKED] =
        "SELECT n, due_ms, blocked_dest FROM outbox_parked" P " AND hash = ?2 ORDER BY n LIMIT 1",
    [ST_HEAD_DEAD] = "SELECT n FROM outbox_dead" P " AND hash = ?2 AND hold = 1 ORDER BY n LIMIT 1",
    [ST_KEY_SET] = "INSERT INTO outbox_parked_key (pipeline, hash, blocked_dest, due_ms)"
                   " VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO UPDATE SET blocked_dest = ?3,"
                   " due_ms = ?4",
    [ST_KEY_DELETE] = "DELETE FROM outbox_parked_key" P " AND hash = ?2",
    [ST_PENDING] = "SELECT max(seq) FROM outbox_event",
    [ST_OLDEST] = "SELECT created_at FROM outbox_event WHERE seq > ?1 ORDER BY seq LIMIT 1",
    [ST_OLDEST_PARKED] = "SELECT e.created_at FROM outbox_parked AS p JOIN outbox_event AS e"
                         " ON e.seq = p.seq WHERE p.pipeline = ?1 ORDER BY p.n LIMIT 1",
    [ST_COUNTS] = "SELECT paused, parked, dead, EXISTS (SELECT 1 FROM outbox_parked_key" P ")"
                  " FROM outbox_pipeline WHERE name = ?1",
    [ST_PARKED_HASHES] = "SELECT hash FROM outbox_parked" P,
    [ST_DEAD_HASHES] = "SELECT hash FROM outbox_dead" P " AND state = 'dead'",
};

static enum ob_status prepare_all(struct db *db, struct ob_err *err)
{
    enum ob_status st = ob_sqlite_take_function(db, err);

    for (size_t i = 0; i < ST_MAX && st == OB_OK; i++) {
        int rc = sqlite3_prepare_v3(db->h, sql[i], -1, SQLITE_PREPARE_PERSISTENT, &db->st[i], NULL);
        if (rc != SQLITE_OK)
            st = ob_sqlite_fail(err, db->h, rc, "preparing a statement");
    }
    return st;
}

enum ob_status ob_sqlite_run(struct db *db, enum stmt which, struct ob_err *err)
{
    int rc = sqlite3_step(db->st[which]);

    sqlite3_reset(db->st[which]);
    return rc == SQLITE_DONE ? OB_OK : ob_sqlite_fail(err, db->h, rc, sql[which]);
}

enum ob_status ob_sqlite_begin(struct db *db, struct ob_err *err)
{
    return ob_sqlite_run(db, ST_BEGIN, err);
}

enum ob_status ob_sqlite_commit(struct db *db, struct ob_err *err)
{
    return ob_sqlite_run(db, ST_COMMIT, err);
}

enum ob_status ob_sqlite_sync(struct db *db, bool lazy, struct ob_err *err)
{
    enum ob_status st = OB_OK;

    if (db->lazy != lazy)
        st = ob_sqlite_exec(
            db->h, lazy ? "PRAGMA synchronous = NORMAL" : "PRAGMA synchronous = FULL", err);
    if (st == OB_OK)
        db->lazy = lazy;
    return st;
}

void ob_sqlite_rollback(struct db *db)
{
    struct ob_err ignored;

    if (db->h && !sqlite3_get_autocommit(db->h) &&
        ob_sqlite_run(db, ST_ROLLBACK, &ignored) != OB_OK)
        return; /* the connection ended the transaction by itself */
}

void ob_sqlite_bind_str(sqlite3_stmt *st, int i, struct ob_str s)
{
    /* A failed bind (too long, no memory) leaves NULL, which the table's NOT NULL refuses. */
    sqlite3_bind_text64(st, i, s.p ? s.p : "", s.n, SQLITE_STATIC, SQLITE_UTF8);
}

struct ob_str ob_sqlite_column_str(const struct db *db, sqlite3_stmt *st, int i)
{
    struct ob_str s;

    /* As a blob the bytes come without a copy for the NUL that text would get. */
    if (db->utf16 && sqlite3_column_type(st, i) == SQLITE_TEXT)
        s.p = (const char *)sqlite3_column_text(st, i);
    else
        s.p = sqlite3_column_blob(st, i); /* NULL also for no bytes */
    s.n = s.p ? (size_t)sqlite3_column_bytes(st, i) : 0;
    return s;
}

bool ob_sqlite_db_same(const struct db *db, const char *path)
{
    struct stat sb;

    return stat(path, &sb) == 0 && sb.st_dev == db->dev && sb.st_ino == db->ino;
}

void ob_sqlite_db_close(struct db *db)
{
    for (size_t i = 0; i < ST_MAX; i++) {
        sqlite3_finalize(db->st[i]);
        db->st[i] = NULL;
    }
    sqlite3_close(db->h);
    db->h = NULL;
}

/* One value of text from a pragma. */
static enum ob_status pragma(struct db *db, const char *what, char *out, size_t size,
                             struct ob_err *err)
{
    sqlite3_stmt *st = NULL;
    enum ob_status ret = OB_OK;
    int rc = sqlite3_prepare_v2(db->h, what, -1, &st, NULL);

    if (rc == SQLITE_OK)
        rc = sqlite3_step(st);
    if (rc == SQLITE_ROW)
        sqlite3_snprintf((int)size, out, "%s", sqlite3_column_text(st, 0));
    else
        ret = ob_sqlite_fail(err, db->h, rc, what);
    sqlite3_finalize(st);
    return ret;
}

static enum ob_status check_schema(struct db *db, enum open_mode mode, struct ob_err *err)
{
    unsigned version;
    char text[16];
    enum ob_status st = ob_sqlite_table_version(db->h, &version, err);

    if (st != OB_OK)
        return st;
    if (version == 0)
        return ob_err_set(err, OB_FATAL,
                          "the database has no outbox tables yet: run `outbox schema --apply`");
    if (version < ob_sqlite_n_migrations)
        return ob_err_set(err, OB_FATAL,
                          "the outbox tables have version %u, this program needs %u: run `outbox "
                          "schema --apply`",
                          version, ob_sqlite_n_migrations);
    st = pragma(db, "PRAGMA journal_mode", text, sizeof(text), err);
    if (st == OB_OK && mode == OPEN_RELAY && sqlite3_stricmp(text, "wal") != 0)
        st = ob_err_set(err, OB_FATAL,
                        "the database is in journal mode %s, the relay needs WAL: run `outbox "
                        "schema --apply`",
                        text);
    return st == OB_OK ? prepare_all(db, err) : st;
}

static enum ob_status check(struct db *db, enum open_mode mode, struct ob_err *err)
{
    char text[16] = "";
    enum ob_status st = pragma(db, "PRAGMA encoding", text, sizeof(text), err);

    if (st != OB_OK)
        return st;
    db->utf16 = sqlite3_strnicmp(text, "UTF-16", 6) == 0;
    if (mode != OPEN_MAKE && mode != OPEN_ANY)
        st = check_schema(db, mode, err);
    if (st == OB_OK && mode != OPEN_ANY && sqlite3_db_readonly(db->h, "main") == 1)
        st = ob_err_set(err, OB_FATAL,
                        "the database is read-only; the relay writes its cursor into it: let its "
                        "user write the file and its folder");
    return st;
}

static enum ob_status look_at_file(const char *path, enum open_mode mode, struct ob_err *err)
{
    struct stat sb;

    if (stat(path, &sb) == 0) {
        if (S_ISREG(sb.st_mode))
            return OB_OK;
        return ob_err_set(err, OB_FATAL, "it is no regular file: check the path");
    }
    if (errno == ENOENT && mode == OPEN_MAKE)
        return OB_OK;
    if (errno == ENOENT)
        return ob_err_set(err, OB_DOWN,
                          "no such file; the application makes it, or `outbox schema --apply`");
    return ob_err_set(err, OB_DOWN, "%s", strerror(errno));
}

enum ob_status ob_sqlite_db_open(struct db *db, const char *path, enum open_mode mode,
                                 int64_t busy_ms, struct ob_err *err)
{
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX;
    struct stat sb = {0};
    enum ob_status st;
    int rc;

    *db = (struct db){0};
    st = look_at_file(path, mode, err);
    if (st != OB_OK)
        goto done;
    rc = sqlite3_open_v2(path, &db->h, flags | (mode == OPEN_MAKE ? SQLITE_OPEN_CREATE : 0), NULL);
    if (rc != SQLITE_OK) {
        st = ob_sqlite_fail(err, db->h, rc, "opening");
        goto done;
    }
    sqlite3_extended_result_codes(db->h, 1);
    sqlite3_busy_timeout(db->h, (int)busy_ms);
    st = check(db, mode, err);
    if (st == OB_RETRY) /* not even to be read: somebody holds it alone */
        st = ob_err_set(err, OB_DOWN,
                        "another process keeps the database locked; it will be tried again");
    if (st == OB_OK && stat(path, &sb) != 0)
        st = ob_err_set(err, OB_DOWN, "the file has gone");
    db->dev = sb.st_dev;
    db->ino = sb.st_ino;
done:
    if (st != OB_OK) {
        ob_sqlite_db_close(db);
        ob_err_prefix(err, "sqlite %s", path);
    }
    return st;
}
