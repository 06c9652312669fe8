/* SPDX-License-Identifier: Apache-2.0 */
/* wal_slot - the publication and the slot of a shard: their names, what they must be, who holds the
 * slot. */
#include "source/postgres/wal.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>

/* ---- names ---- */

/* Slots are called [a-z0-9_], at most 63, and are of the whole cluster: the database is part of the
 * name. What does not fit is told apart by a hash. */
static void add_name(char out[WAL_NAME], size_t *n, const char *name, size_t max, bool *changed)
{
    size_t end = *n + max;
    for (; *name && *n < end; name++) {
        char c = (char)tolower((unsigned char)*name);
        bool fine = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
        *changed = *changed || !fine || c != *name;
        out[(*n)++] = fine ? c : '_';
    }
    *changed = *changed || *name;
}

static void make_name(char out[WAL_NAME], const char *db, const char *pipeline, const char *end)
{
    char whole[512];
    size_t n = 7;
    bool changed = false;
    memcpy(out, "outbox_", 7);
    if (db) {
        add_name(out, &n, db, 18, &changed);
        out[n++] = '_';
    }
    add_name(out, &n, pipeline, 24, &changed);
    if (changed) {
        int k = snprintf(whole, sizeof(whole), "%s/%s", db ? db : "", pipeline);
        k = k < (int)sizeof(whole) ? k : (int)sizeof(whole) - 1;
        n += (size_t)snprintf(out + n, WAL_NAME - n, "_%06x",
                              (unsigned)(ob_hash64(whole, (size_t)k) & 0xffffff));
    }
    snprintf(out + n, WAL_NAME - n, "%s", end);
}

/* False: what the configuration says cannot be the name of one. */
static bool slot_name(const struct ob_source *s, unsigned shard, unsigned shards,
                      char out[WAL_NAME])
{
    char end[12];
    snprintf(end, sizeof(end), "_%u", shard);
    if (!s->conf->slot[0]) {
        make_name(out, PQdb(s->sql.c), s->pipeline, end);
        return true;
    }
    return snprintf(out, WAL_NAME, "%s%s", s->conf->slot, shards > 1 ? end : "") < WAL_NAME &&
           strspn(out, "abcdefghijklmnopqrstuvwxyz0123456789_") == strlen(out);
}

void ob_pg_wal_slots_of(const struct ob_source *s, unsigned from, unsigned to, unsigned shards,
                        struct ob_buf *out)
{
    char name[WAL_NAME];
    ob_pg_array_begin(out);
    for (; from < to; from++)
        if (slot_name(s, from, shards, name))
            ob_pg_array_add(out, ob_str_c(name));
    ob_pg_array_end(out);
}

enum ob_status ob_pg_wal_names(struct ob_source *s, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    if (s->conf->publication[0])
        snprintf(w->publication, WAL_NAME, "%s", s->conf->publication);
    else
        make_name(w->publication, NULL, s->pipeline, "");
    if (!slot_name(s, s->shard, s->shards, w->slot))
        return ob_err_set(
            err, OB_FATAL,
            "slot: %s cannot be the name of a slot: lower-case letters, digits and _, "
            "at most 63",
            s->conf->slot);
    if (strlen(s->conf->publication) >= WAL_NAME)
        return ob_err_set(err, OB_FATAL, "publication: a name has at most 63 bytes");
    return OB_OK;
}

const char *ob_pg_wal_table_name(const struct ob_source *s)
{
    const struct wal_state *w = wal_of(s);
    return s->conf->message_prefix[0] ? NULL : w->map ? w->map->table : "outbox.event";
}

/* ---- the publication ---- */

static void statement(const struct ob_source *s, struct ob_buf *sql)
{
    const struct wal_state *w = wal_of(s);
    const char *table = ob_pg_wal_table_name(s);
    ob_buf_c(sql, "CREATE PUBLICATION ");
    ob_pg_ident(sql, w->publication);
    if (table)
        ob_buf_printf(sql, " FOR TABLE %s", table);
    ob_buf_c(sql, " WITH (publish = 'insert', publish_via_partition_root = true)");
}

/* "wal_level is insufficient" and its like: `check` says that, and libpq would print it. */
static void quiet(void *arg, const PGresult *res)
{
    (void)arg;
    (void)res;
}

