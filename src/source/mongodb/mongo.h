/* SPDX-License-Identifier: Apache-2.0 */
/* mongo - inside of the MongoDB source. Nothing here is for others.
 *
 *     driver.c  options, open, close            lease.c   who is the one worker: owner, epoch, beat
 *     conn.c    clients, deadlines, errors      model.c   names, filters and updates of a mapping
 *     event.c   a document as an event          window.c  documents that were handed out
 *     reader.c  a thread that looks for work    pass.c    one look: page, entities, choice
 *     claim.c   locks what a look has chosen
 *     stream.c  a thread that wakes the reader  mark.c    what became of documents, in their fields
 *     settle.c  what a settle records           record.c  parked and dead ones beside them
 *     parked.c  held, drain, blocked            status.c  numbers for people
 *     held.c    what keys wait for              admin*.c, check.c  what people do
 *     schema.c  collections and indexes         txn.c     a transaction under the lease
 *     lease_doc.c  the lease's document         ours.c    ids of what is claimed and not settled
 *     session.c sessions of transactions, and how one whose client is gone is ended
 *     release.c dead ones that are made pending again
 *     locks.c   locks of what is in the window  sweep.c   locks that this process knows nothing of
 *     set.c     values by their hash
 *
 * Beside a collection C of events stand C_lease (one document: who works, epoch, counters, paused),
 * C_parked (events that wait, numbered), C_held (one document per key hash that waits) and C_dead.
 * Events are named by their `_id` everywhere: two documents may have one event id.
 *
 * libmongoc blocks. The shard's thread uses `client` for what is short (lease, marks, parked ones);
 * the reader and the stream have threads and clients of their own. Every call of the library has
 * deadlines (conn.c).
 *
 * 64-bit hashes and destinations are stored as signed numbers, bit for bit. */
#ifndef OB_SOURCE_MONGODB_MONGO_H
#define OB_SOURCE_MONGODB_MONGO_H

#include "core/backoff.h"
#include "core/buf.h"
#include "event/mapping.h"
#include "source/admin.h"
#include "source/source.h"

#include <mongoc/mongoc.h>
#include <pthread.h>
#include <stdatomic.h>

struct mongo_conf {
    const char *uri, *database;
    const char *collection; /* of native documents; a mapping has its own */
    int mode;               /* only rows */
    const char *worker_id;  /* "": the process's own name */
    int64_t poll_max_ms;
    int64_t timeout_ms; /* of one call */
    int64_t lease_ms;   /* of the one worker */
    int64_t page;
    int payload_json;          /* enum ob_bson_form: plain, relaxed, canonical */
    bool change_stream;        /* wakes earlier than poll_max */
    struct ob_mapping mapping; /* table NULL: native documents */
};

/* ---- model.c ---- */

/* A mapping, checked, with all that is sent to the server again and again. Read-only after
 * ob_mongo_model_new(): shared by the threads. */
struct mongo_model {
    struct ob_arena *arena; /* has the names, and this */
    const struct ob_mapping *conf;
    bool native;
    struct ob_limits limits;                           /* of the fields of an event */
    const char *events, *lease, *parked, *held, *dead; /* collections */
    const char *f[OB_MAP_N];                           /* fields; NULL: not mapped */
    const char *entity; /* the field that order is kept within; NULL: none */
    const char *order;  /* within an entity */
    const char *first;  /* pages are read by it: creation, or the native number */
    const char *pending, *claimed, *done, *failed;
    int64_t dead_attempts; /* of a document without its own number */
    /* Expressions on a document: may be claimed now; will not be tried again; attempts as a number;
     * how many it may have. JSON text, to be put into other texts. */
    const char *x_ready, *x_dead, *x_attempts, *x_max;
    const char *x_free; /* what a field of the lock becomes when it is given up */
    bson_t *q_pending;  /* filter: waits, for the first page */
    bson_t *q_claimed;  /* filter: locked, whether by us, by others or no longer */
    bson_t *q_failed;   /* filter: failed, whether dead or not */
    bson_t *q_open;     /* filter: neither published nor dead */
    bson_t *q_alive;    /* filter: waits or failed, and is not dead by its own fields */
    bson_t *q_ready;    /* filter: {$expr: x_ready} */
    bson_t *sort_page;  /* by `first` */
    bson_t *sort_order; /* by entity and order */
    bson_t *page;       /* projection: the entity, and `first` */
    bson_t *page_ready; /* the same, and whether it may be claimed now */
    bson_t *page_locks; /* projection: who has locked it, and `first` */
    bson_t *meta;       /* projection: what a pass needs to know of a document */
    bson_t *u_claim, *u_renew, *u_back, *u_done; /* updates: pipelines */
};

