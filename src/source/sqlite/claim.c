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
    enum ob_limited limited;
} slices[] = {
    {C_PAYLOAD, offsetof(struct ob_event, payload), OB_LIMITED_PAYLOAD},
    {C_ID, offsetof(struct ob_event, id), OB_LIMITED_ID},
    {C_TYPE, offsetof(struct ob_event, type), OB_LIMITED_TYPE},
    {C_AGGREGATE_TYPE, offsetof(struct ob_event, aggregate_type), OB_LIMITED_AGGREGATE_TYPE},
    {C_AGGREGATE_ID, offsetof(struct ob_event, aggregate_id), OB_LIMITED_AGGREGATE_ID},
    {C_KEY, offsetof(struct ob_event, key), OB_LIMITED_KEY},
    {C_TENANT, offsetof(struct ob_event, tenant), OB_LIMITED_TENANT},
    {C_TOPIC, offsetof(struct ob_event, topic), OB_LIMITED_TOPIC},
    {C_HEADERS, offsetof(struct ob_event, headers), OB_LIMITED_HEADERS},
    {C_METADATA, offsetof(struct ob_event, metadata), OB_LIMITED_METADATA},
};
#define N_SLICES (sizeof(slices) / sizeof(slices[0]))

static struct ob_str text_of(bool utf16, sqlite3_value *v)
{
    struct ob_str s;

    /* As a blob the bytes come without a copy for the NUL that text would get. */
    if (utf16 && sqlite3_value_type(v) == SQLITE_TEXT)
        s.p = (const char *)sqlite3_value_text(v);
    else
        s.p = sqlite3_value_blob(v); /* NULL also for no bytes */
    s.n = s.p ? (size_t)sqlite3_value_bytes(v) : 0;
    return s;
}

static enum ob_payload_kind payload_kind(bool utf16, sqlite3_value *kind, int stored)
{
    struct ob_str name;

    if (stored == SQLITE_NULL)
        return OB_PAYLOAD_NULL;
    name = text_of(utf16, kind);
    if (name.n)
        return *name.p == 'b'   ? OB_PAYLOAD_BYTES
               : *name.p == 't' ? OB_PAYLOAD_TEXT
                                : OB_PAYLOAD_JSON;
    return stored == SQLITE_BLOB ? OB_PAYLOAD_BYTES : OB_PAYLOAD_JSON;
}

static int64_t version(sqlite3_value *v)
{
    return sqlite3_value_type(v) == SQLITE_NULL ? OB_NO_VERSION : sqlite3_value_int64(v);
}

/* Leaves of columns over their limit only what a dead event keeps. Returns the bytes of all. */
static size_t cut_slices(const struct ob_limits *limits, struct ob_str raw[N_SLICES],
                         size_t size[N_SLICES])
{
    size_t total = N_SLICES;

    for (size_t i = 0; i < N_SLICES; i++) {
        size[i] = raw[i].n;
        if (raw[i].n > ob_limit_of(limits, slices[i].limited))
            raw[i].n = slices[i].limited < OB_LIMITED_HEADERS ? OB_LIMIT_KEEP : 0;
        total += raw[i].n;
    }
    return total;
}

static bool check_slices(const struct ob_limits *limits, const size_t size[N_SLICES],
                         struct ob_arena *arena, struct ob_event *ev)
{
    for (size_t i = 0; i < N_SLICES; i++)
        if (!ob_limits_check_size(limits, ev, slices[i].limited, size[i], arena))
            return false;
    return true;
}

/* v: the values of EVENT_COLUMNS. */
static enum ob_status values_event(bool utf16, const struct ob_limits *limits, sqlite3_value **v,
                                   size_t most, struct ob_arena *arena, struct ob_event *ev,
                                   struct ob_err *err)
{
    struct ob_str raw[N_SLICES];
    size_t total = N_SLICES, size[N_SLICES];
    int stored = sqlite3_value_type(v[C_PAYLOAD]); /* before its bytes are asked for as a blob */
    int64_t max;
    char *p;