/* The table's owner made a function that does it for the relay. */
static enum ob_status make_publication(struct ob_source *s, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    struct ob_buf sql;
    const struct pg_param p[] = {PG_TEXT(w->publication)};
    ob_buf_init(&sql, 4096);
    statement(s, &sql);
    enum ob_status st;
    PQsetNoticeReceiver(s->sql.c, quiet, NULL);
    if (ob_pg_wal_table_name(s) && !w->map)
        st = ob_pg_query(&s->sql, "select outbox.publish($1)", p, 1, false, NULL, err);
    else
        st = ob_pg_exec(&s->sql, ob_buf_z(&sql), err);
    if (st != OB_OK && strstr(err->text, "42710")) /* another shard was faster */
        st = OB_OK;
    if (st != OB_OK && st != OB_DOWN)
        st = ob_err_set(err, OB_FATAL,
                        "there is no publication %s and it cannot be made (%.200s); as the owner "
                        "of the table: %s;",
                        w->publication, err->text, ob_buf_z(&sql));
    ob_buf_clear(&sql);
    return st;
}

#define IN_IT "from pg_publication_rel r where r.prpubid = p.oid and r.prrelid = to_regclass($2)"

/* OB_AGAIN: it is not there. */
static enum ob_status check_publication(struct ob_source *s, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    const char *table = ob_pg_wal_table_name(s);
    PGresult *res = NULL;
    const struct pg_param p[] = {PG_TEXT(w->publication), PG_TEXT(table)};
    enum ob_status st = ob_pg_query(
        &s->sql,
        "select p.pubinsert, p.pubviaroot, p.puballtables or exists (select 1 " IN_IT
        "), exists (select 1 " IN_IT " and (to_jsonb(r) ->> 'prqual' is not null or to_jsonb(r) "
        "->> 'prattrs' is not null)), " PG_WAL_MARK " from pg_publication p where p.pubname = $1",
        p, 2, true, &res, err);
    if (st != OB_OK)
        return st;
    const char *what = NULL, *how = NULL, *of = "";
    if (PQntuples(res) == 0)
        st = OB_AGAIN;
    else if (table && !ob_pg_bool(res, 0, 0))
        what = "does not publish inserts", how = "SET (publish = 'insert')";
    else if (table && !ob_pg_bool(res, 0, 1) && (!w->map || w->map->partitioned))
        what = "names partitions in place of the table",
        how = "SET (publish_via_partition_root = true)";
    else if (table && !ob_pg_bool(res, 0, 2))
        what = "does not have the table", how = "ADD TABLE ", of = table;
    else if (table && ob_pg_bool(res, 0, 3))
        what = "has a filter of rows or columns", how = "SET TABLE ", of = table;
    if (what)
        st = ob_err_set(err, OB_FATAL, "publication %s %s: ALTER PUBLICATION \"%s\" %s%s;",
                        w->publication, what, w->publication, how, of);
    else if (st == OB_OK)
        snprintf(w->mark, sizeof(w->mark), "%s", PQgetvalue(res, 0, 4));
    PQclear(res);
    return st;
}

enum ob_status ob_pg_wal_publication(struct ob_source *s, struct ob_err *err)
{
    enum ob_status st = check_publication(s, err);
    if (st != OB_AGAIN)
        return st;
    st = make_publication(s, err);
    if (st == OB_OK)
        st = check_publication(s, err);
    return st == OB_AGAIN ? ob_err_set(err, OB_RETRY, "the publication is gone again") : st;
}

/* ---- the slot ---- */

