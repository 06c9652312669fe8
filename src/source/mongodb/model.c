/* SPDX-License-Identifier: Apache-2.0 */
/* model - a mapping of documents, checked, and the filters, projections and updates that follow
 * from it. They are written as JSON once and sent as BSON many times. All times are the server's
 * ($$NOW).
 *
 * Expressions are guarded against fields of a wrong type: one odd document must not make a query
 * fail for all (tests/e2e/test_mongodb_hostile.py). */
#include "event/mongo_doc.h"
#include "event/mongo_native.h"
#include "source/mongodb/mongo.h"

#include "core/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static bool name_ok(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n <= 120 && name[0] != '.' && name[n - 1] != '.' && !strpbrk(name, "$\"\\") &&
           !strstr(name, "..");
}

/* Text in quotes, in the arena. NULL: no memory. */
static const char *quoted(struct ob_arena *arena, const char *text)
{
    struct ob_buf b;
    ob_buf_init(&b, 4096);
    ob_buf_char(&b, '"');
    ob_json_escape(&b, ob_str_c(text));
    ob_buf_char(&b, '"');
    struct ob_str copy = {0};
    if (!b.failed)
        copy = ob_arena_copy(arena, ob_buf_view(&b));
    ob_buf_clear(&b);
    return copy.p;
}

static enum ob_status take_fields(struct mongo_model *m, struct ob_err *err)
{
    for (int role = 0; role < OB_MAP_N; role++) {
        const char *name = m->conf->col[role];
        if (!name || !*name)
            continue;
        size_t n = strlen(name); /* every field of a document is optional */
        m->f[role] = ob_arena_copy(m->arena, (struct ob_str){name, n - (name[n - 1] == '?')}).p;
        if (!m->f[role])
            return ob_err_set(err, OB_DOWN, "no memory");
        if (!name_ok(m->f[role]))
            return ob_err_set(err, OB_FATAL, "mapping.%s: '%s' cannot be a field's name",
                              ob_map_role_name((enum ob_map_role)role), name);
    }
    static const enum ob_map_role needed[] = {OB_MAP_ID,          OB_MAP_TYPE,   OB_MAP_PAYLOAD,
                                              OB_MAP_CREATED,     OB_MAP_STATUS, OB_MAP_LOCKED_BY,
                                              OB_MAP_LOCKED_UNTIL};
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++)
        if (!m->f[needed[i]])
            return ob_err_set(err, OB_FATAL, "mapping.%s: documents need such a field",
                              ob_map_role_name(needed[i]));
    if (m->f[OB_MAP_DONE])
        return ob_err_set(err, OB_FATAL,
                          "mapping.done: documents show what became of them by `status`");
    return OB_OK;
}

static enum ob_status take_values(struct mongo_model *m, struct ob_err *err)
{
    const struct {
        const char *name;
        const struct ob_opt_list *list;
        const char **out;
    } values[] = {{"status_pending", &m->conf->pending, &m->pending},
                  {"status_claimed", &m->conf->claimed, &m->claimed},
                  {"status_done", &m->conf->done, &m->done},
                  {"status_failed", &m->conf->failed, &m->failed}};
    for (size_t i = 0; i < 4; i++) {
        if (values[i].list->n == 0)
            return ob_err_set(err, OB_FATAL, "mapping.%s: documents need such a status",
                              values[i].name);
        *values[i].out = values[i].list->values[0];
        for (size_t k = 0; k < i; k++)
            if (strcmp(*values[k].out, *values[i].out) == 0)
                return ob_err_set(err, OB_FATAL, "mapping.%s: '%s' is another status already",
                                  values[i].name, *values[i].out);
    }
    return OB_OK;
}

static void take_order(struct mongo_model *m)
{
    bool versioned = m->f[OB_MAP_ENTITY_VERSION] && m->f[OB_MAP_AGGREGATE_ID] && !m->native;
    m->entity = versioned          ? m->f[OB_MAP_AGGREGATE_ID]
                : m->f[OB_MAP_KEY] ? m->f[OB_MAP_KEY]
                                   : m->f[OB_MAP_AGGREGATE_ID];
    m->order = m->native || !m->f[OB_MAP_ENTITY_VERSION] ? m->f[OB_MAP_ORDER]
                                                         : m->f[OB_MAP_ENTITY_VERSION];
    if (!m->order)
        m->order = m->f[OB_MAP_CREATED];
    m->first = m->native ? m->order : m->f[OB_MAP_CREATED];
}