    for (size_t i = 0; i < N_SLICES; i++) {
        raw[i] = text_of(utf16, v[slices[i].column]);
        total += raw[i].n;
    }
    bool large = total > (size_t)limits->text || total > (size_t)limits->json ||
                 total > (size_t)limits->payload;
    if (large)
        total = cut_slices(limits, raw, size);
    if (total > most)
        return OB_AGAIN;
    p = ob_arena_alloc(arena, total);
    if (!p) {
        ev->payload.n = total;
        return ob_err_set(err, OB_REJECT, "no memory for an event of %zu bytes", total);
    }
    for (size_t i = 0; i < N_SLICES; i++) {
        struct ob_str *to = (struct ob_str *)(void *)((char *)ev + slices[i].offset);
        if (raw[i].n)
            memcpy(p, raw[i].p, raw[i].n);
        p[raw[i].n] = '\0';
        *to = (struct ob_str){p, raw[i].n};
        p += raw[i].n + 1;
    }
    ev->ref = ev->seq = (uint64_t)sqlite3_value_int64(v[C_SEQ]);
    ev->payload_kind = payload_kind(utf16, v[C_KIND], stored);
    ev->entity_version = version(v[C_ENTITY_VERSION]);
    ev->schema_version = version(v[C_SCHEMA_VERSION]);
    max = sqlite3_value_int64(v[C_MAX_ATTEMPTS]);
    ev->max_attempts = max < 0 ? 0 : max > UINT32_MAX ? UINT32_MAX : (uint32_t)max;
    ev->created_us = ob_us_of_ms(sqlite3_value_int64(v[C_CREATED]));
    if (large && !check_slices(limits, size, arena, ev))
        return ob_err_set(err, OB_REJECT, "no memory for an event of %zu bytes", total);
    return OB_OK;
}

/* The connection is this thread's alone (NOMUTEX), so a column's value may be read in place. */
enum ob_status ob_sqlite_row_event(const struct db *db, const struct ob_limits *limits,
                                   sqlite3_stmt *st, int first, size_t most, struct ob_arena *arena,
                                   struct ob_event *ev, struct ob_err *err)
{
    sqlite3_value *v[N_EVENT_COLUMNS];

    for (int i = 0; i < N_EVENT_COLUMNS; i++)
        v[i] = sqlite3_column_value(st, first + i);
    return values_event(db->utf16, limits, v, most, arena, ev, err);
}

/* After a restart the cursor may stand below events that are parked or dead already: those have
 * their attempts there and must not start anew (source/sqlite: restart keeps attempts). Others are
 * stored as settled ahead of the cursor. */
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

    *yes = ob_ahead_find(&s->ahead, 0, seq) != NULL;
    if (*yes || seq > s->recorded_max)
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

struct take {
    struct ob_source *s;
    struct ob_batch *batch;
    size_t left;   /* bytes of all columns */
    uint64_t last; /* number that was taken or passed over */
    enum ob_status st;
    struct ob_err *err;
};

/* One row. When it cannot be taken the page ends with the one before. */
static void take_row(sqlite3_context *c, int n, sqlite3_value **v)
{
    const struct db *db = sqlite3_user_data(c);
    struct take *t = db->take;
    bool recorded = false;
    (void)n;

    if (!t || t->st != OB_OK)
        return;
    uint64_t seq = (uint64_t)sqlite3_value_int64(v[C_SEQ]);
    struct ob_event *ev = &t->batch->events[t->batch->n];
    memset(ev, 0, sizeof(*ev));
    t->st = is_recorded(t->s, seq, &recorded, t->err);
    if (t->st == OB_OK && recorded) {
        ev->ref = seq;
        ev->settled = true;
        t->batch->n++;
    } else if (t->st == OB_OK) {
        t->st = values_event(db->utf16, &t->s->limits, v, t->batch->n ? t->left : SIZE_MAX,
                             t->batch->arena, ev, t->err);
        if (t->st == OB_OK) {
            size_t bytes = ob_event_bytes(ev);
            t->batch->n++;
            t->left -= bytes < t->left ? bytes : t->left;
        }
    }
    if (t->st == OB_OK)
        t->last = seq;
}

