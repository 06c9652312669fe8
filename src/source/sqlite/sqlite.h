/* SPDX-License-Identifier: Apache-2.0 */
/* sqlite - inside of the SQLite source: one connection, one shard. Nothing here is for others.
 *
 *     db.c      connection, statements        own.c      owner, epoch, beat, change of shards
 *     lock.c    lock on a side file           claim.c    rows into a batch
 *     event_read.c  one event, bounded
 *     wake.c    inotify, looking again        parked.c   held, drain, blocked
 *     settle.c  the one transaction           record.c   one op of it
 *     ahead.c   what is settled ahead of it   reshard.c  another number of shards
 *     status.c  numbers for people            admin*.c   what people do
 *
 * 64-bit hashes and destinations are stored as SQLite's signed integers, bit for bit; 0 is "only
 * time", -1 is OB_DEST_DEAD. */
#ifndef OB_SOURCE_SQLITE_SQLITE_H
#define OB_SOURCE_SQLITE_SQLITE_H

#include "core/buf.h"
#include "event/sqlite_table.h"
#include "source/admin.h"
#include "source/ahead.h"
#include "source/source.h"

#include <sqlite3.h>
#include <sys/types.h>

#define SHARDS_MAX 16
#define PAGE 1000
#define SETTLE_EVERY_MS 100
#define DRAIN_BYTES ((size_t)8 << 20) /* bytes of one drained batch, or one row */
#define DELETED_ROW "its row was deleted from outbox_event while it waited to be delivered"
#define STALE_MS 10000 /* a beat that stands so long belongs to a hung owner */

struct sqlite_conf {
    const char *path;
    int64_t busy_ms;
};

enum stmt {
    ST_BEGIN,
    ST_READ,
    ST_COMMIT,
    ST_ROLLBACK,
    ST_CLAIM,
    ST_EVENT,        /* by its number */
    ST_EVENT_BARE,   /* without its payload */
    ST_SHAPE,        /* event_read.c */
    ST_NEXT,         /* the next number */
    ST_RECORDED,     /* is this number parked or dead already? */
    ST_RECORDED_MAX, /* highest number that is */
    ST_CURSOR,
    ST_CURSORS,
    ST_AHEAD,
    ST_ANY_KEY,
    ST_HELD,
    ST_KEYS,     /* by destination, earliest first */
    ST_KEY_ROWS, /* of one hash with their events */
    ST_KEY_MORE,
    ST_DEST_NEXT,
    ST_DEST_KEYS,
    ST_SETTLE,
    ST_BEAT,
    ST_PAUSED,
    ST_LAST_N,
    ST_LAST_N_SET,
    ST_PARK,
    ST_PARK_UPDATE,
    ST_PARK_GET,
    ST_PARK_DELETE,
    ST_EVENT_THERE,
    ST_DEAD,
    ST_LOST,
    ST_HEAD_PARKED,
    ST_HEAD_DEAD,
    ST_KEY_SET,
    ST_KEY_DELETE,
    ST_PENDING,
    ST_OLDEST,
    ST_OLDEST_PARKED,
    ST_COUNTS,
    ST_PARKED_HASHES,
    ST_DEAD_HASHES,
    ST_MAX,
};

struct take; /* claim.c: the page that is being filled */

/* A connection, with statements that are prepared once, when it is opened (not with OPEN_ANY and
 * OPEN_MAKE: there may be no tables yet). */
struct db {
    sqlite3 *h;
    sqlite3_stmt *st[ST_MAX];
    bool utf16;
    struct take *take;
    bool lazy; /* as ob_sqlite_sync() left it */
    dev_t dev;
    ino_t ino;
};

/* mode of ob_sqlite_db_open */
enum open_mode {
    OPEN_RELAY,  /* must be there, in WAL mode, with the newest schema */
    OPEN_PEOPLE, /* must be there with the newest schema */
    OPEN_ANY,    /* must be there */
    OPEN_MAKE,   /* is made if missing */
};

