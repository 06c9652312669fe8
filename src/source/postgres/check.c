/* SPDX-License-Identifier: Apache-2.0 */
/* check - is this database fit to be relayed? Each finding comes with the statement that fixes it.
 */
#include "source/postgres/check.h"

#include "source/postgres/admin.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define SKEW_MAX_MS 5000

struct findings {
    void (*found)(void *user, bool ok, const char *what, const char *fix);
    void *user;
};

static void say(const struct findings *f, bool ok, const char *what, const char *fix)
{
    f->found(f->user, ok, what, ok ? "" : fix);
}

static enum ob_status run(struct ob_admin *a, const struct findings *f, const struct pg_check *c,
                          struct ob_err *err)
{
    const struct ob_mapping *m = &a->conf->mapping;
    const struct pg_param p[] = {PG_TEXT(m->table ? m->schema : NULL), PG_TEXT(m->table)};
    PGresult *res = NULL;
    enum ob_status st =
        ob_pg_query(&a->db, c->sql, p, c->when == PG_CHECK_TABLES ? 2 : 0, false, &res, err);
    for (int i = 0; st == OB_OK && i < PQntuples(res); i++)
        say(f, PQgetvalue(res, i, 0)[0] == 't', PQgetvalue(res, i, 1), PQgetvalue(res, i, 2));
    PQclear(res);
    return st;
}

/* Times of parking and retry are the server's, those in messages and logs are ours. */
static void check_clock(struct ob_admin *a, const struct findings *f)
{
    PGresult *res = NULL;
    struct ob_err why;
    char text[128];
    int64_t before = ob_clock_wall_us(a->clock);
    if (ob_pg_query(&a->db, "select (extract(epoch from clock_timestamp()) * 1000000)::bigint",
                    NULL, 0, true, &res, &why) != OB_OK)
        return;
    int64_t after = ob_clock_wall_us(a->clock), there = ob_pg_i64(res, 0, 0);
    /* The server looked at its clock somewhere between: what remains is certain. */
    int64_t ms = (there < before ? before - there : there > after ? there - after : 0) / 1000;
    PQclear(res);
    snprintf(text, sizeof(text),
             "the clocks of the server and of this machine differ by %" PRId64 " ms", ms);
    say(f, ms <= SKEW_MAX_MS, ms <= SKEW_MAX_MS ? "the clocks agree" : text,
        "set both clocks by NTP: times of retries and in messages are not comparable");
}

static void run_all(struct ob_admin *a, const struct findings *f, const struct pg_check *checks)
{
    struct ob_err why = {.text = ""};
    bool native = !a->conf->mapping.table && !a->conf->message_prefix[0];
    for (; checks->sql; checks++) {
        if (checks->when == PG_CHECK_NATIVE && !native)
            continue;
        if (run(a, f, checks, &why) != OB_OK)
            say(f, false, why.text, "see the findings above");
    }
}

enum ob_status ob_pg_check(struct ob_admin *a,
                           void (*found)(void *user, bool ok, const char *what, const char *fix),
                           void *user, struct ob_err *err)
{
    const struct findings f = {found, user};
    struct ob_err why;
    (void)err; /* what cannot be checked is a finding */
    enum ob_status st = ob_pg_admin_need(a, &why);
    /* A table that somebody holds is a finding and nothing to wait for. */
    if (a->db.c && ob_pg_exec(&a->db, "set lock_timeout = '500ms'", err) == OB_OK)
        run_all(a, &f, ob_pg_checks_first);
    if (st != OB_OK) {
        say(&f, false, why.text,
            a->db.c ? "see the message, and the findings above" : "see the message");
        return OB_OK;
    }
    say(&f, true, "the database is there, with the newest outbox schema", "");
    const char *weak = ob_pg_weak_tls(&a->db);
    if (weak)
        say(&f, false, weak, "sslmode=verify-full sslrootcert=FILE in the connection string");
    if (a->conf->mapping.table && ob_pg_map_checks(a, found, user, &why) != OB_OK)
        say(&f, false, why.text, "see the message");
    if (ob_pg_check_wal(a, found, user, &why) != OB_OK)
        say(&f, false, why.text, "see the message");
    run_all(a, &f, ob_pg_checks);
    check_clock(a, &f);
    return OB_OK;
}
