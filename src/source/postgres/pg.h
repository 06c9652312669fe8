/* SPDX-License-Identifier: Apache-2.0 */
/* pg - inside of the PostgreSQL source: one shard. Nothing here is for others.
 *
 *     driver.c  options, open, close          own.c      epoch, beat, take-over
 *     holder.c  who has a shard, its lock
 *     fit.c     what would mislead a cursor   notify.c   a NOTIFY as wake-up
 *     conn.c    a connection with deadlines   settle.c   the one transaction, with the fence first
 *     dial.c    hosts, TLS, poolers           share.c    which shards a process takes
 *     record.c  parked and dead rows          parked.c   held, drain, blocked
 *     log.c     mode log: handing out         round.c    its statements: one look at the table
 *     snap.c    snapshots, places, the ring   past.c     a changed number of shards
 *     ahead.c   what is settled ahead of it
 *     native.c  rows of outbox.event          schema.c   migrations
 *     status.c  numbers for people            admin*.c, check*.c  what people do
 *     wal*.c    mode wal, see wal.h           pgoutput.c the messages of its stream
 *
 * 64-bit hashes and destinations are stored as signed bigint, bit for bit; 0 is "only time", -1 is
 * OB_DEST_DEAD.
 *
 * Two sessions: `sql` is the owner's and does everything that writes; a reader has its own. After
 * any reconnect all positions in memory are thrown away and loaded again (own.c). */
#ifndef OB_SOURCE_POSTGRES_PG_H
#define OB_SOURCE_POSTGRES_PG_H

#include "core/buf.h"
#include "event/mapping.h"
#include "source/admin.h"
#include "source/ahead.h"
#include "source/postgres/conn.h"
#include "source/source.h"

enum pg_mode { PG_LOG, PG_WAL, PG_ROWS };

struct pg_conf {
    const char *dsn;
    int mode; /* enum pg_mode */
    int64_t poll_max_ms;
    int wake; /* enum pg_wake */
    const char *channel;
    int64_t timeout_ms; /* of one statement */
    int64_t page;
    bool require_flushed;
    struct ob_mapping mapping; /* table NULL: the native one */
    /* mode wal */
    const char *slot, *publication; /* "": made from the pipeline's name */
    const char *message_prefix;     /* "": rows of a table */
    int64_t wal_budget, catch_up;   /* bytes; 0: no limit */
    int wait_visible;               /* enum pg_wait */
};

enum pg_wake { PG_WAKE_POLL, PG_WAKE_NOTIFY };
enum pg_wait { PG_WAIT_AUTO, PG_WAIT_ON, PG_WAIT_OFF };

struct pg_reader;

/* New values of the cursor row; NULL: as it is. */
struct pg_cursor {
    const char *pos, *snap, *late_pos, *late_snap; /* pos set: late_snap NULL means NULL */
    const char *adopt_pos;                         /* likewise */
    const char *lsn, *rows_done;
    const char *ahead, *ahead_n; /* the set of source/ahead.h as text of a bytea, and its size */
};

/* The events that are settled ahead of the cursor. */
struct pg_ahead {
    struct ob_ahead set;  /* as stored */
    struct ob_ahead next; /* as the settle under way stores it */
    bool fresh;           /* next was made for it */
    struct ob_buf bytes, text;
    char n[24];
};

/* ahead.c. load(): adds what the cursor's row has. next(): writes `next`, which the caller has
 * filled, into out. stored(): that was committed. */
enum ob_status ob_pg_ahead_load(struct ob_source *s, struct pg_ahead *a,
                                struct ob_err *err) OB_MUST_CHECK;
void ob_pg_ahead_next(struct pg_ahead *a, bool complete, struct pg_cursor *out);
void ob_pg_ahead_stored(struct pg_ahead *a);
void ob_pg_ahead_clear(struct pg_ahead *a);
/* Around a change of the number of shards, in its transaction: what an old shard has settled ahead
 * of its cursor is settled for every new one. The caller clears *out. */
enum ob_status ob_pg_ahead_gather(struct ob_source *s, PGresult **out,
                                  struct ob_err *err) OB_MUST_CHECK;
enum ob_status ob_pg_ahead_spread(struct ob_source *s, const PGresult *gathered,
                                  struct ob_err *err) OB_MUST_CHECK;

/* Assignments of a struct pg_cursor in an update of outbox.cursor. The fence is given with the
 * place: the transaction id is later than its snapshots. */
#define PG_PLACE(pos_p, snap_p, late_pos_p, late_snap_p, adopt_p)                                  \
    "pos = coalesce(" pos_p "::bigint, pos), snap = coalesce(" snap_p "::pg_snapshot, snap), "     \
    "late_pos = coalesce(" late_pos_p "::bigint, late_pos), late_snap = case when " pos_p          \
    "::bigint is null then late_snap else " late_snap_p "::pg_snapshot end, adopt_pos = case "     \
    "when " pos_p "::bigint is null then adopt_pos else " adopt_p "::bigint end, fence = case "    \
    "when " pos_p "::bigint is null then fence else pg_current_xact_id() end"

