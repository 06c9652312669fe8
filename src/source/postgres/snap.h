/* SPDX-License-Identifier: Apache-2.0 */
/* snap - snapshots as the server writes them, and the places of a cursor that share them. */
#ifndef OB_SOURCE_POSTGRES_SNAP_H
#define OB_SOURCE_POSTGRES_SNAP_H

#include <stdbool.h>
#include <stdint.h>

/* A snapshot as text, shared by many places. Thread: one. */
struct snap {
    unsigned refs;
    char text[];
};

struct snap *ob_pg_snap_new(const char *text); /* NULL: no memory */
struct snap *ob_pg_snap_ref(struct snap *x);
void ob_pg_snap_unref(struct snap *x);
/* Is this transaction visible in a snapshot "xmin:xmax:xip,xip…"? As pg_visible_in_snapshot(). */
bool ob_pg_snap_shows(const char *snap, uint64_t xid);

/* A cursor: settled are rows visible in snap with seq <= pos, and rows visible in late_snap with
 * seq <= late_pos. late_snap NULL: no pass over late rows is under way. adopt_pos >= 0: the
 * snapshots are of another cluster, and what they do not show is read once, up to pos. */
struct place {
    int64_t pos, late_pos, adopt_pos;
    struct snap *snap, *late_snap;
};

void ob_pg_place_clear(struct place *p);
void ob_pg_place_set(struct place *to, const struct place *from);
bool ob_pg_place_same(const struct place *a, const struct place *b);
void ob_pg_snap_set(struct snap **at, struct snap *x); /* takes a reference of its own */

/* The places behind claimed events: a ring from head to tail. Ordinals count from 1. */
struct place_ring {
    struct place_entry {
        struct place at; /* the cursor once this event and all before it are settled */
        int64_t seq;
        uint64_t xid;
    } * of;
    uint64_t cap;
    uint64_t head, tail; /* ordinals: the last settled, the last read */
};

bool ob_pg_ring_add(struct place_ring *r, const struct place *at, int64_t seq, uint64_t xid);
/* NULL: it is settled, or was never read. */
const struct place_entry *ob_pg_ring_at(const struct place_ring *r, uint64_t ordinal);
void ob_pg_ring_drop(struct place_ring *r, uint64_t to);
void ob_pg_ring_clear(struct place_ring *r);

#endif
