/* SPDX-License-Identifier: Apache-2.0 */
/* wal_handover - from the table to the stream in mode wal: a state machine without I/O.
 *
 *     TABLE        the table is read, there is no slot
 *     CREATING     CREATE_REPLICATION_SLOT is in flight; the table is still read
 *     CATCHING_UP  the slot exists, at the anchor; the table is read until a round that began
 *                  after the slot existed has found everything
 *     SETTLING     such a round has ended: nothing more is read, the rest of it is being settled
 *     STREAM       the stream is read from the anchor
 *     FAILED       the invariant was violated: nothing is read any more
 *
 * Invariant, checked at the transition to STREAM: the table has been read to the anchor, and what
 * was read is settled. A transaction that committed below the anchor is visible to every round that
 * began after the slot existed, so such a round covers all that the stream will not send.
 *
 * A rewind discards what was read and not settled: in CATCHING_UP and SETTLING the rounds so far
 * no longer count. Every other interruption (fence, lost session, crash) starts again at TABLE or
 * STREAM from the durable cursor. (tests/unit/source/wal_handover_test.c simulates all of it.) */
#ifndef OB_SOURCE_POSTGRES_WAL_HANDOVER_H
#define OB_SOURCE_POSTGRES_WAL_HANDOVER_H

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

enum wal_handover_state {
    HANDOVER_TABLE,
    HANDOVER_CREATING,
    HANDOVER_CATCHING_UP,
    HANDOVER_SETTLING,
    HANDOVER_STREAM,
    HANDOVER_FAILED,
};

struct wal_handover {
    enum wal_handover_state state;
    uint64_t anchor; /* LSN at which the slot begins */
    uint64_t since;  /* rounds up to this one count for nothing */
    const char *why; /* FAILED: what was violated */
};

/* What the reader of the table reports. Without a table: complete is UINT64_MAX, the rest true. */
struct wal_reading {
    uint64_t complete; /* number of the last round if it found everything, else 0 */
    bool at_complete;  /* the reader is where that round ended */
    bool settled;      /* everything that was read has been handed out and is settled */
};

void ob_handover_init(struct wal_handover *h, bool stream);
/* Whether the table may be read on. */
bool ob_handover_reads(const struct wal_handover *h);
/* TABLE to CREATING. */
void ob_handover_creating(struct wal_handover *h);
/* TABLE or CREATING to CATCHING_UP. begun: rounds begun so far. */
void ob_handover_created(struct wal_handover *h, uint64_t anchor, uint64_t begun);
/* CREATING to TABLE: the slot could not be created. */
void ob_handover_not_created(struct wal_handover *h);
/* What was read and not settled is forgotten; a slot that exists stays. */
void ob_handover_rewind(struct wal_handover *h, uint64_t begun);
/* True: the switch may be written to the cursor now. Moves CATCHING_UP to SETTLING. */
bool ob_handover_ready(struct wal_handover *h, const struct wal_reading *r);
/* Checks the invariant before the switch is written. OB_FATAL: violated, err has the reason, and
 * the state is FAILED. */
enum ob_status ob_handover_check(struct wal_handover *h, const struct wal_reading *r,
                                 struct ob_err *err) OB_MUST_CHECK;
/* SETTLING to STREAM: the switch is durable. */
void ob_handover_done(struct wal_handover *h);

#endif