#define PAGE_READY "outbox_ready"   /* of page_ready */
#define PAGE_ENTITY "outbox_entity" /* of page and page_ready */

/* Fields of the projection `meta`, beside _id. */
#define META_ENTITY "e"
#define META_READY "r"
#define META_DEAD "d"
#define META_OWNER "o"
#define META_STATUS "s"
#define META_SIZE "z"

/* OB_FATAL: with the option's name. owner: written as locked_by. retry: how long a failed document
 * waits; NULL: not at all. limits: NULL: the defaults. */
enum ob_status ob_mongo_model_new(const struct mongo_conf *conf, const char *owner,
                                  const struct ob_backoff *retry, const struct ob_limits *limits,
                                  struct mongo_model **out, struct ob_err *err) OB_MUST_CHECK;
/* An expression: the entity, or null where it is over the limit of texts. in: what stands before
 * its name, "" or "fullDocument.". False: no memory. */
bool ob_mongo_small_entity(const struct mongo_model *m, const char *in,
                           struct ob_buf *out) OB_MUST_CHECK;
void ob_mongo_model_free(struct mongo_model *m);

/* ---- conn.c ---- */

/* A pool whose clients have our deadlines. */
enum ob_status ob_mongo_pool(const struct mongo_conf *conf, mongoc_client_pool_t **out,
                             struct ob_err *err) OB_MUST_CHECK;
/* Is the server one that can do this: a member of a replica set, or a router. OB_FATAL: not. */
enum ob_status ob_mongo_server(mongoc_client_t *client, const char *database,
                               struct ob_err *err) OB_MUST_CHECK;
/* What to do after a failed call. reply may be NULL. */
enum ob_status ob_mongo_fail(struct ob_err *err, const char *what, const bson_error_t *e,
                             const bson_t *reply);
/* Where the connection can be read or taken over by others on the network: what is wrong, and *fix;
 * NULL: nothing is. */
const char *ob_mongo_weak_tls(const char *uri, const char **fix);
/* What a person can do about such a message; NULL: nothing is known. */
const char *ob_mongo_advice(const char *text);
/* May the same transaction succeed if it is tried again? */
bool ob_mongo_transient(const bson_t *reply);
/* Does this error say that a document got too large? */
bool ob_mongo_too_large(const bson_error_t *e);
/* {"writeConcern": majority with our deadline}, and the session if not NULL. */
void ob_mongo_write_opts(bson_t *opts, int64_t timeout_ms, mongoc_client_session_t *session);
/* A command that writes, on the primary with majority; takes part in the session if not NULL.
 * reply is always initialised. */
enum ob_status ob_mongo_write(mongoc_client_t *client, const char *database, const bson_t *command,
                              int64_t timeout_ms, mongoc_client_session_t *session, bson_t *reply,
                              const char *what, struct ob_err *err);
/* updateMany with a pipeline; *matched may be NULL. */
enum ob_status ob_mongo_update_many(mongoc_collection_t *coll, const bson_t *filter,
                                    const bson_t *pipeline, int64_t timeout_ms,
                                    mongoc_client_session_t *session, size_t *matched,
                                    const char *what, struct ob_err *err) OB_MUST_CHECK;
/* Of a cursor that gives no more: did it fail? */
enum ob_status ob_mongo_cursor(mongoc_cursor_t *c, const char *what,
                               struct ob_err *err) OB_MUST_CHECK;
/* Appends "key": {"$in": [ids]}. */
void ob_mongo_in(bson_t *b, const char *key, const bson_value_t *const *ids, size_t n);
/* 128 bits that two different values never share; numbers that are equal have the same. */
void ob_mongo_hash(const bson_value_t *v, uint64_t hash[2]);
/* JSON made by printf, as BSON. NULL: it is none, or no memory. */
bson_t *ob_mongo_bson(const char *fmt, ...) OB_PRINTF(1, 2);
int64_t ob_mongo_i64(const bson_t *doc, const char *field, int64_t otherwise);

/* ---- event.c ---- */

/* Its bytes. Not by its fields: a bson_t wants an alignment that not every stack has. */
struct ob_str ob_mongo_raw(const bson_t *doc);
/* All slices in the arena. A document that cannot be turned into an event has ev->fault set. False:
 * no memory. */
