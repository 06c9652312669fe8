/* SPDX-License-Identifier: Apache-2.0 */
/* sim - a seeded world around flow: a fake database, fake broker, fake clock, and owners that
 * crash.
 *
 * One seed is one schedule, and the same seed is always the same schedule. Nothing here reads a
 * clock or the outside; every choice comes from the seed. The world keeps what really happened
 * (committed, stored by the broker, recorded at the source) apart from what an owner believes; the
 * oracle (check.c) compares the two at every step and at the end. */
#ifndef OB_SIM_SIM_H
#define OB_SIM_SIM_H

#include "core/rand.h"
#include "flow/flow.h"

#include <stdbool.h>
#include <stdint.h>

#define SIM_EVENTS 224
#define SIM_WINDOW 64
#define SIM_LIB (4 * SIM_WINDOW)
#define SIM_NODES 3
#define SIM_DESTS 6
#define SIM_WIRE 2048
#define SIM_FAULTS 48
#define SIM_NEVER INT64_MAX

struct sim;

/* ---- what a seed decides ---- */

struct sim_conf {
    uint64_t seed;
    struct ob_flow_conf flow;
    unsigned events, keys, dests, hash_bits, shards;
    unsigned page, per_key;
    unsigned
        late_events;  /* committed only when the faults are over, beside what is still blocked */
    int64_t chaos_ms; /* faults and commits happen within it */
    int64_t poll_ms;  /* an owner looks around at least so often; SIM_NEVER: only when told */
    unsigned latency_ms, quantum_ms;
    /* Per mille, of events. */
    unsigned rollback, poison, oversize, flaky, hopeless, own_max, bounced;
    /* Per mille, of messages. */
    unsigned fail, lost_ack, late_ack, stored_fail, ghost, echo;
    unsigned crash_ppm; /* per crash point, per million */
    unsigned settle_fail, settle_unknown, settle_slow;
    unsigned faults;      /* how many of the planned kind */
    unsigned fault_kinds; /* bit set of enum sim_fault_kind */
    bool fifo_key;        /* ordered sink: FIFO per key and destination, else per destination */
    bool time_first;      /* rows that wait for time are drained before those of destinations */
    bool drain_first;     /* before claims, in a round */
    bool dedupe;          /* the broker drops repeats */
    bool neighbours;      /* the phase with a blocked destination and nothing else wrong */
    int64_t grace_ms;     /* how long a clean stop waits for what is in flight */
};

enum sim_fault_kind {
    SIM_F_CRASH,
    SIM_F_TAKEOVER, /* the old owner runs on until it is fenced */
    SIM_F_HANG,     /* the owner stops running, its library does not */
    SIM_F_OUTAGE,
    SIM_F_BLOCK,
    SIM_F_SOURCE, /* the database is away */
    SIM_F_PAUSE,
    SIM_F_OPERATOR,
    SIM_F_STOP,   /* clean: nothing more is sent, what is in flight is waited for and recorded */
    SIM_F_RELOAD, /* likewise; then the same owner claims again from the durable cursor */
    SIM_F_YIELD,  /* likewise; then another owner starts */
    SIM_F_KINDS
};

struct sim_fault {
    int64_t at, len;
    enum sim_fault_kind kind;
    unsigned arg;
};

/* ---- what is true ---- */

enum sim_kind {
    SIM_K_NORMAL,
    SIM_K_FLAKY,    /* fails a few times */
    SIM_K_HOPELESS, /* fails until it is healed */
    SIM_K_OVERSIZE, /* rejected until it is healed */
    SIM_K_POISON,   /* refused by routing until it is healed */
    SIM_K_BOUNCED,  /* returned by the sink each time until nothing is wrong any more */
};

struct sim_event {
    unsigned key, dest_i, num;
    uint64_t hash, dest, ref;
    uint32_t bytes, max_attempts;
    enum sim_kind kind;
    unsigned fails_left;
    int64_t commit_at;
    bool rolled_back, skip;
    int prev; /* the event before it in its key, -1: none (rolled back ones are left out) */
    /* recorded at the source */
    bool published, parked, dead, discarded;
    /* what happened */
    unsigned stored; /* times the broker took it */
    bool was_dead;
    uint32_t recorded;  /* attempts that were recorded, of the row that it has */
    bool by_hand;       /* retried by a person */
    bool excuse;        /* a repeat of it has a named reason */
    int64_t blocked_at; /* when its destination was first found blocked, SIM_NEVER: not yet */
};

