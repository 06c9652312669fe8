/* SPDX-License-Identifier: Apache-2.0 */
/* past - where shards stood before their number was changed. The new cursors start at the lowest
 * position and the oldest snapshot of the old ones; what an old shard had settled beyond that is
 * not delivered again (test: "shards may be changed"). */
#include "source/postgres/log.h"

#include <stdlib.h>

void ob_pg_past_clear(struct log_state *l)
{
    for (size_t i = 0; i < l->n_past; i++)
        for (size_t k = 0; k < PG_SHARDS_MAX; k++)
            ob_pg_place_clear(&l->past[i].of[k]);
    free(l->past);
    l->past = NULL;
    l->n_past = 0;
}

static bool add(struct log_state *l, const PGresult *res, int row, int64_t *last)
{
    int64_t generation = ob_pg_i64(res, row, 0), shard = ob_pg_i64(res, row, 1);
    int64_t shards = ob_pg_i64(res, row, 2);
    if (shards < 1 || shards > PG_SHARDS_MAX || shard < 0 || shard >= shards)
        return true;
    if (l->n_past == 0 || *last != generation) {
        struct past *more = realloc(l->past, (l->n_past + 1) * sizeof(*more));
        if (!more)
            return false;
        l->past = more;
        l->past[l->n_past++] =
            (struct past){.shards = (unsigned)shards, .base = ob_pg_i64(res, row, 7)};
        *last = generation;
    }
    struct place *p = &l->past[l->n_past - 1].of[shard];
    bool late = !ob_pg_null(res, row, 6);
    *p = (struct place){.pos = ob_pg_i64(res, row, 3),
                        .snap = ob_pg_snap_new(PQgetvalue(res, row, 4)),
                        .late_pos = ob_pg_i64(res, row, 5),
                        .late_snap = late ? ob_pg_snap_new(PQgetvalue(res, row, 6)) : NULL,
                        .adopt_pos = -1};
    return p->snap && (!late || p->late_snap);
}

enum ob_status ob_pg_past_load(struct ob_source *s, struct ob_err *err)
{
    struct log_state *l = s->state;
    PGresult *res = NULL;
    int64_t last = 0;
    const struct pg_param p[] = {PG_TEXT(s->pipeline)};
    /* Over when every cursor has passed it, and sees all that it saw. */
    enum ob_status st = ob_pg_query(
        &s->sql,
        "delete from outbox.past where pipeline = $1 and generation in (select p.generation from "
        "outbox.past p where p.pipeline = $1 group by p.generation having not exists (select 1 "
        "from outbox.cursor c where c.pipeline = $1 and (c.pos < max(p.pos) or "
        "pg_snapshot_xmin(c.snap) < greatest(max(pg_snapshot_xmax(p.snap)::text::bigint), "
        "max(pg_snapshot_xmax(p.late_snap)::text::bigint))::text::xid8)))",
        p, 1, false, NULL, err);
    if (st == OB_OK)
        st = ob_pg_query(&s->sql,
                         "select generation, shard, shards, pos, snap::text, late_pos, "
                         "late_snap::text, base from outbox.past where pipeline = $1 order by "
                         "generation, shard",
                         p, 1, true, &res, err);
    ob_pg_past_clear(l);
    for (int i = 0; st == OB_OK && i < PQntuples(res); i++)
        if (!add(l, res, i, &last))
            st = ob_err_set(err, OB_DOWN, "no memory");
    PQclear(res);
    return st;
}

static bool settled(const struct place *p, int64_t base, int64_t seq, uint64_t xid)
{
    return p->snap && seq <= p->pos &&
           (seq <= base || ob_pg_snap_shows(p->snap->text, xid) ||
            (p->late_snap && seq <= p->late_pos && ob_pg_snap_shows(p->late_snap->text, xid)));
}

bool ob_pg_past_settled(const struct log_state *l, int64_t seq, uint64_t xid, uint64_t hash)
{
    for (size_t i = 0; i < l->n_past; i++) {
        const struct past *g = &l->past[i];
        if (settled(&g->of[ob_shard_of(hash, g->shards)], g->base, seq, xid))
            return true;
    }
    return false;
}
