/* SPDX-License-Identifier: Apache-2.0 */
/* wal - the state of mode wal. Nothing here is for others.
 *
 *     wal.c          the reader: start, claim, settle     wal_slot.c    names, publication, slot
 *     wal_stream.c   the replication connection           wal_read.c    from frames to events
 *     wal_native.c   rows of outbox.event                 wal_message.c pg_logical_emit_message
 *     wal_mapped.c   rows of another table                wal_rows.c    one with state columns
 *     wal_table.c    reading the table until a slot is there          wal_tick.c  once a second
 *     wal_handover.c the states of the change from table to stream
 *     wal_slot_rule.c may a slot be dropped?      wal_reshard.c another number of shards
 *     wal_ahead.c    what is settled ahead of the position
 *
 * Either the stream is read, through a slot and from our own position, or no slot continues where
 * the cursor is: then the table is read by its own reader, a slot is created, and the stream begins
 * when the table has been read up to it (wal_handover.h). Transactions that were read from the
 * table are skipped in the stream. */
#ifndef OB_SOURCE_POSTGRES_WAL_H
#define OB_SOURCE_POSTGRES_WAL_H

#include "source/postgres/mapping.h"
#include "source/postgres/pg.h"
#include "source/postgres/pgoutput.h"
#include "source/postgres/snap.h"
#include "source/postgres/wal_handover.h"
#include "source/postgres/wal_slot_rule.h"

#define WAL_NAME 64
#define WAL_SHARDS_MAX 64

/* A position in the order of commits: all transactions whose commit record stands below lsn, and
 * the first `rows` rows of the one that stands at lsn. */
struct wal_pos {
    uint64_t lsn, rows;
};

/* A transaction with events that are not settled: ordinals first to last. */
struct wal_txn {
    uint64_t first, last;
    uint64_t lsn, end_lsn; /* its commit; end 0: not read yet */
    uint64_t rows;         /* that stood before `first` in it */
};

struct wal_ring {
    struct wal_txn *of;
    size_t cap, head, n; /* head: index of the oldest */
};

enum wal_field {
    F_XID,
    F_SEQ,
    F_ID,
    F_TYPE,
    F_AGGREGATE_TYPE,
    F_AGGREGATE_ID,
    F_KEY,
    F_TENANT,
    F_TOPIC,
    F_PAYLOAD,
    F_KIND,
    F_HEADERS,
    F_METADATA,
    F_ENTITY_VERSION,
    F_SCHEMA_VERSION,
    F_MAX_ATTEMPTS,
    F_CREATED,
    N_FIELDS
};

/* How a table's rows become events. */
struct wal_table {
    bool known;        /* its relation message was read */
    uint32_t relation; /* of this stream */
    int at[N_FIELDS];  /* column of a field, -1: none */
    size_t n;          /* columns */
};

/* Positions of the shards of one generation when their number was changed. */
struct wal_past {
    unsigned shards;
    struct wal_pos of[WAL_SHARDS_MAX];
};

struct wal_state {
    struct wal_handover handover;
    const struct pg_reader *table_reader; /* NULL: no table keeps the events */
    char slot[WAL_NAME], publication[WAL_NAME];
    char mark[160];     /* the publication as it was when the slot was made */
    char system_id[32]; /* of the server that the sql session is on */
    int64_t timeline;

    struct wal_pos durable; /* as stored; what the server is told */
    struct wal_pos read;    /* handed out, or passed over */
    struct wal_ring ring;
    uint64_t given, settled; /* ordinals: the last row read, the last settled */
    uint64_t handed;         /* the last one that became a claimed event */

    /* settled ahead of the position (wal_ahead.c) */
    struct pg_ahead ahead;
    uint64_t ahead_end; /* the WAL's end when `ahead` was loaded, or later */
    uint64_t *numbers;  /* of the events of ordinals behind `settled` */
    size_t numbers_cap;