enum ob_status ob_sqlite_take_function(struct db *db, struct ob_err *err)
{
    int rc =
        sqlite3_create_function_v2(db->h, TAKE_ROW, N_EVENT_COLUMNS,
                                   SQLITE_UTF8 | SQLITE_DIRECTONLY, db, take_row, NULL, NULL, NULL);

    return rc == SQLITE_OK ? OB_OK : ob_sqlite_fail(err, db->h, rc, "making a function");
}

/* The next event by itself, because it has a large column or there was no memory for it. */
static enum ob_status take_large(struct ob_source *s, struct ob_batch *batch, uint64_t *last,
                                 struct ob_err *err)
{
    sqlite3_stmt *st = s->db.st[ST_NEXT];
    struct ob_event *ev = &batch->events[batch->n];
    bool recorded = false;
    int64_t seq = 0;

    sqlite3_bind_int64(st, 1, (int64_t)*last);
    enum ob_status ret = ob_sqlite_step_one(&s->db, st, &seq, "reading events", err);
    if (ret == OB_OK)
        ret = is_recorded(s, (uint64_t)seq, &recorded, err);
    if (ret == OB_OK && recorded) {
        *last = (uint64_t)seq;
        *ev = (struct ob_event){.ref = *last, .settled = true};
        batch->n++;
    }
    if (ret != OB_OK || recorded)
        return ret;
    ret = ob_sqlite_read_event(&s->db, &s->limits, (uint64_t)seq, true, SIZE_MAX, batch->arena, ev,
                               err);
    if (ret == OB_REJECT)
        ret = ob_sqlite_unfit(s, (uint64_t)seq, batch->arena, ev, err);
    if (ret == OB_OK) {
        batch->n += ev->id.p ? 1 : 0;
        *last = (uint64_t)seq;
    }
    return ret;
}

/* Fills the batch; *last is the last number that was taken or passed over. */
static enum ob_status read_page(struct ob_source *s, sqlite3_stmt *st, size_t max_bytes,
                                struct ob_batch *batch, uint64_t *last, struct ob_err *err)
{
    struct take t = {.s = s, .batch = batch, .left = max_bytes, .last = *last, .err = err};
    int rc;

    s->db.take = &t;
    do
        rc = sqlite3_step(st);
    while (rc == SQLITE_ROW && t.st == OB_OK);
    s->db.take = NULL;
    *last = t.last;
    if (t.st == OB_AGAIN) /* it does not fit: the next page begins with it */
        return OB_OK;
    if (t.st == OB_REJECT || (t.st == OB_OK && ob_sqlite_too_large(rc))) {
        sqlite3_reset(st);
        return batch->n > 0 ? OB_OK : take_large(s, batch, last, err);
    }
    if (t.st == OB_OK && rc != SQLITE_DONE)
        return ob_sqlite_fail(err, s->db.h, rc, "reading events");
    return t.st;
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
        sqlite3_bind_int64(st, 1, (int64_t)last);
        sqlite3_bind_int64(st, 2, (int64_t)max);
        /* The first row is asked for before memory is taken: mostly there is none. */
        rc = sqlite3_step(st);
        sqlite3_reset(st);
        if (rc != SQLITE_ROW && !ob_sqlite_too_large(rc)) {
            ret = rc == SQLITE_DONE ? OB_AGAIN : ob_sqlite_fail(err, s->db.h, rc, "reading events");
            break;
        }
        for (; !batch && max > 0; max /= batch ? 1 : 2)
            batch = ob_batch_new_raw(max, ROW_MAX);
        ret = batch ? read_page(s, st, max_bytes, batch, &last, err)
                    : ob_err_set(err, OB_DOWN, "no memory for %zu events", max);
        sqlite3_reset(st); /* ends the read transaction: it must not hold up checkpoints */
        if (ret == OB_OK)
            s->claimed = last;
    } while (ret == OB_OK && batch->n == 0);
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
    if (st == OB_OK) {
        ob_sqlite_bound_reads(&s->db, true);
        st = max ? page(s, max > CLAIM_MAX ? CLAIM_MAX : max, max_bytes, out, err) : OB_AGAIN;
        ob_sqlite_bound_reads(&s->db, false);
    }
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
