/* SPDX-License-Identifier: Apache-2.0 */
/* bench - what every bench for a source can do, so that one test serves them all. A harness defines
 * struct bench, SOURCE, ADMIN and ID(digit), says what its source has, and includes this:
 *
 *     HAS_CURSOR     what is settled is a position; else each event is marked
 *     HAS_SHARDS     several may share the work
 *     HISTORY_FULL   after so many attempts the oldest ones are gone from an event's history
 *     HISTORY_BYTES  the most that a history takes */
#ifndef OB_TESTS_BENCH_H
#define OB_TESTS_BENCH_H

#define PIPE "orders"
/* In the far future of either bench's clock: a retried event is due before it. */
#define DUE (INT64_C(4000000000000) + 1000)

/* ---- of the harness ---- */

/* True: there is no server; the reason was said as TAP does. A server lives as long as the program.
 */
bool server_missing(void);
/* Schema applied, application connected. */
void bench_init(struct bench *b);
void bench_clear(struct bench *b);
/* n events of keys k0, k1, … k(keys - 1) in turn, in one transaction. */
void emit(struct bench *b, size_t n, size_t keys);
/* Event i of type ti, key ki and tenant teni, made i seconds after 1970, with the id ID(i). */
void emit_numbered(struct bench *b, int i);
/* One event without a key, so large that two of them are not read at once. */
void emit_large(struct bench *b);
enum ob_status try_shard(struct bench *b, unsigned shard, unsigned shards, const char *owner,
                         struct ob_source **out, struct ob_err *err);
struct ob_admin *open_admin(struct bench *b);
/* The monotonic clock goes on. */
void move_clock(struct bench *b, int64_t us);
/* As if the owner had not beaten for 20 s. */
void grow_silent(struct bench *b);
/* The next claim looks at once. */
void look_now(struct ob_source *s);
/* After a claim that found nothing: nothing is under way that could still bring something. */
bool is_idle(struct ob_source *s);
/* The number of an event's row: the first that was emitted has 1. */
uint64_t number_of(const struct ob_event *ev);

/* ---- what is recorded, asked in the server's own language and not by the source ---- */

int64_t epoch(struct bench *b);
void raise_epoch(struct bench *b);    /* as if another had become the owner */
int64_t cursor_pos(struct bench *b);  /* -1: there is none */
int64_t n_published(struct bench *b); /* counted by the cursor; else events that are marked */
int64_t n_failed(struct bench *b);    /* attempts, as the owner has counted them */
int64_t in_flight(struct bench *b);   /* as the owner has told */
int64_t n_events(struct bench *b);
int64_t n_parked(struct bench *b);
int64_t n_held(struct bench *b);                     /* keys */
int64_t n_dead(struct bench *b, const char *state);  /* NULL: in any state */
int64_t n_cursors(struct bench *b, unsigned shards); /* for so many shards; 0: for any number */
int64_t n_past(struct bench *b); /* positions kept from another number of shards */
/* The number of the dead event with so many attempts and this error, -1 if there is none. */
int64_t dead_number(struct bench *b, int64_t attempts, const char *error);
/* What the dead event went through: attempt and error of each try, with commas. */
void dead_history(struct bench *b, char *out, size_t size);
int64_t history_size(struct bench *b); /* bytes, of the one parked event */
int64_t last_attempt(struct bench *b); /* the newest in it */
/* The number by which `events --after` knows an event. */
uint64_t ref_of(struct bench *b, uint64_t number);

struct stored {
    bool there;
    int64_t entity_version; /* OB_NO_VERSION: none */
    bool text;              /* payload_kind */
};
struct stored stored_event(struct bench *b, const char *id);
/* n attempts of the event were spent before. Only where the event's own row counts them. */
void had_attempts(struct bench *b, const struct ob_event *ev, uint32_t n);
/* What is kept of held keys, and the counters, must be what follows from the parked and dead ones:
 * derived anew by other means. */
void assert_side_tables(struct bench *b);

/* ---- the same for all (bench.c) ---- */

/* A case that only some benches can have; for the others TAP says why not. */
#define CASE_IF(has, fn, why_not)                                                                  \
    {                                                                                              \
        (has) ? #fn : #fn " # SKIP " why_not, (has) ? fn : left_out, NULL, NULL, NULL              \
    }
void left_out(void **state);

struct ob_source *open_shard(struct bench *b, unsigned shard, unsigned shards, const char *owner);
enum ob_status own(struct ob_source *s, struct ob_err *err);
struct ob_source *open_own(struct bench *b); /* shard 0 of 1, owned */
void beat(struct ob_source *s); /* as one that runs, with 5 in flight; it must be ours */
/* Claims until something comes or, for OB_AGAIN, until a whole look has found nothing. */
struct ob_batch *claim(struct ob_source *s, size_t max, enum ob_status want);
/* Claims all that is there and settles it as delivered; returns how many. */
size_t deliver_all(struct ob_source *s);

/* Settling by hand, with `g`. */
struct settling {
    struct ob_settle s;
    struct ob_settle_op ops[4096];
    uint64_t released[4096];
    struct ob_settled out;
    struct ob_err err;
};
extern struct settling g;
void settling_reset(struct settling *one);
struct ob_settle_op *op_add(struct settling *one, enum ob_settle_kind kind,
                            const struct ob_event *ev, uint64_t hash);
struct ob_settle_op *park(const struct ob_event *ev, uint64_t hash, uint64_t dest, int64_t due);
/* Delivered at the first try: a cursor passes it; without one it is marked. */
void pass(const struct ob_event *ev, uint64_t hash);
enum ob_status settle(struct ob_source *s, struct settling *one);
void ok(struct ob_source *s); /* settles g, which must go well */
bool released(const struct settling *one, uint64_t hash);
/* A batch of n new events that stays in memory, with the cursor before it; g is empty. */
struct ob_batch *claimed(struct bench *b, struct ob_source *s, size_t n, size_t keys);

struct skips {
    uint64_t hash[8];
    size_t n;
};
struct ob_batch *drain(struct ob_source *s, uint64_t dest, int64_t now, size_t max, size_t per_key,
                       const struct skips *k, int64_t *next, enum ob_status want);
bool is_held(struct ob_source *s, uint64_t hash);

#endif
