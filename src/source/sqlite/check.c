/* SPDX-License-Identifier: Apache-2.0 */
/* check - is this database fit to be relayed? Each finding comes with its fix. */
#include "source/sqlite/sqlite.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/vfs.h>

#define QUICK_BYTES ((int64_t)256 << 20) /* larger ones are not read through */

struct findings {
    void (*found)(void *user, bool ok, const char *what, const char *fix);
    void *user;
};

static void say(const struct findings *f, bool ok, const char *what, const char *fix)
{
    f->found(f->user, ok, what, ok ? "" : fix);
}

/* First column of the first row as text; "" if there is none. */
static void text(struct db *db, const char *sql, char *out, size_t size)
{
    sqlite3_stmt *st = NULL;

    out[0] = '\0';
    if (sqlite3_prepare_v2(db->h, sql, -1, &st, NULL) == SQLITE_OK &&
        sqlite3_step(st) == SQLITE_ROW)
        snprintf(out, size, "%s", (const char *)sqlite3_column_text(st, 0));
    sqlite3_finalize(st);
}

static void check_place(const struct findings *f, const char *path)
{
    static const struct {
        unsigned magic;
        const char *name;
    } remote[] = {{0x6969, "NFS"}, {0xff534d42, "CIFS"}, {0xfe534d42, "SMB2"}, {0x517b, "SMB"}};
    struct statfs fs;
    char what[96];

    if (statfs(path, &fs) != 0)
        return;
    for (size_t i = 0; i < sizeof(remote) / sizeof(remote[0]); i++)
        if ((unsigned)fs.f_type == remote[i].magic) {
            snprintf(what, sizeof(what), "the database is on a network file system (%s)",
                     remote[i].name);
            say(f, false, what, "WAL mode needs shared memory: move it to a local disk");
            return;
        }
    say(f, true, "the database is on a local file system", "");
}

static void check_mode(const struct findings *f, struct db *db)
{
    char mode[32], what[96];

    text(db, "PRAGMA journal_mode", mode, sizeof(mode));
    snprintf(what, sizeof(what), "journal mode is %s", mode);
    say(f, sqlite3_stricmp(mode, "wal") == 0, what, "run `outbox schema --apply`");
}

static void check_triggers(const struct findings *f, struct db *db)
{
    char n[32], made[512];

    text(db,
         "SELECT count(*) FROM sqlite_master WHERE type = 'trigger' AND name IN"
         " ('outbox_event_number', 'outbox_event_renumber', 'outbox_event_keep')",
         n, sizeof(n));
    say(f, n[0] == '3', "the triggers that guard outbox_event are there",
        "one was dropped; make it again from `outbox schema --print`");
    text(db,
         "SELECT instr(upper(sql), 'AUTOINCREMENT') > 0 FROM sqlite_master"
         " WHERE name = 'outbox_event'",
         made, sizeof(made));
    say(f, made[0] == '1', "numbers of outbox_event are never used twice",
        "the table must be made with AUTOINCREMENT: see `outbox schema --print`");
}

static void check_sound(const struct findings *f, struct db *db)
{
    char size[32], result[256], what[300];

    text(db, "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()", size,
         sizeof(size));
    if (sqlite3_stricmp(size, "") == 0 || (int64_t)strtoll(size, NULL, 10) > QUICK_BYTES)
        return;
    text(db, "PRAGMA quick_check(1)", result, sizeof(result));
    snprintf(what, sizeof(what), "quick_check: %s", result);
    say(f, sqlite3_stricmp(result, "ok") == 0, what,
        "the file is damaged: stop its writers, restore a backup or use `sqlite3 FILE .recover`");
}

static void check_write(const struct findings *f, struct db *db)
{
    struct ob_err err;
    char what[300];

    if (ob_sqlite_begin(db, &err) == OB_OK) {
        ob_sqlite_rollback(db);
        say(f, true, "the write lock can be had", "");
        return;
    }
    snprintf(what, sizeof(what), "the write lock cannot be had: %.200s", err.text);
    say(f, false, what, "find the process that keeps a write transaction open");
}

enum ob_status ob_sqlite_check(struct ob_admin *a,
                               void (*found)(void *user, bool ok, const char *what,
                                             const char *fix),
                               void *user, struct ob_err *err)
{
    const struct findings f = {found, user};
    struct ob_err why;

    (void)err; /* what cannot be checked is a finding */
    if (ob_sqlite_admin_need(a, &why) != OB_OK) {
        say(&f, false, why.text, "see the message");
        return OB_OK;
    }
    say(&f, true, "the database is there, with the newest outbox schema", "");
    check_place(&f, a->path);
    check_mode(&f, &a->db);
    check_triggers(&f, &a->db);
    check_write(&f, &a->db);
    check_sound(&f, &a->db);
    return OB_OK;
}
