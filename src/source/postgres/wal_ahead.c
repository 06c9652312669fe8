/* SPDX-License-Identifier: Apache-2.0 */
/* wal_ahead - the events of the stream that are settled ahead of the position. They are stored by
 * the number of the event, which is the same whenever its transaction is decoded: the native table
 * has its own, so that the set counts for the table as well; elsewhere it is the place of the row's
 * record in the WAL.
 *
 * All members were read before they were stored, so they were committed below the WAL's end of that
 * time: once the position is beyond it, none of them can come again. */
#include "source/postgres/wal.h"

#include <stdlib.h>

static uint64_t member_kind(const struct ob_source *s)
{
    return s->whole ? 1 : 0;
}

enum ob_status ob_pg_wal_ahead_load(struct ob_source *s, uint64_t end, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    w->ahead_end = end;
    return w->rows ? OB_OK : ob_pg_ahead_load(s, &w->ahead, err);
}

/* ---- numbers of ordinals ---- */

static bool grow(struct wal_state *w)
{
    size_t cap = w->numbers_cap ? w->numbers_cap : 4096;
    while (cap < w->given - w->settled)
        cap *= 2;
    uint64_t *more = malloc(cap * sizeof(*more));
    if (!more)
        return false;
    for (uint64_t r = w->settled + 1; w->numbers_cap && r < w->given; r++)
        more[r % cap] = w->numbers[r % w->numbers_cap];
    free(w->numbers);
    w->numbers = more;
    w->numbers_cap = cap;
    return true;
}

bool ob_pg_wal_ahead_note(struct ob_source *s, struct ob_event *ev)
{
    struct wal_state *w = wal_of(s);
    const struct ob_ahead *set = &w->ahead.set;
    if (w->rows)
        return true;
    if (w->given - w->settled > w->numbers_cap && !grow(w))
        return false;
    w->numbers[w->given % w->numbers_cap] = ev->seq;
    struct ob_ahead_at *member =
        w->read.lsn <= w->ahead_end ? ob_ahead_find(set, member_kind(s), ev->seq) : NULL;
    if (member) {
        member->ref = w->given;
        *ev = (struct ob_event){.settled = true};
    }
    return true;
}

void ob_pg_wal_ahead_rewind(struct wal_state *w)
{
    if (w->ahead_end < w->read.lsn)
        w->ahead_end = w->read.lsn;
    ob_ahead_unclaimed(&w->ahead.set);
}

void ob_pg_wal_ahead_clear(struct wal_state *w)
{
    ob_pg_ahead_clear(&w->ahead);
    free(w->numbers);
    w->numbers = NULL;
    w->numbers_cap = 0;
}

/* ---- what a settle stores ---- */

static bool fill_next(struct ob_source *s, const struct ob_settle *settle, struct wal_pos at)
{
    struct wal_state *w = wal_of(s);
    struct ob_ahead *next = &w->ahead.next;
    const struct ob_ahead *was = &w->ahead.set;
    uint64_t kind = member_kind(s);
    bool old = at.lsn <= w->ahead_end, ok = true; /* old: earlier members may come again */
    ob_ahead_reset(next);
    for (size_t i = 0; i < settle->n_ahead && ok; i++) {
        uint64_t ref = settle->ahead[i];
        if (ref > w->settled && ref <= w->given)
            ok = ob_ahead_add(next, kind, w->numbers[ref % w->numbers_cap], ref);
    }
    for (size_t i = 0; i < was->n && old && ok; i++)
        if (was->at[i].hi == kind && (was->at[i].ref == 0 || was->at[i].ref > settle->claimed))
            ok = ob_ahead_add(next, kind, was->at[i].lo, was->at[i].ref);
    /* A parked event that is published, perhaps before the stream comes to it again. */
    for (size_t i = 0; i < settle->n && old && ok; i++) {
        const struct ob_settle_op *op = &settle->ops[i];
        if (op->kind == OB_SETTLE_PUBLISHED && op->park_n && op->event->seq)
            ok = ob_ahead_add(next, kind, op->event->seq, 0);
    }
    ob_ahead_sort(next);
    return ok;
}

void ob_pg_wal_ahead_write(struct ob_source *s, const struct ob_settle *settle, struct wal_pos at,
                           struct pg_cursor *out)
{
    ob_pg_ahead_next(&wal_of(s)->ahead, fill_next(s, settle, at), out);
}
