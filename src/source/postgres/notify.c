/* SPDX-License-Identifier: Apache-2.0 */
/* notify - `wake: notify`: a NOTIFY of the application ends the wait for the next look. It is only
 * a bell: one that is lost costs no more than poll_max. */
#include "source/postgres/pg.h"

enum ob_status ob_pg_listen(const struct ob_source *s, struct pg_session *rd, struct ob_err *err)
{
    if (s->conf->wake != PG_WAKE_NOTIFY)
        return OB_OK;
    char sql[300], *name = PQescapeIdentifier(rd->c, s->conf->channel, strlen(s->conf->channel));
    if (!name)
        return ob_err_set(err, OB_FATAL, "channel: %s", PQerrorMessage(rd->c));
    snprintf(sql, sizeof(sql), "listen %s", name);
    PQfreemem(name);
    return ob_pg_exec(rd, sql, err);
}

bool ob_pg_rung(struct ob_source *s, struct pg_session *rd)
{
    PGnotify *n;
    if (s->conf->wake != PG_WAKE_NOTIFY || !rd->c)
        return false;
    /* A connection that is gone is found out by the look. */
    if (PQconsumeInput(rd->c) != 1)
        s->rung = true;
    while ((n = PQnotifies(rd->c)) != NULL) {
        PQfreemem(n);
        s->rung = true;
    }
    return s->rung;
}
