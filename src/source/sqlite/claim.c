/* SPDX-License-Identifier: Apache-2.0 */
/* claim - rows into a batch. The cursor is exact because SQLite has one writer: numbers become
 * visible in the order in which they were given. */
#include "source/sqlite/sqlite.h"

/* Room for the largest row that SQLite itself can hold. */
#define ROW_MAX ((size_t)2 << 30)
#define CLAIM_MAX 4096

enum { /* offsets in EVENT_COLUMNS */
       C_SEQ,
       C_ID,
       C_TYPE,
       C_AGGREGATE_TYPE,
       C_AGGREGATE_ID,
       C_KEY,
       C_TENANT,
       C_TOPIC,
       C_PAYLOAD,
       C_KIND,
       C_HEADERS,
       C_METADATA,
       C_ENTITY_VERSION,
       C_SCHEMA_VERSION,
       C_MAX_ATTEMPTS,
       C_CREATED,
};

static const struct {
    int column;
    size_t offset;
} slices[] = {
    {C_PAYLOAD, offsetof(struct ob_event, payload)}, /* first: PAYLOAD */
    {C_ID, offsetof(struct ob_event, id)},
    {C_TYPE, offsetof(struct ob_event, type)},
    {C_AGGREGATE_TYPE, offsetof(struct ob_event, aggregate_type)},
    {C_AGGREGATE_ID, offsetof(struct ob_event, aggregate_id)},
    {C_KEY, offsetof(struct ob_event, key)},
    {C_TENANT, offsetof(struct ob_event, tenant)},
    {C_TOPIC, offsetof(struct ob_event, topic)},
    {C_HEADERS, offsetof(struct ob_event, headers)},
    {C_METADATA, offsetof(struct ob_event, metadata)},
};
#define N_SLICES (sizeof(slices) / sizeof(slices[0]))
#define PAYLOAD 0

static enum ob_payload_kind payload_kind(const struct db *db, sqlite3_stmt *st, int first,
                                         struct ob_str payload)
{
    struct ob_str kind = ob_sqlite_column_str(db, st, first + C_KIND);
    int stored = SQLITE_TEXT;

    if (!payload.n || !kind.n) /* else it is not NULL and its kind is given: one call less */
        stored = sqlite3_column_type(st, first + C_PAYLOAD);
    if (stored == SQLITE_NULL)
        return OB_PAYLOAD_NULL;
    if (kind.n)
        return *kind.p == 'b'   ? OB_PAYLOAD_BYTES
               : *kind.p == 't' ? OB_PAYLOAD_TEXT
                                : OB_PAYLOAD_JSON;
    return stored == SQLITE_BLOB ? OB_PAYLOAD_BYTES : OB_PAYLOAD_JSON;
}

static int64_t version(sqlite3_stmt *st, int column)
{
    return sqlite3_column_type(st, column) == SQLITE_NULL ? OB_NO_VERSION
                                                          : sqlite3_column_int64(st, column);
}

enum ob_status ob_sqlite_row_event(const struct db *db, sqlite3_stmt *st, int first, size_t most,
                                   struct ob_arena *arena, struct ob_event *ev, struct ob_err *err)
{
    struct ob_str raw[N_SLICES];
    size_t total = N_SLICES;
    int64_t max;
    char *p;

    for (size_t i = 0; i < N_SLICES; i++) {
        raw[i] = ob_sqlite_column_str(db, st, first + slices[i].column);
        total += raw[i].n;
    }
    if (raw[PAYLOAD].n > most)
        return OB_AGAIN;
    p = ob_arena_alloc(arena, total);
    if (!p)
        return ob_err_set(err, OB_DOWN, "no memory for an event of %zu bytes", total);
    for (size_t i = 0; i < N_SLICES; i++) {
        struct ob_str *to = (struct ob_str *)(void *)((char *)ev + slices[i].offset);
        if (raw[i].n)
            memcpy(p, raw[i].p, raw[i].n);
        p[raw[i].n] = '\0';
        *to = (struct ob_str){p, raw[i].n};
        p += raw[i].n + 1;
    }
    ev->ref = ev->seq = (uint64_t)sqlite3_column_int64(st, first + C_SEQ);
    ev->payload_kind = payload_kind(db, st, first, raw[PAYLOAD]);
    ev->entity_version = version(st, first + C_ENTITY_VERSION);
    ev->schema_version = version(st, first + C_SCHEMA_VERSION);
    max = sqlite3_column_int64(st, first + C_MAX_ATTEMPTS);
    ev->max_attempts = max < 0 ? 0 : max > UINT32_MAX ? UINT32_MAX : (uint32_t)max;
    ev->created_us = sqlite3_column_int64(st, first + C_CREATED) * 1000;
    return OB_OK;
}

/* After a restart the cursor may stand below events that are parked or dead already: those have
 * their attempts there and must not start anew (source/sqlite: restart keeps attempts). */
static enum ob_status load_recorded(struct ob_source *s, struct ob_err *err)
{
    sqlite3_stmt *st = s->db.st[ST_RECORDED_MAX];
    enum ob_status ret = OB_OK;
    int rc;

