/* SPDX-License-Identifier: Apache-2.0 */
/* wal_slot_rule - may a slot of ours be created, used or dropped? One decision, without I/O, for
 * every place that does one of these (wal_slot.c; outbox.move_slots() is the same rule in SQL).
 *
 * A slot holds the events behind its confirmed position. It is dropped only where these are not
 * lost with it: a table keeps them and the durable cursor is a position in that table, or another
 * slot holds them too (outbox.move_slots), or the operator accepted the loss (`--accept-loss`).
 * Whether a slot was ever created is a recorded fact (outbox.cursor.slot_state), not the absence of
 * a value: a slot without a record is used from where it is, never replaced. */
#ifndef OB_SOURCE_POSTGRES_WAL_SLOT_RULE_H
#define OB_SOURCE_POSTGRES_WAL_SLOT_RULE_H

#include "core/str.h"

#include <stdbool.h>

/* outbox.cursor.slot_state. */
enum wal_slot_record { SLOT_NEVER, SLOT_CREATING, SLOT_CREATED, SLOT_MOVING };

struct wal_slot_case {
    bool there, ours, lost; /* ours: of this database and kind; lost: the server dropped its WAL */
    bool table;             /* a table keeps the events */
    bool at_table;          /* the durable cursor is a position in the table: lsn is NULL */
    enum wal_slot_record record;
    bool accept_loss;
};

enum wal_slot_verdict {
    SLOT_CREATE,  /* there is none, and nothing is skipped by a new one */
    SLOT_USE,     /* read it from its confirmed position */
    SLOT_REPLACE, /* it may be dropped */
    SLOT_FOREIGN, /* it is not ours */
    SLOT_KEEP,    /* events would be lost: refuse */
};

enum wal_slot_verdict ob_slot_rule(const struct wal_slot_case *c);
/* What is not known counts as created: nothing is dropped then. */
enum wal_slot_record ob_slot_record(struct ob_str text);

#endif
