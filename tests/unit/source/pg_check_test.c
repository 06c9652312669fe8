/* SPDX-License-Identifier: Apache-2.0 */
/* pg_check_test - what `check` finds: each fault is made, found with its statement, mended by that
 * statement, and found no more. */
#include "pg_harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static struct bench shared;
static char dsn[300]; /* of a role of its own */

struct finding {
    char what[600], fix[900];
};

struct findings {
    struct finding of[64];
    size_t n, good;
};

static void note(void *user, bool ok, const char *what, const char *fix)
{
    struct findings *f = user;

    if (ok) {
        f->good++;
        return;
    }
    assert_true(f->n < 64);
    snprintf(f->of[f->n].what, sizeof(f->of[0].what), "%s", what);
    snprintf(f->of[f->n].fix, sizeof(f->of[0].fix), "%s", fix);
    f->n++;
}

static void check(struct bench *b, struct findings *f)
{
    struct ob_admin *a = open_admin(b);
    struct ob_err err;

    memset(f, 0, sizeof(*f));
    assert_int_equal(ob_pg_admin.check(a, note, f, &err), OB_OK);
    ob_pg_admin.close(a);
}

static const struct finding *find(const struct findings *f, const char *what)
{
    for (size_t i = 0; i < f->n; i++)
        if (strstr(f->of[i].what, what))
            return &f->of[i];
    return NULL;
}

/* Statement by statement, as a person at a prompt would: ALTER SYSTEM takes no company. */
static void mend(struct bench *b, const char *fix)
{
    char text[900], *rest = text;
    PGconn *c = session(b);

    snprintf(text, sizeof(text), "%s", fix);
    for (char *p; (p = strsep(&rest, ";")) != NULL;) {
        p += strspn(p, " ");
        if (*p && strncmp(p, "--", 2) != 0)
            sql_on(c, "%s", p);
    }
    PQfinish(c);
}

static void fail_with(const char *row, const char *why, const struct findings *f)
{
    char all[4000] = "";
    size_t n = 0;

    for (size_t i = 0; i < f->n && n < sizeof(all); i++)
        n +=
            (size_t)snprintf(all + n, sizeof(all) - n, "\n# %s => %s", f->of[i].what, f->of[i].fix);
    fail_msg("row '%s': %s%s", row, why, all);
}

static bool wait_gone(struct bench *b, struct findings *f, const char *what)
{
    for (int i = 0; i < 100; i++) { /* settings are read again when the server comes to it */
        check(b, f);
        if (!find(f, what))
            return true;
        usleep(100000);
    }
    return false;
}

static void nothing_is_wrong_with_a_new_one(void **state)
{
    struct bench *b = *state;
    struct findings f;

    check(b, &f);
    if (f.n != 1 || !find(&f, "fsync is off")) /* of the tests' server */
        fail_with("fresh", "findings", &f);
    assert_true(f.good >= 8);
}

