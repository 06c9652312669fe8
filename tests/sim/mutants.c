/* SPDX-License-Identifier: Apache-2.0 */
/* mutants - deliberate bugs, in flow and in what surrounds it. A simulation that does not find each
 * of them proves nothing about the code that has none. */
#include "flow/internal.h"
#include "pool.h"

#include <stdio.h>
#include <string.h>

#define MAX_SEEDS 20000 /* each must be found within so many schedules */

const struct sim_mutant_info sim_mutants[] = {
    /* around flow: the source, the sink, the relay's glue */
    {"no-fence", "an owner that lost its epoch may still record", SIM_M_NO_FENCE, 0},
    {"zombie-claims", "a claim does not check the epoch", SIM_M_ZOMBIE_CLAIMS, 0},
    {"epoch-not-raised", "a new owner does not raise the epoch", SIM_M_EPOCH_NOT_RAISED, 0},
    {"forget-holds", "claims are not looked up after a restart", SIM_M_FORGET_HOLDS, 0},
    {"forget-dead-holds", "a key behind a dead event counts as free when no row is parked",
     SIM_M_FORGET_DEAD_HOLDS, 0},
    {"forget-parked", "a restart forgets the parked rows", SIM_M_FORGET_PARKED, 0},
    {"cursor-at-claimed", "the cursor moves to the last event claimed", SIM_M_CURSOR_AT_CLAIMED, 0},
    {"drop-on-reconnect", "a lost connection counts as delivered", SIM_M_DROP_ON_RECONNECT, 0},
    {"accepted-is-delivered", "accepted by the library counts as delivered",
     SIM_M_ACCEPTED_IS_DELIVERED, 0},
    {"read-uncommitted", "claims see rolled-back events", SIM_M_READ_UNCOMMITTED, 0},
    {"number-cursor", "claims read `number > last`, later commits are lost", SIM_M_NUMBER_CURSOR,
     0},
    {"failed-settle-is-ok", "a settle that failed counts as recorded", SIM_M_FAILED_SETTLE_IS_OK,
     0},
    {"unknown-settle-is-retry", "a settle of unknown outcome is offered again",
     SIM_M_UNKNOWN_SETTLE_IS_RETRY, 0},
    {"attempts-not-stored", "attempts live in memory only", SIM_M_ATTEMPTS_NOT_STORED, 0},
    {"drain-backwards", "parked rows of a key come back in reverse", SIM_M_DRAIN_BACKWARDS, 0},
    {"release-too-early", "the source releases a hash that has rows", SIM_M_RELEASE_TOO_EARLY, 0},
    {"retry-at-the-end", "a retried dead event stands behind its followers", SIM_M_RETRY_AT_THE_END,
     0},
    {"outage-is-retry", "the sink answers retry when its connection is lost", SIM_M_OUTAGE_IS_RETRY,
     0},
    {"ahead-as-range", "the set ahead of the cursor covers numbers that were not claimed",
     SIM_M_AHEAD_AS_RANGE, 0},
    {"ahead-unclaimed-dropped", "a settle drops what the set has about events not yet claimed",
     SIM_M_AHEAD_UNCLAIMED_DROPPED, 0},
    {"ahead-not-drained", "a drained event that was not claimed yet is not stored in the set",
     SIM_M_AHEAD_NOT_DRAINED, 0},
    /* in flow */
    {"settle-before-ack", "the cursor passes what is only accepted", 0, M_SETTLE_BEFORE_ACK},
    {"cursor-passes-waiting", "the cursor passes what waits in the window", 0,
     M_CURSOR_PASSES_WAITING},
    {"ignore-hold", "fresh events of a held key flow", 0, M_IGNORE_HOLD},
    {"outage-spends", "being given back costs an attempt", 0, M_OUTAGE_SPENDS},
    {"blocked-spends", "a blocked destination costs an attempt", 0, M_BLOCKED_SPENDS},
    {"blames-anybody", "a time-out of a silent destination costs an attempt", 0, M_BLAMES_ANYBODY},
    {"many-per-key", "many in flight per key on any sink", 0, M_MANY_PER_KEY},
    {"cross-destination", "many in flight per key across destinations", 0, M_CROSS_DEST},
    {"blocked-fills", "events of a blocked destination fill the window", 0, M_BLOCKED_FILLS},
    {"returned-lost", "what is given back counts as delivered", 0, M_RETURNED_LOST},
    {"forget-followers", "those behind a failed one go on", 0, M_FORGET_FOLLOWERS},
    {"no-max-attempts", "poison is tried for ever", 0, M_NO_MAX_ATTEMPTS},
    {"dead-unrecorded", "the key goes on before its dead event is recorded", 0, M_DEAD_UNRECORDED},
    {"release-early", "a hash is released while rows are on their way", 0, M_RELEASE_EARLY},
    {"stale-token", "a verdict of before counts for the slot's new event", 0, M_STALE_TOKEN},
    {"resend-accepted", "an overdue one is sent again before its verdict", 0, M_RESEND_ACCEPTED},
    {"down-parks", "an outage parks what waits", 0, M_DOWN_PARKS},
    {"settle-failed-ok", "a settle that failed counts as recorded", 0, M_SETTLE_FAILED_OK},
    {"numbered-late", "rows in flight are numbered behind their followers", 0, M_NUMBERED_LATE},
    {"rows-overtake", "rows that come back overtake an earlier one", 0, M_ROWS_OVERTAKE},
    {"ready-in-outage", "what was ready behind a failed one goes in an outage", 0,
     M_READY_IN_OUTAGE},
    {"no-probe-found", "a window of held events keeps the breaker open", 0, M_NO_PROBE_FOUND},
    {"probe-keeps-place", "a large row that probes stays in the window", 0, M_PROBE_KEEPS_PLACE},
    {"late-verdict-lost", "a verdict during the settle of its event is lost", 0,
     M_LATE_VERDICT_LOST},
    {"no-backoff", "a failed event is due at once", 0, M_NO_BACKOFF},
    {"row-kept", "a delivered event's row is not deleted", 0, M_ROW_KEPT},
    {"sleeps", "the time of a blocked destination's probe is forgotten", 0, M_SLEEPS},
    {"overflow-forgotten", "held hashes without a place count as free", 0, M_OVERFLOW_FORGOTTEN},
    {"attempt-forgotten", "a spent attempt is recorded one settle late", 0, M_ATTEMPT_FORGOTTEN},
    {"window-unbounded", "bytes do not count", 0, M_WINDOW_UNBOUNDED},
    {"ahead-not-stored", "what is settled ahead of the cursor is not recorded", 0,
     M_AHEAD_NOT_STORED},
    {"ahead-includes-in-flight", "what is in flight ahead of the cursor counts as settled", 0,
     M_AHEAD_IN_FLIGHT},
    {"ahead-cut-at-stop", "a clean stop records no more than a regular settle", 0, M_AHEAD_CUT},
    {"ahead-forgotten", "what an earlier owner settled ahead is not recorded again", 0,
     M_AHEAD_FORGOTTEN},
    {"blocked-max-in-outage", "blocked_max counts the time of an outage", 0,
     M_BLOCKED_MAX_IN_OUTAGE},
    {"cap-ignored", "max_attempts_cap does not bound an event's own number", 0, M_CAP_IGNORED},
    {"returned-without-end", "an event that the sink returns each time is never parked", 0,
     M_RETURNED_WITHOUT_END},
};
const unsigned sim_mutants_n = sizeof sim_mutants / sizeof sim_mutants[0];

const struct sim_mutant_info *sim_mutant_find(const char *name)
{
    for (unsigned i = 0; i < sim_mutants_n; i++)
        if (!strcmp(name, sim_mutants[i].name))
            return &sim_mutants[i];
    return NULL;
}

int sim_mutants_run(unsigned jobs)
{
    unsigned missed = 0;
    printf("1..%u\n", sim_mutants_n);
    for (unsigned i = 0; i < sim_mutants_n; i++) {
        const struct sim_mutant_info *m = &sim_mutants[i];
        struct sim_job job = {.from = 1, .to = MAX_SEEDS, .jobs = jobs, .mutant = m, .quiet = true};
        bool held = sim_pool_run(&job);
        missed += held;
        if (held)
            printf("not ok %u - %s: %s: not found in %u schedules\n", i + 1, m->name, m->what,
                   MAX_SEEDS);
        else
            printf("ok %u - %s: %s; found by \"%s\" at seed %llu after %llu schedules\n", i + 1,
                   m->name, m->what, job.invariant, (unsigned long long)job.failed_seed,
                   (unsigned long long)job.done);
        fflush(stdout);
    }
    return missed ? 1 : 0;
}