bool ob_mongo_event(const struct mongo_model *m, int payload_json, const bson_t *doc,
                    struct ob_arena *arena, struct ob_event *ev) OB_MUST_CHECK;
/* There is no memory for this document alone: its event is dead with that reason. False: not even
 * for that. */
bool ob_mongo_event_too_large(const bson_t *doc, struct ob_arena *arena,
                              struct ob_event *ev) OB_MUST_CHECK;
/* The fault of one that is too large. */
#define MONGO_NO_ROOM                                                                              \
    "the document is so large that it cannot be locked: it has no room for the fields of its lock"
/* The document's _id; valid as long as the event. False: it has none. */
bool ob_mongo_ref(const struct ob_event *ev, bson_iter_t *it) OB_MUST_CHECK;
/* A value as text: strings as they are, ObjectIds in hex, times RFC 3339, others as JSON. */
void ob_mongo_text(const bson_value_t *v, struct ob_buf *out);

/* ---- window.c ---- */

struct mongo_ours;

/* A document that was handed out and is not settled. Its place is in the low bits of the event's
 * ref. */
struct mongo_slot {
    uint64_t ref; /* 0: free */
    bson_value_t id;
    int64_t since_ms;
    uint32_t next;
};

struct mongo_window {
    struct mongo_slot *at;
    size_t cap, n;
    uint32_t free; /* list, UINT32_MAX: none */
    uint64_t given;
    struct mongo_ours *ours; /* told of what comes and goes; may be NULL */
};

/* Takes the id. 0: no memory. */
uint64_t ob_mongo_window_add(struct mongo_window *w, bson_value_t *id, int64_t now_ms);
/* NULL: it is not in it. */
struct mongo_slot *ob_mongo_window_find(struct mongo_window *w, uint64_t ref);
void ob_mongo_window_remove(struct mongo_window *w, uint64_t ref);
void ob_mongo_window_clear(struct mongo_window *w);

/* ---- set.c ---- */

/* Values by their hash (ob_mongo_hash), with a number beside each. */
struct mongo_set {
    uint64_t (*at)[2];
    uint32_t *value;
    size_t cap, n; /* cap: a power of two */
};

/* 1: added, 0: it was there, -1: no memory. */
int ob_mongo_set_add(struct mongo_set *set, const uint64_t h[2], uint32_t value) OB_MUST_CHECK;
/* value may be NULL. */
bool ob_mongo_set_has(const struct mongo_set *set, const uint64_t h[2], uint32_t *value);
void ob_mongo_set_remove(struct mongo_set *set, const uint64_t h[2]);
void ob_mongo_set_clear(struct mongo_set *set);

/* ---- ours.c ---- */

/* Documents that we have claimed and that are not settled: in pages and in the window. Both
 * threads. */
struct mongo_ours {
    pthread_mutex_t lock;
    struct mongo_set ids;
    struct mongo_set left; /* those that left since a look began: what it reads may be older */
    bool looking;
};

void ob_mongo_ours_init(struct mongo_ours *o);
void ob_mongo_ours_clear(struct mongo_ours *o);
/* False: no memory. o may be NULL in all of these: nobody asks. */
bool ob_mongo_ours_add(struct mongo_ours *o, const bson_value_t *id) OB_MUST_CHECK;
void ob_mongo_ours_remove(struct mongo_ours *o, const bson_value_t *id);
/* h: of its _id. Also true if it left since the look began. */
bool ob_mongo_ours_has(struct mongo_ours *o, const uint64_t h[2]);
/* A look begins, or ends. */
void ob_mongo_ours_look(struct mongo_ours *o, bool begins);

/* ---- pass.c, reader.c, stream.c ---- */

/* Documents that are claimed and not handed out yet: event i of the batch is document ids[i]. */
struct mongo_page {
    struct ob_batch *batch;
    bson_value_t *ids;
    size_t n, next;
    bool was_dead;           /* some of them have a row among the dead */
    struct mongo_ours *ours; /* knows of them; NULL: not yet */
};

void ob_mongo_page_free(struct mongo_page *page);

struct mongo_reader; /* reader.c */
struct mongo_stream; /* stream.c */

