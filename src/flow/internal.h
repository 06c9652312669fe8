/* SPDX-License-Identifier: Apache-2.0 */
/* internal - the memory of a flow, shared by its files and by nobody else.
 *
 * A slot is one event in the window. It hangs in three lists by index: its key's (claim order: rows
 * that were drained stand before fresh ones), its destination's ready list, and the flight list (in
 * order of sending). Everything is taken in ob_flow_new(); NIL ends a list.
 *
 * Invariants
 *   K1  in a key's list all slots before key->next are READY or SENT/OVERDUE, key->next and all
 * behind it are WAITING, unless key->stall: then something behind key->next is still in flight and
 * nothing moves until it is not. K2  a fresh WAITING slot of a held key exists only while the key's
 * last page drains, or while the sink is down. D1  the ready list of a destination is in claim
 * order within each key. R2  before a slot that has a row, or is about to get one, everything of
 * its key that is in flight has or gets one too: rows are numbered in key order. R1  a ring entry
 * is passed (slot NIL) only when its event is delivered, or durably parked or dead. */
#ifndef OB_FLOW_INTERNAL_H
#define OB_FLOW_INTERNAL_H

#include "flow/flow.h"

#include <stdbool.h>
#include <stdint.h>

#define NIL UINT32_MAX
#define FOREVER INT64_MAX

enum state {
    S_FREE,
    S_WAITING,   /* claimed, not its turn */
    S_READY,     /* its turn: may be given to the sink */
    S_SENT,      /* accepted by the sink, no verdict; perhaps with a parked row */
    S_OVERDUE,   /* accepted, no verdict for long: its parked row is being recorded */
    S_DELIVERED, /* acknowledged; its mark is being recorded */
    S_PARKING,   /* its parked row is being recorded */
    S_DYING,     /* its dead row is being recorded */
    S_OVER,      /* the caller may forget it */
    N_STATES,
};

enum on {
    ON_CLAIM,
    ON_SKIP,
    ON_TURN,
    ON_BACK,
    ON_ACCEPT,
    ON_DELIVERED,
    ON_RETRY,
    ON_EXHAUSTED,
    ON_REJECT,
    ON_BLOCKED,
    ON_BLOCKED_TOO_LONG,
    ON_RETURNED,
    ON_RETURNED_OFTEN,
    ON_OVERDUE,
    ON_HOLD,
    ON_DROP,
    ON_RECORDED,
    ON_COLLECTED,
    N_ON,
};

enum {
    F_POISON = 1,       /* dies when its turn comes */
    F_TODO = 2,         /* stands in flow->todo */
    F_SETTLING = 4,     /* part of the settle that is under way */
    F_SPENT = 8,        /* an attempt was spent that is not recorded yet */
    F_CANCEL = 16,      /* its cancellation was asked for */
    F_UNBLAMED = 32,    /* cancelled because its destination is blocked: no attempt is spent */
    F_LATE = 64,        /* a verdict came while it was in a settle: `late` */
    F_WAITS_DEST = 128, /* parked because its destination is blocked: the row says so */
};

struct slot {
    uint64_t token; /* 0: free */
    uint64_t claim_no;
    uint64_t ring; /* absolute position; UINT64_MAX: not in the ring */
    uint64_t submit_no;
    int64_t park_n; /* 0: no row in the parked table */
    int64_t sent_ms, due_ms;
    int64_t blocked_at; /* was_blocked: since when its destination is blocked */
    int64_t blocked_ms; /* dying because of blocked_max: how long it was blocked; else 0 */
    uint32_t key, dest;
    uint32_t next, prev;   /* in the key's list */
    uint32_t rnext, rprev; /* in the destination's ready list */
    uint32_t fnext, fprev; /* in the flight list */
    uint32_t bytes, attempts, max_attempts;
    uint32_t returns, down_no; /* times in a row that the sink returned it while it was up */
    uint32_t ahead; /* sent behind it in its key and delivered before it; not counted yet */
    uint8_t state, flags, late;
    bool exhausted; /* its last attempt failed */
    bool was_blocked;
    bool passing; /* in flight while one before it came back: if it is delivered, it overtook */
};

struct key {
    uint64_t hash;
    uint32_t chain; /* of the bucket; also of the free list */
    uint32_t head, tail, next;
    uint32_t n_slots;   /* all that name this key, also those out of the list */
    uint32_t n_sent;    /* in flight */
    uint32_t n_rows;    /* slots with a row in the parked table */
    uint32_t n_parking; /* rows on their way to the parked table */
    uint32_t n_dying;   /* dead ones on their way */
    bool durable;       /* rows in the parked table, or held behind a dead one, as far as known */
    bool last_page;     /* all its parked rows are in the window */
    bool drop; /* an earlier row was parked again: rows that come back from the sink are let go */
    bool stall, dirty, used;
};