struct sim_row {
    int64_t n, due;
    unsigned ev;
    uint32_t attempts;
    uint64_t blocked;
    bool hold; /* dead rows: the key stands behind it */
};

struct sim_db {
    uint64_t epoch, cursor;
    int64_t next_n, down_until, paused_until;
    struct sim_row parked[SIM_EVENTS], dead[SIM_EVENTS]; /* both in order of n */
    unsigned n_parked, n_dead;
    unsigned order[SIM_EVENTS]; /* log-type: events in the order in which claims see them */
    bool ahead[SIM_EVENTS];     /* log-type: settled ahead of the cursor, stored beside it */
};

/* A message on its way that no library knows of any more. */
struct sim_ghost {
    unsigned ev;
    int64_t at;
};

struct sim_broker {
    bool down, quiet, keep, tell_up;
    unsigned refuse; /* while down: 0 submit says down, 1 takes and holds, 2 takes and gives back */
    int64_t down_until;
    int64_t blocked_until[SIM_DESTS];
    bool blocked_quiet[SIM_DESTS];
    struct sim_ghost wire[SIM_WIRE];
    unsigned n_wire;
};

/* ---- an owner ---- */

struct sim_msg {
    uint64_t token;
    unsigned ev;
    int64_t sent_at, deliver_at, ack_at;
    bool decided, silent, stored;
    enum ob_verdict verdict;
};

struct sim_lib {
    struct sim_msg m[SIM_LIB]; /* in the order accepted; also what an earlier instance left */
    unsigned n;
    int tell_sink;            /* -1 down, 1 up, 0 nothing */
    int tell_dest[SIM_DESTS]; /* likewise */
    uint64_t echoes[4];       /* tokens that are over, for verdicts that must change nothing */
    unsigned n_echo;
};

/* What the glue knows of a live token. */
struct sim_tok {
    uint64_t token;
    unsigned ev;
    bool in_flight, rejected, poison, drained;
    uint32_t claim_attempts, spent, maybe; /* maybe: cancelled, and it is not clear whom to blame */
    unsigned unsaved, saving; /* spent attempts that are not recorded yet, or just now */
    bool cancelled, blamed, down_probe;
    unsigned not_up; /* the owner's, when it was sent */
    bool blocked;    /* its last verdict was blocked, or an answer to a cancellation */
    int64_t park_n, claimed_at, sent_at;
    uint64_t order; /* of its submission */
};

/* What this instance of flow did with an event. */
struct sim_seen {
    bool sent, in_flight, answered, dies, drained;
    enum ob_verdict last;
    int64_t retry_at; /* of the last RETRY */
    unsigned returns; /* in a row, of this token, while the sink was up */
};

struct sim_node {
    bool running;
    unsigned id;
    struct ob_flow *flow;
    struct sim_lib lib;
    uint64_t epoch;
    int64_t hung_until, wake, next_due, scan_at;
    struct sim_tok tok[2 * SIM_WINDOW];
    unsigned n_tok;
    struct sim_seen seen[SIM_EVENTS];
    uint64_t last_token, submits;
    uint64_t acked_order[SIM_DESTS]; /* highest submission order delivered, by destination */
    unsigned claim_pos;
    uint64_t claim_ref;
    bool claimed[SIM_EVENTS];
    bool load_dests;
    uint64_t load_after;
    bool settling;
    int64_t settle_done, settled_at;
    struct ob_settle settle;
    struct ob_settle_op ops[SIM_WINDOW + 8];
    bool known[SIM_EVENTS];      /* delivered, as this owner knew when the settle under way began */
    enum sim_fault_kind closing; /* SIM_F_STOP, SIM_F_RELOAD, SIM_F_YIELD; else 0 */
    int64_t close_at;            /* the end of the grace time */
    bool down_told;              /* flow was told that the sink is down */
    int64_t down_at;             /* since when */
    int64_t up_at;               /* end of the last outage that flow was told of */
    unsigned outages, not_up; /* not_up: the number of the outage, told to flow or found by it, that
                                 no probe has ended; else 0 */
    unsigned down_probes;     /* in flight that were sent since then */
};