struct ob_source {
    const struct mongo_conf *conf;
    struct mongo_model *model;
    char *pipeline;
    char *token;       /* names this source of this process alone: the lease's owner */
    char *owner;       /* written as locked_by: worker_id, or the token */
    bool owner_unique; /* nobody else writes this locked_by: it fences as well as the epoch */
    bool dlt;
    const struct ob_clock *clock;
    const struct ob_log *log;
    mongoc_client_pool_t *pool;
    mongoc_client_t *client;          /* the shard thread's */
    mongoc_client_session_t *session; /* … of all its transactions; NULL: none yet */
    bson_t *session_name;             /* as it is in the lease document */
    mongoc_database_t *db;
    bool ready; /* the server was looked at and the collections beside it are there */
    bool owned;
    bool leaked; /* it was, and documents may still be locked by us */
    int64_t epoch;
    _Atomic int64_t lease_until; /* mono ms: not later than the server's own time of it */
    bool shown_back; /* what is in the window was given back: the sink is down, or we are paused */
    bool drain_one;  /* there was no memory for more parked documents than one */
    bool probed;     /* … and a parked one was claimed since, to see whether the sink is back */
    bool unsure;     /* the outcome of the last mark is not known */
    int64_t renew_at;
    uint64_t delivered, failed, fenced; /* not in the lease document yet */
    _Atomic bool side;                  /* something may be parked or dead */
    struct mongo_ours ours;
    struct mongo_window window;
    struct mongo_page *page; /* being handed out */
    struct mongo_reader *reader;
    struct mongo_stream *stream;
    struct ob_buf text;
};

/* Where the next look for the same begins; NULL or empty: at the first one. */
struct mongo_place {
    bson_value_t at; /* of the field `first` */
};

void ob_mongo_place_clear(struct mongo_place *place);

enum mongo_kind { MONGO_PENDING, MONGO_LOCKED, MONGO_FAILED, MONGO_SWEPT /* sweep.c */ };

/* A look for work. Thread: the reader's. */
struct mongo_pass {
    struct ob_source *s;
    mongoc_client_t *client;
    size_t max, max_bytes;
    enum mongo_kind kind;         /* of the documents that are looked for */
    struct mongo_place *place;    /* in and out; NULL: all are looked at each time */
    size_t slice;                 /* in and out: entities of one query; 0: not known yet */
    const bson_value_t *entities; /* look at these alone, without a page; n_entities 0: at all */
    size_t n_entities;
    struct mongo_set *refused; /* documents that were handed out and could not be locked */
    bson_t *unsure;            /* out: an array of ids that a failed claim may have locked */
    bool *no_memory;           /* out: … for a page of more than one document */
    bool more;                 /* out: there may be more of the same */
    bool partly;               /* out: only a slice was looked at */
};

/* OB_OK: *out has documents that are ours. OB_AGAIN: nothing. */
enum ob_status ob_mongo_pass(struct mongo_pass *p, struct mongo_page **out, struct ob_err *err);

/* A round over all locked documents, a page at a time. */
struct mongo_sweep {
    struct mongo_place place; /* of the next page; empty: a new round */
    struct mongo_set seen;    /* locks that the last round did not know … */
    struct mongo_set now;     /* … and this one so far */
};

/* Gives back what has our name on it and is not ours, and was so in the last round, too. One page;
 * *more: the round is not over. sweep.c */
enum ob_status ob_mongo_sweep(const struct mongo_pass *p, struct mongo_sweep *w, bool *more,
                              struct ob_err *err) OB_MUST_CHECK;
void ob_mongo_sweep_clear(struct mongo_sweep *w);
/* Gives back those of these that have our name on them; *given may be NULL. claim.c */
enum ob_status ob_mongo_claim_back(struct ob_source *s, mongoc_client_t *client,
                                   const bson_value_t *const *ids, size_t n, size_t *given,
                                   struct ob_err *err) OB_MUST_CHECK;