enum ob_status ob_sqlite_db_open(struct db *db, const char *path, enum open_mode mode,
                                 int64_t busy_ms, struct ob_err *err) OB_MUST_CHECK;
void ob_sqlite_db_close(struct db *db);
/* Steps a statement that gives no rows, then resets it. */
enum ob_status ob_sqlite_run(struct db *db, enum stmt which, struct ob_err *err) OB_MUST_CHECK;
/* A transaction that may write. OB_RETRY: busy. */
enum ob_status ob_sqlite_begin(struct db *db, struct ob_err *err) OB_MUST_CHECK;
enum ob_status ob_sqlite_commit(struct db *db, struct ob_err *err) OB_MUST_CHECK;
/* lazy: commits from now on survive the end of every process, but the last ones not a power cut
 * (synchronous = NORMAL): no fsync while the application's write lock is held. For what costs
 * nothing but repeats: a cursor that moves, a beat. Not inside a transaction. */
enum ob_status ob_sqlite_sync(struct db *db, bool lazy, struct ob_err *err) OB_MUST_CHECK;
/* Also after a failure that rolled back by itself. */
void ob_sqlite_rollback(struct db *db);
/* The path still leads to the file that is open. */
bool ob_sqlite_db_same(const struct db *db, const char *path);
void ob_sqlite_bind_str(sqlite3_stmt *st, int i, struct ob_str s);
struct ob_str ob_sqlite_column_str(const struct db *db, sqlite3_stmt *st, int i);

/* ---- lock.c: freed by the kernel when its holder ends, however it ends ---- */

struct lock {
    int fd; /* -1: not held */
};

/* OB_AGAIN: another process (or thread) has it. */
enum ob_status ob_sqlite_lock(struct lock *lock, const char *db_path, const char *pipeline,
                              unsigned shard, struct ob_err *err) OB_MUST_CHECK;
/* Puts a new lock file in the place of one that a hung process holds. Only inside a write
 * transaction of the database: that is what keeps two from doing it at once. */
enum ob_status ob_sqlite_lock_replace(struct lock *lock, const char *db_path, const char *pipeline,
                                      unsigned shard, struct ob_err *err) OB_MUST_CHECK;
void ob_sqlite_unlock(struct lock *lock);

/* ---- wake.c ---- */

struct wake {
    int ep, in, timer; /* ep holds the other two, so that there is one descriptor to wait on */
    int wal_wd, dir_wd;
    unsigned step;
    char *wal, *dir;
    const char *wal_name; /* last part of wal */
};

enum ob_status ob_sqlite_wake_open(struct wake *w, const char *path,
                                   struct ob_err *err) OB_MUST_CHECK;
void ob_sqlite_wake_close(struct wake *w);
/* Starts or goes on watching; harmless when all is watched. */
void ob_sqlite_wake_watch(struct wake *w);
void ob_sqlite_wake_unwatch(struct wake *w);
/* Empties the descriptor. Call it before looking, so that what comes later wakes again. True: the
 * log was written since. */
bool ob_sqlite_wake_take(struct wake *w);
/* After a look that found nothing; written: what take() said. */
void ob_sqlite_wake_again(struct wake *w, bool written);

/* ---- the source ---- */

/* What a stand-by saw of an owner. */
struct watch {
    int64_t epoch, beat;
    int64_t seen_ms;  /* monotonic, of the last look */
    int64_t quiet_ms; /* how long the beat stood while the write lock could be had */
    bool seen;
};

/* Where the shards stood before a change of their number. */
struct past {
    unsigned shards;
    uint64_t pos[SHARDS_MAX];
};

extern const struct ob_source_driver ob_source_sqlite;