/* system_id, db_oid, timeline of this cluster. */
#define PG_CLUSTER                                                                                 \
    "(select system_identifier::text from pg_control_system()), (select oid from pg_database "     \
    "where datname = current_database()), (case when pg_is_in_recovery() then null else "          \
    "('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int end)"

/* Hashes of this shard only, $2 shards and $3 shard; the same sum as ob_shard_of(). */
#define PG_MINE "((hash >> 1) & 9223372036854775807) % $2::bigint = $3::bigint"

struct ob_source {
    const struct pg_conf *conf;
    const struct pg_reader *reader;
    void *state; /* the reader's */
    void *wal;   /* of mode wal, which has its table's reader beside it: see wal.h */
    bool dlt, accept_loss;
    bool native; /* outbox.event is read, not another table or messages */
    bool whole;  /* no table keeps the events: parked and dead rows have all of them */
    char *pipeline, *owner;
    struct ob_limits limits; /* of the columns of an event */
    int64_t page_rows; /* of a page that there was memory for; 0: the configured number */
    struct ob_unfit unfit;   /* kept when the session is lost, which may be the consequence */
    unsigned shard, shards;
    uint64_t key_rules; /* 0: not known */
    const struct ob_clock *clock;
    const struct ob_log *log;
    struct pg_session sql;
    bool owned;
    bool recorded;      /* the cursor row may still name this session as its owner */
    uint32_t lock_bits; /* advisory locks of shards that the session holds (holder.c) */
    int64_t epoch;
    /* what a stand-by observed of the owner (holder.c); times are mono ms */
    bool seen;
    unsigned seen_shard;
    int64_t seen_epoch, seen_beat, seen_pid, seen_start, seen_ms, terminate_at, steal_at;
    /* several shards: which of them are for this process (share.c) */
    bool joined; /* this session is counted */
    uint32_t member_salt;
    int64_t free_since, share_at, keep_until; /* mono ms */
    /* The cluster: own.c compares it with the cursor's. moved: it is another one than the cursor
     * was written in, so no LSN that is stored means anything; timeline: it was promoted or
     * restored since. */
    bool moved, timeline_changed;
    bool rung; /* `wake: notify`: somebody did since the last look was asked for */
    unsigned
        slots_before;     /* mode wal: this owner has just changed the number of shards from this */
    uint64_t fence;       /* xid of our last committed write: above every snapshot read before it */
    uint64_t fence_first; /* the first of them since the reader set it to 0 */
    int64_t maintain_at, months_at; /* mono ms */
    bool own_attempts;       /* the reader's table counts attempts: its number is the truth */
    struct ob_buf array[17]; /* parameters of one statement */
};

/* A way to read. All calls in the shard's thread; only start() may wait. */
struct pg_reader {
    const char *name;
    bool log; /* cursor that moves over a settled prefix */
    /* Owner now: opens its session and loads its position from our cursor row. */
    enum ob_status (*start)(struct ob_source *s, struct ob_err *err);
    void (*stop)(struct ob_source *s); /* forgets everything; harmless twice */
    int (*wait_fd)(const struct ob_source *s);
    int64_t (*wake_at)(const struct ob_source *s);
    enum ob_status (*claim)(struct ob_source *s, size_t max, size_t max_bytes,
                            struct ob_batch **out, struct ob_err *err);
    bool (*looking)(const struct ob_source *s); /* NULL: claim() always knows */
    void (*rewind)(struct ob_source *s);
    bool (*already)(const struct ob_source *s, uint64_t ref, uint64_t hash);
    /* Where the cursor goes with this settle; out is all NULL before. Texts live until settled().
     */
    void (*cursor)(struct ob_source *s, const struct ob_settle *settle, struct pg_cursor *out);
    /* Inside the settle's transaction, behind the fence: marks in another system's table. NULL:
     * none. */
    enum ob_status (*mark)(struct ob_source *s, const struct ob_settle *settle, struct ob_err *err);
    /* With a beat: where the cursor stands if nothing that was claimed is unsettled. False: it
     * stays. NULL: always. rested(): that was committed. */
    bool (*rest)(struct ob_source *s, struct pg_cursor *out);
    /* With each beat, before all else. NULL: nothing to do. */
    enum ob_status (*tick)(struct ob_source *s, struct ob_err *err);
    void (*rested)(struct ob_source *s);
    /* A beat was committed. NULL: nothing to do. */
    void (*beat)(struct ob_source *s, const struct ob_beat *beat);
    /* The transaction was committed. */
    void (*settled)(struct ob_source *s, const struct ob_settle *settle);
    /* How parked and dead rows name an event, as text. */
    void (*ref)(const struct ob_source *s, const struct ob_event *ev, struct ob_buf *out);
    /* Events of these refs, in this order, into batch (events[i].id.p NULL: gone). If they are too
     * large together: the first ones, and batch->n says how many; else batch->n stays 0. */
    enum ob_status (*fetch)(struct ob_source *s, const struct ob_str *refs, size_t n,
                            struct ob_batch *batch, struct ob_err *err);
    enum ob_status (*status)(struct ob_source *s, struct ob_source_status *out, struct ob_err *err);
};

