/* SPDX-License-Identifier: Apache-2.0 */
/* ahead - the events that are settled ahead of the cursor, in the cursor's row. */
#include "source/postgres/log.h"

#include <inttypes.h>
#include <stdio.h>

enum ob_status ob_pg_ahead_load(struct ob_source *s, struct pg_ahead *a, struct ob_err *err)
{
    char shard[12];
    PGresult *res = NULL;
    snprintf(shard, sizeof(shard), "%u", s->shard);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(shard)};
    enum ob_status st = ob_pg_query(&s->sql,
                                    "select ahead from outbox.cursor where pipeline = $1 and shard "
                                    "= $2::int and ahead is not null",
                                    p, 2, true, &res, err);
    if (st == OB_OK && PQntuples(res) == 1)
        st = ob_ahead_read(
            &a->set, (struct ob_str){PQgetvalue(res, 0, 0), (size_t)PQgetlength(res, 0, 0)}, err);
    PQclear(res);
    if (st == OB_REJECT) {
        ob_log(s->log, OB_LOG_WARN, "source.ahead", OB_KC("error", err->text));
        st = OB_OK;
    }
    return st;
}

/* Without memory the stored set stays: what it has is still true. */
void ob_pg_ahead_next(struct pg_ahead *a, bool complete, struct pg_cursor *out)
{
    static const char hex[] = "0123456789abcdef";
    a->fresh = false;
    if (!complete || (a->next.n == 0 && a->set.n == 0))
        return;
    ob_buf_reset(&a->bytes);
    ob_buf_reset(&a->text);
    ob_ahead_write(&a->next, &a->bytes);
    ob_buf_c(&a->text, "\\x");
    for (size_t i = 0; i < a->bytes.n; i++) {
        unsigned char c = (unsigned char)a->bytes.p[i];
        ob_buf_char(&a->text, hex[c >> 4]);
        ob_buf_char(&a->text, hex[c & 15]);
    }
    if (a->bytes.failed || a->text.failed)
        return;
    snprintf(a->n, sizeof(a->n), "%zu", a->next.n);
    out->ahead = ob_buf_z(&a->text);
    out->ahead_n = a->n;
    a->fresh = true;
}

void ob_pg_ahead_stored(struct pg_ahead *a)
{
    if (!a->fresh)
        return;
    struct ob_ahead was = a->set;
    a->set = a->next;
    a->next = was;
    a->fresh = false;
}

void ob_pg_ahead_clear(struct pg_ahead *a)
{
    ob_ahead_free(&a->set);
    ob_ahead_free(&a->next);
    ob_buf_clear(&a->bytes);
    ob_buf_clear(&a->text);
}

/* Sets one after the other are read as their union. */
enum ob_status ob_pg_ahead_gather(struct ob_source *s, PGresult **out, struct ob_err *err)
{
    const struct pg_param p[] = {PG_TEXT(s->pipeline)};
    return ob_pg_query(&s->sql,
                       "select string_agg(ahead, '')::text, sum(ahead_n)::text from outbox.cursor "
                       "where pipeline = $1 and ahead is not null having count(*) > 0",
                       p, 1, false, out, err);
}

enum ob_status ob_pg_ahead_spread(struct ob_source *s, const PGresult *gathered, struct ob_err *err)
{
    if (PQntuples(gathered) == 0)
        return OB_OK;
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(PQgetvalue(gathered, 0, 0)),
                                 PG_TEXT(PQgetvalue(gathered, 0, 1))};
    return ob_pg_query(&s->sql,
                       "update outbox.cursor set ahead = $2::bytea, ahead_n = $3::bigint where "
                       "pipeline = $1",
                       p, 3, false, NULL, err);
}

/* ---- mode log ---- */

/* May a claim come to this number again when the cursor is at this place? A row that was deleted
 * does not, so that its number leaves the set when a whole round of ours has passed it. */
static bool is_ahead(const struct place *at, uint64_t seq)
{
    return !at || (int64_t)seq > at->pos || at->late_snap || at->adopt_pos >= 0;
}

/* Refs are ordinals; the set has numbers. at: where the cursor will be; NULL: at a place of an
 * earlier owner, behind which late rows may come. */
bool ob_pg_log_ahead(struct log_state *l, const struct ob_settle *settle, const struct place *at)
{
    struct ob_ahead *next = &l->ahead.next;
    const struct ob_ahead *was = &l->ahead.set;
    bool ok = true;
    ob_ahead_reset(next);
    for (size_t i = 0; i < settle->n_ahead && ok; i++) {
        const struct place_entry *e = ob_pg_ring_at(&l->ring, settle->ahead[i]);
        if (e)
            ok = ob_ahead_add(next, 0, (uint64_t)e->seq, settle->ahead[i]);
    }
    /* What the flow has not claimed since the last rewind. */
    for (size_t i = 0; i < was->n && ok; i++)
        if (was->at[i].hi == 0 && is_ahead(at, was->at[i].lo) &&
            (was->at[i].ref == 0 || was->at[i].ref > settle->claimed))
            ok = ob_ahead_add(next, 0, was->at[i].lo, was->at[i].ref);
    /* A parked event that is published, perhaps before a claim comes to it: its row, which the
     * claim would have found, goes with this settle. */
    for (size_t i = 0; i < settle->n && ok; i++) {
        const struct ob_settle_op *op = &settle->ops[i];
        if (op->kind == OB_SETTLE_PUBLISHED && op->park_n && is_ahead(at, op->event->seq))
            ok = ob_ahead_add(next, 0, op->event->seq, 0);
    }
    ob_ahead_sort(next);
    return ok;
}
