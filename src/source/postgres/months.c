/* SPDX-License-Identifier: Apache-2.0 */
/* months - partitions ahead of the writers in another system's table that is partitioned by month
 * (profile orion). The statements are in schema/postgres/011_months.sql; one partition per call,
 * each in its own transaction. Without the right to create one a warning is logged once an hour,
 * and `outbox check` has the statement (test_profile_orion: test_months_…). */
#include "source/postgres/pg.h"

#define NEXT_MS 60000
#define SELDOM_MS 3600000

void ob_pg_months(struct ob_source *s)
{
    const struct ob_mapping *m = &s->conf->mapping;
    const struct pg_param p[] = {PG_TEXT(m->schema), PG_TEXT(m->table)};
    PGresult *res = NULL;
    struct ob_err err = {.text = ""};
    int64_t now = ob_clock_mono_ms(s->clock);
    if (!m->table || s->shard != 0 || now < s->months_at)
        return;
    s->months_at = now + SELDOM_MS;
    if (ob_pg_query(&s->sql,
                    "select outbox.months_ahead(c.oid) from pg_class c join pg_namespace n on "
                    "n.oid = c.relnamespace where n.nspname = $1 and c.relname = $2 and c.relkind "
                    "= 'p'",
                    p, 2, false, &res, &err) != OB_OK) {
        ob_log(s->log, OB_LOG_WARN, "source.partitions", OB_KC("error", err.text));
        return;
    }
    if (PQntuples(res) == 1 && !PQgetisnull(res, 0, 0)) {
        ob_log(s->log, OB_LOG_INFO, "source.partitions", OB_KC("done", PQgetvalue(res, 0, 0)));
        s->months_at = now;
    } else if (PQntuples(res) == 1) {
        s->months_at = now + NEXT_MS; /* enough of them, or a lock was not free */
    }
    PQclear(res);
}
