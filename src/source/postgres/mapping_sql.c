/* SPDX-License-Identifier: Apache-2.0 */
/* mapping_sql - the statements that read and mark a mapped table, built once. */
#include "core/buf.h"
#include "source/postgres/mapping.h"

#define INLINE_MAX "8192" /* larger payloads are fetched one by one */
#define SMALL_TEXT 1024   /* likewise rows with larger texts */
#define SMALL_JSON 4096

/* One building: parts go through buf into the arena. */
struct build {
    struct pg_map *map;
    struct ob_buf buf;
    bool failed;
};

static const char *keep(struct build *b)
{
    const char *out = b->buf.failed ? NULL : ob_arena_copy(b->map->arena, ob_buf_view(&b->buf)).p;
    b->failed = b->failed || !out;
    ob_buf_reset(&b->buf);
    return out ? out : "";
}

static const char *name_of(const struct build *b, enum ob_map_role role)
{
    return b->map->col[role]->ident;
}

static bool has(const struct build *b, enum ob_map_role role)
{
    return b->map->col[role] != NULL;
}

static void and (struct build * b)
{
    if (b->buf.n > 0)
        ob_buf_c(&b->buf, " and ");
}

/* ---- conditions ---- */

/* It was not marked as delivered or dead. The forms are those that partial indexes are made with.
 */
static void undone(struct build *b, bool claimed_too)
{
    const struct pg_map *m = b->map;
    and(b);
    if (has(b, OB_MAP_STATUS) && claimed_too && m->v_claimed)
        ob_buf_printf(&b->buf, "t.%s in (%s, %s)", name_of(b, OB_MAP_STATUS), m->v_pending,
                      m->v_claimed);
    else if (has(b, OB_MAP_STATUS))
        ob_buf_printf(&b->buf, "t.%s = %s", name_of(b, OB_MAP_STATUS), m->v_pending);
    else if (m->col[OB_MAP_DONE]->kind == PG_KIND_BOOL)
        ob_buf_printf(&b->buf, "t.%s = false", name_of(b, OB_MAP_DONE));
    else
        ob_buf_printf(&b->buf, "t.%s is null", name_of(b, OB_MAP_DONE));
}

static void attempt_limit(struct build *b)
{
    if (has(b, OB_MAP_MAX_ATTEMPTS))
        ob_buf_printf(&b->buf, "coalesce(t.%s, %lld)", name_of(b, OB_MAP_MAX_ATTEMPTS),
                      (long long)b->map->conf->dead_attempts);
    else
        ob_buf_printf(&b->buf, "%lld", (long long)b->map->conf->dead_attempts);
}

static void attempts(struct build *b)
{
    bool plain = b->map->col[OB_MAP_ATTEMPTS]->not_null;
    ob_buf_printf(&b->buf, plain ? "t.%s" : "coalesce(t.%s, 0)", name_of(b, OB_MAP_ATTEMPTS));
}

static void alive(struct build *b)
{
    if (b->map->conf->dead_attempts > 0) {
        and(b);
        attempts(b);
        ob_buf_c(&b->buf, " < ");
        attempt_limit(b);
    }
    if (b->map->conf->error_holds) {
        and(b);
        ob_buf_printf(&b->buf, "t.%s is null", name_of(b, OB_MAP_ERROR));
    }
}

static void build_conditions(struct build *b)
{
    struct pg_map *m = b->map;
    bool lease = has(b, OB_MAP_LOCKED_BY);
    undone(b, false);
    alive(b);
    m->pending = keep(b);
    undone(b, true);
    alive(b);
    if (lease)
        ob_buf_printf(&b->buf, " and (t.%s is null or t.%s < now() or t.%s = %s)",
                      name_of(b, OB_MAP_LOCKED_UNTIL), name_of(b, OB_MAP_LOCKED_UNTIL),
                      name_of(b, OB_MAP_LOCKED_BY), m->owner);
    m->ready = keep(b);
    undone(b, true);
    if (lease)
        ob_buf_printf(&b->buf, " and t.%s = %s", name_of(b, OB_MAP_LOCKED_BY), m->owner);
    m->ours = keep(b);
    m->dead_hides = m->v_failed || m->conf->dead_attempts > 0 || m->conf->error_holds ||
                    m->conf->on_permanent == OB_MAP_MARK_PROCESSED;
    if (m->dead_hides)
        ob_buf_c(&b->buf, "true");
    else if (has(b, OB_MAP_ERROR))
        ob_buf_printf(&b->buf, "t.%s is null", name_of(b, OB_MAP_ERROR));
    else
        ob_buf_c(&b->buf, "false");
    m->released = keep(b);
    m->claims = m->v_claimed || lease || has(b, OB_MAP_CLAIMED_AT);
    ob_buf_printf(
        &b->buf,
        "exists (select 1 from outbox.cursor o where o.pipeline = %s and o.shard = $2::int "
        "and o.epoch = $3::bigint)",
        m->pipeline);
    m->fence = keep(b);
}

