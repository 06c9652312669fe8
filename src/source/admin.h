/* SPDX-License-Identifier: Apache-2.0 */
/* admin - what people do to a source from the command line or over HTTP, beside a relay that may be
 * running. A handle of its own: it owns nothing and needs no epoch. */
#ifndef OB_SOURCE_ADMIN_H
#define OB_SOURCE_ADMIN_H

#include "source/source.h"

struct ob_admin; /* each driver has its own */

/* Which dead events (or events). NULL and 0: any. Globs where a name. */
struct ob_filter {
    const char *id, *type, *key, *tenant, *reason;
    int64_t since_us, until_us; /* dead: time of death; events: time of creation */
    uint64_t after;             /* only numbers above this one; for paging */
    bool dlt;                  /* dead: only those still to be published to the dead-letter topic */
    const char *const *not_to; /* dead: nothing of these destinations */
    size_t n_not_to;
    size_t limit;                   /* 0: no limit. events: without `after` the newest ones */
    const struct ob_limits *limits; /* larger columns are cut; NULL: ob_limits_shown */
};

struct ob_dead {
    struct ob_str id, key, type, destination, error;
    uint32_t attempts;
    int64_t at_us;
    int64_t n;                    /* its number */
    struct ob_str history;        /* JSON array [{"at":…,"attempt":…,"error":…}] */
    const struct ob_event *event; /* with payload; only in dead_show */
};

struct ob_shard_status {
    unsigned shard, shards;
    char owner[128];
    int64_t beat_age_ms; /* -1: never */
    char state[16];      /* running, standby, paused, down, stopped */
    struct ob_source_status source;
    int64_t published, failed, in_flight;
    char finding[512]; /* what is wrong with it and what to do; "": nothing */
};

struct ob_emit {
    struct ob_str id; /* empty: made */
    struct ob_str type, aggregate_type, aggregate_id, key, tenant, topic, payload, headers,
        metadata;
    enum ob_payload_kind payload_kind;
    int64_t entity_version, schema_version;
};

static inline const struct ob_limits *ob_filter_limits(const struct ob_filter *f)
{
    return f && f->limits ? f->limits : &ob_limits_shown;
}

/* Called for each; returns false to stop. */
typedef bool ob_dead_fn(void *user, const struct ob_dead *dead);
typedef bool ob_event_fn(void *user, const struct ob_event *event, const char *state);

enum ob_dead_action { OB_DEAD_RETRY, OB_DEAD_DISCARD };

#define OB_TAIL_NOW UINT64_MAX

struct ob_source_admin {
    enum ob_status (*open)(const char *pipeline, const void *conf, const struct ob_clock *clock,
                           struct ob_admin **out, struct ob_err *err);
    void (*close)(struct ob_admin *a);
    /* The schema's statements as text (print), or applied; *changed: 0 when all was there. dry: say
     * only what would be done, one line per migration into out. */
    enum ob_status (*schema)(struct ob_admin *a, bool dry, struct ob_buf *out, unsigned *changed,
                             struct ob_err *err);
    void (*schema_print)(struct ob_buf *out);
    /* The same for the table of a profile, for a user who has none; one that is there is only
     * looked at. OB_REJECT: there is none of that name. NULL: this source has none. */
    enum ob_status (*profile_print)(const char *name, struct ob_buf *out, struct ob_err *err);
    enum ob_status (*profile_apply)(struct ob_admin *a, const char *name, bool dry,
                                    struct ob_buf *out, unsigned *changed, struct ob_err *err);
    /* Preconditions. Calls found() for each finding: ok, or a problem with its fix. */
    enum ob_status (*check)(struct ob_admin *a,
                            void (*found)(void *user, bool ok, const char *what, const char *fix),
                            void *user, struct ob_err *err);
    /* All of them in one transaction, in order. ids (n of OB_UUID_TEXT) receives the ids. */
    enum ob_status (*emit)(struct ob_admin *a, const struct ob_emit *events, size_t n,
                           char (*ids)[64], struct ob_err *err);
    /* Newest numbers last; state: pending, published, parked, dead, discarded. */
    enum ob_status (*events)(struct ob_admin *a, const struct ob_filter *f, bool payload,
                             ob_event_fn *fn, void *user, struct ob_err *err);
    /* Events that came to be seen since the last call on this handle, each once, those that were
     * committed late too; the first call begins at the number `from`, or with what comes. It goes
     * on behind the one at which fn returned false. OB_REJECT: this pipeline cannot be followed.
     * NULL: numbers rise as events come to be seen, so events() with `after` does it. */
    enum ob_status (*tail)(struct ob_admin *a, uint64_t from, bool payload, ob_event_fn *fn,
                           void *user, struct ob_err *err);
    enum ob_status (*dead_list)(struct ob_admin *a, const struct ob_filter *f, bool full,
                                ob_dead_fn *fn, void *user, struct ob_err *err);
    /* Counts first, acts only if !dry. Retried ones keep their order within a key. One transaction.
     */
    enum ob_status (*dead_do)(struct ob_admin *a, enum ob_dead_action action,
                              const struct ob_filter *f, bool dry, size_t *n, struct ob_err *err);
    /* The dead events of these numbers are in the dead-letter topic. NULL: this source does not
     * note which are still to be published there. */
    enum ob_status (*dlt_done)(struct ob_admin *a, const int64_t *numbers, size_t n,
                               struct ob_err *err);
    enum ob_status (*pause)(struct ob_admin *a, bool paused, struct ob_err *err);
    /* One row per shard known. Returns how many in *n (at most max). */
    enum ob_status (*status)(struct ob_admin *a, struct ob_shard_status *out, size_t max, size_t *n,
                             struct ob_err *err);
};

#endif