enum ob_status ob_mongo_reader_new(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
void ob_mongo_reader_free(struct mongo_reader *r);
/* Lets it work (fresh: nothing is in the window), or stops it and waits until it rests (OB_AGAIN:
 * it does not yet, and what it is about to lock would be in nobody's memory: end the work). Nothing
 * that it found is kept. */
void ob_mongo_reader_go(struct mongo_reader *r, bool fresh);
enum ob_status ob_mongo_reader_rest(struct mongo_reader *r, int64_t wait_ms,
                                    struct ob_err *err) OB_MUST_CHECK;
/* There may be something new. Any thread. entity: there is, of this one; NULL: it is not known
 * where. */
void ob_mongo_reader_kick(struct mongo_reader *r, const bson_value_t *entity);
int ob_mongo_reader_fd(const struct mongo_reader *r);
/* What is claimed and not fetched yet; NULL: nothing. Valid until the shard's thread takes it. */
const struct mongo_page *ob_mongo_reader_found(struct mongo_reader *r);
bool ob_mongo_reader_looking(struct mongo_reader *r);
/* OB_OK: *out is the caller's. OB_AGAIN: asked for; the descriptor tells. */
enum ob_status ob_mongo_reader_take(struct mongo_reader *r, size_t max, size_t max_bytes,
                                    struct mongo_page **out, struct ob_err *err) OB_MUST_CHECK;

enum ob_status ob_mongo_stream_new(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
void ob_mongo_stream_free(struct mongo_stream *st);
void ob_mongo_stream_set(struct mongo_stream *st, bool on);

/* ---- schema.c ---- */

/* Makes the collections beside the events, with their indexes, where they are missing. */
enum ob_status ob_mongo_side(mongoc_client_t *client, const char *database,
                             const struct mongo_model *m, int64_t timeout_ms,
                             struct ob_err *err) OB_MUST_CHECK;

/* ---- lease.c ---- */

enum ob_status ob_mongo_own(struct ob_source *s, struct ob_err *err);
enum ob_status ob_mongo_beat(struct ob_source *s, const struct ob_beat *beat, bool *paused,
                             struct ob_err *err);
void ob_mongo_disown(struct ob_source *s);
/* Not the worker any more, or it cannot be known: nothing in memory counts. */
void ob_mongo_lost(struct ob_source *s);
enum ob_status ob_mongo_owned(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
/* The same by our own clock, before anything is handed out: OB_FENCED if the lease may be over. */
enum ob_status ob_mongo_in_time(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
/* The reader rests, and that before the lease may be over; or the work has ended: OB_FENCED. */
enum ob_status ob_mongo_rest(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
/* Of what we have locked: all goes back to the status it had. */
enum ob_status ob_mongo_give_back(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;

mongoc_collection_t *ob_mongo_coll(const struct ob_source *s, const char *name);

/* ---- lease_doc.c ---- */

/* Makes it where it is missing. */
enum ob_status ob_mongo_lease_make(mongoc_client_t *client, const char *database,
                                   const struct mongo_model *m, int64_t timeout_ms,
                                   struct ob_err *err) OB_MUST_CHECK;
/* A query for it while it is this worker's; epoch -1: whose ever it is. */
bson_t *ob_mongo_fence(int64_t epoch, const char *owner);
/* May it be taken: OB_AGAIN: it is another worker's. Where it is over, the session of the worker
 * before is ended, with a transaction that it left open; *unended: why that could not be done. */
enum ob_status ob_mongo_lease_vacant(struct ob_source *s, struct ob_err *unended,
                                     struct ob_err *err) OB_MUST_CHECK;
/* An open transaction has the document locked: ends this worker's own session (no transaction of it
 * is under way), and those of commands, which are short or dead. */
void ob_mongo_lease_unlock(struct ob_source *s);
/* Names the session of a command in the document, before its first transaction, and removes it. */
enum ob_status ob_mongo_lease_admin(mongoc_client_t *client, const struct mongo_conf *conf,
                                    const struct mongo_model *m, const bson_t *name, bool begins,
                                    struct ob_err *err) OB_MUST_CHECK;
/* findAndModify by a $set; *out is its new state, or empty where none matched. OB_AGAIN: an open
 * transaction has it locked. */
enum ob_status ob_mongo_lease_change(struct ob_source *s, const bson_t *query, const char *set,
                                     bson_t *out, struct ob_err *err);

/* ---- session.c ---- */

/* For transactions on snapshot and majority. NULL: *err says why. */
mongoc_client_session_t *ob_mongo_session_new(mongoc_client_t *client, int64_t timeout_ms,
                                              struct ob_err *err);
/* What the server calls it: {id, uid, user}. *out is always initialised. */
enum ob_status ob_mongo_session_name(mongoc_client_t *client, const char *database,
                                     mongoc_client_session_t *session, bson_t *out,
                                     struct ob_err *err) OB_MUST_CHECK;
/* Ends the session of that name and rolls its transaction back; own: the name of any session of
 * this client's user. */
enum ob_status ob_mongo_session_kill(mongoc_client_t *client, const bson_t *name, const bson_t *own,
                                     struct ob_err *err) OB_MUST_CHECK;

/* ---- txn.c ---- */

/* A transaction on snapshot and majority. It begins with the lease document, which gives out
 * `numbers` new ones of parked and dead events. */
struct mongo_txn {
    mongoc_client_t *client;
    mongoc_client_session_t *session; /* named in the lease document */
    const struct mongo_conf *conf;
    const struct mongo_model *model;
    const struct ob_clock *clock;
    int64_t epoch;     /* the worker's fence; -1: whoever works (admin) */
    const char *owner; /* … its name, which no other has */
    int64_t numbers;
    /* May be called several times. first: the number before the first new one. */
    enum ob_status (*run)(void *user, mongoc_client_session_t *session, int64_t first,
                          struct ob_err *err);
    void *user;
};

/* OB_FENCED: not ours any more, or it is not known whether it was committed. */
enum ob_status ob_mongo_transaction(const struct mongo_txn *t, struct ob_err *err) OB_MUST_CHECK;

/* ---- settle.c, mark.c, record.c, parked.c, status.c ---- */

enum ob_status ob_mongo_settle(struct ob_source *s, struct ob_settle *settle,
                               struct ob_settled *out, struct ob_err *err);
/* Delivered ones that stand nowhere else, outside a transaction: by `_id` and owner alone. */
enum ob_status ob_mongo_mark_done(struct ob_source *s, const struct ob_settle *settle,
                                  struct ob_err *err) OB_MUST_CHECK;
/* All kinds, inside a transaction that has checked the epoch. *missed: how many were not ours. */
enum ob_status ob_mongo_mark(struct ob_source *s, const struct ob_settle *settle,
                             mongoc_client_session_t *session, size_t *missed,
                             struct ob_err *err) OB_MUST_CHECK;
void ob_mongo_count_fenced(struct ob_source *s, size_t n);
/* What is in the window is shown as claimed again. locks.c */
enum ob_status ob_mongo_claim_again(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
/* Locks of what is in the window or about to be last longer. locks.c */
enum ob_status ob_mongo_renew_locks(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;

/* first_n: the number before the first new one. numbers: one per op, for when it is committed. */
enum ob_status ob_mongo_record(struct ob_source *s, struct ob_settle *settle,
                               mongoc_client_session_t *session, int64_t first_n, int64_t *numbers,
                               struct ob_settled *out, struct ob_err *err) OB_MUST_CHECK;
/* Derives C_held of these hashes anew; of those that nothing holds any more at most `max` are put
 * into released. held.c; also for admin. */
enum ob_status ob_mongo_rekey(mongoc_client_t *client, const char *database,
                              const struct mongo_model *m, int64_t timeout_ms,
                              mongoc_client_session_t *session, const int64_t *hashes, size_t n,
                              uint64_t *released, size_t max, size_t *n_released,
                              struct ob_err *err) OB_MUST_CHECK;
/* Dead ones among the claimed, which a person made pending again, are dead no more; those that held
 * their key are parked, and not of the page any more. release.c */
enum ob_status ob_mongo_release(struct ob_source *s, struct mongo_page *page,
                                struct ob_err *err) OB_MUST_CHECK;
enum ob_status ob_mongo_held(struct ob_source *s, const uint64_t *hashes, size_t n, bool *held,
                             struct ob_err *err);
enum ob_status ob_mongo_drain(struct ob_source *s, uint64_t dest, int64_t now_wall_ms, size_t max,
                              size_t per_key, bool (*skip)(void *user, uint64_t hash), void *user,
                              struct ob_batch **out, int64_t *next_due_ms, struct ob_err *err);
enum ob_status ob_mongo_blocked(struct ob_source *s, uint64_t after, uint64_t *dests, size_t max,
                                size_t *n, struct ob_err *err);
enum ob_status ob_mongo_next_due(struct ob_source *s, mongoc_client_session_t *session,
                                 int64_t *due_ms, struct ob_err *err);
enum ob_status ob_mongo_status(struct ob_source *s, struct ob_source_status *out,
                               struct ob_err *err);

/* The same for whoever has a client; pending and so on stop counting at 10,001. */
enum ob_status ob_mongo_numbers(mongoc_client_t *client, const char *database,
                                const struct mongo_model *m, const struct ob_clock *clock,
                                struct ob_source_status *out, struct ob_err *err);

extern const struct ob_source_admin ob_mongo_admin; /* admin.c */
extern const struct ob_source_driver ob_source_mongodb;

#endif