struct dest {
    uint64_t hash;
    uint32_t chain;
    uint32_t rhead, rtail; /* ready slots */
    uint32_t anext, aprev; /* in the list of destinations with ready slots */
    uint32_t bnext, bprev; /* in the list of troubled destinations (blocked, or with parked rows) */
    uint32_t n_slots, n_live; /* all; WAITING, READY and in flight */
    uint32_t n_sent, fails, probe;
    uint64_t acked_no; /* highest submit_no that got a verdict */
    int64_t ack_ms;    /* when the last verdict came */
    int64_t since_ms, probe_at, drain_at;
    bool blocked, parking, rows, active, listed, used;
};

struct ring {
    uint64_t ref;
    uint32_t slot; /* NIL: passed */
    bool foreign;  /* another shard's: never recorded as settled ahead */
};

struct ob_flow {
    struct ob_flow_conf c;
    struct ob_rand rand;
    struct slot *slots;
    struct key *keys;
    struct dest *dests;
    uint32_t *key_bucket, *dest_bucket, key_mask, dest_mask;
    uint32_t n_keys_cap, n_dests_cap;
    /* Places are taken from the lists of free ones, else from those never used: memory that is
     * never needed is never touched. */
    uint32_t key_free, dest_free, slot_free;    /* lists through chain, chain and next */
    uint32_t key_fresh, dest_fresh, slot_fresh; /* the first never used */
    uint32_t n_used;                            /* slots not FREE */
    uint64_t bytes;
    struct ring *ring;
    uint32_t ring_cap;
    uint64_t ring_head, ring_tail,
        ring_cut; /* absolute; cut: end of the prefix that is being settled */
    /* What is over at the head of the ring leaves it at once and is only counted until a settle has
     * recorded it: how often a source may settle does not bound how many events pass meanwhile. */
    uint64_t passed, passed_cut, passed_ref; /* so many; of the settle under way; ref of the last */
    /* Settled ahead of the cursor: passed entries of our own behind an entry that is not. */
    uint64_t *ahead_refs;                   /* of the settle under way */
    uint64_t n_ahead;                       /* such entries in the ring */
    uint64_t ahead_no, ahead_cut, ahead_ok; /* changes: so far, in this settle, recorded */
    bool omitted, omits;                    /* ahead_max left some out: recorded, in this settle */
    bool closing;
    uint64_t claim_ref;     /* of the last event claimed */
    uint32_t *todo, n_todo; /* slots with something to record */
    uint32_t *dirty, n_dirty;
    uint32_t *picked, n_picked;
    uint64_t *over, *cancel;
    uint32_t n_over, n_cancel, over_at;
    uint32_t fhead, ftail; /* flight */
    uint32_t ahead, bhead; /* destinations with ready slots (a ring); troubled destinations */
    uint32_t n_in_flight, n_ready, n_rows, n_idle_held, n_blocked, blocked_live, n_idle_dests;
    uint64_t claim_no, submit_no, acked_no, delivered_new;
    int64_t ack_ms, up_ms, probe_at, settle_ms, check_ms, gap_ms;
    uint32_t fails, probe, down_no; /* down_no: how often the sink went down */
    bool down, self_down, incomplete, settling, wants_reset, no_probe;
    struct ob_flow_stats st;
    uint8_t to[N_STATES][N_ON]; /* the table of states.c */
};

#ifdef OB_FLOW_MUTANTS
#define OB_MUTANT(n) (ob_flow_mutant == (n))
#else
#define OB_MUTANT(n) 0
#endif

/* Deliberate bugs of the flow: tests/sim lists them with what finds them. */
enum {
    M_SETTLE_BEFORE_ACK = 1, /* the cursor passes what is only accepted */
    M_IGNORE_HOLD,           /* fresh events of a held key flow */
    M_OUTAGE_SPENDS,         /* being given back costs an attempt */
    M_BLOCKED_SPENDS,        /* a blocked destination costs an attempt */
    M_MANY_PER_KEY,          /* many in flight per key on any sink */
    M_CROSS_DEST,            /* many in flight per key across destinations */
    M_BLOCKED_FILLS,         /* events of a blocked destination are never parked */
    M_RETURNED_LOST,         /* what is given back counts as delivered */
    M_FORGET_FOLLOWERS,      /* those behind a failed one go on */
    M_NO_MAX_ATTEMPTS,       /* poison is tried for ever */
    M_DEAD_UNRECORDED,       /* the key goes on before its dead event is recorded */
    M_RELEASE_EARLY,         /* a hash is released although rows are on their way to the table */
    M_STALE_TOKEN,           /* a verdict of an earlier token counts for the slot's new event */
    M_RESEND_ACCEPTED,       /* an overdue one is given to the sink again before its verdict */
    M_DOWN_PARKS,            /* an outage parks what waits */
    M_SETTLE_FAILED_OK,      /* a settle that failed counts as recorded */
    M_NUMBERED_LATE,         /* those in flight before a parked one get their rows after it */
    M_ROWS_OVERTAKE,         /* rows that come back go again although an earlier one waits */
    M_READY_IN_OUTAGE,       /* what was ready behind a failed one goes when the sink is down */
    M_NO_PROBE_FOUND,        /* a window full of held events keeps the breaker open for ever */
    M_PROBE_KEEPS_PLACE,     /* a large row that probes stays in the window */
    M_BLAMES_ANYBODY,        /* a time-out of a silent destination costs an attempt */
    M_LATE_VERDICT_LOST,     /* a verdict during the settle of its event is forgotten */
    M_NO_BACKOFF,            /* a failed event is due at once */
    M_CURSOR_PASSES_WAITING, /* the cursor passes what waits in the window */
    M_ROW_KEPT,              /* a delivered event's row is not deleted */
    M_SLEEPS,                /* the time of a blocked destination's probe is forgotten */
    M_OVERFLOW_FORGOTTEN,    /* held hashes that have no place are taken for free */
    M_ATTEMPT_FORGOTTEN,     /* a spent attempt is recorded one settle late */
    M_WINDOW_UNBOUNDED,      /* bytes do not count */
    M_AHEAD_NOT_STORED,      /* what is settled ahead of the cursor is not recorded */
    M_AHEAD_IN_FLIGHT,       /* what is in flight ahead of the cursor counts as settled */
    M_AHEAD_CUT,             /* a closing flow leaves out what ahead_max leaves out */
    M_AHEAD_FORGOTTEN,       /* what an earlier owner settled ahead is not recorded again */
    M_BLOCKED_MAX_IN_OUTAGE, /* blocked_max counts the time of an outage */
    M_CAP_IGNORED,           /* an event's own max_attempts is not capped */
    M_RETURNED_WITHOUT_END,  /* an event that the sink returns each time is never parked */
};

