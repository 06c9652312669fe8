/* SPDX-License-Identifier: Apache-2.0 */
/* source - a fake database: events, cursor or marks, parked and dead rows, an epoch.
 *
 * Log-type: claims come in one fixed order and a cursor moves over a settled prefix; what is
 * parked, dead or stored as settled ahead of the cursor is only passed by it when it is read again.
 * Rows-type: no
 * cursor; a claim returns what is committed, not marked, neither parked nor dead, and not in this
 * owner's memory, in order of the number. A claim checks the epoch in the snapshot that it reads:
 * without that an old owner could claim what stands behind a row that the new one parked. */
#include "sim.h"

#include <string.h>

bool sim_committed(const struct sim *w, const struct sim_event *e)
{
    return !e->rolled_back && e->commit_at <= w->now;
}

/* Durably over: it will not be claimed or drained again. */
bool sim_settled(const struct sim *w, const struct sim_event *e)
{
    if (e->parked)
        return false;
    return e->dead || e->discarded ||
           (w->conf.flow.log_source ? e->ref <= w->db.cursor || w->db.ahead[e - w->ev]
                                    : e->published);
}

static bool dead_hold(const struct sim *w, uint64_t hash)
{
    for (unsigned i = 0; i < w->db.n_dead; i++)
        if (w->db.dead[i].hold && w->ev[w->db.dead[i].ev].hash == hash)
            return true;
    return false;
}

bool sim_held(const struct sim *w, uint64_t hash)
{
    for (unsigned i = 0; i < w->db.n_parked; i++)
        if (w->ev[w->db.parked[i].ev].hash == hash)
            return true;
    return dead_hold(w, hash);
}

/* ---- rows ---- */

static struct sim_row *row_find(struct sim_row *rows, unsigned n, int64_t park_n)
{
    for (unsigned i = 0; i < n; i++)
        if (rows[i].n == park_n)
            return &rows[i];
    return NULL;
}

static void row_insert(struct sim_row *rows, unsigned *n, struct sim_row row)
{
    unsigned at = *n;
    for (; at > 0 && rows[at - 1].n > row.n; at--)
        rows[at] = rows[at - 1];
    rows[at] = row;
    (*n)++;
}

static struct sim_row row_take(struct sim_row *rows, unsigned *n, struct sim_row *row)
{
    struct sim_row out = *row;
    memmove(row, row + 1, (size_t)(rows + *n - row - 1) * sizeof *row);
    (*n)--;
    return out;
}

/* ---- claims ---- */

void sim_source_rewind(struct sim *w, struct sim_node *n)
{
    n->claim_pos = 0;
    memset(n->claimed, 0, sizeof n->claimed);
    if (w->conf.flow.log_source)
        while (n->claim_pos < w->n_ev && w->ev[w->db.order[n->claim_pos]].ref <= w->db.cursor)
            n->claim_pos++;
}

void sim_source_own(struct sim *w, struct sim_node *n)
{
    if (w->mutant != SIM_M_EPOCH_NOT_RAISED || !w->db.epoch)
        w->db.epoch++;
    n->epoch = w->db.epoch;
    sim_source_rewind(w, n);
    if (w->mutant == SIM_M_FORGET_PARKED && w->db.n_parked) {
        for (unsigned i = 0; i < w->db.n_parked; i++)
            w->ev[w->db.parked[i].ev].parked = false;
        w->db.n_parked = 0;
    }
}

static bool visible(const struct sim *w, const struct sim_event *e)
{
    if (w->mutant == SIM_M_READ_UNCOMMITTED)
        return e->commit_at <= w->now;
    return sim_committed(w, e);
}

static size_t claim_log(struct sim *w, struct sim_node *n, size_t max, uint64_t max_bytes,
                        unsigned *evs)
{
    size_t k = 0;
    uint64_t bytes = 0;
    for (; n->claim_pos < w->n_ev && k < max; n->claim_pos++) {
        const struct sim_event *e = &w->ev[w->db.order[n->claim_pos]];
        if (e->commit_at > w->now) {
            if (w->mutant == SIM_M_NUMBER_CURSOR)
                continue;
            break;
        }
        if (!visible(w, e))
            continue;
        if (k && bytes + e->bytes > max_bytes)
            break;
        bytes += e->bytes;
        evs[k++] = w->db.order[n->claim_pos];
    }
    return k;
}

