/* SPDX-License-Identifier: Apache-2.0 */
/* admin - inside of what people do to a PostgreSQL outbox. */
#ifndef OB_SOURCE_POSTGRES_ADMIN_H
#define OB_SOURCE_POSTGRES_ADMIN_H

#include "source/postgres/mapping.h"
#include "source/postgres/pg.h"

#define PG_FILTER_MAX 8 /* parameters that a filter takes at most */

struct ob_admin {
    const struct pg_conf *conf;
    char *pipeline;
    const struct ob_clock *clock;
    struct pg_session db;
    struct pg_tail *tail;                   /* admin_tail.c */
    struct pg_map *map;                     /* of a mapped table, once it was looked at */
    struct ob_buf sql, text[PG_FILTER_MAX]; /* one statement and its texts */
};

/* A statement under construction: its text in a->sql, its parameters here. */
struct pg_where {
    struct pg_param p[PG_MAX_PARAMS];
    char numbers[PG_MAX_PARAMS][24];
    size_t n, n_text;
};

/* Who is shown events; more turns false when fn does. */
struct pg_show {
    bool payload;
    ob_event_fn *fn;
    void *user;
    bool more;
};

/* Which events of the native table. */
struct pg_span {
    int64_t after;
    const char *numbers; /* only these, an array; NULL: all */
    const char *visible; /* only what this snapshot shows; NULL: all */
    const struct ob_filter *filter;
};

/* Connected, whatever is there. */
enum ob_status ob_pg_admin_connect(struct ob_admin *a, struct ob_err *err) OB_MUST_CHECK;
/* Connected, with the newest schema. */
enum ob_status ob_pg_admin_need(struct ob_admin *a, struct ob_err *err) OB_MUST_CHECK;
/* Adds a parameter and gives its number ($1 is 1). The text must live until the statement ran. */
size_t ob_pg_where_text(struct pg_where *w, const char *z);
size_t ob_pg_where_num(struct pg_where *w, int64_t v);
/* Appends " and …" for what the filter names, of table alias t; key and time are expressions. */
void ob_pg_where_filter(struct ob_admin *a, struct pg_where *w, const struct ob_filter *f,
                        const char *t, const char *key, const char *time);
/* Appends " and expression like pattern" for a glob. */
void ob_pg_where_glob(struct ob_admin *a, struct pg_where *w, const char *expression,
                      const char *glob);

enum ob_status ob_pg_events(struct ob_admin *a, const struct ob_filter *f, bool payload,
                            ob_event_fn *fn, void *user, struct ob_err *err);
/* Shows a page in the order of numbers; *after moves with each that was shown. *n (or NULL): how
 * many there were. */
enum ob_status ob_pg_events_page(struct ob_admin *a, const struct pg_span *span, int64_t limit,
                                 struct pg_show *show, int64_t *after, int *n,
                                 struct ob_err *err) OB_MUST_CHECK;
/* admin_tail.c */
enum ob_status ob_pg_tail(struct ob_admin *a, uint64_t from, bool payload, ob_event_fn *fn,
                          void *user, struct ob_err *err);
void ob_pg_tail_free(struct pg_tail *t);
enum ob_status ob_pg_dead_list(struct ob_admin *a, const struct ob_filter *f, bool full,
                               ob_dead_fn *fn, void *user, struct ob_err *err);
enum ob_status ob_pg_dead_do(struct ob_admin *a, enum ob_dead_action action,
                             const struct ob_filter *f, bool dry, size_t *n, struct ob_err *err);
enum ob_status ob_pg_dlt_done(struct ob_admin *a, const int64_t *numbers, size_t n,
                              struct ob_err *err);
enum ob_status ob_pg_check(struct ob_admin *a,
                           void (*found)(void *user, bool ok, const char *what, const char *fix),
                           void *user, struct ob_err *err);
enum ob_status ob_pg_admin_emit(struct ob_admin *a, const struct ob_emit *events, size_t n,
                                char (*ids)[64], struct ob_err *err);
enum ob_status ob_pg_admin_status(struct ob_admin *a, struct ob_shard_status *out, size_t max,
                                  size_t *n, struct ob_err *err);

/* admin_map.c: the same for a mapped table. Connected already. */
bool ob_pg_admin_mapped(const struct ob_admin *a);
enum ob_status ob_pg_map_events(struct ob_admin *a, const struct ob_filter *f, bool payload,
                                ob_event_fn *fn, void *user, struct ob_err *err);
/* For admin_tail.c. Rows of id and number, in binary: the newest; or a page of those from number
 * `floor` on, behind the id in `last` unless that is empty. OB_REJECT: rows have no number. */
enum ob_status ob_pg_map_newest(struct ob_admin *a, int64_t limit, PGresult **out,
                                struct ob_err *err) OB_MUST_CHECK;
enum ob_status ob_pg_map_numbers(struct ob_admin *a, int64_t floor, struct ob_buf *last,
                                 int64_t limit, PGresult **out, struct ob_err *err) OB_MUST_CHECK;
/* Shows the events of these ids (an array), in the table's order. */
enum ob_status ob_pg_map_show(struct ob_admin *a, const char *ids, struct pg_show *show,
                              struct ob_err *err) OB_MUST_CHECK;
/* One event by its id, in the arena; *found: it is there. */
enum ob_status ob_pg_map_whole(struct ob_admin *a, const struct ob_filter *f, struct ob_str ref,
                               struct ob_arena *arena, struct ob_event *ev, bool *found,
                               struct ob_err *err);
/* Dead rows (an array of ids) wait again by their columns. */
enum ob_status ob_pg_map_release(struct ob_admin *a, const char *refs, struct ob_err *err);
enum ob_status ob_pg_map_status(struct ob_admin *a, struct ob_source_status *out,
                                struct ob_err *err);
enum ob_status ob_pg_map_checks(struct ob_admin *a,
                                void (*found)(void *user, bool ok, const char *what,
                                              const char *fix),
                                void *user, struct ob_err *err);

/* schema_profile.c */
enum ob_status ob_pg_profile_print(const char *name, struct ob_buf *out, struct ob_err *err);
enum ob_status ob_pg_profile_apply(struct ob_admin *a, const char *name, bool dry,
                                   struct ob_buf *out, unsigned *changed, struct ob_err *err);
/* admin_stream.c: no table keeps the events. Connected already. */
bool ob_pg_admin_stream(const struct ob_admin *a);
enum ob_status ob_pg_stream_events(struct ob_admin *a, const struct ob_filter *f, bool payload,
                                   ob_event_fn *fn, void *user, struct ob_err *err);
enum ob_status ob_pg_stream_emit(struct ob_admin *a, const struct ob_emit *e, char *id,
                                 struct ob_err *err);
/* check_wal.c */
enum ob_status ob_pg_check_wal(struct ob_admin *a,
                               void (*found)(void *user, bool ok, const char *what,
                                             const char *fix),
                               void *user, struct ob_err *err);
/* Shards of the pipeline as its cursors have it, as text; "0": it never ran. */
enum ob_status ob_pg_check_shards(struct ob_admin *a, char out[12], struct ob_err *err);
/* check_slot.c: mode wal, where the recorded slots and those of the server differ. */
typedef void ob_slot_finding_fn(void *user, unsigned shard, const char *what, const char *fix);
enum ob_status ob_pg_check_slots(struct ob_admin *a, ob_slot_finding_fn *found, void *user,
                                 struct ob_err *err);

extern const struct ob_source_admin ob_pg_admin;

#endif