static void each_is_found_and_mended(void **state)
{
    static const struct {
        const char *name, *fault, *found, *fix, *undo;
    } rows[] = {
        {"numbers in advance", "alter sequence outbox.event_seq_seq cache 10", "CACHE 10",
         "CACHE 1;", NULL},
        {"an index of the events is gone", "drop index outbox.event_xid",
         "outbox.event_xid is missing", "CREATE INDEX event_xid ON outbox.event (xid, seq);", NULL},
        {"an index of the parked is gone", "drop index outbox.parked_ref",
         "outbox.parked_ref is missing", "CREATE UNIQUE INDEX", NULL},
        {"an index is not valid",
         "update pg_index set indisvalid = false where indexrelid = 'outbox.dead_hold'::regclass",
         "outbox.dead_hold is not valid", "DROP INDEX outbox.dead_hold; CREATE INDEX", NULL},
        {"an id could be stored twice", "drop index outbox.event_default_id",
         "outbox.event_default has no unique index", "CREATE UNIQUE INDEX", NULL},
        {"a trigger is off", "alter table outbox.dead disable trigger dead_in", "dead_in",
         "ENABLE TRIGGER dead_in;", NULL},
        {"unlogged", "alter table outbox.parked_key set unlogged", "outbox.parked_key is unlogged",
         "SET LOGGED;", NULL},
        {"row-level security",
         "alter table outbox.event enable row level security, force row level security; alter role "
         "checker nosuperuser; grant outbox_relay to checker",
         "row-level security hides rows of outbox.event", "DISABLE ROW LEVEL SECURITY;",
         "alter role checker superuser"},
        {"no partition ahead",
         "alter sequence outbox.event_seq_seq restart 9000000; select "
         "outbox.emit('x')",
         "past the last partition", "outbox.maintain(true);", NULL},
        {"an old pipeline",
         "insert into outbox.cursor (pipeline, shard, shards, beat_at) values ('gone', 0, 1, "
         "'2001-01-01')",
         "gone has not run", "DELETE FROM outbox.cursor WHERE pipeline = 'gone';", NULL},
        {"autovacuum off for a table", "alter table outbox.cursor set (autovacuum_enabled = off)",
         "switched off for outbox.cursor", "RESET (autovacuum_enabled);", NULL},
        {"autovacuum off", "alter system set autovacuum = off", "autovacuum is off",
         "ALTER SYSTEM SET autovacuum = on;", NULL},
        {"no statistics", "alter system set track_counts = off", "track_counts is off",
         "ALTER SYSTEM SET track_counts = on;", NULL},
        {"asynchronous commits", "alter system set synchronous_commit = off",
         "synchronous_commit is off", "ALTER SYSTEM RESET synchronous_commit;", NULL},
        {"asynchronous commits of a role", "alter role checker set synchronous_commit = off",
         "off for role checker", "ALTER ROLE checker RESET synchronous_commit;", NULL},
        {"asynchronous commits in the database",
         "do $$ begin execute format('alter database %I set synchronous_commit = off', "
         "current_database()); end $$",
         "off for everybody", "ALTER DATABASE", NULL},
        {"read-only",
         "do $$ begin execute format('alter database %I set default_transaction_read_only = on', "
         "current_database()); end $$",
         "transactions are read-only", "RESET default_transaction_read_only;", NULL},
    };
    struct bench *b = *state;
    struct findings f;

    for (size_t i = 0; i < ROWS(rows); i++) {
        PGconn *c = session(b);
        sql_on(c, "%s", rows[i].fault);
        sql_on(c, "select pg_reload_conf()");
        PQfinish(c);
        const struct finding *found = NULL;
        for (int tries = 0; !found && tries < 100; tries++) {
            check(b, &f);
            found = find(&f, rows[i].found);
            if (!found)
                usleep(50000);
        }
        if (!found || !strstr(found->fix, rows[i].fix))
            fail_with(rows[i].name, found ? found->fix : "not found", &f);
        mend(b, found->fix);
        if (!wait_gone(b, &f, rows[i].found))
            fail_with(rows[i].name, "still there", &f);
        if (rows[i].undo)
            sql(b, "%s", rows[i].undo);
    }
    nothing_is_wrong_with_a_new_one(state); /* nothing else was left behind */
}

/* ---- rights ---- */

static void each_right_has_its_grant(void **state)
{
    static const struct {
        const char *name, *fault, *found, *fix;
    } rows[] = {
        {"nothing at all", "revoke outbox_relay from mate", "may not use the schema",
         "GRANT outbox_relay TO mate;"},
        {"a table", "revoke select on outbox.event from outbox_relay",
         "may not select outbox.event", "GRANT SELECT ON outbox.event TO mate;"},
        {"part of a table's", "revoke insert, delete on outbox.parked from outbox_relay",
         "may not delete, insert outbox.parked", "GRANT DELETE, INSERT ON outbox.parked TO mate;"},
        {"the settings", "revoke select on outbox.meta from outbox_relay",
         "may not select outbox.meta", "GRANT SELECT ON outbox.meta TO mate;"},
        {"the sequence", "revoke select on outbox.event_seq_seq from outbox_relay",
         "outbox.event_seq_seq", "GRANT SELECT ON outbox.event_seq_seq TO mate;"},
        {"a function", "revoke execute on function outbox.maintain(boolean) from outbox_relay",
         "may not call outbox.maintain(boolean)",
         "GRANT EXECUTE ON FUNCTION outbox.maintain(boolean) TO mate;"},
    };
    struct bench *b = *state;
    char mate[300];
    struct findings f;

    snprintf(mate, sizeof(mate), "%s user=mate", b->dsn);
    sql(b, "create role mate login in role outbox_relay");
    for (size_t i = 0; i < ROWS(rows); i++) {
        b->conf.dsn = mate;
        check(b, &f);
        if (find(&f, "may not"))
            fail_with(rows[i].name, "before", &f);
        sql(b, "%s", rows[i].fault);
        check(b, &f);
        const struct finding *found = find(&f, rows[i].found);
        if (!found || strcmp(found->fix, rows[i].fix) != 0)
            fail_with(rows[i].name, "not found", &f);
        mend(b, found->fix);
        check(b, &f);
        if (find(&f, "may not") || find(&f, "denied"))
            fail_with(rows[i].name, "still there", &f);
    }
    b->conf.dsn = dsn;
    sql(b, "drop owned by mate; drop role mate; select outbox.grant_to('outbox_writer', "
           "'outbox_relay', 'outbox_operator')");
}