enum sim_phase { SIM_CHAOS, SIM_NEIGHBOURS, SIM_CALM, SIM_OPERATOR, SIM_OVER };

struct sim {
    struct sim_conf conf;
    struct ob_rand rand;
    int64_t now;
    enum sim_phase phase;
    int64_t phase_at, progress_at;
    struct sim_event ev[SIM_EVENTS];
    unsigned n_ev;
    struct sim_db db;
    struct sim_broker broker;
    struct sim_node node[SIM_NODES];
    struct sim_fault fault[SIM_FAULTS];
    unsigned n_fault, next_fault;
    int64_t restart_at;
    bool watched[SIM_EVENTS]; /* must be delivered before the blocked destination is freed */
    uint64_t rounds, points, crash_at, crashes, repeats, deaths, fenced, dones, closed;
    unsigned mutant; /* of sim_mutants[], 0: none */
    bool failed;
    char invariant[64], why[400];
    struct sim_trace *trace; /* NULL: off */
};

/* ---- trace.c ---- */
struct sim_trace;
struct sim_trace *sim_trace_new(bool all);
void sim_trace_free(struct sim_trace *t);
void sim_trace_print(const struct sim_trace *t);
void sim_trace_add(struct sim *w, const char *fmt, ...) OB_PRINTF(2, 3);
#define SIM_TRACE(w, ...)                                                                          \
    do {                                                                                           \
        if ((w)->trace)                                                                            \
            sim_trace_add((w), __VA_ARGS__);                                                       \
    } while (0)
void sim_conf_print(const struct sim_conf *c);

/* ---- conf.c: from the seed ---- */
void sim_conf_make(struct sim_conf *c, uint64_t seed);
void sim_plan(struct sim *w); /* events, faults */

/* ---- source.c ---- */
bool sim_committed(const struct sim *w, const struct sim_event *e);
bool sim_settled(const struct sim *w, const struct sim_event *e);
bool sim_held(const struct sim *w, uint64_t hash);
void sim_source_own(struct sim *w, struct sim_node *n);
/* The next claim starts at the durable cursor. */
void sim_source_rewind(struct sim *w, struct sim_node *n);
/* OB_OK, OB_AGAIN, OB_DOWN or OB_FENCED. */
enum ob_status sim_source_claim(struct sim *w, struct sim_node *n, size_t max, uint64_t max_bytes,
                                unsigned *evs, size_t *n_evs);
size_t sim_source_drain(struct sim *w, struct sim_node *n, uint64_t dest, size_t max,
                        const struct sim_row **rows, struct ob_drained *drained, size_t *n_drained);
size_t sim_source_blocked(const struct sim *w, uint64_t after, uint64_t *dests, size_t max);
int64_t sim_source_next_due(const struct sim *w);
enum ob_status sim_source_settle(struct sim *w, struct sim_node *n, struct ob_settle *s,
                                 uint64_t *released, size_t *n_released);
/* One action of a person: some of the dead ones, retried or discarded. all: every one. */
void sim_operator(struct sim *w, bool all);

/* ---- sink.c ---- */
void sim_lib_clear(struct sim_lib *lib);
size_t sim_lib_submit(struct sim *w, struct sim_node *n, const uint64_t *tokens, size_t max,
                      bool *down);
void sim_lib_cancel(struct sim *w, struct sim_node *n, uint64_t token);
/* The connection is lost: what has no verdict is given back, some of it arrives all the same.
 * dying: nobody is left to give it back to. */
void sim_lib_disconnect(struct sim *w, struct sim_node *n, bool dying);
size_t sim_lib_poll(struct sim *w, struct sim_node *n, struct ob_flow_verdict *v, size_t max);
int64_t sim_lib_wake(const struct sim *w, const struct sim_node *n);
void sim_broker_run(struct sim *w);
int64_t sim_broker_wake(const struct sim *w);
void sim_broker_outage(struct sim *w, int64_t len, unsigned arg);
void sim_broker_block(struct sim *w, unsigned dest, int64_t until, unsigned arg);
void sim_broker_heal(struct sim *w); /* ends what has reached its end */