enum ob_status ob_pg_wal_slot(struct ob_source *s, struct wal_slot *out, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    PGresult *res = NULL;
    const struct pg_param p[] = {PG_TEXT(w->slot)};
    enum ob_status st = ob_pg_query(
        &s->sql,
        "select slot_type = 'logical' and plugin = 'pgoutput' and database = current_database(), "
        "format('%s slot of %s in %s', slot_type, coalesce(plugin, '-'), coalesce(database, '-')), "
        "wal_status is null or wal_status = 'lost' or restart_lsn is null, "
        "coalesce(confirmed_flush_lsn, '0/0'), coalesce(restart_lsn, '0/0'), coalesce(active_pid, "
        "0), coalesce(pg_wal_lsn_diff(pg_current_wal_insert_lsn(), restart_lsn), 0)::bigint from "
        "pg_replication_slots where slot_name = $1",
        p, 1, true, &res, err);
    if (st != OB_OK)
        return st;
    *out = (struct wal_slot){.there = PQntuples(res) == 1};
    if (out->there) {
        struct ob_str what = ob_pg_str(res, 0, 1);
        out->ours = ob_pg_bool(res, 0, 0);
        out->lost = ob_pg_bool(res, 0, 2);
        out->confirmed = (uint64_t)ob_pg_i64(res, 0, 3);
        out->restart = (uint64_t)ob_pg_i64(res, 0, 4);
        out->pid = ob_pg_i64(res, 0, 5);
        out->retained = ob_pg_i64(res, 0, 6);
        snprintf(out->why, sizeof(out->why), "%.*s", OB_STR_ARG(what));
    }
    PQclear(res);
    return st;
}

enum ob_status ob_pg_wal_free_slot(struct ob_source *s, const char *slot, struct ob_err *err)
{
    PGresult *res = NULL;
    const struct pg_param p[] = {PG_TEXT(slot)};
    enum ob_status st = ob_pg_query(
        &s->sql,
        "select a.pid, a.usename = current_user and a.application_name in ('outbox wal', "
        "current_setting('application_name')), format('%s, %s, %s', a.usename, "
        "coalesce(nullif(a.application_name, ''), 'no name'), coalesce(host(a.client_addr), "
        "'local')) from pg_replication_slots r join pg_stat_activity a on a.pid = r.active_pid "
        "where r.slot_name = $1",
        p, 1, true, &res, err);
    if (st != OB_OK || PQntuples(res) == 0) {
        PQclear(res);
        return st;
    }
    char pid[24];
    struct ob_str who = ob_pg_str(res, 0, 2);
    snprintf(pid, sizeof(pid), "%" PRId64, ob_pg_i64(res, 0, 0));
    if (!ob_pg_bool(res, 0, 1)) {
        st = ob_err_set(err, OB_RETRY,
                        "slot %s is held by backend %s (%.*s): stop it, or SELECT "
                        "pg_terminate_backend(%s);",
                        slot, pid, OB_STR_ARG(who), pid);
    } else {
        const struct pg_param q[] = {PG_TEXT(pid), PG_TEXT(slot)};
        ob_log(s->log, OB_LOG_WARN, "wal.terminate", OB_KC("slot", slot), OB_KC("backend", pid));
        st = ob_pg_query(&s->sql,
                         "select pg_terminate_backend(active_pid) from pg_replication_slots where "
                         "active_pid = $1::int and slot_name = $2",
                         q, 2, false, NULL, err);
    }
    PQclear(res);
    return st;
}

/* ---- dropping and creating ---- */

/* What wal_slot_rule.h decides on. `table`: after the cursor was written as one of the table. */
static enum ob_status load_case(struct ob_source *s, struct wal_slot_case *c, struct wal_slot *slot,
                                struct ob_err *err)
{
    char shard[12], epoch[24];
    PGresult *res = NULL;
    snprintf(shard, sizeof(shard), "%u", s->shard);
    snprintf(epoch, sizeof(epoch), "%" PRId64, s->epoch);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(shard), PG_TEXT(epoch)};
    enum ob_status st = ob_pg_query(&s->sql,
                                    "select slot_state, lsn is null from outbox.cursor where "
                                    "pipeline = $1 and shard = $2::int and epoch = $3::bigint",
                                    p, 3, true, &res, err);
    if (st == OB_OK && PQntuples(res) != 1) {
        ob_pg_lost(s);
        st = ob_err_set(err, OB_FENCED, "another owner took over");
    }
    if (st == OB_OK)
        *c = (struct wal_slot_case){.record = ob_slot_record(ob_pg_str(res, 0, 0)),
                                    .at_table = ob_pg_bool(res, 0, 1),
                                    .table = wal_of(s)->table_reader != NULL,
                                    .accept_loss = s->accept_loss};
    PQclear(res);
    if (st == OB_OK)
        st = ob_pg_wal_slot(s, slot, err);
    if (st == OB_OK) {
        c->there = slot->there;
        c->ours = slot->ours;
        c->lost = slot->lost;
    }
    return st;
}