/* ---- who is in the way ---- */

static void whoever_is_in_the_way_is_named(void **state)
{
    static const struct {
        const char *name, *does, *found, *fix;
        bool prepared;
    } rows[] = {
        {"the events are locked", "lock table outbox.event in access exclusive mode",
         "AccessExclusiveLock on outbox.event: nobody else can read or write",
         "SELECT pg_terminate_backend(", false},
        {"the settings are locked", "lock table outbox.meta in access exclusive mode",
         "AccessExclusiveLock on outbox.meta", "SELECT pg_terminate_backend(", false},
        {"an index is being made", "lock table outbox.cursor in share mode",
         "ShareLock on outbox.cursor: nobody else can write", "SELECT pg_terminate_backend(",
         false},
        {"locked by a prepared transaction", "lock table outbox.dead in exclusive mode",
         "the prepared transaction stuck", "ROLLBACK PREPARED 'stuck", true},
        {"an open writer", "select outbox.emit('open')",
         "has written in a transaction that is still open", "SELECT pg_terminate_backend(", false},
        {"an open reader", "select count(*) from outbox.events", "holds up new partitions",
         "SELECT pg_terminate_backend(", false},
        {"a prepared writer", "select outbox.emit('two')", "old partitions stay as long",
         "ROLLBACK PREPARED 'stuck", true},
    };
    struct bench *b = *state;
    struct findings f;

    sql(b, "insert into outbox.meta values ('old_transaction', '1 s')");
    for (size_t i = 0; i < ROWS(rows); i++) {
        PGconn *c = session(b);
        char pid[64];
        sql_on(c, "set application_name = 'culprit'; begin");
        sql_on(c, "%s", rows[i].does);
        if (rows[i].prepared)
            sql_on(c, "prepare transaction 'stuck-%s'", b->name);
        const struct finding *found = NULL;
        for (int tries = 0; !found && tries < 40; tries++) {
            check(b, &f);
            found = find(&f, rows[i].found);
            if (!found)
                usleep(200000);
        }
        if (!found || !strstr(found->fix, rows[i].fix))
            fail_with(rows[i].name, "not found", &f);
        snprintf(pid, sizeof(pid), "%d", PQbackendPID(c));
        if (!rows[i].prepared && (!strstr(found->what, pid) || !strstr(found->what, "culprit") ||
                                  !strstr(found->fix, pid)))
            fail_with(rows[i].name, "not named", &f);
        mend(b, found->fix);
        if (!wait_gone(b, &f, rows[i].found))
            fail_with(rows[i].name, "still there", &f);
        PQfinish(c);
    }
    sql(b, "delete from outbox.meta where name = 'old_transaction'");
}

static void other_servers(void **state)
{
    struct bench *b = *state;
    struct findings f;

    b->conf.dsn = "host=127.0.0.1 port=1 dbname=none";
    check(b, &f);
    if (f.n != 1 || !find(&f, "connecting"))
        fail_with("nobody there", "findings", &f);
    b->conf.dsn = dsn;
}

static int64_t fast_wall(void *user)
{
    struct timespec t;

    (void)user;
    clock_gettime(CLOCK_REALTIME, &t);
    return ((int64_t)t.tv_sec + 60) * 1000000;
}

static void clocks_that_differ(void **state)
{
    struct bench *b = *state;
    struct ob_clock fast = {.mono_us = b->fake.clock.mono_us, .wall_us = fast_wall, .user = b};
    struct ob_admin *a = NULL;
    struct findings f = {.n = 0};
    struct ob_err err;

    assert_int_equal(ob_pg_admin.open(PIPE, &b->conf, &fast, &a, &err), OB_OK);
    assert_int_equal(ob_pg_admin.check(a, note, &f, &err), OB_OK);
    ob_pg_admin.close(a);
    if (!find(&f, "clocks"))
        fail_with("a minute ahead", "not found", &f);
    check(b, &f);
    if (find(&f, "clocks"))
        fail_with("the same", "found", &f);
}

static int setup(void **state)
{
    *state = &shared;
    shared.conf.dsn = dsn;
    return 0;
}

#define T(name) cmocka_unit_test_setup(name, setup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(nothing_is_wrong_with_a_new_one),
        T(each_is_found_and_mended),
        T(each_right_has_its_grant),
        T(whoever_is_in_the_way_is_named),
        T(clocks_that_differ),
        T(other_servers),
    };

    if (server_missing())
        return 0;
    bench_init(&shared);
    sql(&shared, "create role checker superuser login");
    snprintf(dsn, sizeof(dsn), "%s user=checker", shared.dsn);
    shared.conf.dsn = dsn;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sql(&shared, "drop role checker");
    bench_clear(&shared);
    return failed;
}