static bool take_names(struct mongo_model *m, const char *events)
{
    m->events = ob_arena_copy(m->arena, ob_str_c(events)).p;
    m->lease = ob_arena_printf(m->arena, "%s_lease", events);
    m->parked = ob_arena_printf(m->arena, "%s_parked", events);
    m->held = ob_arena_printf(m->arena, "%s_held", events);
    m->dead = ob_arena_printf(m->arena, "%s_dead", events);
    return m->events && m->lease && m->parked && m->held && m->dead;
}

/* ---- expressions ---- */

#define NUMBER "{\"$cond\":[{\"$isNumber\":\"$%s\"},\"$%s\",%" PRId64 "]}"

static bool build_numbers(struct mongo_model *m)
{
    const char *attempts = m->f[OB_MAP_ATTEMPTS], *max = m->f[OB_MAP_MAX_ATTEMPTS];
    m->x_attempts = attempts ? ob_arena_printf(m->arena, NUMBER, attempts, attempts, (int64_t)0)
                             : "{\"$literal\":0}";
    m->x_max = max ? ob_arena_printf(m->arena, NUMBER, max, max, m->dead_attempts)
                   : ob_arena_printf(m->arena, "{\"$literal\":%" PRId64 "}", m->dead_attempts);
    m->x_dead = ob_arena_printf(m->arena,
                                "{\"$and\":[{\"$eq\":[\"$%s\",{\"$literal\":%s}]},"
                                "{\"$gte\":[%s,%s]}]}",
                                m->f[OB_MAP_STATUS], quoted(m->arena, m->failed),
                                attempts ? m->x_attempts : "{\"$literal\":1}",
                                attempts ? m->x_max : "{\"$literal\":0}");
    return m->x_attempts && m->x_max && m->x_dead;
}

/* When a failed document's back-off is over. Attempts are bounded before they become a power. */
static const char *due(struct mongo_model *m, const struct ob_backoff *b)
{
    const char *at = m->f[OB_MAP_ERROR_AT];
    if (!at || !b || b->first_ms == 0)
        return "true";
    return ob_arena_printf(
        m->arena,
        "{\"$or\":[{\"$ne\":[{\"$type\":\"$%s\"},\"date\"]},{\"$lte\":[\"$%s\",{\"$subtract\":[\"$$"
        "NOW\","
        "{\"$min\":[%" PRIu32 ",{\"$multiply\":[%" PRIu32 ",{\"$pow\":[%u.%02u,{\"$min\":[64,"
        "{\"$max\":[0,{\"$subtract\":[%s,1]}]}]}]}]}]}]}]}]}",
        at, at, b->max_ms, b->first_ms, b->factor_pct / 100, b->factor_pct % 100, m->x_attempts);
}

static bool build_ready(struct mongo_model *m, const struct ob_backoff *retry)
{
    const char *wait = due(m, retry), *status = m->f[OB_MAP_STATUS],
               *until = m->f[OB_MAP_LOCKED_UNTIL];
    if (!wait)
        return false;
    m->x_ready = ob_arena_printf(
        m->arena,
        "{\"$switch\":{\"branches\":["
        "{\"case\":{\"$eq\":[\"$%s\",{\"$literal\":%s}]},\"then\":true},"
        "{\"case\":{\"$eq\":[\"$%s\",{\"$literal\":%s}]},\"then\":{\"$and\":[{\"$not\":[%s]},%s]}},"
        "{\"case\":{\"$eq\":[\"$%s\",{\"$literal\":%s}]},\"then\":{\"$or\":[{\"$ne\":[{\"$type\":"
        "\"$%s\"},\"date\"]},{\"$lt\":[\"$%s\",\"$$NOW\"]}]}}],\"default\":false}}",
        status, quoted(m->arena, m->pending), status, quoted(m->arena, m->failed), m->x_dead, wait,
        status, quoted(m->arena, m->claimed), until, until);
    return m->x_ready != NULL;
}

