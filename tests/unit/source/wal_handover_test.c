/* SPDX-License-Identifier: Apache-2.0 */
/* wal_handover_test - the change from the table to the stream, simulated: a model of a server
 * (table, log, slot, durable cursor) and of a relay around the real state machine, driven by a seed
 * through writers, rounds, settles, rewinds (a reload), lost connections, lost slots and crashes.
 * Nothing that was committed may be lost. Each mutant is a deliberate bug of the relay; each must
 * be found. */
#include "rows.h"

#include "core/rand.h"
#include "source/postgres/wal_handover.h"

#include <string.h>

#define TXNS 40 /* of one event each */
#define PAGE 3
#define STEPS 160
#define SEEDS 20000

enum mutant {
    NONE,
    REWIND_IGNORED, /* the bug that lost events at a reload: the machine does not learn of a rewind
                     */
    REWIND_UNCHECKED,  /* the same, and the reader's position is not checked at the transition */
    ROUND_BEFORE_SLOT, /* a round that began before the slot existed counts */
    SETTLED_UNCHECKED, /* the stream begins while events of the table are in flight */
    STREAM_FROM_NOW,   /* the stream begins at the end of the log, not at the anchor */
    SLOT_IS_ENOUGH,    /* after a crash a slot is followed although no switch was recorded */
    N_MUTANTS
};

enum outcome { FINE, LOST, REFUSED };

struct server {
    bool begun[TXNS];
    uint64_t lsn[TXNS]; /* of the commit, from 1; 0: running */
    uint64_t end;       /* of the log */
    bool slot, creating, awaited[TXNS];
    uint64_t confirmed;
    /* the cursor */
    bool settled[TXNS], seen[TXNS];
    uint64_t cursor; /* 0: the table is read */
};

struct relay {
    struct wal_handover h;
    int queue[TXNS], head, tail; /* read: settled up to head */
    uint64_t rounds, complete;
    bool asked, snap[TXNS], last_snap[TXNS];
    uint64_t at, complete_at, places; /* identities of the reader's positions */
    uint64_t read;                    /* of the stream */
};

struct sim {
    struct ob_rand rand;
    enum mutant mutant;
    struct server db;
    struct relay relay;
    bool refused;
    unsigned visits[HANDOVER_FAILED + 1], rewinds[HANDOVER_FAILED + 1],
        crashes[HANDOVER_FAILED + 1];
};

/* ---- the server ---- */

static void begin_txn(struct sim *m)
{
    for (int i = 0; i < TXNS; i++)
        if (!m->db.begun[i]) {
            m->db.begun[i] = true;
            return;
        }
}

static void commit_txn(struct sim *m, int i)
{
    if (m->db.begun[i] && !m->db.lsn[i])
        m->db.lsn[i] = ++m->db.end;
}

static bool slot_finished(const struct server *db)
{
    for (int i = 0; i < TXNS; i++)
        if (db->awaited[i] && !db->lsn[i])
            return false;
    return db->creating;
}

/* ---- the relay ---- */

static void start_relay(struct sim *m)
{
    struct server *db = &m->db;
    bool stream = db->slot && db->cursor && db->confirmed <= db->cursor;
    m->relay = (struct relay){.read = db->cursor};
    if (m->mutant == SLOT_IS_ENOUGH && db->slot && !stream) {
        stream = true;
        m->relay.read = db->cursor = db->confirmed;
    }
    if (!stream)
        db->cursor = 0;
    db->creating = false; /* the server cancels it with its connection */
    ob_handover_init(&m->relay.h, stream);
}

static void ask_round(struct sim *m)
{
    struct relay *r = &m->relay;
    if (r->asked || !ob_handover_reads(&r->h))
        return;
    r->asked = true;
    r->rounds++;
    for (int i = 0; i < TXNS; i++)
        r->snap[i] = m->db.lsn[i] != 0;
}

static bool queued(const struct relay *r, int txn)
{
    for (int i = r->head; i < r->tail; i++)
        if (r->queue[i] == txn)
            return true;
    return false;
}

static void take_round(struct sim *m)
{
    struct relay *r = &m->relay;
    int n = 0;
    if (!r->asked || !ob_handover_reads(&r->h))
        return;
    for (int i = 0; i < TXNS && n < PAGE; i++)
        if (r->snap[i] && !m->db.settled[i] && !queued(r, i)) {
            r->queue[r->tail++] = i;
            n++;
        }
    r->asked = false;
    r->at = ++r->places;
    r->complete = n < PAGE ? r->rounds : 0;
    memcpy(r->last_snap, r->snap, sizeof(r->snap));
    if (r->complete)
        r->complete_at = r->at;
}

static void settle_one(struct sim *m)
{
    struct relay *r = &m->relay;
    struct server *db = &m->db;
    if (r->head == r->tail)
        return;
    int txn = r->queue[r->head++];
    db->settled[txn] = true;
    if (r->h.state == HANDOVER_STREAM)
        db->confirmed = db->cursor = db->lsn[txn];
}