static size_t claim_rows(struct sim *w, struct sim_node *n, size_t max, uint64_t max_bytes,
                         unsigned *evs)
{
    size_t k = 0;
    uint64_t bytes = 0;
    for (unsigned i = 0; i < w->n_ev && k < max; i++) {
        const struct sim_event *e = &w->ev[i];
        if (n->claimed[i] || e->published || e->parked || e->dead || e->discarded || !visible(w, e))
            continue;
        if (k && bytes + e->bytes > max_bytes)
            break;
        bytes += e->bytes;
        n->claimed[i] = true;
        evs[k++] = i;
    }
    return k;
}

enum ob_status sim_source_claim(struct sim *w, struct sim_node *n, size_t max, uint64_t max_bytes,
                                unsigned *evs, size_t *n_evs)
{
    if (w->db.down_until > w->now)
        return OB_DOWN;
    if (n->epoch != w->db.epoch && w->mutant != SIM_M_ZOMBIE_CLAIMS)
        return OB_FENCED;
    *n_evs = w->conf.flow.log_source ? claim_log(w, n, max, max_bytes, evs)
                                     : claim_rows(w, n, max, max_bytes, evs);
    return *n_evs ? OB_OK : OB_AGAIN;
}

/* ---- parked rows ---- */

static bool drainable(const struct sim *w, const struct sim_node *n, const struct sim_row *head,
                      uint64_t dest)
{
    uint64_t hash = w->ev[head->ev].hash;
    if (dest ? head->blocked != dest : head->blocked != 0 || head->due > w->now)
        return false;
    return !dead_hold(w, hash) && !ob_flow_drain_skip(n->flow, hash);
}

size_t sim_source_drain(struct sim *w, struct sim_node *n, uint64_t dest, size_t max,
                        const struct sim_row **rows, struct ob_drained *drained, size_t *n_drained)
{
    uint64_t seen[SIM_EVENTS];
    size_t n_seen = 0, k = 0;
    *n_drained = 0;
    for (unsigned i = 0; i < w->db.n_parked && k < max; i++) {
        const struct sim_row *head = &w->db.parked[i];
        uint64_t hash = w->ev[head->ev].hash;
        size_t s = 0;
        while (s < n_seen && seen[s] != hash)
            s++;
        if (s < n_seen)
            continue;
        seen[n_seen++] = hash;
        if (!drainable(w, n, head, dest))
            continue;
        struct ob_drained *d = &drained[(*n_drained)++];
        *d = (struct ob_drained){.hash = hash};
        size_t first = k;
        for (unsigned j = i; j < w->db.n_parked; j++) {
            if (w->ev[w->db.parked[j].ev].hash != hash)
                continue;
            if (k == max || k - first == w->conf.per_key) {
                d->more = true;
                break;
            }
            rows[k++] = &w->db.parked[j];
        }
        if (w->mutant == SIM_M_DRAIN_BACKWARDS)
            for (size_t a = first, b = k; a + 1 < b; a++, b--) {
                const struct sim_row *t = rows[a];
                rows[a] = rows[b - 1];
                rows[b - 1] = t;
            }
    }
    return k;
}

size_t sim_source_blocked(const struct sim *w, uint64_t after, uint64_t *dests, size_t max)
{
    size_t k = 0;
    while (k < max) {
        uint64_t best = 0;
        for (unsigned i = 0; i < w->db.n_parked; i++) {
            uint64_t d = w->db.parked[i].blocked;
            if (d && d != OB_DEST_DEAD && d > after && (!best || d < best))
                best = d;
        }
        if (!best)
            break;
        dests[k++] = after = best;
    }
    return k;
}

int64_t sim_source_next_due(const struct sim *w)
{
    int64_t due = SIM_NEVER;
    for (unsigned i = 0; i < w->db.n_parked; i++) {
        const struct sim_row *r = &w->db.parked[i];
        if (r->blocked || r->due >= due)
            continue;
        uint64_t hash = w->ev[r->ev].hash;
        unsigned j = 0;
        while (w->ev[w->db.parked[j].ev].hash != hash)
            j++;
        if (j == i && !dead_hold(w, hash))
            due = r->due;
    }
    return due;
}

/* ---- settle ---- */