/* now() is the start of a transaction; among its rows cmin is the order of statements, ctid that of
 * places. */
static void order_each(struct build *b, const char *t, const char *way)
{
    const char *id = name_of(b, OB_MAP_ID);
    enum ob_map_role first = has(b, OB_MAP_ORDER) ? OB_MAP_ORDER : OB_MAP_CREATED;
    if (has(b, first) && b->map->col[first]->kind == PG_KIND_TIME)
        ob_buf_printf(&b->buf, "%s.%s%s, %s.cmin::text::bigint%s, %s.ctid%s, %s.%s%s", t,
                      name_of(b, first), way, t, way, t, way, t, id, way);
    else if (has(b, first))
        ob_buf_printf(&b->buf, "%s.%s%s", t, name_of(b, first), way);
    else
        ob_buf_printf(&b->buf, "%s.%s%s", t, id, way);
}

static void order_by(struct build *b, const char *t)
{
    order_each(b, t, "");
}

/* ---- which rows ---- */

#define DEAD_ROW                                                                                   \
    "(select 1 from outbox.dead d where d.pipeline = %s and d.ref = t.%s::text and d.state in "    \
    "('dead', 'discarded')"

static void not_aside(struct build *b)
{
    const struct pg_map *m = b->map;
    const char *id = name_of(b, OB_MAP_ID);
    ob_buf_printf(&b->buf,
                  " and not exists (select 1 from outbox.parked p where p.pipeline = %s and p.ref "
                  "= t.%s::text)",
                  m->pipeline, id);
    if (!m->dead_hides)
        ob_buf_printf(&b->buf, " and not exists " DEAD_ROW " and not (%s))", m->pipeline, id,
                      m->released);
}

static void key_expr(struct build *b)
{
    enum ob_map_role key = has(b, OB_MAP_KEY)            ? OB_MAP_KEY
                           : has(b, OB_MAP_AGGREGATE_ID) ? OB_MAP_AGGREGATE_ID
                                                         : OB_MAP_ID;
    ob_buf_printf(&b->buf, "t.%s", name_of(b, key));
}

/* Where the table has entity versions, the rows of a key stand in that order at the places that
 * these rows have. */
static const char *build_ids(struct build *b, bool side, bool next)
{
    const struct pg_map *m = b->map;
    const char *id = name_of(b, OB_MAP_ID);
    bool versions = has(b, OB_MAP_ENTITY_VERSION);
    ob_buf_printf(&b->buf, "select t.%s::text as id", id);
    if (side)
        ob_buf_printf(&b->buf, ", exists " DEAD_ROW ") as was_dead", m->pipeline, id);
    if (versions) {
        ob_buf_c(&b->buf, ", ");
        key_expr(b);
        ob_buf_printf(&b->buf, " as k, t.%s as v, row_number() over (order by ",
                      name_of(b, OB_MAP_ENTITY_VERSION));
        order_by(b, "t");
        ob_buf_c(&b->buf, ") as n");
    }
    ob_buf_printf(&b->buf, " from %s t where %s", m->table, m->ready);
    if (side)
        not_aside(b);
    if (next) {
        ob_buf_c(&b->buf, " and (");
        order_by(b, "t");
        ob_buf_c(&b->buf, ") > (select ");
        order_by(b, "o");
        ob_buf_printf(&b->buf, " from %s o where o.%s = $2::text::%s)", m->table, id,
                      m->col[OB_MAP_ID]->type);
    }
    ob_buf_c(&b->buf, " order by ");
    order_by(b, "t");
    ob_buf_c(&b->buf, " limit $1::bigint");
    const char *plain = keep(b);
    if (!versions)
        return plain;
    ob_buf_printf(&b->buf,
                  "select i.id%s from (%s) i order by min(i.n) over (partition by i.k), i.v nulls "
                  "first, i.n",
                  side ? ", i.was_dead" : "", plain);
    return keep(b);
}