struct ob_source {
    struct db db;
    char *path, *pipeline, *owner;
    unsigned shard, shards;
    uint64_t key_rules; /* 0: not known */
    bool dlt;
    struct ob_limits limits; /* of the columns of an event */
    struct ob_unfit unfit;
    int64_t busy_ms;
    const struct ob_clock *clock;
    const struct ob_log *log;
    struct lock lock;
    struct wake wake;
    struct watch watch[SHARDS_MAX];
    bool owned;
    int64_t epoch;
    uint64_t pos;          /* durable */
    uint64_t claimed;      /* in memory */
    bool reload;           /* recorded_max is not known */
    uint64_t recorded_max; /* claims up to it look whether the row is parked or dead already */
    struct ob_ahead ahead, ahead_next; /* see ahead.c */
    struct ob_buf ahead_bytes;
    int64_t look_at_ms;
    struct past *past; /* rising generations */
    size_t n_past;
    uint64_t past_max;
    /* settle.c: the last number tried, what it would have counted, whether its outcome is not
     * known, and what was counted by one that turned out to have been committed */
    int64_t settle_no;
    bool unsure;
    struct counted {
        uint64_t delivered, failed;
    } tried, credit;
    /* Of the settle under way; places for cap ops: */
    uint64_t *touched; /* hashes whose key row must be derived again */
    int64_t *given;    /* numbers for the ops, handed out only when committed */
    size_t n_touched, cap;
    struct ob_buf history;
    int64_t counted_ms; /* status.c: when the rows of this shard were counted */
    int64_t parked, dead;
};