    /* the connection */
    struct pg_session repl;
    bool streaming;
    struct wal_pos resume; /* where this connection goes on: `read` when it was opened */
    uint64_t target;       /* where the server stood then: what was there before we came */
    int64_t open_at, busy_since;
    unsigned failures;

    /* the transaction that is being read */
    bool in_txn, skip_txn;
    uint64_t txn_lsn, txn_rows, txn_xid;
    int64_t txn_time_us;
    uint64_t row_lsn, row_no; /* of the last row: its record, and which row of it */
    struct wal_table table;
    struct pg_map *map; /* another system's table; NULL: the native one, or none */
    int map_at[OB_MAP_N], *more_at;
    struct pgo_room *room;

    /* a claim under way */
    struct ob_event *events; /* room for a page */
    size_t n_events, bytes, last_used;
    struct ob_arena *arena;

    struct snap *seen; /* its transactions were read from the table */
    uint64_t seen_xmax;
    int64_t recorded_max; /* no event above this number has a parked or dead row */

    /* commits that SQL does not show yet */
    bool wait_visible, waiting;
    struct snap *visible;
    int64_t visible_at, visible_ms, invisible_since;

    /* the next anchor */
    struct snap *anchor_snap;
    int64_t anchor_pos;
    uint64_t anchor_lsn;
    uint64_t verified;   /* the WAL's end when slot and publication were last seen to be well */
    bool anchor_written; /* it is part of the cursor that is being written */
    struct wal_pos writing;
    int64_t ask_at; /* how far the server is */

    /* a table with state columns */
    bool rows;
    unsigned char *done; /* of ordinals behind `settled`: settled out of turn */
    size_t done_cap;
    struct wal_pos reached; /* of `settled` */
    bool check_all, verify; /* what the next connection finds is looked up; this batch is */
    uint64_t check_lsn;     /* commits below it are looked up: they may be settled */
    PGresult *sweep;        /* ids that waited, and the WAL's end behind that look */
    int sweep_row;
    uint64_t sweep_lsn;

    struct wal_past *past;
    size_t n_past;

    /* the slot that is being created */
    int64_t made_at, said_at;

    bool told_other, told_plain, told_invisible; /* said once */
    char texts[4][32];                           /* of the cursor that is being written */
};

static inline struct wal_state *wal_of(const struct ob_source *s)
{
    return s->wal;
}

static inline bool wal_streams(const struct wal_state *w)
{
    return w->handover.state == HANDOVER_STREAM;
}

static inline bool wal_behind(struct wal_pos a, struct wal_pos b)
{
    return a.lsn < b.lsn || (a.lsn == b.lsn && a.rows < b.rows);
}