/* ---- whole events ---- */

static void text_field(struct build *b, enum ob_map_role role)
{
    if (has(b, role))
        ob_buf_printf(&b->buf, ", t.%s::text", name_of(b, role));
    else
        ob_buf_c(&b->buf, ", null::text");
}

/* A value of the lateral row if it is small, else its size: see native.h. */
static void small(struct build *b, char kind, size_t i, int max)
{
    ob_buf_printf(&b->buf,
                  ", case when octet_length(x.%c%zu) <= %d then x.%c%zu else "
                  "rpad(octet_length(x.%c%zu)::text, %d) end",
                  kind, i, max, kind, i, kind, i, max + 1);
}

static void small_field(struct build *b, enum ob_map_role role, int max)
{
    if (has(b, role) && ob_pg_column_unbounded(b->map->col[role]))
        small(b, 'r', (size_t)role, max);
    else
        text_field(b, role);
}

/* The lateral row: the payload, and every column whose value may have any size, computed once. */
static const char *build_lateral(struct build *b, const char *payload)
{
    const struct pg_map *m = b->map;
    ob_buf_printf(&b->buf, "%s as p", payload);
    for (size_t i = 0; i < PG_MAP_SIZED; i++) {
        enum ob_map_role role = ob_pg_map_sized[i].role;
        if (has(b, role) && ob_pg_column_unbounded(m->col[role]))
            ob_buf_printf(&b->buf, ", t.%s::text as r%zu", name_of(b, role), (size_t)role);
    }
    for (size_t i = 0; i < m->n_more; i++)
        if (ob_pg_column_unbounded(m->more[i]))
            ob_buf_printf(&b->buf, ", t.%s::text as m%zu", m->more[i]->ident, i);
    return keep(b);
}

static void sized(struct build *b, char kind, size_t i, int param, bool text)
{
    ob_buf_printf(&b->buf,
                  "octet_length(x.%c%zu), case when octet_length(x.%c%zu) <= $%d::bigint then "
                  "x.%c%zu",
                  kind, i, kind, i, param, kind, i);
    if (text)
        ob_buf_printf(&b->buf, " else left(x.%c%zu, %d)", kind, i, OB_LIMIT_KEEP);
    ob_buf_c(&b->buf, " end, ");
}

/* One row by itself: sizes, and the values that are within the limits. */
static void build_whole(struct build *b, const char *lateral)
{
    const struct pg_map *m = b->map;
    const struct pg_column *id = m->col[OB_MAP_ID];
    ob_buf_c(&b->buf, "select ");
    for (size_t i = 0; i < PG_MAP_SIZED; i++) {
        enum ob_map_role role = ob_pg_map_sized[i].role;
        bool text = ob_pg_map_sized[i].limited < OB_LIMITED_HEADERS;
        if (has(b, role) && ob_pg_column_unbounded(m->col[role]))
            sized(b, 'r', (size_t)role, text ? 2 : 3, text);
        else
            ob_buf_c(&b->buf, "null::int, null::text, ");
    }
    for (size_t i = 0; i < m->n_more; i++) {
        if (ob_pg_column_unbounded(m->more[i]))
            sized(b, 'm', i, 3, false);
        else
            ob_buf_c(&b->buf, "null::int, null::text, ");
    }
    ob_buf_printf(&b->buf,
                  "octet_length(x.p), case when octet_length(x.p) <= $4::bigint then x.p end from "
                  "%s t cross join lateral (select %s offset 0) x where t.%s = $1::text::%s and "
                  "$2::bigint > 0 and $3::bigint > 0",
                  m->table, lateral, id->ident, id->type);
    b->map->sql[PG_MAP_WHOLE] = keep(b);
}

static void int_field(struct build *b, enum ob_map_role role)
{
    if (has(b, role) && b->map->col[role]->kind == PG_KIND_INT)
        ob_buf_printf(&b->buf, ", t.%s::bigint", name_of(b, role));
    else
        ob_buf_c(&b->buf, ", null::bigint");
}

