/* SPDX-License-Identifier: Apache-2.0 */
/* admin - what people do to a PostgreSQL outbox, beside a relay that may be running. */
#include "source/postgres/admin.h"

#include "source/postgres/schema.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define TIMEOUT_MS 60000 /* people wait longer than a relay may */

static void admin_close(struct ob_admin *a)
{
    if (!a)
        return;
    ob_pg_close(&a->db);
    ob_pg_map_close(a->map);
    ob_pg_tail_free(a->tail);
    ob_buf_clear(&a->sql);
    for (size_t i = 0; i < PG_FILTER_MAX; i++)
        ob_buf_clear(&a->text[i]);
    free(a->pipeline);
    free(a);
}

/* Connects nowhere yet. */
static enum ob_status admin_open(const char *pipeline, const void *conf,
                                 const struct ob_clock *clock, struct ob_admin **out,
                                 struct ob_err *err)
{
    struct ob_admin *a = calloc(1, sizeof(*a));
    if (a) {
        a->conf = conf;
        a->pipeline = strdup(pipeline);
        a->clock = clock ? clock : &ob_clock_system;
        ob_buf_init(&a->sql, 65536);
        for (size_t i = 0; i < PG_FILTER_MAX; i++)
            ob_buf_init(&a->text[i], 1 << 20);
    }
    if (!a || !a->pipeline) {
        admin_close(a);
        return ob_err_set(err, OB_DOWN, "no memory");
    }
    *out = a;
    return OB_OK;
}

enum ob_status ob_pg_admin_connect(struct ob_admin *a, struct ob_err *err)
{
    if (a->db.c && PQstatus(a->db.c) == CONNECTION_OK)
        return OB_OK;
    ob_pg_close(&a->db);
    /* The system's clock: a test's may stand still, and a deadline would never come. */
    return ob_pg_connect(&a->db, a->conf->dsn, "outbox admin", false, &ob_clock_system, TIMEOUT_MS,
                         err);
}

enum ob_status ob_pg_admin_need(struct ob_admin *a, struct ob_err *err)
{
    enum ob_status st = ob_pg_admin_connect(a, err);
    return st == OB_OK ? ob_pg_schema_need(&a->db, err) : st;
}

static enum ob_status schema(struct ob_admin *a, bool dry, struct ob_buf *out, unsigned *changed,
                             struct ob_err *err)
{
    enum ob_status st = ob_pg_admin_connect(a, err);
    return st == OB_OK ? ob_pg_schema_migrate(&a->db, dry, out, changed, err) : st;
}

/* ---- statements with a filter ---- */

size_t ob_pg_where_text(struct pg_where *w, const char *z)
{
    w->p[w->n] = PG_TEXT(z);
    return ++w->n;
}

size_t ob_pg_where_num(struct pg_where *w, int64_t v)
{
    snprintf(w->numbers[w->n], sizeof(w->numbers[0]), "%" PRId64, v);
    w->p[w->n] = PG_TEXT(w->numbers[w->n]);
    return ++w->n;
}

/* As LIKE says it. */
static void glob_to_like(struct ob_buf *out, const char *glob)
{
    ob_buf_reset(out);
    for (const char *p = glob; *p; p++) {
        bool literal = *p == '\\' && p[1];
        if (literal)
            p++;
        if (!literal && (*p == '*' || *p == '?')) {
            ob_buf_char(out, *p == '*' ? '%' : '_');
            continue;
        }
        if (*p == '%' || *p == '_' || *p == '\\')
            ob_buf_char(out, '\\');
        ob_buf_char(out, *p);
    }
}

void ob_pg_where_glob(struct ob_admin *a, struct pg_where *w, const char *expression,
                      const char *glob)
{
    struct ob_buf *text = &a->text[w->n_text++];
    glob_to_like(text, glob);
    ob_buf_printf(&a->sql, " and %s like $%zu", expression, ob_pg_where_text(w, ob_buf_z(text)));
}

static void add_time(struct ob_admin *a, struct pg_where *w, const char *time, const char *op,
                     int64_t us)
{
    ob_buf_printf(&a->sql, " and %s %s to_timestamp($%zu::numeric / 1000000)", time, op,
                  ob_pg_where_num(w, us));
}

void ob_pg_where_filter(struct ob_admin *a, struct pg_where *w, const struct ob_filter *f,
                        const char *t, const char *key, const char *time)
{
    char column[64];
    if (f->id) {
        size_t p = ob_pg_where_text(w, f->id);
        ob_buf_printf(&a->sql, " and %s.id::text in ($%zu, lower($%zu))", t, p, p);
    }
    snprintf(column, sizeof(column), "%s.type", t);
    if (f->type)
        ob_pg_where_glob(a, w, column, f->type);
    if (f->key)
        ob_pg_where_glob(a, w, key, f->key);
    snprintf(column, sizeof(column), "coalesce(%s.tenant, '')", t);
    if (f->tenant)
        ob_pg_where_glob(a, w, column, f->tenant);
    if (f->since_us)
        add_time(a, w, time, ">=", f->since_us);
    if (f->until_us)
        add_time(a, w, time, "<", f->until_us);
}

static enum ob_status pause_pipeline(struct ob_admin *a, bool paused, struct ob_err *err)
{
    enum ob_status st = ob_pg_admin_need(a, err);
    const struct pg_param p[] = {PG_TEXT(a->pipeline), PG_TEXT(paused ? "t" : "f")};
    if (st == OB_OK)
        st = ob_pg_query(&a->db,
                         "insert into outbox.pipeline (name, paused) values ($1, $2::bool) "
                         "on conflict (name) do update set paused = excluded.paused",
                         p, 2, false, NULL, err);
    return st;
}

const struct ob_source_admin ob_pg_admin = {
    .open = admin_open,
    .close = admin_close,
    .schema = schema,
    .schema_print = ob_pg_schema_print,
    .profile_print = ob_pg_profile_print,
    .profile_apply = ob_pg_profile_apply,
    .check = ob_pg_check,
    .emit = ob_pg_admin_emit,
    .events = ob_pg_events,
    .tail = ob_pg_tail,
    .dead_list = ob_pg_dead_list,
    .dead_do = ob_pg_dead_do,
    .dlt_done = ob_pg_dlt_done,
    .pause = pause_pipeline,
    .status = ob_pg_admin_status,
};