static void rewind_reader(struct sim *m)
{
    struct relay *r = &m->relay;
    m->rewinds[r->h.state]++;
    bool all = r->head == r->tail;
    r->head = r->tail = 0;
    if (r->h.state == HANDOVER_STREAM) {
        r->read = m->db.cursor;
        return;
    }
    r->asked = false;
    if (!all) /* the reader is back at what is durable */
        r->at = ++r->places;
    if (m->mutant != REWIND_IGNORED && m->mutant != REWIND_UNCHECKED) {
        r->complete = 0;
        ob_handover_rewind(&r->h, r->rounds);
    }
}

static void begin_slot(struct sim *m)
{
    m->db.slot = false;
    m->db.creating = true;
    for (int i = 0; i < TXNS; i++)
        m->db.awaited[i] = m->db.begun[i] && !m->db.lsn[i];
    ob_handover_creating(&m->relay.h);
}

/* lost: the connection is; the server may have finished all the same. */
static void check_slot(struct sim *m, bool lost)
{
    struct relay *r = &m->relay;
    struct server *db = &m->db;
    if (slot_finished(db)) {
        db->slot = true;
        db->creating = false;
        db->confirmed = db->end;
        if (!lost)
            ob_handover_created(&r->h, db->confirmed,
                                m->mutant == ROUND_BEFORE_SLOT ? 0 : r->rounds);
    }
    if (lost) {
        db->creating = false;
        ob_handover_not_created(&r->h);
    }
}

static struct wal_reading report_reading(const struct sim *m)
{
    const struct relay *r = &m->relay;
    return (struct wal_reading){.complete = r->complete,
                                .at_complete =
                                    r->at == r->complete_at || m->mutant == REWIND_UNCHECKED,
                                .settled = r->head == r->tail || m->mutant == SETTLED_UNCHECKED};
}

/* crash: after the cursor was written and before anything else. */
static void advance(struct sim *m, bool lost, bool crash)
{
    struct relay *r = &m->relay;
    struct server *db = &m->db;
    struct ob_err err;
    if (r->h.state == HANDOVER_TABLE)
        begin_slot(m);
    else if (r->h.state == HANDOVER_CREATING)
        check_slot(m, lost);
    struct wal_reading reading = report_reading(m);
    if (!ob_handover_ready(&r->h, &reading))
        return;
    if (ob_handover_check(&r->h, &reading, &err) != OB_OK) {
        m->refused = true;
        return;
    }
    db->cursor = m->mutant == STREAM_FROM_NOW ? db->end : r->h.anchor;
    if (m->mutant == STREAM_FROM_NOW)
        db->confirmed = db->end;
    memcpy(db->seen, r->last_snap, sizeof(db->seen));
    if (crash) {
        start_relay(m);
        return;
    }
    ob_handover_done(&r->h);
    r->head = r->tail = 0;
    r->read = db->cursor;
}

static void read_stream(struct sim *m)
{
    struct relay *r = &m->relay;
    for (int i = 0; i < TXNS && r->h.state == HANDOVER_STREAM; i++)
        if (m->db.lsn[i] == r->read + 1) {
            r->read++;
            if (!m->db.seen[i] && !queued(r, i) && r->tail < TXNS)
                r->queue[r->tail++] = i;
            else if (r->head == r->tail)
                m->db.cursor = m->db.confirmed = r->read;
            return;
        }
}

static void lose_slot(struct sim *m)
{
    if (m->relay.h.state != HANDOVER_STREAM)
        return;
    m->db.slot = false;
    start_relay(m);
}

/* ---- schedules ---- */

static void compact(struct relay *r)
{
    memmove(r->queue, r->queue + r->head, (size_t)(r->tail - r->head) * sizeof(r->queue[0]));
    r->tail -= r->head;
    r->head = 0;
}

static void work(struct sim *m, uint64_t what, bool lost, bool crash)
{
    if (what < 2)
        begin_txn(m);
    else if (what < 5)
        commit_txn(m, (int)ob_rand_below(&m->rand, TXNS));
    else if (what < 8)
        ask_round(m);
    else if (what < 11)
        take_round(m);
    else if (what < 14)
        settle_one(m);
    else if (what < 19)
        advance(m, lost, crash);
    else
        read_stream(m);
    compact(&m->relay);
}

static void step(struct sim *m)
{
    uint64_t fault = ob_rand_below(&m->rand, 100);
    m->visits[m->relay.h.state]++;
    if (fault < 6) {
        rewind_reader(m);
    } else if (fault < 9) {
        m->crashes[m->relay.h.state]++;
        start_relay(m);
    } else if (fault < 11) {
        lose_slot(m);
    } else {
        work(m, ob_rand_below(&m->rand, 22), ob_rand_below(&m->rand, 8) == 0,
             ob_rand_below(&m->rand, 6) == 0);
    }
}

