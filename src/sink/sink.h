/* SPDX-License-Identifier: Apache-2.0 */
/* sink - 3 SEND. What every sink offers: asynchronous, bounded, one verdict per accepted message.
 * Thread: all calls of one sink come from its shard's thread; callbacks only inside poll(). */
#ifndef OB_SINK_SINK_H
#define OB_SINK_SINK_H

#include "config/wire.h"
#include "core/clock.h"
#include "core/err.h"
#include "core/log.h"
#include "core/opt.h"
#include "event/msg.h"
#include "event/settle.h"

struct ob_sink;

enum ob_sink_state { OB_SINK_UP, OB_SINK_DOWN };

struct ob_sink_events {
    /* Once per accepted message, only inside poll(). why: not NULL unless delivered; delivered with
     * a reason: the broker took it and had nobody to give it to, which is asked for. */
    void (*done)(void *user, uint64_t token, enum ob_verdict verdict, const struct ob_err *why);
    /* dest_hash 0 means the whole broker; else that destination is blocked (DOWN) or free (UP). */
    void (*state)(void *user, enum ob_sink_state state, uint64_t dest_hash,
                  const struct ob_err *why);
};

/* What check() says where env->more_topics. */
#define OB_SINK_MORE_TOPICS                                                                        \
    "further topics are made of what is in an event: each is looked at when its first one comes"

struct ob_sink_env {
    const char *pipeline;
    unsigned shard, shards;
    bool strict; /* `order: strict` */
    const struct ob_clock *clock;
    const struct ob_log *log;
    const struct ob_sink_events *events;
    void *user;
    /* Only for check(): the topics and the streams (exchanges) that are known before there is an
     * event, and who is told what was looked at (fix: NULL where ok). */
    const char *const *topics, *const *streams;
    const struct ob_place *places; /* topics whose stream is known too */
    size_t n_topics, n_streams, n_places;
    bool more_topics; /* events name further ones */
    bool streamless;  /* some route names no stream */
    bool row_streams; /* rows may name one */
    void (*found)(void *found_user, bool ok, const char *what, const char *fix);
    void *found_user;
};

struct ob_sink_caps {
    bool ordered;         /* accepted messages of one destination and key are delivered in the order
                             accepted, or a         failed one gives back (RETURNED) all behind it */
    size_t max_in_flight; /* messages accepted and without verdict */
    size_t max_bytes;     /* largest message; 0: no limit known */
};

struct ob_sink_driver {
    const char *name;    /* `type:` in the config file */
    const char *summary; /* one line for the docs */
    const struct ob_opt *opts;
    size_t conf_size;

    /* When the config file is read: checks what the option table cannot. The text begins with the
     * position, "file:line:column: "; map: the sink's options as written, for positions; may be
     * NULL. NULL: nothing to check. */
    enum ob_status (*validate)(const void *conf, const struct ob_node *map, struct ob_err *err);
    /* What the sink does on the network with a valid conf. NULL: it uses none. */
    void (*wire)(const void *conf, struct ob_wire *out);
    /* How many shards may write with this config; *why: if not any number. NULL: any. */
    unsigned (*max_shards)(const void *conf, const char **why);
    /* *out belongs to the caller, who ends it with close(). A broker that is not there is not a
     * failure of open(): that is state(DOWN). OB_FATAL: the configuration cannot work. */
    enum ob_status (*open)(const struct ob_sink_env *env, const void *conf, struct ob_sink **out,
                           struct ob_sink_caps *caps, struct ob_err *err);
    /* Whether it could work now, asked beside a sink that may be running: takes and changes
     * nothing. Tells env->found() each thing that it looked at; not OB_OK: err has one more, with
     * its fix. NULL: there is nothing to look at. */
    enum ob_status (*check)(const struct ob_sink_env *env, const void *conf, struct ob_err *err);
    /* Readable when poll() has something to do. -1: none. */
    int (*wait_fd)(const struct ob_sink *sink);
    /* Monotonic ms at which poll() has something to do although wait_fd is silent. INT64_MAX:
     * never. */
    int64_t (*wake_at)(const struct ob_sink *sink);
    /* What can be blocked by itself where that is less than the routed destination (a partition of
     * a topic); never 0. NULL: as routed. */
    uint64_t (*aim)(struct ob_sink *sink, const struct ob_msg *msg);
    /* Never blocks. Takes the first *n of n messages; accepted is NOT delivered. Borrows each
     * message until its done(). OB_DOWN: none was taken. */
    enum ob_status (*submit)(struct ob_sink *sink, const struct ob_msg *const *msgs,
                             const uint64_t *tokens, size_t *n, struct ob_err *err);
    void (*poll)(struct ob_sink *sink); /* never blocks */
    /* Stop waiting for this one: done(token, RETRY) follows unless the verdict came first. NULL:
     * cannot. */
    void (*cancel)(struct ob_sink *sink, uint64_t token);
    /* Drop the connection and what is in flight: done(token, RETURNED) follows for each that has no
     * verdict, then state(UP) when it may be used again. Until those are given back submit() takes
     * nothing: it would overtake them. */
    void (*reset)(struct ob_sink *sink);
    void (*close)(struct ob_sink *sink,
                  int grace_ms); /* after it no borrowed byte is touched; no callbacks */
};

/* Those that need no library. */
extern const struct ob_sink_driver ob_sink_file, ob_sink_null, ob_sink_stdout;

#endif
