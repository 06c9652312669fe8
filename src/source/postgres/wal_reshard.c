/* SPDX-License-Identifier: Apache-2.0 */
/* wal_reshard - a changed number of shards where only the stream has the events. The new shards
 * start at the lowest position of the old ones, in slots copied from one that holds everything from
 * there (outbox.move_slots); what an old shard had settled beyond that is not delivered again.
 * (tests/e2e/test_postgres_wal_handover.py) */
#include "source/postgres/wal.h"

#include <stdlib.h>

enum ob_status ob_pg_wal_name_slots(struct ob_source *s, unsigned shards, struct ob_err *err)
{
    struct ob_buf names;
    ob_buf_init(&names, 65536);
    ob_pg_wal_slots_of(s, 0, shards, shards, &names);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(ob_buf_z(&names))};
    enum ob_status st = ob_pg_query(&s->sql,
                                    "update outbox.cursor c set slot = ($2::text[])[c.shard + 1] "
                                    "where c.pipeline = $1 and c.slot is null and c.slot_state in "
                                    "('creating', 'created')",
                                    p, 2, false, NULL, err);
    ob_buf_clear(&names);
    return st;
}

enum ob_status ob_pg_wal_move_slots(struct ob_source *s, struct ob_err *err)
{
    struct ob_buf names;
    PGresult *res = NULL;
    ob_buf_init(&names, 65536);
    ob_pg_wal_slots_of(s, 0, s->shards, s->shards, &names);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(ob_buf_z(&names))};
    enum ob_status st =
        ob_pg_query(&s->sql, "select held, lost from outbox.move_slots($1, $2::text[])", p, 2,
                    false, &res, err);
    if (st == OB_OK && !PQgetisnull(res, 0, 0)) {
        const char *held = PQgetvalue(res, 0, 0);
        st = ob_pg_wal_free_slot(s, held, err);
        if (st == OB_OK)
            st = ob_err_set(err, OB_AGAIN, "slot %s of the old shards is still in use", held);
    } else if (st == OB_OK && PQgetvalue(res, 0, 1)[0] != 't') {
        ob_log(s->log, OB_LOG_INFO, "wal.moved", OB_KC("slots", ob_buf_z(&names)));
    }
    PQclear(res);
    ob_buf_clear(&names);
    return st;
}

void ob_pg_wal_past_clear(struct wal_state *w)
{
    free(w->past);
    w->past = NULL;
    w->n_past = 0;
}

static bool add_past(struct wal_state *w, const PGresult *res, int row, int64_t *last)
{
    int64_t generation = ob_pg_i64(res, row, 0), shard = ob_pg_i64(res, row, 1);
    int64_t shards = ob_pg_i64(res, row, 2);
    if (shards < 1 || shards > WAL_SHARDS_MAX || shard < 0 || shard >= shards)
        return true;
    if (w->n_past == 0 || *last != generation) {
        struct wal_past *more = realloc(w->past, (w->n_past + 1) * sizeof(*more));
        if (!more)
            return false;
        w->past = more;
        w->past[w->n_past++] = (struct wal_past){.shards = (unsigned)shards};
        *last = generation;
    }
    w->past[w->n_past - 1].of[shard] =
        (struct wal_pos){(uint64_t)ob_pg_i64(res, row, 3), (uint64_t)ob_pg_i64(res, row, 4)};
    return true;
}

enum ob_status ob_pg_wal_past_load(struct ob_source *s, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    PGresult *res = NULL;
    int64_t last = 0;
    const struct pg_param p[] = {PG_TEXT(s->pipeline)};
    /* A generation is over when every cursor has passed all of its positions. */
    enum ob_status st = ob_pg_query(
        &s->sql,
        "delete from outbox.past where pipeline = $1 and generation in (select p.generation from "
        "outbox.past p where p.pipeline = $1 group by p.generation having bool_and(p.slot is null) "
        "and max(p.lsn) is not null and not exists (select 1 from outbox.cursor c where c.pipeline "
        "= $1 and (c.lsn is null or c.lsn < max(p.lsn) or (c.lsn = max(p.lsn) and c.rows_done < "
        "max(p.rows_done)))))",
        p, 1, false, NULL, err);
    if (st == OB_OK)
        st = ob_pg_query(&s->sql,
                         "select generation, shard, shards, lsn, rows_done from outbox.past where "
                         "pipeline = $1 and lsn is not null order by generation, shard",
                         p, 1, true, &res, err);
    ob_pg_wal_past_clear(w);
    for (int i = 0; st == OB_OK && i < PQntuples(res); i++)
        if (!add_past(w, res, i, &last))
            st = ob_err_set(err, OB_DOWN, "no memory");
    PQclear(res);
    return st;
}

bool ob_pg_wal_past_settled(const struct wal_state *w, uint64_t ref, uint64_t hash)
{
    struct wal_pos row;
    if (w->n_past == 0 || !ob_pg_wal_row(w, ref, &row))
        return false;
    for (size_t i = 0; i < w->n_past; i++) {
        const struct wal_past *g = &w->past[i];
        struct wal_pos was = g->of[ob_shard_of(hash, g->shards)];
        if (row.lsn < was.lsn || (row.lsn == was.lsn && row.rows <= was.rows))
            return true;
    }
    return false;
}