/* Drops those of `names` that are not in `except`, not in use and ours. Nothing else drops one. */
static enum ob_status drop_slots(struct ob_source *s, enum wal_slot_verdict verdict,
                                 const char *names, const char *except, struct ob_err *err)
{
    const struct pg_param p[] = {PG_TEXT(names), PG_TEXT(except)};
    PGresult *res = NULL;
    if (verdict != SLOT_REPLACE)
        return ob_err_set(err, OB_FATAL, "slots %s may not be dropped", names);
    enum ob_status st = ob_pg_query(
        &s->sql,
        "select pg_drop_replication_slot(slot_name), slot_name from pg_replication_slots where not "
        "active and database = current_database() and plugin = 'pgoutput' and slot_name = any "
        "($1::text[]) and slot_name <> all ($2::text[])",
        p, 2, false, &res, err);
    for (int i = 0; st == OB_OK && i < PQntuples(res); i++)
        ob_log(s->log, OB_LOG_INFO, "wal.dropped", OB_KC("slot", PQgetvalue(res, i, 1)));
    PQclear(res);
    return st;
}

static enum ob_status apply_verdict(struct ob_source *s, enum wal_slot_verdict verdict,
                                    const struct wal_slot *slot, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    enum ob_status st = OB_OK;
    switch (verdict) {
    case SLOT_CREATE:
    case SLOT_USE:
        return OB_OK;
    case SLOT_FOREIGN:
        return ob_err_set(err, OB_FATAL,
                          "slot %s is a %s and not ours: name another one with `slot:`", w->slot,
                          slot->why);
    case SLOT_KEEP:
        return ob_err_set(
            err, OB_FATAL,
            "slot %s holds events that are not settled, and nothing else has them: it "
            "is not replaced; `outbox run --accept-loss` gives them up",
            w->slot);
    case SLOT_REPLACE:
        break;
    }
    if (slot->pid != 0) {
        st = ob_pg_wal_free_slot(s, w->slot, err);
        return st == OB_OK ? OB_AGAIN : st;
    }
    struct ob_buf name;
    ob_buf_init(&name, 1024);
    ob_pg_array_begin(&name);
    ob_pg_array_add(&name, ob_str_c(w->slot));
    ob_pg_array_end(&name);
    st = drop_slots(s, verdict, ob_buf_z(&name), "{}", err);
    ob_buf_clear(&name);
    return st == OB_RETRY ? OB_AGAIN : st;
}

enum ob_status ob_pg_wal_drop_slot(struct ob_source *s, struct ob_err *err)
{
    struct wal_slot slot;
    struct wal_slot_case c;
    enum ob_status st = load_case(s, &c, &slot, err);
    return st == OB_OK ? apply_verdict(s, ob_slot_rule(&c), &slot, err) : st;
}

#define UNDER_EPOCH                                                                                \
    " where pipeline = $1 and shard = $2::int and epoch = $3::bigint returning "                   \
    "pg_current_xact_id()"

/* Changes the cursor row of this owner. The n parameters are pipeline, shard, epoch and slot. */
static enum ob_status update_cursor(struct ob_source *s, const char *sql, size_t n,
                                    struct ob_err *err)
{
    char shard[12], epoch[24];
    PGresult *res = NULL;
    snprintf(shard, sizeof(shard), "%u", s->shard);
    snprintf(epoch, sizeof(epoch), "%" PRId64, s->epoch);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(shard), PG_TEXT(epoch),
                                 PG_TEXT(wal_of(s)->slot)};
    enum ob_status st = ob_pg_query(&s->sql, sql, p, n, true, &res, err);
    if (st == OB_OK && PQntuples(res) == 0) {
        ob_pg_lost(s);
        st = ob_err_set(err, OB_FENCED, "another owner took over");
    } else if (st == OB_OK) {
        ob_pg_fence_note(s, (uint64_t)ob_pg_i64(res, 0, 0));
    }
    PQclear(res);
    return st;
}

