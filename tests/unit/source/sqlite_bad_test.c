/* SPDX-License-Identifier: Apache-2.0 */
/* sqlite_bad_test - databases that are missing, locked, read-only, foreign, damaged or full: a
 * clear text with the fix, a status that says what to do, nothing lost. */
#include "sqlite_harness.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void fill(const char *path, const char *what, size_t n)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    for (size_t i = 0; i < n; i++)
        fputs(what, f);
    fclose(f);
}

static void make_missing(struct bench *b)
{
    (void)b;
}
static void make_missing_dir(struct bench *b)
{
    snprintf(b->path, sizeof(b->path), "%s/no/app.db", b->dir);
}
static void make_folder(struct bench *b)
{
    assert_int_equal(mkdir(b->path, 0755), 0);
}
static void make_text(struct bench *b)
{
    fill(b->path, "this is no database at all, just text\n", 500);
}
static void make_empty(struct bench *b)
{
    fill(b->path, "", 1);
}
static void make_foreign(struct bench *b)
{
    assert_int_equal(sqlite3_open(b->path, &b->app), SQLITE_OK);
    sql(b, "PRAGMA journal_mode = WAL; CREATE TABLE outbox_event (id, body)");
}
static void make_foreign_meta(struct bench *b)
{
    assert_int_equal(sqlite3_open(b->path, &b->app), SQLITE_OK);
    sql(b, "CREATE TABLE outbox_event (id); CREATE TABLE outbox_meta (x); CREATE TABLE"
           " outbox_cursor (y)");
}
static void make_ours(struct bench *b)
{
    struct ob_admin *a = open_admin(b);
    struct ob_buf out;
    struct ob_err err;
    unsigned changed;

    ob_buf_init(&out, 0);
    assert_int_equal(ob_sqlite_admin.schema(a, false, &out, &changed, &err), OB_OK);
    ob_buf_clear(&out);
    ob_sqlite_admin.close(a);
    assert_int_equal(sqlite3_open(b->path, &b->app), SQLITE_OK);
}
static void make_newer(struct bench *b)
{
    make_ours(b);
    sql(b, "UPDATE outbox_meta SET value = '99'");
}
static void make_delete_mode(struct bench *b)
{
    make_ours(b);
    sql(b, "PRAGMA journal_mode = DELETE");
}
static void make_locked(struct bench *b)
{
    make_ours(b);
    sql(b, "PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; DELETE FROM outbox_meta WHERE 0");
}

static void files_that_cannot_be_opened(void **state)
{
    static const struct {
        const char *name;
        void (*make)(struct bench *b);
        enum ob_status st;
        const char *text;
    } rows[] = {
        {"missing", make_missing, OB_DOWN, "outbox schema --apply"},
        {"missing folder", make_missing_dir, OB_DOWN, "no such file"},
        {"a folder", make_folder, OB_FATAL, "no regular file"},
        {"text", make_text, OB_FATAL, "no SQLite database"},
        {"empty", make_empty, OB_FATAL, "outbox schema --apply"},
        {"foreign table", make_foreign, OB_FATAL, "did not make"},
        {"foreign tables of all names", make_foreign_meta, OB_FATAL, "did not make"},
        {"newer", make_newer, OB_FATAL, "newer program"},
        {"no WAL", make_delete_mode, OB_FATAL, "needs WAL"},
        {"locked", make_locked, OB_DOWN, "locked"},
    };

    (void)state;
    for (size_t i = 0; i < ROWS(rows); i++) {
        struct bench b;
        struct ob_err err = {.text = ""};
        enum ob_status st;

        bench_dir(&b);
        rows[i].make(&b);
        st = try_open(&b, &err);
        if (st != rows[i].st || !strstr(err.text, rows[i].text) || !strstr(err.text, b.path))
            fail_msg("row '%s': %s: %s", rows[i].name, ob_status_name(st), err.text);
        bench_clear(&b);
    }
}

/* What a person, the application or time repairs is found repaired. */
static void comes_back(void **state)
{
    struct bench b;
    struct ob_err err;

    (void)state;
    bench_dir(&b);
    assert_int_equal(try_open(&b, &err), OB_DOWN);
    make_ours(&b);
    assert_int_equal(try_open(&b, &err), OB_OK);
    sql(&b, "PRAGMA journal_mode = DELETE");
    assert_int_equal(try_open(&b, &err), OB_FATAL);
    sql(&b, "PRAGMA journal_mode = WAL");
    assert_int_equal(try_open(&b, &err), OB_OK);
    bench_clear(&b);
}

/* Runs fn in a process of its own; its result is the exit code. */
static int in_child(int (*fn)(struct bench *b), struct bench *b)
{
    int status;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0)
        _exit(fn(b));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int open_as_nobody(struct bench *b)
{
    struct ob_err err = {.text = ""};
    enum ob_status st;

    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
        return 100;
    st = try_open(b, &err);
    return st == OB_FATAL && (strstr(err.text, "read-only") || strstr(err.text, "write the")) ? 0
                                                                                              : 1;
}

static void read_only(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b);
    sqlite3_close(b.app);
    b.app = NULL;
    assert_int_equal(chmod(b.dir, 0755), 0);
    assert_int_equal(chmod(b.path, 0444), 0);
    assert_int_equal(chmod(b.dir, 0555), 0);
    assert_int_equal(in_child(open_as_nobody, &b), 0);
    assert_int_equal(chmod(b.dir, 0755), 0);
    bench_clear(&b);
}