/* states.c */
void ob__states_init(struct ob_flow *f);
void ob__move(struct ob_flow *f, struct slot *s, enum on on);

/* key.c */
uint32_t ob__key_find(const struct ob_flow *f, uint64_t hash);
uint32_t ob__key_get(struct ob_flow *f, uint64_t hash);
void ob__key_drop_if_idle(struct ob_flow *f, uint32_t k);
bool ob__key_held(const struct ob_flow *f, const struct key *k);
void ob__key_append(struct ob_flow *f, uint32_t k, uint32_t s);
void ob__key_insert_before(struct ob_flow *f, uint32_t k, uint32_t before, uint32_t s);
void ob__key_unlink(struct ob_flow *f, uint32_t s);
/* Makes ready what may go now. */
void ob__key_advance(struct ob_flow *f, uint32_t k);
/* Finds K1 again after slots came back or rows came in. */
void ob__key_recompute(struct ob_flow *f, uint32_t k);
void ob__key_dirty(struct ob_flow *f, uint32_t k);
void ob__key_clean(struct ob_flow *f);
/* Parks the fresh ones that wait (while the sink is down they only wait) and, with rows, lets go of
 * those that have a row. */
void ob__key_hold(struct ob_flow *f, uint32_t k, bool rows);
/* Slot s of a key that is being drained takes long: nobody waits for it in the window, neither new
 * events nor rows. */
void ob__key_no_wait(struct ob_flow *f, uint32_t s);

/* dest.c */
uint32_t ob__dest_find(const struct ob_flow *f, uint64_t hash);
uint32_t ob__dest_get(struct ob_flow *f,
                      uint64_t hash); /* NIL: no place (never for a slot's own) */
void ob__dest_drop_if_idle(struct ob_flow *f, uint32_t d);
void ob__dest_block(struct ob_flow *f, int64_t now, uint32_t d, bool probe_failed);
void ob__dest_unblock(struct ob_flow *f, int64_t now, uint32_t d);
void ob__dest_park(struct ob_flow *f, uint32_t d);
void ob__dest_rows(struct ob_flow *f, int64_t now, uint32_t d);
void ob__dest_tick(struct ob_flow *f, int64_t now);
void ob__ready_append(struct ob_flow *f, uint32_t s);
void ob__ready_unlink(struct ob_flow *f, uint32_t s);
uint32_t ob__blocked_share(const struct ob_flow *f);
uint32_t ob__dest_cap(const struct ob_flow *f);

/* slot.c: what happens to one slot */
uint32_t ob__slot_take(struct ob_flow *f, int64_t now, const struct ob_claimed *c);
void ob__slot_todo(struct ob_flow *f, uint32_t s);
void ob__slot_live(struct ob_flow *f, struct slot *s, int delta);
/* Out of every list; its token comes out of ob_flow_freed(). */
void ob__slot_over(struct ob_flow *f, uint32_t s, enum on on);
void ob__slot_overdue(struct ob_flow *f, uint32_t s);
void ob__slot_park(struct ob_flow *f, uint32_t s, enum on on, int64_t due_ms);
void ob__slot_die(struct ob_flow *f, uint32_t s, enum on on);
void ob__slot_drop(struct ob_flow *f, uint32_t s);

/* send.c */
void ob__verdict(struct ob_flow *f, int64_t now, uint32_t s, enum ob_verdict v);
void ob__ring_pass(struct ob_flow *f);
void ob__flight_tick(struct ob_flow *f, int64_t now);
void ob__up(struct ob_flow *f, int64_t now);
int64_t ob__sent_eff(const struct ob_flow *f, const struct slot *s);

#endif