static void settle_park(struct sim *w, struct ob_settle_op *op, unsigned ev)
{
    struct sim_event *e = &w->ev[ev];
    struct sim_row row = {
        .ev = ev, .attempts = op->attempts, .due = op->due_ms, .blocked = op->blocked_dest};
    e->recorded = op->attempts;
    if (op->blocked_dest && e->blocked_at == SIM_NEVER)
        e->blocked_at = op->due_ms; /* when the settle began */
    if (w->mutant == SIM_M_ATTEMPTS_NOT_STORED)
        row.attempts = 0;
    if (op->park_n) {
        struct sim_row *old = row_find(w->db.parked, w->db.n_parked, op->park_n);
        if (!old || old->ev != ev) {
            sim_fail(w, "settle", "parked row %lld of event %u is not there", (long long)op->park_n,
                     ev);
            return;
        }
        row.n = op->park_n;
        *old = row;
        return;
    }
    if (e->parked || sim_settled(w, e)) {
        sim_fail(w, "settle", "event %u is parked although it is settled or parked", ev);
        return;
    }
    row.n = op->park_n = ++w->db.next_n;
    e->parked = true;
    row_insert(w->db.parked, &w->db.n_parked, row);
}

static void unpark(struct sim *w, int64_t park_n, unsigned ev)
{
    struct sim_row *row = row_find(w->db.parked, w->db.n_parked, park_n);
    if (!row || row->ev != ev) {
        sim_fail(w, "settle", "parked row %lld of event %u is not there", (long long)park_n, ev);
        return;
    }
    row_take(w->db.parked, &w->db.n_parked, row);
    w->ev[ev].parked = false;
}

static void settle_op(struct sim *w, struct ob_settle_op *op, unsigned ev)
{
    struct sim_event *e = &w->ev[ev];
    switch (op->kind) {
    case OB_SETTLE_PUBLISHED:
        if (op->park_n)
            unpark(w, op->park_n, ev);
        e->published = true;
        /* Its row goes: a claim that comes to it later would not know. */
        w->db.ahead[ev] |= op->park_n && w->mutant != SIM_M_AHEAD_NOT_DRAINED;
        e->recorded = 0; /* if it is read again, it begins anew */
        break;
    case OB_SETTLE_PARK:
        settle_park(w, op, ev);
        break;
    case OB_SETTLE_DEAD:
        if (op->park_n)
            unpark(w, op->park_n, ev);
        else
            op->park_n = ++w->db.next_n;
        e->dead = e->was_dead = true;
        w->deaths++;
        row_insert(w->db.dead, &w->db.n_dead,
                   (struct sim_row){
                       .n = op->park_n, .ev = ev, .attempts = op->attempts, .hold = op->hold});
        break;
    }
    SIM_TRACE(w, "  %s event %u key %u%s n=%lld attempts=%u due=%lld blocked=%llx",
              op->kind == OB_SETTLE_PUBLISHED ? "published"
              : op->kind == OB_SETTLE_PARK    ? "parked"
                                              : "dead",
              ev, e->key, op->hold ? " (holds its key)" : "", (long long)op->park_n, op->attempts,
              (long long)op->due_ms, (unsigned long long)op->blocked_dest);
}

static void find_released(const struct sim *w, const struct ob_settle *s, uint64_t *released,
                          size_t *n)
{
    *n = 0;
    for (size_t i = 0; i < s->n; i++) {
        uint64_t hash = s->ops[i].hash;
        size_t j = 0;
        while (j < *n && released[j] != hash)
            j++;
        if (j == *n && (w->mutant == SIM_M_RELEASE_TOO_EARLY || !sim_held(w, hash)))
            released[(*n)++] = hash;
    }
}

static unsigned event_of(const struct sim *w, uint64_t ref)
{
    unsigned i = 0;
    while (i + 1 < w->n_ev && w->ev[i].ref != ref)
        i++;
    return i;
}

/* Neighbours in the set as one range of numbers: it covers numbers that were not claimed. */
static void cover_gap(const struct sim *w, bool *ahead, uint64_t a, uint64_t b)
{
    unsigned x = event_of(w, a), y = event_of(w, b);
    for (unsigned i = x < y ? x : y; i < (x < y ? y : x); i++)
        ahead[i] = true;
}