/* Is one of these fields the other, or inside it? A projection cannot have both. */
static bool within(const char *a, const char *b)
{
    size_t n = strlen(a), k = strlen(b), least = n < k ? n : k;
    return strncmp(a, b, least) == 0 && (n == k || (n > k ? a : b)[least] == '.');
}

/* A key that is too large makes its event dead (event/limits.h), so that it needs no order; without
 * its value a page of such documents fits into memory (tests/e2e/test_mongodb_limits.py). */
bool ob_mongo_small_entity(const struct mongo_model *m, const char *in, struct ob_buf *out)
{
    if (!m->entity)
        ob_buf_c(out, "{\"$literal\":null}");
    else
        ob_buf_printf(out,
                      "{\"$cond\":[{\"$gt\":[{\"$bsonSize\":{\"v\":\"$%s%s\"}},%" PRId64
                      "]},null,\"$%s%s\"]}",
                      in, m->entity, m->limits.text + 64, in, m->entity);
    return !out->failed;
}

static bool build_filters(struct mongo_model *m)
{
    struct ob_buf small;
    ob_buf_init(&small, 4096);
    if (!ob_mongo_small_entity(m, "", &small)) {
        ob_buf_clear(&small);
        return false;
    }
    const char *entity = ob_buf_z(&small);
    const char *status = m->f[OB_MAP_STATUS], *pending = quoted(m->arena, m->pending),
               *failed = quoted(m->arena, m->failed), *claimed = quoted(m->arena, m->claimed);
    m->q_pending = ob_mongo_bson("{\"%s\":%s}", status, pending);
    m->q_claimed = ob_mongo_bson("{\"%s\":%s}", status, claimed);
    m->q_failed = ob_mongo_bson("{\"%s\":%s}", status, failed);
    /* Dead ones are left out by the server: an entity may have more of them than a look reads. */
    m->q_open = ob_mongo_bson("{\"%s\":{\"$in\":[%s,%s,%s]},\"$expr\":{\"$not\":[%s]}}", status,
                              pending, failed, claimed, m->x_dead);
    m->q_alive =
        ob_mongo_bson("{\"%s\":{\"$in\":[%s,%s]}%s%s%s}", status, pending, failed,
                      m->f[OB_MAP_ATTEMPTS] ? ",\"$expr\":{\"$not\":[" : "",
                      m->f[OB_MAP_ATTEMPTS] ? m->x_dead : "", m->f[OB_MAP_ATTEMPTS] ? "]}" : "");
    m->q_ready = ob_mongo_bson("{\"$expr\":%s}", m->x_ready);
    m->sort_page = ob_mongo_bson("{\"%s\":1}", m->first);
    m->sort_order = bson_new();
    if (m->entity)
        BSON_APPEND_INT32(m->sort_order, m->entity, 1);
    BSON_APPEND_INT32(m->sort_order, m->order, 1);
    m->page = ob_mongo_bson("{\"" PAGE_ENTITY "\":%s,\"%s\":1}", entity, m->first);
    m->page_ready = ob_mongo_bson("{\"" PAGE_READY "\":%s}", m->x_ready);
    if (m->page_ready)
        bson_concat(m->page_ready, m->page);
    m->page_locks = bson_new();
    BSON_APPEND_INT32(m->page_locks, m->f[OB_MAP_LOCKED_BY], 1);
    if (!within(m->f[OB_MAP_LOCKED_BY], m->first))
        BSON_APPEND_INT32(m->page_locks, m->first, 1);
    m->meta = ob_mongo_bson("{\"" META_ENTITY "\":%s,\"" META_READY "\":%s,\"" META_DEAD
                            "\":%s,\"" META_OWNER "\":\"$%s\",\"" META_STATUS
                            "\":\"$%s\",\"" META_SIZE "\":{\"$bsonSize\":\"$$ROOT\"}}",
                            entity, m->x_ready, m->x_dead, m->f[OB_MAP_LOCKED_BY], status);
    ob_buf_clear(&small);
    return m->q_pending && m->q_claimed && m->q_failed && m->q_open && m->q_alive && m->q_ready &&
           m->sort_page && m->page && m->page_ready && m->meta;
}