/* ---- node.c ---- */
void sim_node_start(struct sim *w, struct sim_node *n);
void sim_node_crash(struct sim *w, struct sim_node *n);
void sim_node_round(struct sim *w, struct sim_node *n);
void sim_node_fenced(struct sim *w, struct sim_node *n);
void sim_node_close(struct sim *w, struct sim_node *n, enum sim_fault_kind kind);
struct sim_tok *sim_tok_find(struct sim_node *n, uint64_t token);

/* ---- check.c: the oracle ---- */
void sim_fail(struct sim *w, const char *invariant, const char *fmt, ...) OB_PRINTF(3, 4);
void sim_check_stored(struct sim *w, struct sim_event *e);
void sim_check_submit(struct sim *w, struct sim_node *n, const struct sim_tok *t);
/* The sink is down, or was reset: returns before it do not count. */
void sim_forget_returns(struct sim_node *n);
void sim_check_ops(struct sim *w, struct sim_node *n, const struct ob_settle *s);
/* Is the earlier event q no reason to hold back its key any more? */
bool sim_out_of_the_way(const struct sim *w, const struct sim_event *q);
void sim_check_cursor(struct sim *w, uint64_t from, uint64_t to);
/* What is stored as settled ahead of the cursor is, and all that the owner knew of is stored. */
void sim_check_ahead(struct sim *w, const struct sim_node *n, const struct ob_settle *s);
void sim_check_bounds(struct sim *w, struct sim_node *n);
void sim_check_cancel(struct sim *w, struct sim_node *n, const struct sim_tok *t);
void sim_check_end(struct sim *w);

/* ---- run.c ---- */
/* Runs one schedule. false: w->invariant and w->why say what broke. crash_at: 0, or the number of
 * the one step at which the owner crashes. */
bool sim_run(struct sim *w, uint64_t seed, unsigned mutant, uint64_t crash_at,
             struct sim_trace *trace);
static inline bool sim_chance(struct sim *w, unsigned per_mille)
{
    return per_mille && ob_rand_below(&w->rand, 1000) < per_mille;
}
int64_t sim_delay(struct sim *w, unsigned max_ms);
/* True while flow must not allocate; set around each call of it. */
extern bool sim_in_flow, sim_flow_allocated;

/* ---- mutants.c: deliberate bugs ---- */
enum sim_mutant {
    SIM_M_NONE,
    SIM_M_NO_FENCE,
    SIM_M_ZOMBIE_CLAIMS,
    SIM_M_EPOCH_NOT_RAISED,
    SIM_M_FORGET_HOLDS,
    SIM_M_FORGET_DEAD_HOLDS,
    SIM_M_FORGET_PARKED,
    SIM_M_CURSOR_AT_CLAIMED,
    SIM_M_DROP_ON_RECONNECT,
    SIM_M_ACCEPTED_IS_DELIVERED,
    SIM_M_READ_UNCOMMITTED,
    SIM_M_NUMBER_CURSOR,
    SIM_M_FAILED_SETTLE_IS_OK,
    SIM_M_UNKNOWN_SETTLE_IS_RETRY,
    SIM_M_ATTEMPTS_NOT_STORED,
    SIM_M_DRAIN_BACKWARDS,
    SIM_M_RELEASE_TOO_EARLY,
    SIM_M_RETRY_AT_THE_END,
    SIM_M_OUTAGE_IS_RETRY,
    SIM_M_AHEAD_AS_RANGE,
    SIM_M_AHEAD_UNCLAIMED_DROPPED,
    SIM_M_AHEAD_NOT_DRAINED,
    SIM_M_SINK_LAST,
};
struct sim_mutant_info {
    const char *name, *what;
    unsigned glue; /* enum sim_mutant, or 0 */
    unsigned flow; /* ob_flow_mutant, or 0 */
};
extern const struct sim_mutant_info sim_mutants[];
extern const unsigned sim_mutants_n;
int sim_mutants_run(unsigned jobs);

#endif
