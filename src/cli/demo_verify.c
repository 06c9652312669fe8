/* SPDX-License-Identifier: Apache-2.0 */
/* demo_verify - reads the database and the output of a demo and compares them. */
#include "cli/demo_verify.h"

#include "cli/cli.h"
#include "core/arena.h"
#include "core/jscan.h"

#include <dirent.h>
#include <sqlite3.h>
#include <stdlib.h>

#define MAX_OUTPUT ((size_t)1 << 30)
#define MAX_FILES 64

struct committed {
    const char *id;
    uint64_t seq, seen;
    uint64_t payload; /* hash of its bytes */
    struct ob_str key;
    uint32_t rank; /* of its key, from 0 */
};

struct verify {
    struct ob_demo_report *r;
    struct ob_arena *arena;
    struct committed *events; /* by id */
    size_t n, cap;
    uint64_t *last; /* by rank: highest number delivered for the first time */
};

static void problem(struct verify *v, uint64_t *counter, const char *what, struct ob_str id)
{
    ++*counter;
    if (!v->r->problem[0])
        snprintf(v->r->problem, sizeof v->r->problem, "%s: %.*s", what,
                 (int)(id.n > 80 ? 80 : id.n), id.p ? id.p : "");
}

/* -- the database -- */

static struct ob_str column(sqlite3_stmt *st, int i)
{
    return (struct ob_str){sqlite3_column_blob(st, i), (size_t)sqlite3_column_bytes(st, i)};
}

static enum ob_status add_event(struct verify *v, sqlite3_stmt *st, struct ob_err *err)
{
    if (v->n == v->cap) {
        size_t cap = v->cap ? v->cap * 2 : 1024;
        struct committed *events = realloc(v->events, cap * sizeof *events);
        if (!events)
            return ob_err_set(err, OB_FATAL, "no memory for %zu events", cap);
        v->events = events;
        v->cap = cap;
    }
    struct ob_str id = ob_arena_copy(v->arena, column(st, 1)), payload = column(st, 3);
    struct ob_str key = ob_arena_copy(v->arena, column(st, 4));
    if (!id.p || !key.p)
        return ob_err_set(err, OB_FATAL, "no memory for the ids");
    v->events[v->n++] = (struct committed){.seq = (uint64_t)sqlite3_column_int64(st, 0),
                                           .id = id.p,
                                           .rank = (uint32_t)sqlite3_column_int64(st, 2) - 1,
                                           .payload = ob_hash64(payload.p, payload.n),
                                           .key = key};
    if (v->events[v->n - 1].rank >= v->r->keys)
        v->r->keys = (uint64_t)v->events[v->n - 1].rank + 1;
    return OB_OK;
}

static enum ob_status each_row(sqlite3 *db, const char *sql,
                               enum ob_status (*fn)(struct verify *, sqlite3_stmt *,
                                                    struct ob_err *),
                               struct verify *v, struct ob_err *err)
{
    sqlite3_stmt *st = NULL;
    enum ob_status status = OB_OK;
    int rc = sqlite3_prepare_v2(db, sql, -1, &st, NULL);
    while (rc == SQLITE_OK || rc == SQLITE_ROW) {
        rc = sqlite3_step(st);
        if (rc != SQLITE_ROW)
            break;
        if ((status = fn(v, st, err)) != OB_OK)
            break;
    }
    if (status == OB_OK && rc != SQLITE_DONE)
        status = ob_err_set(err, OB_FATAL, "database: %s", sqlite3_errmsg(db));
    sqlite3_finalize(st);
    return status;
}

static enum ob_status count_orders(struct verify *v, sqlite3_stmt *st, struct ob_err *err)
{
    (void)err;
    v->r->orders = (uint64_t)sqlite3_column_int64(st, 0);
    return OB_OK;
}

static enum ob_status add_astray(struct verify *v, sqlite3_stmt *st, struct ob_err *err)
{
    (void)err;
    problem(v, &v->r->astray, "changes and events differ, order", column(st, 0));
    return OB_OK;
}

static enum ob_status read_db(struct verify *v, const char *path, struct ob_err *err)
{
    sqlite3 *db = NULL;
    enum ob_status st;
    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL) != SQLITE_OK) {
        st = ob_err_set(err, OB_FATAL, "%s: %s", path, sqlite3_errmsg(db));
        goto done;
    }
    sqlite3_busy_timeout(db, 10000);
    st = each_row(db, "SELECT count(*) FROM orders", count_orders, v, err);
    if (st == OB_OK)
        st = each_row(db,
                      "SELECT seq, id, dense_rank() OVER (ORDER BY coalesce(key, aggregate_id)),"
                      " payload, coalesce(key, aggregate_id) FROM outbox_event ORDER BY id",
                      add_event, v, err);
    /* Every change of an order was written with one event in the same transaction. */
    if (st == OB_OK)
        st = each_row(db,
                      "WITH e AS (SELECT CAST(aggregate_id AS INTEGER) AS id, count(*) AS n"
                      "           FROM outbox_event GROUP BY 1)"
                      " SELECT o.id FROM orders o LEFT JOIN e ON e.id = o.id"
                      " WHERE o.version IS NOT e.n"
                      " UNION ALL SELECT e.id FROM e LEFT JOIN orders o ON o.id = e.id"
                      " WHERE o.id IS NULL",
                      add_astray, v, err);
    v->r->committed = v->n;
done:
    sqlite3_close(db);
    return st;
}

/* -- the output -- */

static int by_id(const void *a, const void *b)
{
    return strcmp(((const struct committed *)a)->id, ((const struct committed *)b)->id);
}