static void payload_expr(struct build *b)
{
    if (!has(b, OB_MAP_PAYLOAD))
        ob_buf_c(&b->buf, "null::text");
    else
        ob_buf_printf(&b->buf,
                      b->map->col[OB_MAP_PAYLOAD]->kind == PG_KIND_BYTES ? "t.%s" : "t.%s::text",
                      name_of(b, OB_MAP_PAYLOAD));
}

/* Behind the place; the order is that of enum pg_map_field. */
static void fields(struct build *b)
{
    static const enum ob_map_role texts[] = {
        OB_MAP_TYPE,   OB_MAP_AGGREGATE_TYPE, OB_MAP_AGGREGATE_ID, OB_MAP_KEY,
        OB_MAP_TENANT, OB_MAP_TOPIC,          OB_MAP_STREAM};
    text_field(b, OB_MAP_ID);
    int_field(b, OB_MAP_ORDER);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        small_field(b, texts[i], SMALL_TEXT);
    ob_buf_c(&b->buf,
             ", case when octet_length(x.p) <= " INLINE_MAX " then x.p end, octet_length(x.p)");
    small_field(b, OB_MAP_HEADERS, SMALL_JSON);
    small_field(b, OB_MAP_METADATA, SMALL_JSON);
    int_field(b, OB_MAP_ENTITY_VERSION);
    int_field(b, OB_MAP_SCHEMA_VERSION);
    if (has(b, OB_MAP_CREATED))
        ob_buf_printf(&b->buf, ", t.%s", name_of(b, OB_MAP_CREATED));
    else
        ob_buf_c(&b->buf, ", null::timestamptz");
    int_field(b, OB_MAP_ATTEMPTS);
    int_field(b, OB_MAP_MAX_ATTEMPTS);
    for (size_t i = 0; i < b->map->n_more; i++)
        if (ob_pg_column_unbounded(b->map->more[i]))
            small(b, 'm', i, SMALL_JSON);
        else
            ob_buf_printf(&b->buf, ", t.%s::text", b->map->more[i]->ident);
}

static void set(struct build *b, enum ob_map_role role, const char *value)
{
    if (!has(b, role))
        return;
    if (b->buf.n > 0)
        ob_buf_c(&b->buf, ", ");
    ob_buf_printf(&b->buf, "%s = %s", name_of(b, role), value);
}

static const char *claim_sets(struct build *b)
{
    const struct pg_map *m = b->map;
    if (m->v_claimed)
        set(b, OB_MAP_STATUS, m->v_claimed);
    set(b, OB_MAP_CLAIMED_AT, "now()");
    if (has(b, OB_MAP_LOCKED_BY)) {
        set(b, OB_MAP_LOCKED_BY, m->owner);
        ob_buf_printf(&b->buf, ", %s = now() + interval '%lld milliseconds'",
                      name_of(b, OB_MAP_LOCKED_UNTIL), (long long)m->conf->lease_ms);
    }
    return keep(b);
}

/* What people see: the side tables first, then the columns. */
static void build_list(struct build *b, const char *lateral, const char *list)
{
    struct pg_map *m = b->map;
    const char *id = name_of(b, OB_MAP_ID);
    undone(b, true);
    const char *open = keep(b);
    alive(b);
    const char *fit = b->buf.n ? keep(b) : "true";
    ob_buf_printf(&b->buf,
                  "select 0::bigint%s, %s, case when exists (select 1 from outbox.parked p where "
                  "p.pipeline = %s and p.ref = t.%s::text) then 'parked' when d.state in ('dead', "
                  "'discarded') and not (%s and %s and %s) then d.state when %s and %s then "
                  "'pending' when %s then 'dead' ",
                  list, m->number, m->pipeline, id, open, fit, m->released, open, fit, open);
    if (m->v_failed)
        ob_buf_printf(&b->buf, "when t.%s = %s then 'dead' ", name_of(b, OB_MAP_STATUS),
                      m->v_failed);
    if (has(b, OB_MAP_STATUS) || m->col[OB_MAP_DONE]->kind == PG_KIND_BOOL) /* no word of it */
        ob_buf_printf(&b->buf, "when t.%s is null then 'pending' ",
                      name_of(b, has(b, OB_MAP_STATUS) ? OB_MAP_STATUS : OB_MAP_DONE));
    ob_buf_printf(&b->buf,
                  "else 'published' end from %s t cross join lateral (select %s offset 0) x "
                  "left join lateral (select state from outbox.dead where pipeline = %s and ref = "
                  "t.%s::text order by n desc limit 1) d on true where true",
                  m->table, lateral, m->pipeline, id);
    m->sql[PG_MAP_LIST] = keep(b);
}