static void damaged(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch = NULL;
    struct ob_err err = {.text = ""};
    struct ob_admin *a;
    enum ob_status st = OB_OK;
    char junk[4096];
    int64_t pages;
    int fd;

    (void)state;
    bench_init(&b);
    emit(&b, 2000, 10);
    sql(&b, "PRAGMA wal_checkpoint(TRUNCATE)");
    pages = num(&b, "PRAGMA page_count");
    assert_true(pages > 40);
    sqlite3_close(b.app);
    b.app = NULL;
    fd = open(b.path, O_RDWR);
    memset(junk, 0xa5, sizeof(junk));
    for (int64_t i = 30; i < pages; i++) /* the schema stays readable, rows do not */
        assert_int_equal(pwrite(fd, junk, sizeof(junk), i * 4096), 4096);
    close(fd);
    s = open_own(&b);
    for (int i = 0; i < 100 && (st == OB_OK || st == OB_AGAIN); i++) {
        st = ob_source_sqlite.claim(s, 100, (size_t)1 << 20, &batch, &err);
        if (st == OB_OK)
            ob_batch_unref(batch);
        assert_int_not_equal(st, OB_AGAIN); /* never "nothing there" */
    }
    assert_int_equal(st, OB_FATAL);
    assert_non_null(strstr(err.text, "damaged"));
    ob_source_sqlite.close(s);
    a = open_admin(&b);
    ob_sqlite_admin.close(a);
    bench_clear(&b);
}

/* ---- full disks ---- */

static void park_some(struct bench *b, struct ob_source *s, struct ob_batch **batch, size_t n)
{
    (void)b;
    settling_reset(&g);
    *batch = claim(s, n, OB_OK);
    for (size_t i = 0; i < (*batch)->n; i++)
        op_add(&g, OB_SETTLE_PARK, &(*batch)->events[i], i);
    g.s.moved = true;
    g.s.ref = (*batch)->events[(*batch)->n - 1].ref;
    g.s.delivered = 3;
}

/* SQLite's own limit of pages gives the error of a full disk. */
static void full_disk(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch;

    (void)state;
    bench_init(&b);
    emit(&b, 1000, 10);
    s = open_own(&b);
    park_some(&b, s, &batch, 1000);
    assert_int_equal(sqlite3_exec(s->db.h, "PRAGMA max_page_count = 1", NULL, NULL, NULL), 0);
    assert_int_equal(settle(s, &g), OB_DOWN);
    assert_non_null(strstr(g.err.text, "space"));
    assert_int_equal(num(&b, "SELECT count(*) FROM outbox_parked"), 0);
    assert_int_equal(num(&b, "SELECT pos FROM outbox_cursor"), 0);
    assert_int_equal(settle(s, &g), OB_DOWN);
    sqlite3_exec(s->db.h, "PRAGMA max_page_count = 1000000", NULL, NULL, NULL);
    assert_int_equal(settle(s, &g), OB_OK);
    assert_int_equal(num(&b, "SELECT count(*) FROM outbox_parked"), 1000);
    assert_int_equal(num(&b, "SELECT published FROM outbox_cursor"), 3);
    assert_side_tables(&b);
    ob_batch_unref(batch);
    ob_source_sqlite.close(s);
    bench_clear(&b);
}

/* Files that cannot grow: writes fail in the middle, inside COMMIT. */
static int settle_with_limit(struct bench *b)
{
    struct ob_source *s;
    struct ob_batch *batch;
    struct stat sb;
    char wal[160];
    struct rlimit old, limit;

    signal(SIGXFSZ, SIG_IGN);
    b->app = NULL;
    s = open_own(b);
    park_some(b, s, &batch, 1000);
    snprintf(wal, sizeof(wal), "%s-wal", b->path);
    if (stat(wal, &sb) != 0 || getrlimit(RLIMIT_FSIZE, &old) != 0)
        return 10;
    limit = old;
    limit.rlim_cur = (rlim_t)sb.st_size + 30000;
    setrlimit(RLIMIT_FSIZE, &limit);
    if (settle(s, &g) != OB_DOWN)
        return 11;
    if (g.ops[0].park_n != 0)
        return 12;
    setrlimit(RLIMIT_FSIZE, &old);
    if (settle(s, &g) != OB_OK)
        return 13;
    ob_batch_unref(batch);
    ob_source_sqlite.close(s);
    return 0;
}

static void file_that_cannot_grow(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b);
    emit(&b, 1000, 10);
    sqlite3_close(b.app);
    b.app = NULL;
    assert_int_equal(in_child(settle_with_limit, &b), 0);
    assert_int_equal(sqlite3_open(b.path, &b.app), SQLITE_OK);
    assert_int_equal(num(&b, "SELECT count(*) FROM outbox_parked"), 1000);
    assert_int_equal(num(&b, "SELECT published FROM outbox_cursor"), 3);
    assert_side_tables(&b);
    bench_clear(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_that_cannot_be_opened),
        cmocka_unit_test(comes_back),
        cmocka_unit_test(read_only),
        cmocka_unit_test(damaged),
        cmocka_unit_test(full_disk),
        cmocka_unit_test(file_that_cannot_grow),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
