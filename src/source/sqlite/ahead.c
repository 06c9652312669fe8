/* SPDX-License-Identifier: Apache-2.0 */
/* ahead - the events that are settled ahead of the cursor, stored in its row by the same
 * transaction. s->ahead is what is stored; s->ahead_next is what the settle under way stores. */
#include "source/sqlite/sqlite.h"

enum ob_status ob_sqlite_ahead_load(struct ob_source *s, struct ob_err *err)
{
    sqlite3_stmt *st = s->db.st[ST_AHEAD];
    enum ob_status ret = OB_OK;
    int rc;

    ob_ahead_reset(&s->ahead);
    ob_sqlite_bind_str(st, 1, ob_str_c(s->pipeline));
    sqlite3_bind_int64(st, 2, s->shard);
    rc = sqlite3_step(st);
    if (rc == SQLITE_ROW && sqlite3_column_type(st, 0) == SQLITE_BLOB) {
        struct ob_str bytes = {.p = sqlite3_column_blob(st, 0)};
        bytes.n = (size_t)sqlite3_column_bytes(st, 0);
        ret = ob_ahead_read(&s->ahead, bytes, err);
    } else if (rc != SQLITE_ROW && rc != SQLITE_DONE) {
        ret = ob_sqlite_fail(err, s->db.h, rc, "reading the cursor");
    }
    sqlite3_reset(st);
    if (ret == OB_REJECT) {
        ob_log(s->log, OB_LOG_WARN, "source.ahead", OB_KC("error", err->text));
        ret = OB_OK;
    }
    return ret;
}

/* A parked event that is published before a claim comes to it: its row, which the claim would have
 * found, goes with this settle. */
static bool add_drained(struct ob_source *s, const struct ob_settle *settle, uint64_t pos)
{
    for (size_t i = 0; i < settle->n; i++) {
        const struct ob_settle_op *op = &settle->ops[i];
        if (op->kind != OB_SETTLE_PUBLISHED || !op->park_n || op->event->seq <= pos ||
            op->event->seq <= settle->claimed)
            continue;
        if (!ob_ahead_add(&s->ahead_next, 0, op->event->seq, 0))
            return false;
    }
    return true;
}

enum ob_status ob_sqlite_ahead_next(struct ob_source *s, const struct ob_settle *settle,
                                    struct ob_err *err)
{
    uint64_t pos = settle->moved && settle->ref > s->pos ? settle->ref : s->pos;
    bool ok = true;

    ob_ahead_reset(&s->ahead_next);
    ob_buf_reset(&s->ahead_bytes);
    for (size_t i = 0; i < settle->n_ahead && ok; i++)
        ok = ob_ahead_add(&s->ahead_next, 0, settle->ahead[i], 0);
    /* Numbers are claimed in order: the flow does not know of those above its last one. */
    for (size_t i = 0; i < s->ahead.n && ok; i++)
        if (s->ahead.at[i].lo > pos && s->ahead.at[i].lo > settle->claimed)
            ok = ob_ahead_add(&s->ahead_next, 0, s->ahead.at[i].lo, 0);
    if (ok)
        ok = add_drained(s, settle, pos);
    ob_ahead_sort(&s->ahead_next);
    ob_ahead_write(&s->ahead_next, &s->ahead_bytes);
    if (ok && !s->ahead_bytes.failed)
        return OB_OK;
    return ob_err_set(err, OB_RETRY, "no memory for a settle with %zu events ahead of the cursor",
                      settle->n_ahead);
}

void ob_sqlite_ahead_stored(struct ob_source *s)
{
    struct ob_ahead was = s->ahead;

    s->ahead = s->ahead_next;
    s->ahead_next = was;
}

/* Every member is settled, whichever shard settled it: the new cursors all begin with all of them.
 */
enum ob_status ob_sqlite_ahead_gather(struct ob_source *s, struct ob_err *err)
{
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(s->db.h,
                                "SELECT ahead FROM outbox_cursor WHERE pipeline = ?1"
                                " AND ahead IS NOT NULL",
                                -1, &st, NULL);

    ob_buf_reset(&s->ahead_bytes);
    if (rc == SQLITE_OK) {
        ob_sqlite_bind_str(st, 1, ob_str_c(s->pipeline));
        while ((rc = sqlite3_step(st)) == SQLITE_ROW)
            ob_buf_put(&s->ahead_bytes, sqlite3_column_blob(st, 0),
                       (size_t)sqlite3_column_bytes(st, 0));
    }
    sqlite3_finalize(st);
    if (rc != SQLITE_DONE)
        return ob_sqlite_fail(err, s->db.h, rc, "changing the number of shards");
    return s->ahead_bytes.failed ? ob_err_set(err, OB_DOWN, "no memory") : OB_OK;
}