/* ---- locks ----
 *
 * A claim that is given back leaves the document as it was: pending, or failed
 * (tests/e2e/test_mongodb_rows.py::test_an_outage_leaves_documents_as_they_were). Which of the
 * two cannot be told from its attempts, since people make failed ones pending; and a document of
 * others has no field for it. So the last bit of `locked_until`, in milliseconds, says it: 1 for
 * failed. It is written by the claim itself and kept by renewals, so that a crash does not lose it
 * either (test_a_take_over_leaves_documents_as_they_were). */

static const char *last_bit(struct mongo_model *m)
{
    const char *until = m->f[OB_MAP_LOCKED_UNTIL];
    return ob_arena_printf(
        m->arena,
        "{\"$cond\":[{\"$eq\":[{\"$type\":\"$%s\"},\"date\"]},{\"$abs\":{\"$mod\":"
        "[{\"$toLong\":\"$%s\"},2]}},0]}",
        until, until);
}

/* The bit of a document that is being claimed. What another worker left locked counts as failed if
 * an attempt was spent. */
static const char *claimed_from(struct mongo_model *m, const char *owner)
{
    const char *status = m->f[OB_MAP_STATUS], *kept = last_bit(m);
    return kept ? ob_arena_printf(m->arena,
                                  "{\"$switch\":{\"branches\":["
                                  "{\"case\":{\"$eq\":[\"$%s\",{\"$literal\":%s}]},\"then\":0},"
                                  "{\"case\":{\"$eq\":[\"$%s\",{\"$literal\":%s}]},\"then\":1},"
                                  "{\"case\":{\"$eq\":[\"$%s\",{\"$literal\":%s}]},\"then\":%s}],"
                                  "\"default\":{\"$cond\":[{\"$gt\":[%s,0]},1,0]}}}",
                                  status, quoted(m->arena, m->pending), status,
                                  quoted(m->arena, m->failed), m->f[OB_MAP_LOCKED_BY],
                                  quoted(m->arena, owner), kept, m->x_attempts)
                : NULL;
}

/* When a lock that begins now ends: a millisecond later where the bit wants it. */
static const char *lock_end(struct mongo_model *m, const char *bit)
{
    int64_t lease = m->conf->lease_ms;
    return ob_arena_printf(m->arena,
                           "{\"$add\":[\"$$NOW\",%" PRId64 ",{\"$mod\":[{\"$add\":[{\"$toLong\":"
                           "\"$$NOW\"},%" PRId64 ",%s]},2]}]}",
                           lease, lease, bit);
}

