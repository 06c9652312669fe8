/* SPDX-License-Identifier: Apache-2.0 */
/* ahead - the events that are settled ahead of a cursor, as they are stored beside it.
 *
 * A cursor moves over a settled prefix. Events behind a slow one are delivered, parked or dead
 * before the cursor reaches them; after a stop or a crash they are claimed again, and this set
 * tells that they must not be delivered again. Members are exact: a number between two members may
 * belong to a transaction that has not committed yet, and would be lost if it counted as settled
 * (tests/sim/mutants.c::ahead-as-range).
 *
 * A member is a pair of numbers: 0 and the event's number in its table, or 1 and the place of its
 * record in the WAL. */
#ifndef OB_SOURCE_AHEAD_H
#define OB_SOURCE_AHEAD_H

#include "core/buf.h"
#include "core/err.h"

struct ob_ahead {
    struct ob_ahead_at {
        uint64_t hi, lo;
        uint64_t ref; /* of the claim that came to it since the last rewind; 0: none yet */
    } * at;
    size_t n, cap;
};

void ob_ahead_free(struct ob_ahead *set);
void ob_ahead_reset(struct ob_ahead *set); /* empties, keeps the memory */
/* Adds a member in any order; ob_ahead_sort() before the set is used. False: no memory. */
bool ob_ahead_add(struct ob_ahead *set, uint64_t hi, uint64_t lo, uint64_t ref) OB_MUST_CHECK;
/* Sorts, and removes what is there twice. */
void ob_ahead_sort(struct ob_ahead *set);
/* NULL: not a member. */
struct ob_ahead_at *ob_ahead_find(const struct ob_ahead *set, uint64_t hi, uint64_t lo);
/* No claim has come to any member: after a rewind. */
void ob_ahead_unclaimed(struct ob_ahead *set);

/* Appends the sorted set. Two sets written one after the other are read as their union. Nothing is
 * written for an empty set. */
void ob_ahead_write(const struct ob_ahead *set, struct ob_buf *out);
/* Adds the members of what was written, and sorts. OB_REJECT: not a set of this version; what was
 * read of it is right. OB_DOWN: no memory. */
enum ob_status ob_ahead_read(struct ob_ahead *set, struct ob_str bytes,
                             struct ob_err *err) OB_MUST_CHECK;

#endif