/* wal_start.c */
enum ob_status ob_pg_wal_start(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;

/* wal_slot.c */
enum ob_status ob_pg_wal_names(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
/* Names of the slots of shards `from` up to `to` of so many, as an array in text. */
void ob_pg_wal_slots_of(const struct ob_source *s, unsigned from, unsigned to, unsigned shards,
                        struct ob_buf *out);
/* Makes the publication if it is not there, and checks that all inserts come through it. */
enum ob_status ob_pg_wal_publication(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
/* $1 the publication, $2 the table (or NULL): one text that changes with every change of what it
 * publishes. NULL: it is gone. */
#define PG_WAL_MARK                                                                                \
    "(select p.oid::text || '.' || p.xmin::text || coalesce(':' || (select string_agg(r.oid::text" \
    " || '.' || r.xmin::text, ',' order by r.oid) from pg_publication_rel r where r.prpubid = "    \
    "p.oid and r.prrelid = to_regclass($2)), '') from pg_publication p where p.pubname = $1)"
struct wal_slot {
    bool there, ours, lost; /* ours: of this database and of our kind; lost: the WAL is gone */
    uint64_t confirmed, restart;
    int64_t pid;      /* who holds it, 0: nobody */
    int64_t retained; /* bytes of WAL from where it stands */
    char why[200];    /* not ours: why */
};
enum ob_status ob_pg_wal_slot(struct ob_source *s, struct wal_slot *out,
                              struct ob_err *err) OB_MUST_CHECK;
/* Ends the walsender that holds the slot if it is one of ours: the shard is ours, so its owner is
 * gone. OB_RETRY: somebody else's, err says whose. */
enum ob_status ob_pg_wal_free_slot(struct ob_source *s, const char *slot,
                                   struct ob_err *err) OB_MUST_CHECK;
/* Drops the shard's slot where wal_slot_rule.h allows it. OB_AGAIN: it is in use; try again soon.
 */
enum ob_status ob_pg_wal_drop_slot(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
/* Records that a slot is about to be created and frees its name; *use: the position of one that is
 * to be used in place of a new one, else 0. OB_AGAIN as above. */
enum ob_status ob_pg_wal_ready_slot(struct ob_source *s, uint64_t *use,
                                    struct ob_err *err) OB_MUST_CHECK;
/* The table is read in place of the stream: the cursor gives up its position in the stream. */
enum ob_status ob_pg_wal_leave_stream(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
/* The slot of this shard is the recorded one from now on; or it is to be copied from that. */
enum ob_status ob_pg_wal_record_slot(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
enum ob_status ob_pg_wal_record_move(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
/* Slots of shards that no longer exist, where a table keeps the events. */
void ob_pg_wal_drop_others(struct ob_source *s);
/* Name of the published table, "outbox.event" or another; NULL: none. */
const char *ob_pg_wal_table_name(const struct ob_source *s);

/* wal_reshard.c */
/* Before the number of shards is changed: slots that an older program created are recorded. */
enum ob_status ob_pg_wal_name_slots(struct ob_source *s, unsigned shards,
                                    struct ob_err *err) OB_MUST_CHECK;
/* After it: every shard gets its slot. OB_AGAIN: one is still in use. OB_OK and still SLOT_MOVING:
 * no slot holds the WAL any more. */
enum ob_status ob_pg_wal_move_slots(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
enum ob_status ob_pg_wal_past_load(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
void ob_pg_wal_past_clear(struct wal_state *w);
/* Was this event settled before the number of shards was changed? */
bool ob_pg_wal_past_settled(const struct wal_state *w, uint64_t ref, uint64_t hash);

/* wal_ahead.c */
/* end: the WAL's end, read after the set was stored. */
enum ob_status ob_pg_wal_ahead_load(struct ob_source *s, uint64_t end,
                                    struct ob_err *err) OB_MUST_CHECK;
/* Remembers the number of the event that has just been counted. A member of the set becomes
 * `settled`, with nothing else. False: no memory. */
bool ob_pg_wal_ahead_note(struct ob_source *s, struct ob_event *ev) OB_MUST_CHECK;
/* Before `read` returns to the durable position. */
void ob_pg_wal_ahead_rewind(struct wal_state *w);
void ob_pg_wal_ahead_clear(struct wal_state *w);
/* Adds the set to the cursor of a settle that brings the position to `at`. */
void ob_pg_wal_ahead_write(struct ob_source *s, const struct ob_settle *settle, struct wal_pos at,
                           struct pg_cursor *out);

/* wal_stream.c */
enum ob_status ob_pg_wal_connect(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
/* OB_OK: streaming. OB_AGAIN: the slot is not free yet; later. */
enum ob_status ob_pg_wal_open(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
void ob_pg_wal_close(struct ob_source *s);
/* Tells the server how far we are. */
void ob_pg_wal_report(struct ob_source *s, bool reply);
/* The next frame; *buf is PQfreemem'd by the caller. OB_AGAIN: none now. */
enum ob_status ob_pg_wal_frame(struct ob_source *s, char **buf, size_t *n,
                               struct ob_err *err) OB_MUST_CHECK;

/* wal_read.c */
enum ob_status ob_pg_wal_read(struct ob_source *s, size_t max, size_t max_bytes,
                              struct ob_batch **out, struct ob_err *err) OB_MUST_CHECK;
/* The position behind an ordinal. False: it is not in the ring. */
bool ob_pg_wal_at(const struct wal_state *w, uint64_t ref, struct wal_pos *out);
/* The row of an ordinal: its transaction's commit record, and which row of it, from 1. */
bool ob_pg_wal_row(const struct wal_state *w, uint64_t ref, struct wal_pos *out);
void ob_pg_wal_settled(struct wal_state *w, uint64_t ref);
enum ob_status ob_pg_wal_recorded(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;

/* Events that did not come through the stream have their place behind all that was read. */
bool ob_pg_wal_ring_note(struct wal_state *w, uint64_t first, uint64_t last) OB_MUST_CHECK;

/* wal_rows.c */
void ob_pg_wal_rows_settled(struct ob_source *s, const struct ob_settle *settle);
/* Of the events just read those that wait stay, and count as taken. */
enum ob_status ob_pg_wal_rows_keep(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
/* Notes what waits. */
enum ob_status ob_pg_wal_rows_look(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
/* What was noted, and still waits now that the stream is read behind it. OB_AGAIN: nothing. */
enum ob_status ob_pg_wal_rows_sweep(struct ob_source *s, size_t max, struct ob_batch **out,
                                    struct ob_err *err) OB_MUST_CHECK;
/* What the reader of mode rows has read (wal_handover.h); passes it has begun. */
void ob_pg_wal_rows_reading(const struct ob_source *s, struct wal_reading *out);
uint64_t ob_pg_wal_rows_passes(const struct ob_source *s);
void ob_pg_wal_rows_clear(struct wal_state *w);
void ob_pg_wal_rows_rewind(struct ob_source *s);

/* wal_native.c: false with err->status OB_DOWN (no memory) or OB_FATAL (the table has changed). */
enum ob_status ob_pg_wal_map_native(struct wal_table *t, const struct pgo_msg *relation,
                                    struct ob_err *err) OB_MUST_CHECK;
enum ob_status ob_pg_wal_native(const struct wal_table *t, const struct pgo_msg *row,
                                const struct ob_limits *limits, struct ob_arena *arena,
                                struct ob_event *ev, struct ob_err *err) OB_MUST_CHECK;
/* Values of a tuple in either form. */
int64_t ob_pg_wal_number(const struct pgo_value *v, int64_t none);
/* More than max bytes are not decoded: then only out->n counts. */
bool ob_pg_wal_bytes(const struct pgo_value *v, int64_t max, struct ob_arena *arena,
                     struct ob_str *out) OB_MUST_CHECK;
/* wal_mapped.c */
enum ob_status ob_pg_wal_map_table(struct wal_state *w, const struct pgo_msg *relation,
                                   struct ob_err *err) OB_MUST_CHECK;
enum ob_status ob_pg_wal_mapped(struct wal_state *w, const struct pgo_msg *row,
                                const struct ob_limits *limits, struct ob_arena *arena,
                                struct ob_event *ev, struct ob_err *err) OB_MUST_CHECK;
/* wal_message.c: what cannot be read is an event with a fault. OB_DOWN: no memory. */
enum ob_status ob_pg_wal_message(const struct pgo_msg *msg, int64_t time_us,
                                 const struct ob_limits *limits, struct ob_arena *arena,
                                 struct ob_event *ev, struct ob_err *err) OB_MUST_CHECK;

/* wal_table.c */
/* Rounds of the table's reader begun so far. */
uint64_t ob_pg_wal_table_rounds(const struct ob_source *s);
enum ob_status ob_pg_wal_table_claim(struct ob_source *s, size_t max, size_t max_bytes,
                                     struct ob_batch **out, struct ob_err *err) OB_MUST_CHECK;

/* wal_tick.c */
enum ob_status ob_pg_wal_tick(struct ob_source *s, struct ob_err *err);
/* OB_OK: SQL shows the transaction that is being read. OB_AGAIN: not yet. */
enum ob_status ob_pg_wal_visible(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
/* The anchor, if the position has reached it. */
bool ob_pg_wal_anchor(struct wal_state *w, struct wal_pos at, struct pg_cursor *out);

#endif