static bool build_updates(struct mongo_model *m, const char *owner)
{
    const char *status = m->f[OB_MAP_STATUS], *by = m->f[OB_MAP_LOCKED_BY],
               *until = m->f[OB_MAP_LOCKED_UNTIL], *since = m->f[OB_MAP_CLAIMED_AT],
               *done_at = m->f[OB_MAP_DONE_AT], *error = m->f[OB_MAP_ERROR];
    const char *claimed_at = since ? ob_arena_printf(m->arena, ",\"%s\":\"$$NOW\"", since) : "";
    const char *published_at =
        done_at ? ob_arena_printf(m->arena, ",\"%s\":\"$$NOW\"", done_at) : "";
    const char *cleared =
        error && m->conf->error_clear ? ob_arena_printf(m->arena, ",\"%s\":null", error) : "";
    /* Of a document that has no byte to spare the fields of the lock are taken away: as nulls they
     * would make one larger that never had them. */
    const char *free_ = m->x_free = ob_arena_printf(
        m->arena, "{\"$cond\":[{\"$lte\":[{\"$bsonSize\":\"$$ROOT\"},%zu]},null,\"$$REMOVE\"]}",
        OB_MONGO_DOC_MAX - 1024);
    if (!claimed_at || !published_at || !cleared || !free_)
        return false;
    const char *had_failed = last_bit(m), *from = claimed_from(m, owner);
    const char *until_claim = from ? lock_end(m, from) : NULL,
               *until_renew = had_failed ? lock_end(m, had_failed) : NULL;
    if (!until_claim || !until_renew)
        return false;
    m->u_claim = ob_mongo_bson("[{\"$set\":{\"%s\":{\"$literal\":%s},\"%s\":{\"$literal\":%s},"
                               "\"%s\":%s%s}}]",
                               status, quoted(m->arena, m->claimed), by, quoted(m->arena, owner),
                               until, until_claim, claimed_at);
    m->u_renew = ob_mongo_bson("[{\"$set\":{\"%s\":%s}}]", until, until_renew);
    /* One with no attempt left does not become a failed one: that would be dead. */
    m->u_back = ob_mongo_bson(
        "[{\"$set\":{\"%s\":{\"$cond\":[{\"$ne\":[\"$%s\",{\"$literal\":%s}]},"
        "\"$%s\",{\"$cond\":[{\"$and\":[{\"$eq\":[%s,1]},{\"$lt\":[%s,%s]}]},"
        "{\"$literal\":%s},{\"$literal\":%s}]}]},\"%s\":%s,\"%s\":%s}}]",
        status, status, quoted(m->arena, m->claimed), status, had_failed, m->x_attempts, m->x_max,
        quoted(m->arena, m->failed), quoted(m->arena, m->pending), by, free_, until, free_);
    m->u_done =
        ob_mongo_bson("[{\"$set\":{\"%s\":{\"$literal\":%s},\"%s\":%s,\"%s\":%s%s%s}}]", status,
                      quoted(m->arena, m->done), by, free_, until, free_, published_at, cleared);
    return m->u_claim && m->u_renew && m->u_back && m->u_done;
}

enum ob_status ob_mongo_model_new(const struct mongo_conf *conf, const char *owner,
                                  const struct ob_backoff *retry, const struct ob_limits *limits,
                                  struct mongo_model **out, struct ob_err *err)
{
    struct ob_arena *arena = ob_arena_new(8192, (size_t)1 << 20);
    struct mongo_model *m = arena ? ob_arena_zalloc(arena, sizeof(*m)) : NULL;
    if (!m) {
        ob_arena_unref(arena);
        return ob_err_set(err, OB_DOWN, "no memory");
    }
    m->arena = arena;
    m->limits = limits ? *limits : ob_limits_default;
    m->native = !conf->mapping.table || !*conf->mapping.table;
    m->conf = m->native ? &ob_mongo_native : &conf->mapping;
    m->dead_attempts = m->conf->dead_attempts > 0 ? m->conf->dead_attempts : 1000000;
    const char *events = m->native ? conf->collection : conf->mapping.table;
    enum ob_status st = OB_OK;
    if (!name_ok(events) || strncmp(events, "system.", 7) == 0)
        st = ob_err_set(err, OB_FATAL, "'%s' cannot be a collection's name", events);
    if (st == OB_OK)
        st = take_fields(m, err);
    if (st == OB_OK)
        st = take_values(m, err);
    if (st == OB_OK) {
        take_order(m);
        if (!take_names(m, events) || !build_numbers(m) || !build_ready(m, retry) ||
            !build_filters(m) || !build_updates(m, owner))
            st = ob_err_set(err, OB_DOWN, "no memory for the statements of a mapping");
    }
    if (st != OB_OK) {
        ob_mongo_model_free(m);
        return st;
    }
    *out = m;
    return OB_OK;
}

void ob_mongo_model_free(struct mongo_model *m)
{
    if (!m)
        return;
    bson_t *all[] = {m->q_pending, m->q_claimed,  m->q_failed,   m->q_open,
                     m->q_alive,   m->q_ready,    m->sort_page,  m->sort_order,
                     m->page,      m->page_ready, m->page_locks, m->meta,
                     m->u_claim,   m->u_renew,    m->u_back,     m->u_done};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        bson_destroy(all[i]);
    ob_arena_unref(m->arena);
}