/* With claims, those that are taken are claimed by the same statement, under our epoch. */
static void build_fetch(struct build *b)
{
    struct pg_map *m = b->map;
    const struct pg_column *id = m->col[OB_MAP_ID];
    payload_expr(b);
    const char *lateral = build_lateral(b, keep(b));
    fields(b);
    const char *list = keep(b);
    ob_buf_printf(
        &b->buf,
        "select k.i%s from unnest($1::%s[]) with ordinality as k(id, i) join %s t on t.%s "
        "= k.id cross join lateral (select %s offset 0) x where %s order by k.i",
        list, id->type, m->table, id->ident, lateral, m->ready);
    m->sql[PG_MAP_READ] = m->sql[PG_MAP_FETCH] = keep(b);
    ob_buf_printf(&b->buf,
                  "select k.i from unnest($1::%s[]) with ordinality as k(id, i) join %s t on t.%s "
                  "= k.id",
                  id->type, m->table, id->ident);
    const char *there = m->sql[PG_MAP_THERE] = keep(b);
    ob_buf_printf(&b->buf, "%s where %s", there, m->ready);
    m->sql[PG_MAP_STILL] = keep(b);
    if (m->claims) {
        const char *sets = claim_sets(b);
        ob_buf_printf(&b->buf,
                      "with c as (update %s t set %s from unnest($1::%s[]) with ordinality as "
                      "k(id, i) where t.%s = k.id and %s and %s returning k.i as outbox_place, "
                      "t.*) select t.outbox_place%s from c t cross join lateral (select %s offset "
                      "0) x order by t.outbox_place",
                      m->table, sets, id->type, id->ident, m->ready, m->fence, list, lateral);
        m->sql[PG_MAP_FETCH] = keep(b);
    }
    build_whole(b, lateral);
    build_list(b, lateral, list);
}

/* ---- marks ---- */

static void unlock(struct build *b)
{
    set(b, OB_MAP_LOCKED_BY, "null");
    set(b, OB_MAP_LOCKED_UNTIL, "null");
}

static void done_sets(struct build *b)
{
    const struct pg_map *m = b->map;
    set(b, OB_MAP_STATUS, m->v_done ? m->v_done : "null");
    if (has(b, OB_MAP_DONE))
        set(b, OB_MAP_DONE, m->col[OB_MAP_DONE]->kind == PG_KIND_BOOL ? "true" : "now()");
    set(b, OB_MAP_DONE_AT, "now()");
}

/* "update … from unnest(…) …" of the assignments in the buffer; "" if there are none. columns: of
 * the arrays behind the ids. */
static const char *update(struct build *b, const char *arrays, const char *columns,
                          const char *condition)
{
    const struct pg_map *m = b->map;
    const struct pg_column *id = m->col[OB_MAP_ID];
    if (b->buf.n == 0)
        return "";
    const char *sets = keep(b);
    if (*arrays)
        ob_buf_printf(&b->buf,
                      "update %s t set %s from unnest($1::%s[], %s) as u(id, %s) where t.%s = u.id "
                      "and %s",
                      m->table, sets, id->type, arrays, columns, id->ident, condition);
    else
        ob_buf_printf(&b->buf, "update %s t set %s where t.%s = any($1::%s[]) and %s", m->table,
                      sets, id->ident, id->type, condition);
    return keep(b);
}

/* The same outside a settle: under our epoch. "" where claims are not shown. */
static const char *fenced(struct build *b, const char *condition)
{
    const char *both = ob_arena_printf(b->map->arena, "%s and %s", condition, b->map->fence);
    b->failed = b->failed || !both;
    if (b->map->claims)
        return update(b, "", "", both ? both : "");
    ob_buf_reset(&b->buf);
    return "";
}

/* The highest number of a column, less one. Of a domain only the smallest type is certain. */
static const char *room_for_one(const struct pg_column *column)
{
    return strcmp(column->type, "integer") == 0  ? "2147483646"
           : strcmp(column->type, "bigint") == 0 ? "9223372036854775806"
                                                 : "32766";
}