/* Of this shard? */
bool ob_sqlite_mine(const struct ob_source *s, uint64_t hash);
/* Wall clock in ms. */
int64_t ob_sqlite_wall_ms(const struct ob_source *s);
/* OB_FENCED if the shard is not owned, or if the file was replaced. */
enum ob_status ob_sqlite_owned(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
/* Forgets that the shard was owned. */
void ob_sqlite_lost(struct ob_source *s);

enum ob_status ob_sqlite_own(struct ob_source *s, struct ob_err *err);
void ob_sqlite_disown(struct ob_source *s);
enum ob_status ob_sqlite_beat(struct ob_source *s, const struct ob_beat *beat, bool *paused,
                              struct ob_err *err);
bool ob_sqlite_already(const struct ob_source *s, uint64_t ref, uint64_t hash);
/* reshard.c. True in *out: the cursors were written under other key rules, and it matters: several
 * shards, or positions of earlier ones (`shards` cursors are there). */
enum ob_status ob_sqlite_other_keys(struct ob_source *s, unsigned shards, bool *out,
                                    struct ob_err *err) OB_MUST_CHECK;
/* Old cursors become generation "past" and shards new ones start at the lowest position;
 * inside a write transaction. */
enum ob_status ob_sqlite_reshard(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
/* Under other key rules the old positions do not tell which events they cover. */
enum ob_status ob_sqlite_forget_past(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
enum ob_status ob_sqlite_past_load(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;

/* ahead.c. The first also after a change of shards; next: what this settle will store. */
enum ob_status ob_sqlite_ahead_load(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
enum ob_status ob_sqlite_ahead_next(struct ob_source *s, const struct ob_settle *settle,
                                    struct ob_err *err) OB_MUST_CHECK;
void ob_sqlite_ahead_stored(struct ob_source *s);
/* The sets of all shards into ahead_bytes. */
enum ob_status ob_sqlite_ahead_gather(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;

enum ob_status ob_sqlite_claim(struct ob_source *s, size_t max, size_t max_bytes,
                               struct ob_batch **out, struct ob_err *err);
void ob_sqlite_rewind(struct ob_source *s);

/* The columns of an event, in this order, for row_event(). */
#define EVENT_COLUMNS_WITH(payload)                                                                \
    "e.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, e.key, e.tenant, e.topic, " payload    \
    ", e.payload_kind, e.headers, e.metadata, e.entity_version, e.schema_version, e.max_attempts," \
    " e.created_at"
#define EVENT_COLUMNS EVENT_COLUMNS_WITH("e.payload")
/* An empty payload of the same kind: the bytes are not read. */
#define EVENT_COLUMNS_ONLY                                                                         \
    EVENT_COLUMNS_WITH("CASE typeof(e.payload) WHEN 'null' THEN NULL WHEN 'blob' THEN x''"         \
                       " ELSE '' END")
#define N_EVENT_COLUMNS 16
/* A function of SQL on this connection that takes a row of EVENT_COLUMNS into the page of db->take.
 * Its arguments are the row's values themselves: a third of the time that the same values cost when
 * they are asked for column by column, each with its own look at connection and statement. */
#define TAKE_ROW "outbox_take_row"
enum ob_status ob_sqlite_take_function(struct db *db, struct ob_err *err) OB_MUST_CHECK;
/* Fills ev from the columns that start at `first`; one allocation for all its bytes. OB_AGAIN: it
 * has more than `most` bytes; nothing was taken. OB_REJECT: no memory. */
enum ob_status ob_sqlite_row_event(const struct db *db, const struct ob_limits *limits,
                                   sqlite3_stmt *st, int first, size_t most, struct ob_arena *arena,
                                   struct ob_event *ev, struct ob_err *err);

/* event_read.c */
#define READ_MAX (256 << 10) /* larger values are read as blobs */
/* Of each column its type, and its value if that is a number: nothing large is read. */
#define SHAPE_OF(name)                                                                             \
    "typeof(e." name "), CASE WHEN typeof(e." name ") IN ('integer', 'real') THEN e." name " END"
#define OB_SQLITE_SHAPE                                                                                                            \
    "SELECT e.seq, e.payload_kind, e.entity_version, e.schema_version, e.max_attempts,"                                            \
    " e.created_at, " SHAPE_OF("payload") ", " SHAPE_OF("id") ", " SHAPE_OF("type") ", " SHAPE_OF("aggregate_type") ", " SHAPE_OF( \
        "aggregate_id") ", " SHAPE_OF("key") ", " SHAPE_OF("tenant") ", " SHAPE_OF("topic") ","                                    \
                                                                                            " " SHAPE_OF("headers") ", " SHAPE_OF( \
                                                                                                "metadata") " FROM outbox_event AS e WHERE e.seq = ?1"
/* On: a value of more than READ_MAX bytes ends a statement with an error. */
void ob_sqlite_bound_reads(struct db *db, bool on);
/* Is it that error, or no memory? */
bool ob_sqlite_too_large(int rc);
/* One event by its number; ev->id.p NULL: there is none. Columns over their limit are not read, and
 * ev->fault is set. OB_AGAIN: it has more than `most` bytes. OB_REJECT: no memory; then
 * ev->payload.n is how much it takes. */
enum ob_status ob_sqlite_read_event(struct db *db, const struct ob_limits *limits, uint64_t seq,
                                    bool payload, size_t most, struct ob_arena *arena,
                                    struct ob_event *ev, struct ob_err *err) OB_MUST_CHECK;

/* There was no memory for this event although it is read alone. OB_OK: so often in a row that it is
 * dead now, with its number in place of its id. */
enum ob_status ob_sqlite_unfit(struct ob_source *s, uint64_t seq, struct ob_arena *arena,
                               struct ob_event *ev, struct ob_err *err) OB_MUST_CHECK;

enum ob_status ob_sqlite_held(struct ob_source *s, const uint64_t *hashes, size_t n, bool *held,
                              struct ob_err *err);
enum ob_status ob_sqlite_drain(struct ob_source *s, uint64_t dest, int64_t now_wall_ms, size_t max,
                               size_t per_key, bool (*skip)(void *user, uint64_t hash), void *user,
                               struct ob_batch **out, int64_t *next_due_ms, struct ob_err *err);
enum ob_status ob_sqlite_blocked(struct ob_source *s, uint64_t after, uint64_t *dests, size_t max,
                                 size_t *n, struct ob_err *err);
/* The earliest key of this shard that waits only for time and is not skipped (skip may be NULL). */
enum ob_status ob_sqlite_next_due(struct ob_source *s, bool (*skip)(void *user, uint64_t hash),
                                  void *user, int64_t *due_ms, struct ob_err *err);

enum ob_status ob_sqlite_settle(struct ob_source *s, struct ob_settle *settle,
                                struct ob_settled *out, struct ob_err *err);
/* record.c. One op; *given: its number; *hash: whose key row must be derived again. */
enum ob_status ob_sqlite_record(struct ob_source *s, const struct ob_settle_op *op, int64_t *last_n,
                                int64_t *given, uint64_t *hash, struct ob_err *err) OB_MUST_CHECK;
enum ob_status ob_sqlite_delete_parked(struct ob_source *s, int64_t n, uint64_t *hash,
                                       struct ob_err *err) OB_MUST_CHECK;
/* Steps a statement that gives at most one row; *value is its first column. OB_AGAIN: no row. */
enum ob_status ob_sqlite_step_one(struct db *db, sqlite3_stmt *st, int64_t *value, const char *what,
                                  struct ob_err *err) OB_MUST_CHECK;
/* Moves parked rows whose event is gone from the table to the dead, in a transaction of its own. */
enum ob_status ob_sqlite_settle_lost(struct ob_source *s, const int64_t *n, size_t count,
                                     struct ob_err *err);
/* Derives the row of a hash in outbox_parked_key again. *held: it still has one. */
enum ob_status ob_sqlite_rekey(struct db *db, const char *pipeline, uint64_t hash, bool *held,
                               struct ob_err *err) OB_MUST_CHECK;

enum ob_status ob_sqlite_status(struct ob_source *s, struct ob_source_status *out,
                                struct ob_err *err);
/* pos, and ahead: how many are settled ahead of it, as in the cursor row. */
enum ob_status ob_sqlite_status_of(struct db *db, const char *pipeline, uint64_t pos, int64_t ahead,
                                   int64_t wall_ms, struct ob_source_status *out,
                                   struct ob_err *err) OB_MUST_CHECK;
/* parked and dead of one shard of several: looks at every parked and dead row. */
enum ob_status ob_sqlite_count_shard(struct db *db, const char *pipeline, unsigned shard,
                                     unsigned shards, int64_t *parked, int64_t *dead,
                                     struct ob_err *err) OB_MUST_CHECK;

/* ---- admin: its own connection, opened when first needed ---- */

struct ob_admin {
    char *path, *pipeline;
    const struct ob_clock *clock;
    struct db db;
};

extern const struct ob_source_admin ob_sqlite_admin;

enum ob_status ob_sqlite_admin_need(struct ob_admin *a, struct ob_err *err) OB_MUST_CHECK;
/* Appends " AND …" for what the filter asks of table alias t (key: expression of the key, time:
 * column in ms); binds it. */
void ob_sqlite_filter_sql(struct ob_buf *sql, const struct ob_filter *f, const char *t,
                          const char *key, const char *time);
void ob_sqlite_filter_bind(sqlite3_stmt *st, const struct ob_filter *f);
enum ob_status ob_sqlite_events(struct ob_admin *a, const struct ob_filter *f, bool payload,
                                ob_event_fn *fn, void *user, struct ob_err *err);
enum ob_status ob_sqlite_dead_list(struct ob_admin *a, const struct ob_filter *f, bool full,
                                   ob_dead_fn *fn, void *user, struct ob_err *err);
enum ob_status ob_sqlite_dlt_done(struct ob_admin *a, const int64_t *numbers, size_t n,
                                  struct ob_err *err);
enum ob_status ob_sqlite_dead_do(struct ob_admin *a, enum ob_dead_action action,
                                 const struct ob_filter *f, bool dry, size_t *n,
                                 struct ob_err *err);
enum ob_status ob_sqlite_check(struct ob_admin *a,
                               void (*found)(void *user, bool ok, const char *what,
                                             const char *fix),
                               void *user, struct ob_err *err);

#endif
