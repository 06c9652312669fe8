/* SPDX-License-Identifier: Apache-2.0 */
/* wal_slot_rule - see wal_slot_rule.h. */
#include "source/postgres/wal_slot_rule.h"

enum wal_slot_record ob_slot_record(struct ob_str text)
{
    return ob_str_eqc(text, "never")      ? SLOT_NEVER
           : ob_str_eqc(text, "creating") ? SLOT_CREATING
           : ob_str_eqc(text, "moving")   ? SLOT_MOVING
                                          : SLOT_CREATED;
}

enum wal_slot_verdict ob_slot_rule(const struct wal_slot_case *c)
{
    bool unused = c->record == SLOT_NEVER || c->record == SLOT_CREATING;
    if (c->there && !c->ours)
        return SLOT_FOREIGN;
    if (c->table && !c->at_table)
        return SLOT_KEEP;
    if (c->table)
        return c->there ? SLOT_REPLACE : SLOT_CREATE;
    if (unused && !c->there)
        return SLOT_CREATE;
    if (unused && !c->lost)
        return SLOT_USE;
    if (!c->accept_loss)
        return SLOT_KEEP;
    return c->there ? SLOT_REPLACE : SLOT_CREATE;
}