/* The column stays at the highest number of its type: an overflow would fail the whole settle,
 * again and again (test_profile_extremes: test_attempts). */
static void add_attempt(struct build *b, const char *by)
{
    if (!has(b, OB_MAP_ATTEMPTS))
        return;
    if (b->buf.n > 0)
        ob_buf_c(&b->buf, ", ");
    ob_buf_printf(&b->buf, "%s = least(", name_of(b, OB_MAP_ATTEMPTS));
    attempts(b);
    ob_buf_printf(&b->buf, ", %s) + %s", room_for_one(b->map->col[OB_MAP_ATTEMPTS]), by);
}

/* A reason, as long as its column takes it: one that does not fit would fail the whole settle. */
static void set_error(struct build *b, const char *value)
{
    const struct pg_column *c = b->map->col[OB_MAP_ERROR];
    const char *cut = value;
    if (c && c->max_chars > 0)
        cut = ob_arena_printf(b->map->arena, "left(%s, %lld)", value, (long long)c->max_chars);
    b->failed = b->failed || !cut;
    set(b, OB_MAP_ERROR, cut ? cut : "");
}

static const char *dead_error(struct build *b)
{
    const struct ob_mapping *c = b->map->conf;
    const char *exhausted =
        c->error_exhausted ? ob_pg_literal(b->map->arena, c->error_exhausted) : "u.reason";
    const char *rejected =
        c->error_rejected ? ob_pg_literal(b->map->arena, c->error_rejected) : "u.reason";
    const char *out =
        exhausted && rejected
            ? ob_arena_printf(b->map->arena, "case when u.exhausted then %s else %s end", exhausted,
                              rejected)
            : NULL;
    b->failed = b->failed || !out;
    return out ? out : "";
}

static void build_dead(struct build *b)
{
    struct pg_map *m = b->map;
    if (m->conf->dead_attempts > 0) {
        ob_buf_printf(&b->buf, "%s = ", name_of(b, OB_MAP_ATTEMPTS));
        attempt_limit(b);
    } else {
        add_attempt(b, "u.exhausted::int");
    }
    if (m->conf->on_permanent == OB_MAP_MARK_PROCESSED)
        done_sets(b);
    else
        set(b, OB_MAP_STATUS, m->v_failed ? m->v_failed : m->v_pending ? m->v_pending : "null");
    set_error(b, dead_error(b));
    set(b, OB_MAP_ERROR_AT, "now()");
    unlock(b);
    m->sql[PG_MAP_DEAD] = update(b, "$2::text[], $3::bool[]", "reason, exhausted", m->ours);
}

static void build_release(struct build *b)
{
    struct pg_map *m = b->map;
    set(b, OB_MAP_ATTEMPTS, "0");
    if (m->conf->error_holds || !m->dead_hides)
        set(b, OB_MAP_ERROR, "null");
    if (m->v_pending)
        set(b, OB_MAP_STATUS, m->v_pending);
    if (has(b, OB_MAP_DONE) && m->conf->on_permanent == OB_MAP_MARK_PROCESSED) {
        set(b, OB_MAP_DONE, m->col[OB_MAP_DONE]->kind == PG_KIND_BOOL ? "false" : "null");
        set(b, OB_MAP_DONE_AT, "null");
    }
    unlock(b);
    m->sql[PG_MAP_RELEASE] = update(b, "", "", "true");
}

static void build_marks(struct build *b)
{
    struct pg_map *m = b->map;
    done_sets(b);
    if (m->conf->error_clear)
        set(b, OB_MAP_ERROR, "null");
    unlock(b);
    m->sql[PG_MAP_DONE] = update(b, "", "", m->ours);

    add_attempt(b, "1");
    if (m->conf->error_on == OB_MAP_ERROR_RETRY) {
        set_error(b, "u.reason");
        set(b, OB_MAP_ERROR_AT, "now()");
    }
    if (m->v_claimed)
        set(b, OB_MAP_STATUS, m->v_pending);
    unlock(b);
    m->sql[PG_MAP_RETRY] = update(b, "$2::text[]", "reason", m->ours);

    if (m->v_claimed)
        set(b, OB_MAP_STATUS, m->v_pending);
    unlock(b);
    m->sql[PG_MAP_BACK] = fenced(b, m->ours);
    if (m->claims)
        ob_buf_c(&b->buf, claim_sets(b));
    m->sql[PG_MAP_AGAIN] = fenced(b, m->ready);
    build_dead(b);
    build_release(b);
}