static bool all_delivered(const struct server *db)
{
    for (int i = 0; i < TXNS; i++)
        if (db->lsn[i] && !db->settled[i])
            return false;
    return true;
}

/* No more faults: what does not come now never comes. */
static enum outcome finish(struct sim *m)
{
    for (int i = 0; i < TXNS; i++)
        commit_txn(m, i);
    for (int i = 0; i < 20 * TXNS && !m->refused; i++) {
        ask_round(m);
        take_round(m);
        advance(m, false, false);
        read_stream(m);
        settle_one(m);
        compact(&m->relay);
    }
    return m->refused ? REFUSED : all_delivered(&m->db) ? FINE : LOST;
}

/* crash_at: the relay dies before this step; -1: only as the seed says. */
static enum outcome run(struct sim *m, uint64_t seed, enum mutant mutant, int crash_at)
{
    m->rand = (struct ob_rand){seed};
    m->mutant = mutant;
    m->db = (struct server){.end = 1}; /* no LSN is 0 */
    m->refused = false;
    start_relay(m);
    for (int i = 0; i < STEPS && !m->refused; i++) {
        if (i == crash_at)
            start_relay(m);
        step(m);
    }
    return finish(m);
}

static void test_nothing_is_lost(void **state)
{
    struct sim m = {0};
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        enum outcome got = run(&m, seed, NONE, -1);
        if (got != FINE)
            fail_msg("seed %llu: %s", (unsigned long long)seed, got == LOST ? "lost" : "refused");
    }
    for (int i = 0; i <= HANDOVER_STREAM; i++) { /* else this proves nothing */
        assert_true(m.visits[i] > 100);
        assert_true(m.rewinds[i] > 10);
        assert_true(m.crashes[i] > 10);
    }
    assert_int_equal(m.visits[HANDOVER_FAILED], 0);
}

static void test_a_crash_at_every_step(void **state)
{
    struct sim m = {0};
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++)
        for (int at = 0; at < STEPS; at++)
            if (run(&m, seed, NONE, at) != FINE)
                fail_msg("seed %llu, crash before step %d", (unsigned long long)seed, at);
}

static void test_mutants_are_found(void **state)
{
    static const struct {
        const char *name;
        enum mutant mutant;
        enum outcome by;
    } cases[] = {
        {"rewind-ignored", REWIND_IGNORED, REFUSED},
        {"rewind-unchecked", REWIND_UNCHECKED, LOST},
        {"round-before-slot", ROUND_BEFORE_SLOT, LOST},
        {"settled-unchecked", SETTLED_UNCHECKED, LOST},
        {"stream-from-now", STREAM_FROM_NOW, LOST},
        {"slot-is-enough", SLOT_IS_ENOUGH, LOST},
    };
    struct sim m = {0};
    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        bool found = false;
        for (uint64_t seed = 1; seed <= SEEDS && !found; seed++)
            found = run(&m, seed, cases[i].mutant, -1) == cases[i].by;
        ROW_TRUE(cases[i].name, found);
    }
    assert_int_equal(ROWS(cases), N_MUTANTS - 1);
}

static void test_the_invariant(void **state)
{
    static const struct {
        const char *name;
        struct wal_handover h;
        struct wal_reading r;
        const char *text; /* NULL: allowed */
    } cases[] = {
        {"all well", {HANDOVER_SETTLING, 7, 3, NULL}, {4, true, true}, NULL},
        {"still reading", {HANDOVER_CATCHING_UP, 7, 3, NULL}, {4, true, true}, "still being read"},
        {"no position", {HANDOVER_SETTLING, 0, 3, NULL}, {4, true, true}, "has no position"},
        {"old round", {HANDOVER_SETTLING, 7, 3, NULL}, {3, true, true}, "began after the slot"},
        {"moved", {HANDOVER_SETTLING, 7, 3, NULL}, {4, false, true}, "the reader was moved"},
        {"in flight", {HANDOVER_SETTLING, 7, 3, NULL}, {4, true, false}, "are not settled"},
    };
    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct wal_handover h = cases[i].h;
        struct ob_err err = {.text = ""};
        enum ob_status st = ob_handover_check(&h, &cases[i].r, &err);
        row_int(cases[i].name, "status", st, cases[i].text ? OB_FATAL : OB_OK);
        if (!cases[i].text)
            continue;
        ROW_TRUE(cases[i].name, strstr(err.text, cases[i].text) && h.state == HANDOVER_FAILED);
        ROW_TRUE(cases[i].name, !ob_handover_reads(&h));
        struct wal_reading fine = {9, true, true};
        struct ob_err again = {.text = ""};
        ob_handover_done(&h);
        row_int(cases[i].name, "again", ob_handover_check(&h, &fine, &again), OB_FATAL);
        ROW_TRUE(cases[i].name, strcmp(err.text, again.text) == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_invariant),
        cmocka_unit_test(test_nothing_is_lost),
        cmocka_unit_test(test_a_crash_at_every_step),
        cmocka_unit_test(test_mutants_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
