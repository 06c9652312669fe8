/* SPDX-License-Identifier: Apache-2.0 */
/* source - 1 READ. What every source offers to the relay: one shard's owner, cursor, claims and
 * settles. Thread: all calls of one source come from its shard's thread. No call blocks longer than
 * `busy_ms`. */
#ifndef OB_SOURCE_SOURCE_H
#define OB_SOURCE_SOURCE_H

#include "core/backoff.h"
#include "core/clock.h"
#include "core/err.h"
#include "core/log.h"
#include "core/opt.h"
#include "event/event.h"
#include "event/limits.h"
#include "event/settle.h"

struct ob_source; /* each driver has its own */

struct ob_source_env {
    const char *pipeline;
    unsigned shard, shards;
    uint64_t key_rules; /* fingerprint of the rules that assign events to shards; 0: not known */
    const char *owner;  /* host:pid:random, shown to people */
    const struct ob_backoff *retry; /* how long an event that failed waits; NULL: not known */
    const struct ob_limits *limits; /* of the columns of an event; NULL: the defaults */
    const struct ob_clock *clock;
    const struct ob_log *log;
    bool dlt;         /* dead events go to the dead-letter topic too */
    bool accept_loss; /* a person said: go on although events are gone from the source */
};

struct ob_source_caps {
    bool log; /* has a cursor that moves over a settled prefix; else each event is marked */
    unsigned settle_every_ms; /* not oftener than this */
    size_t page;              /* events that one claim best asks for */
};

/* What `status` shows of a source. -1: not known. Cheap: never counts a big table. */
struct ob_source_status {
    int64_t pending; /* at least so many are not settled */
    int64_t lag_ms;  /* age of the oldest unsettled event */
    int64_t parked, dead;
    bool held; /* some key is held: it has parked rows, or stands behind a dead event */
    bool paused;
};

/* What a living owner tells about itself. */
struct ob_beat {
    const char *state;                             /* running, paused, down, draining */
    int64_t in_flight, published, failed, retried; /* since the owner started */
};

struct ob_source_driver {
    const char *name;          /* `type:` in the config file */
    const char *summary;       /* one line for the docs */
    const struct ob_opt *opts; /* {0}-terminated */
    size_t conf_size;          /* of the struct the offsets point into */

    /* *out belongs to the caller, who ends it with close(). Connects; owns nothing yet. */
    enum ob_status (*open)(const struct ob_source_env *env, const void *conf,
                           struct ob_source **out, struct ob_source_caps *caps, struct ob_err *err);
    void (*close)(struct ob_source *s);
    /* Readable when there may be something new. -1: none. It stays readable until claim(): wait on
     * it only while a claim would be made. Silent while the shard is not owned. */
    int (*wait_fd)(const struct ob_source *s);
    /* Monotonic ms at which to call claim() again although wait_fd was silent. INT64_MAX: never. */
    int64_t (*wake_at)(const struct ob_source *s);

    /* Tries to become (or checks that it still is) the shard's owner. OB_OK: owner, epoch raised
     * and all positions loaded from the durable cursor if it was not before. OB_AGAIN: another one
     * is (err tells who): stand by. */
    enum ob_status (*own)(struct ob_source *s, struct ob_err *err);
    /* Says that the owner lives and reads `paused`; called about once a second while owner, also
     * when the sink is down or the shard idle. OB_FENCED: lost. OB_AGAIN: still the owner, but
     * another process waits for its share: settle what is in flight, then disown(). */
    enum ob_status (*beat)(struct ob_source *s, const struct ob_beat *beat, bool *paused,
                           struct ob_err *err);
    /* Gives the shard to whoever waits. Settle first. */
    void (*disown)(struct ob_source *s);

    /* The next events after those already claimed, at most max and about max_bytes of payload
     * (always at least one event if there is one). OB_OK: *out has n >= 1. OB_AGAIN: nothing now.
     * Log-type: events that are parked, dead or stored as settled ahead of the cursor come with
     * `settled`. */
    enum ob_status (*claim)(struct ob_source *s, size_t max, size_t max_bytes,
                            struct ob_batch **out, struct ob_err *err);
    /* True: a look is under way, so that OB_AGAIN did not mean that nothing is there. NULL: never.
     */
    bool (*looking)(const struct ob_source *s);
    /* Forgets what was claimed and not settled: the next claim starts at the durable cursor again.
     */
    void (*rewind)(struct ob_source *s);
    /* True: this claimed event was settled before the number of shards was changed; treat it like
     * another shard's (only the cursor passes it). Asked of every claimed event once its key's hash
     * is known, those of other shards too. NULL: never. */
    bool (*already)(const struct ob_source *s, uint64_t ref, uint64_t hash);
    /* held[i] = hash i has parked rows, or is held behind a dead one. */
    enum ob_status (*held)(struct ob_source *s, const uint64_t *hashes, size_t n, bool *held,
                           struct ob_err *err);
    /* Parked rows that may be tried, whole keys at a time: for up to `max` rows, the first rows (at
     * most per_key) of hashes whose first row waits for `dest` (0: only for time, and that is
     * over), in order of park_n within a hash. Hashes for which skip() is true (they are in the
     * window) are passed over. Hashes of other shards never appear. OB_AGAIN: none. `*next_due_ms`
     * as in struct ob_settled. */
    enum ob_status (*drain)(struct ob_source *s, uint64_t dest, int64_t now_wall_ms, size_t max,
                            size_t per_key, bool (*skip)(void *user, uint64_t hash), void *user,
                            struct ob_batch **out, int64_t *next_due_ms, struct ob_err *err);
    /* Destinations that parked keys wait for (not 0, not OB_DEST_DEAD), at most max, those > after,
     * rising. */
    enum ob_status (*blocked)(struct ob_source *s, uint64_t after, uint64_t *dests, size_t max,
                              size_t *n, struct ob_err *err);

    /* One transaction, fenced by the epoch; log-type: cursor, ops and what is settled ahead of the
     * cursor together. OB_OK: committed. OB_AGAIN: under way, settle_finish()
     * when wait_fd is readable. OB_RETRY, OB_DOWN: nothing was recorded, call again with the same.
     * OB_FENCED: nothing was recorded and the shard is not ours. */
    enum ob_status (*settle)(struct ob_source *s, struct ob_settle *settle, struct ob_settled *out,
                             struct ob_err *err);
    enum ob_status (*settle_finish)(struct ob_source *s, struct ob_settle *settle,
                                    struct ob_settled *out,
                                    struct ob_err *err); /* NULL if never OB_AGAIN */
    enum ob_status (*status)(struct ob_source *s, struct ob_source_status *out, struct ob_err *err);

    const struct ob_source_admin *admin; /* what people do to it; see admin.h */
};

#endif