static void build_pending(struct build *b)
{
    struct pg_map *m = b->map;
    ob_buf_printf(&b->buf, "%s t where %s", m->table, m->ready);
    not_aside(b);
    const char *rows = keep(b);
    ob_buf_printf(&b->buf, "select (select count(*) from (select 1 from %s limit $1::bigint) n)",
                  rows);
    if (has(b, OB_MAP_CREATED)) {
        ob_buf_printf(&b->buf,
                      ", (select case when isfinite(t.%s) then greatest(0, extract(epoch from "
                      "clock_timestamp() - t.%s) * 1000)::bigint else 0 end from %s order by ",
                      name_of(b, OB_MAP_CREATED), name_of(b, OB_MAP_CREATED), rows);
        order_by(b, "t");
        ob_buf_c(&b->buf, " limit 1)");
    } else {
        ob_buf_c(&b->buf, ", null::bigint");
    }
    m->sql[PG_MAP_PENDING] = keep(b);
}

/* A number of each row, for people to go on from. The last years of a timestamp, and infinity, are
 * beyond the microseconds of a bigint. */
static void build_number(struct build *b)
{
    struct pg_map *m = b->map;
    if (has(b, OB_MAP_ORDER) && m->col[OB_MAP_ORDER]->kind == PG_KIND_INT)
        ob_buf_printf(&b->buf, "t.%s::bigint", name_of(b, OB_MAP_ORDER));
    else if (has(b, OB_MAP_CREATED))
        ob_buf_printf(&b->buf,
                      "greatest(-9200000000000000000, least(9200000000000000000, extract(epoch "
                      "from t.%s) * 1000000))::bigint",
                      name_of(b, OB_MAP_CREATED));
    else
        ob_buf_c(&b->buf, "null::bigint");
    m->number = keep(b);
}

/* The index that a pass can walk: its order, of what is not done. */
static void build_index(struct build *b)
{
    struct pg_map *m = b->map;
    m->index_on = name_of(b, has(b, OB_MAP_ORDER)     ? OB_MAP_ORDER
                             : has(b, OB_MAP_CREATED) ? OB_MAP_CREATED
                                                      : OB_MAP_ID);
    if (has(b, OB_MAP_STATUS) && m->v_claimed)
        ob_buf_printf(&b->buf, "%s IN (%s, %s)", name_of(b, OB_MAP_STATUS), m->v_pending,
                      m->v_claimed);
    else if (has(b, OB_MAP_STATUS))
        ob_buf_printf(&b->buf, "%s = %s", name_of(b, OB_MAP_STATUS), m->v_pending);
    else if (m->col[OB_MAP_DONE]->kind == PG_KIND_BOOL)
        ob_buf_printf(&b->buf, "%s = false", name_of(b, OB_MAP_DONE));
    else
        ob_buf_printf(&b->buf, "%s IS NULL", name_of(b, OB_MAP_DONE));
    if (m->conf->error_holds)
        ob_buf_printf(&b->buf, " AND %s IS NULL", name_of(b, OB_MAP_ERROR));
    m->index_where = keep(b);
}

bool ob_pg_map_build(struct pg_map *map)
{
    struct build b = {.map = map};
    ob_buf_init(&b.buf, 1 << 20);
    build_conditions(&b);
    order_by(&b, "t");
    map->order = keep(&b);
    order_by(&b, "o");
    map->order_o = keep(&b);
    order_each(&b, "t", " desc");
    map->order_desc = keep(&b);
    build_number(&b);
    build_index(&b);
    map->sql[PG_MAP_IDS] = build_ids(&b, false, false);
    map->sql[PG_MAP_IDS_NEXT] = build_ids(&b, false, true);
    map->sql[PG_MAP_SIDE] = build_ids(&b, true, false);
    map->sql[PG_MAP_SIDE_NEXT] = build_ids(&b, true, true);
    build_fetch(&b);
    build_marks(&b);
    build_pending(&b);
    ob_buf_clear(&b.buf);
    return !b.failed;
}