struct line {
    struct ob_str id, key, value;
};

/* The fields of a line. False: it is no JSON object with an id. */
static bool read_line(struct ob_str text, struct line *out)
{
    struct ob_jscan s;
    struct ob_jtok tok;
    struct ob_err err;
    enum ob_jtype type;
    *out = (struct line){0};
    ob_jscan_init(&s, text);
    if (ob_jscan_next(&s, &tok, &err) != OB_OK || tok.type != OB_J_OBJECT)
        return false;
    for (;;) {
        struct ob_str name, raw;
        if (ob_jscan_next(&s, &tok, &err) != OB_OK)
            return false;
        if (tok.type == OB_J_OBJECT_END)
            break;
        name = tok.text;
        if (ob_jscan_value(&s, &raw, &type, &err) != OB_OK)
            return false;
        struct ob_str inside = {raw.p + 1, raw.n >= 2 ? raw.n - 2 : 0};
        if (ob_str_eqc(name, "id") && type == OB_J_STRING)
            out->id = inside;
        else if (ob_str_eqc(name, "key") && type == OB_J_STRING)
            out->key = inside;
        else if (ob_str_eqc(name, "value"))
            out->value = raw;
    }
    return ob_jscan_next(&s, &tok, &err) == OB_OK && tok.type == OB_J_END && out->id.n > 0;
}

static void check_line(struct verify *v, struct ob_str text)
{
    struct line line;
    char id[128];
    v->r->lines++;
    if (!read_line(text, &line) || line.id.n >= sizeof id) {
        problem(v, &v->r->damaged, "damaged line", text);
        return;
    }
    memcpy(id, line.id.p, line.id.n);
    id[line.id.n] = 0;
    struct committed want = {.id = id};
    struct committed *e = v->n ? bsearch(&want, v->events, v->n, sizeof *v->events, by_id) : NULL;
    if (!e) {
        problem(v, &v->r->uncommitted, "never committed", line.id);
        return;
    }
    if (ob_hash64(line.value.p, line.value.n) != e->payload || !ob_str_eq(line.key, e->key))
        problem(v, &v->r->altered, "not what was committed", line.id);
    if (e->seen++) {
        v->r->repeats++;
        return;
    }
    v->r->delivered++;
    if (e->seq < v->last[e->rank])
        problem(v, &v->r->out_of_order, "out of order", line.id);
    else
        v->last[e->rank] = e->seq;
}

static enum ob_status check_file(struct verify *v, const char *path, struct ob_err *err)
{
    struct ob_buf buf;
    enum ob_status st = ob_cli_read_file(path, MAX_OUTPUT, &buf, err);
    if (st != OB_OK)
        return st;
    for (size_t at = 0; at < buf.n;) {
        const char *nl = memchr(buf.p + at, '\n', buf.n - at);
        size_t n = nl ? (size_t)(nl - buf.p) - at : buf.n - at;
        struct ob_str text = {buf.p + at, n};
        if (nl)
            check_line(v, text);
        else
            problem(v, &v->r->damaged, "line without its end", text);
        at += n + 1;
    }
    ob_buf_clear(&buf);
    return OB_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Files beside the sink's file whose names begin with its name, by name: older ones first. */
static enum ob_status check_files(struct verify *v, const char *out, struct ob_err *err)
{
    const char *slash = strrchr(out, '/'), *base = slash ? slash + 1 : out;
    char *dir = slash ? strndup(out, (size_t)(slash - out)) : strdup(".");
    char *names[MAX_FILES];
    size_t n = 0;
    enum ob_status st = OB_OK;
    DIR *d = dir ? opendir(dir) : NULL;
    for (struct dirent *e; d && (e = readdir(d)) && n < MAX_FILES;)
        if (strncmp(e->d_name, base, strlen(base)) == 0 && strcmp(e->d_name, base) != 0 &&
            !strstr(e->d_name, ".lock"))
            names[n++] = ob_arena_printf(v->arena, "%s/%s", dir, e->d_name);
    qsort(names, n, sizeof *names, by_name);
    for (size_t i = 0; i < n && st == OB_OK; i++)
        st = names[i] ? check_file(v, names[i], err) : ob_err_set(err, OB_FATAL, "no memory");
    if (st == OB_OK)
        st = check_file(v, out, err);
    if (d)
        closedir(d);
    free(dir);
    return st;
}

enum ob_status ob_demo_verify(const char *db, const char *out, struct ob_demo_report *r,
                              struct ob_err *err)
{
    *r = (struct ob_demo_report){0};
    struct verify v = {.r = r, .arena = ob_arena_new(64 << 10, 0)};
    enum ob_status st = v.arena ? read_db(&v, db, err) : ob_err_set(err, OB_FATAL, "no memory");
    if (st != OB_OK)
        goto done;
    v.last = calloc(r->keys + 1, sizeof *v.last);
    if (!v.last) {
        st = ob_err_set(err, OB_FATAL, "no memory");
        goto done;
    }
    if (v.n)
        qsort(v.events, v.n, sizeof *v.events, by_id);
    st = check_files(&v, out, err);
    for (size_t i = 0; st == OB_OK && i < v.n; i++)
        if (!v.events[i].seen)
            problem(&v, &r->missing, "not delivered", ob_str_c(v.events[i].id));
done:
    free(v.last);
    free(v.events);
    ob_arena_unref(v.arena);
    return st;
}

bool ob_demo_holds(const struct ob_demo_report *r)
{
    return r->orders > 0 && r->committed > 0 && r->delivered == r->committed && !r->missing &&
           !r->uncommitted && !r->out_of_order && !r->altered && !r->damaged && !r->astray;
}