extern const struct pg_reader ob_pg_wal_rows, ob_pg_log, ob_pg_wal, ob_pg_rows;
/* log.c: fetch() for events of outbox.event that are named by their number. */
enum ob_status ob_pg_native_fetch(struct ob_source *s, const struct ob_str *refs, size_t n,
                                  struct ob_batch *batch, struct ob_err *err);

/* own.c */
enum ob_status ob_pg_own(struct ob_source *s, struct ob_err *err);
/* Partitions by month in a mapped table, ahead of the writers; when it is time. */
void ob_pg_months(struct ob_source *s);
enum ob_status ob_pg_beat(struct ob_source *s, const struct ob_beat *beat, bool *paused,
                          struct ob_err *err);
void ob_pg_disown(struct ob_source *s);
/* The session is gone or the shard is not ours: nothing in memory counts any more. */
void ob_pg_lost(struct ob_source *s);
/* OB_OK while owner with a living session. Otherwise what the caller should return. */
enum ob_status ob_pg_owned(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
/* A write of ours was committed under this transaction id. */
void ob_pg_fence_note(struct ob_source *s, uint64_t xid);

/* holder.c */
/* The key of a shard's advisory lock, as text. */
void ob_pg_lock_key(const struct ob_source *s, unsigned shard, char out[24]);
/* May this session write itself into the cursor row of the shard? OB_AGAIN: another relay has it;
 * err names that session. Takes the shard's advisory lock where it is free. */
enum ob_status ob_pg_holder_try(struct ob_source *s, unsigned shard, struct ob_err *err);
/* The same question, asked again in the transaction that has locked the cursor row. */
enum ob_status ob_pg_holder_confirm(struct ob_source *s, unsigned shard, struct ob_err *err);
void ob_pg_holder_unlock(struct ob_source *s, unsigned shard);
/* An owner without the advisory lock takes it as soon as it is free. */
void ob_pg_holder_relock(struct ob_source *s);

/* fit.c: OB_FATAL: events would be passed over, err says why and what to do. */
enum ob_status ob_pg_fit(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;

/* notify.c: both do nothing without `wake: notify`. rung: whether to look at once. */
enum ob_status ob_pg_listen(const struct ob_source *s, struct pg_session *rd,
                            struct ob_err *err) OB_MUST_CHECK;
bool ob_pg_rung(struct ob_source *s, struct pg_session *rd);

/* share.c */
/* Makes the session a member of the pipeline: it is alive as long as it holds the member lock. */
enum ob_status ob_pg_join(struct ob_source *s, struct ob_err *err);
/* The first half of the member locks of the pipeline, as text. */
void ob_pg_member_key(const struct ob_source *s, char out[16]);
/* May this process take the shard, if it is free? OB_AGAIN: it has its share already. */
enum ob_status ob_pg_share(struct ob_source *s, struct ob_err *err);
/* Should the owner give it up, because another living process has less than its share? */
bool ob_pg_share_over(struct ob_source *s);

/* settle.c */
enum ob_status ob_pg_settle(struct ob_source *s, struct ob_settle *settle, struct ob_settled *out,
                            struct ob_err *err);
/* record.c: parked and dead rows, keys; inside a transaction. */
enum ob_status ob_pg_record(struct ob_source *s, struct ob_settle *settle, struct ob_settled *out,
                            struct ob_err *err);
/* parked.c */
enum ob_status ob_pg_held(struct ob_source *s, const uint64_t *hashes, size_t n, bool *held,
                          struct ob_err *err);
enum ob_status ob_pg_drain(struct ob_source *s, uint64_t dest, int64_t now_wall_ms, size_t max,
                           size_t per_key, bool (*skip)(void *user, uint64_t hash), void *user,
                           struct ob_batch **out, int64_t *next_due_ms, struct ob_err *err);
enum ob_status ob_pg_blocked(struct ob_source *s, uint64_t after, uint64_t *dests, size_t max,
                             size_t *n, struct ob_err *err);
enum ob_status ob_pg_next_due(struct ob_source *s, int64_t *due_ms, struct ob_err *err);
/* status.c */
enum ob_status ob_pg_status_native(struct pg_session *conn, const char *pipeline, int64_t pos,
                                   struct ob_source_status *out, struct ob_err *err);
enum ob_status ob_pg_status(struct ob_source *s, struct ob_source_status *out, struct ob_err *err);

#endif
