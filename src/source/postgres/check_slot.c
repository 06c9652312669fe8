/* SPDX-License-Identifier: Apache-2.0 */
/* check_slot - the slots of a pipeline in mode wal as they are recorded in outbox.cursor, compared
 * with those of the server. For `check` and `status`; each finding has what to do about it. */
#include "source/postgres/admin.h"
#include "source/postgres/wal.h"

#include <stdlib.h>

/* $1 the pipeline, $2 the configured names in the order of shards, $3 no table keeps the events. A
 * running relay writes its cursor before the slot moves: only a slot that nobody reads can be
 * ahead. */
static const char findings[] =
    "with x as (select n.i::int - 1 as shard, coalesce(c.slot_state, 'never') as state, c.lsn, "
    "coalesce(c.slot, n.name) as slot, s.slot_name is not null as there, coalesce(s.active, false) "
    "as active, s.confirmed_flush_lsn as confirmed from unnest($2::text[]) with ordinality as "
    "n(name, i) left join outbox.cursor c on c.pipeline = $1 and c.shard = n.i - 1 left join "
    "pg_replication_slots s on s.slot_name = coalesce(c.slot, n.name) and s.database = "
    "current_database()) "
    "select shard, format('slot %s exists, and no record of its creation', slot), case when "
    "$3::boolean then 'outbox run -- it is read from its confirmed position; if it belongs to "
    "another program, configure another name with `slot`' else 'outbox run -- the table is read "
    "and the slot is created again' end from x where there and state = 'never' "
    "union all select shard, format('the recorded position %s of slot %s is behind its confirmed "
    "position %s: another program moved it', lsn, slot, confirmed), case when $3::boolean then "
    "'outbox run --accept-loss -- the events between the two positions are lost' else 'outbox run "
    "-- the table is read from the cursor and the slot is created again' end from x where there "
    "and not active and confirmed > lsn "
    "union all select shard, format('slot %s does not exist; the recorded position is %s', slot, "
    "lsn), case when $3::boolean then 'outbox run --accept-loss -- the events from that position "
    "on are lost' else 'outbox run -- the table is read from the cursor and the slot is created "
    "again' end from x where not there and state = 'created' and lsn is not null "
    "union all select shard, 'the number of shards was changed, and this shard has no slot yet', "
    "'outbox run -- the slots of the old shards are copied, then dropped' from x where state = "
    "'moving' order by 1, 2";

enum ob_status ob_pg_check_slots(struct ob_admin *a, ob_slot_finding_fn *found, void *user,
                                 struct ob_err *err)
{
    const struct ob_mapping *m = &a->conf->mapping;
    bool state = m->table && (m->col[OB_MAP_DONE] || m->col[OB_MAP_STATUS]);
    bool whole = a->conf->message_prefix[0] || (m->table && !state);
    char shards[12];
    struct ob_source s = {.conf = a->conf, .pipeline = a->pipeline, .sql = a->db};
    struct ob_buf names;
    PGresult *res = NULL;
    enum ob_status st = ob_pg_check_shards(a, shards, err);
    if (st != OB_OK)
        return st;
    unsigned n = (unsigned)strtoul(shards, NULL, 10);
    ob_buf_init(&names, 65536);
    ob_pg_wal_slots_of(&s, 0, n ? n : 1, n ? n : 1, &names);
    const struct pg_param p[] = {PG_TEXT(a->pipeline), PG_TEXT(ob_buf_z(&names)),
                                 PG_TEXT(whole ? "t" : "f")};
    st = ob_pg_query(&a->db, findings, p, 3, false, &res, err);
    for (int i = 0; st == OB_OK && i < PQntuples(res); i++)
        found(user, (unsigned)strtoul(PQgetvalue(res, i, 0), NULL, 10), PQgetvalue(res, i, 1),
              PQgetvalue(res, i, 2));
    PQclear(res);
    ob_buf_clear(&names);
    return st;
}