static enum ob_status write_record(struct ob_source *s, enum wal_slot_record record,
                                   struct ob_err *err)
{
    static const char *const updates[] = {
        [SLOT_CREATING] =
            "update outbox.cursor set slot = $4, slot_state = 'creating', lsn = null, "
            "rows_done = 0" UNDER_EPOCH,
        [SLOT_CREATED] = "update outbox.cursor set slot = $4, slot_state = 'created'" UNDER_EPOCH,
        [SLOT_MOVING] = "update outbox.cursor set slot_state = 'moving'" UNDER_EPOCH,
    };
    return update_cursor(s, updates[record], record == SLOT_MOVING ? 3 : 4, err);
}

enum ob_status ob_pg_wal_leave_stream(struct ob_source *s, struct ob_err *err)
{
    return update_cursor(s, "update outbox.cursor set lsn = null, rows_done = 0" UNDER_EPOCH, 3,
                         err);
}

enum ob_status ob_pg_wal_record_slot(struct ob_source *s, struct ob_err *err)
{
    return write_record(s, SLOT_CREATED, err);
}

enum ob_status ob_pg_wal_record_move(struct ob_source *s, struct ob_err *err)
{
    return write_record(s, SLOT_MOVING, err);
}

/* The record comes before the deed: a crash in between finds a slot that is used from where it is,
 * or none. */
enum ob_status ob_pg_wal_ready_slot(struct ob_source *s, uint64_t *use, struct ob_err *err)
{
    struct wal_slot slot;
    struct wal_slot_case c;
    bool table = wal_of(s)->table_reader != NULL;
    *use = 0;
    enum ob_status st = table ? write_record(s, SLOT_CREATING, err) : OB_OK;
    if (st == OB_OK)
        st = load_case(s, &c, &slot, err);
    if (st != OB_OK)
        return st;
    enum wal_slot_verdict verdict = ob_slot_rule(&c);
    if (!table && verdict != SLOT_KEEP && verdict != SLOT_FOREIGN)
        st = write_record(s, SLOT_CREATING, err);
    if (st == OB_OK)
        st = apply_verdict(s, verdict, &slot, err);
    if (st != OB_OK || verdict != SLOT_USE)
        return st;
    *use = slot.confirmed;
    if (c.record == SLOT_NEVER)
        ob_log(s->log, OB_LOG_WARN, "wal.adopt", OB_KC("slot", wal_of(s)->slot),
               OB_KC("error", "the slot exists, and no record of its creation: it is read from its "
                              "confirmed position, events may be repeated"));
    return OB_OK;
}

/* A name that was made has the pipeline's in it. One that the configuration gives may be the
 * beginning of another pipeline's (`events`, `events_2`): then only those are dropped which our own
 * cursors had when the number of shards was changed, by this process.
 * (tests/e2e/test_postgres_wal.py::test_slots_of_another_pipeline_are_left_alone) */
void ob_pg_wal_drop_others(struct ob_source *s)
{
    bool named = s->conf->slot[0] != '\0';
    struct ob_err why;
    struct ob_buf old, mine;
    struct wal_slot_case c = {.there = true,
                              .ours = true,
                              .table = wal_of(s)->table_reader != NULL,
                              .at_table = true, /* no cursor is a position in one of these */
                              .record = SLOT_CREATED};
    if (!c.table || (named ? s->slots_before == 0 : s->shard != 0))
        return;
    ob_buf_init(&old, 65536);
    ob_buf_init(&mine, 65536);
    if (named)
        ob_pg_wal_slots_of(s, 0, s->slots_before, s->slots_before, &old);
    else
        ob_pg_wal_slots_of(s, s->shards, WAL_SHARDS_MAX, s->shards, &old);
    ob_pg_wal_slots_of(s, 0, s->shards, s->shards, &mine);
    if (drop_slots(s, ob_slot_rule(&c), ob_buf_z(&old), ob_buf_z(&mine), &why) != OB_OK)
        ob_log(s->log, OB_LOG_WARN, "wal.drop", OB_KC("error", why.text));
    s->slots_before = 0;
    ob_buf_clear(&old);
    ob_buf_clear(&mine);
}