    ob_sqlite_bind_str(st, 1, ob_str_c(s->pipeline));
    rc = sqlite3_step(st);
    if (rc == SQLITE_ROW) {
        s->recorded_max = (uint64_t)sqlite3_column_int64(st, 0);
        s->reload = false;
    } else {
        ret = ob_sqlite_fail(err, s->db.h, rc, "reading parked events");
    }
    sqlite3_reset(st);
    return ret;
}

static enum ob_status is_recorded(struct ob_source *s, uint64_t seq, bool *yes, struct ob_err *err)
{
    sqlite3_stmt *st;
    int rc;

    *yes = false;
    if (seq > s->recorded_max)
        return OB_OK;
    st = s->db.st[ST_RECORDED];
    ob_sqlite_bind_str(st, 1, ob_str_c(s->pipeline));
    sqlite3_bind_int64(st, 2, (int64_t)seq);
    rc = sqlite3_step(st);
    *yes = rc == SQLITE_ROW;
    sqlite3_reset(st);
    return rc == SQLITE_ROW || rc == SQLITE_DONE
               ? OB_OK
               : ob_sqlite_fail(err, s->db.h, rc, "reading parked events");
}

/* Fills the batch; *last is the last number that was taken or passed over. */
static enum ob_status read_page(struct ob_source *s, sqlite3_stmt *st, size_t max, size_t max_bytes,
                                struct ob_batch *batch, uint64_t *last, struct ob_err *err)
{
    enum ob_status ret = OB_OK;
    size_t left = max_bytes;
    int rc = SQLITE_DONE;

    while (batch->n < max && (rc = sqlite3_step(st)) == SQLITE_ROW) {
        struct ob_event *ev = &batch->events[batch->n];
        uint64_t seq = (uint64_t)sqlite3_column_int64(st, C_SEQ);
        bool recorded;
        ret = is_recorded(s, seq, &recorded, err);
        if (ret == OB_OK && !recorded) {
            ret = ob_sqlite_row_event(&s->db, st, 0, batch->n ? left : SIZE_MAX, batch->arena, ev,
                                      err);
            if (ret == OB_OK) {
                batch->n++;
                left -= ev->payload.n < left ? ev->payload.n : left;
            }
        }
        if (ret != OB_OK)
            break;
        *last = seq;
    }
    if (ret == OB_AGAIN) /* it does not fit: the next page begins with it */
        return OB_OK;
    if (ret == OB_OK && rc != SQLITE_ROW && rc != SQLITE_DONE)
        ret = ob_sqlite_fail(err, s->db.h, rc, "reading events");
    return ret;
}

static enum ob_status page(struct ob_source *s, size_t max, size_t max_bytes, struct ob_batch **out,
                           struct ob_err *err)
{
    sqlite3_stmt *st = s->db.st[ST_CLAIM];
    struct ob_batch *batch = NULL;
    uint64_t last = s->claimed;
    enum ob_status ret = OB_AGAIN;
    int rc;

    do {
        uint64_t from = last;
        sqlite3_bind_int64(st, 1, (int64_t)from);
        sqlite3_bind_int64(st, 2, (int64_t)max);
        /* The first row is asked for before memory is taken: mostly there is none. */
        rc = sqlite3_step(st);
        sqlite3_reset(st);
        if (rc != SQLITE_ROW) {
            ret = rc == SQLITE_DONE ? OB_AGAIN : ob_sqlite_fail(err, s->db.h, rc, "reading events");
            break;
        }
        if (!batch)
            batch = ob_batch_new(max, ROW_MAX);
        ret = batch ? read_page(s, st, max, max_bytes, batch, &last, err)
                    : ob_err_set(err, OB_DOWN, "no memory for %zu events", max);
        sqlite3_reset(st); /* ends the read transaction: it must not hold up checkpoints */
        if (ret == OB_OK)
            s->claimed = last;
    } while (ret == OB_OK && batch->n == 0); /* all were recorded already: the next page */
    if (ret != OB_OK) {
        ob_batch_unref(batch);
        return ret;
    }
    *out = batch;
    return OB_OK;
}

enum ob_status ob_sqlite_claim(struct ob_source *s, size_t max, size_t max_bytes,
                               struct ob_batch **out, struct ob_err *err)
{
    bool written = ob_sqlite_wake_take(&s->wake);
    enum ob_status st = ob_sqlite_owned(s, err);

    s->look_at_ms = ob_clock_mono_ms(s->clock) + 1000;
    if (st == OB_OK && s->reload)
        st = load_recorded(s, err);
    if (st == OB_OK)
        st = max ? page(s, max > CLAIM_MAX ? CLAIM_MAX : max, max_bytes, out, err) : OB_AGAIN;
    /* Also after a find: what was written last may not have been visible yet. */
    ob_sqlite_wake_again(&s->wake, written || st == OB_OK);
    return st;
}

void ob_sqlite_rewind(struct ob_source *s)
{
    s->claimed = s->pos;
    s->reload = true;
    s->look_at_ms = 0;
}