/* The set is replaced; what it has about events that the flow has not claimed yet is kept. */
static void store_ahead(struct sim *w, const struct ob_settle *s)
{
    bool ahead[SIM_EVENTS] = {false};
    for (unsigned i = 0; i < w->n_ev; i++)
        ahead[i] = w->db.ahead[i] && w->ev[i].ref > w->db.cursor && w->ev[i].ref > s->claimed &&
                   w->mutant != SIM_M_AHEAD_UNCLAIMED_DROPPED;
    for (size_t k = 0; k < s->n_ahead; k++) {
        ahead[event_of(w, s->ahead[k])] = true;
        if (w->mutant == SIM_M_AHEAD_AS_RANGE && k > 0)
            cover_gap(w, ahead, s->ahead[k - 1], s->ahead[k]);
    }
    for (unsigned i = 0; i < w->n_ev; i++) {
        bool left_out = w->db.ahead[i] && !ahead[i] && w->ev[i].ref > w->db.cursor;
        if (left_out && s->n_ahead == w->conf.flow.ahead_max)
            w->ev[i].excuse = true; /* there was no place for it */
        w->db.ahead[i] = ahead[i];
    }
}

enum ob_status sim_source_settle(struct sim *w, struct sim_node *n, struct ob_settle *s,
                                 uint64_t *released, size_t *n_released)
{
    if (n->epoch != w->db.epoch) {
        if (w->mutant != SIM_M_NO_FENCE)
            return OB_FENCED;
        sim_fail(w, "fenced owner", "owner %u with epoch %llu recorded something, epoch is %llu",
                 n->id, (unsigned long long)n->epoch, (unsigned long long)w->db.epoch);
    }
    if (w->mutant == SIM_M_CURSOR_AT_CLAIMED && w->conf.flow.log_source && n->claim_ref) {
        s->moved = true;
        s->ref = n->claim_ref;
    }
    SIM_TRACE(w, "owner %u settles %zu ops%s %llu", n->id, s->n, s->moved ? ", cursor to" : "",
              (unsigned long long)(s->moved ? s->ref : 0));
    for (size_t i = 0; i < s->n; i++) {
        const struct sim_tok *t = sim_tok_find(n, s->ops[i].token);
        if (t)
            settle_op(w, &s->ops[i], t->ev);
    }
    if (s->moved) {
        sim_check_cursor(w, w->db.cursor, s->ref);
        w->db.cursor = s->ref;
    }
    if (w->conf.flow.log_source) {
        store_ahead(w, s);
        sim_check_ahead(w, n, s);
    }
    find_released(w, s, released, n_released);
    w->progress_at = w->now;
    return OB_OK;
}

/* ---- a person ---- */

static void dead_do(struct sim *w, struct sim_row *row, bool retry, bool heal)
{
    struct sim_row r = row_take(w->db.dead, &w->db.n_dead, row);
    struct sim_event *e = &w->ev[r.ev];
    SIM_TRACE(w, "operator %s event %u key %u%s", retry ? "retries" : "discards", r.ev, e->key,
              retry && heal ? " (healed)" : "");
    e->dead = false;
    w->progress_at = w->now;
    if (!retry) {
        e->discarded = true;
        return;
    }
    if (heal)
        e->kind = SIM_K_NORMAL;
    e->recorded = 0;
    e->excuse = e->by_hand = e->parked = true;
    for (unsigned i = 0; i < SIM_NODES; i++)
        w->node[i].seen[r.ev] = (struct sim_seen){.sent = w->node[i].seen[r.ev].sent};
    if (w->mutant == SIM_M_RETRY_AT_THE_END)
        r.n = ++w->db.next_n;
    row_insert(w->db.parked, &w->db.n_parked,
               (struct sim_row){.n = r.n, .ev = r.ev, .due = w->now});
}

void sim_operator(struct sim *w, bool all)
{
    struct ob_rand *r = &w->rand;
    uint64_t dice = ob_rand_next(r);
    bool retry = dice & 1, heal = all || (dice & 2), many = all || (dice & 4);
    uint64_t hash = w->db.n_dead ? w->ev[w->db.dead[ob_rand_below(r, w->db.n_dead)].ev].hash : 0;
    for (unsigned i = 0; i < w->db.n_dead;) {
        struct sim_row *row = &w->db.dead[i];
        if (many || w->ev[row->ev].hash == hash)
            dead_do(w, row, retry, heal);
        else
            i++;
    }
}
