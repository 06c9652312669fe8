/* SPDX-License-Identifier: Apache-2.0 */
/* wal_handover - see wal_handover.h. */
#include "source/postgres/wal_handover.h"

#include <inttypes.h>

void ob_handover_init(struct wal_handover *h, bool stream)
{
    *h = (struct wal_handover){.state = stream ? HANDOVER_STREAM : HANDOVER_TABLE};
}

bool ob_handover_reads(const struct wal_handover *h)
{
    return h->state == HANDOVER_TABLE || h->state == HANDOVER_CREATING ||
           h->state == HANDOVER_CATCHING_UP;
}

void ob_handover_creating(struct wal_handover *h)
{
    if (h->state == HANDOVER_TABLE)
        h->state = HANDOVER_CREATING;
}

void ob_handover_created(struct wal_handover *h, uint64_t anchor, uint64_t begun)
{
    if (h->state != HANDOVER_TABLE && h->state != HANDOVER_CREATING)
        return;
    h->state = HANDOVER_CATCHING_UP;
    h->anchor = anchor;
    h->since = begun;
}

void ob_handover_not_created(struct wal_handover *h)
{
    if (h->state == HANDOVER_CREATING)
        h->state = HANDOVER_TABLE;
}

void ob_handover_rewind(struct wal_handover *h, uint64_t begun)
{
    if (h->state != HANDOVER_CATCHING_UP && h->state != HANDOVER_SETTLING)
        return;
    h->state = HANDOVER_CATCHING_UP;
    h->since = begun;
}

bool ob_handover_ready(struct wal_handover *h, const struct wal_reading *r)
{
    if (h->state == HANDOVER_CATCHING_UP && r->complete > h->since)
        h->state = HANDOVER_SETTLING;
    return h->state == HANDOVER_SETTLING && r->settled;
}

enum ob_status ob_handover_check(struct wal_handover *h, const struct wal_reading *r,
                                 struct ob_err *err)
{
    const char *why = h->why;
    if (h->state == HANDOVER_FAILED)
        ; /* the same answer until the shard starts again */
    else if (h->state != HANDOVER_SETTLING)
        why = "the table is still being read";
    else if (h->anchor == 0)
        why = "the slot has no position";
    else if (r->complete <= h->since)
        why = "no complete reading of the table began after the slot was created";
    else if (!r->at_complete)
        why = "the reader was moved since its last complete reading of the table";
    else if (!r->settled)
        why = "events that were read from the table are not settled";
    if (!why)
        return OB_OK;
    h->why = why;
    h->state = HANDOVER_FAILED;
    return ob_err_set(err, OB_FATAL,
                      "change from the table to the stream at LSN %" PRIX32 "/%" PRIX32
                      " refused: %s. Reading has stopped so that no event is skipped: restart the "
                      "relay, and report this as a bug",
                      (uint32_t)(h->anchor >> 32), (uint32_t)h->anchor, why);
}

void ob_handover_done(struct wal_handover *h)
{
    if (h->state == HANDOVER_SETTLING)
        h->state = HANDOVER_STREAM;
}
