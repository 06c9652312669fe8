/* SPDX-License-Identifier: Apache-2.0 */
/* pool - many seeds on several processes. */
#ifndef OB_SIM_POOL_H
#define OB_SIM_POOL_H

#include "sim.h"

#define SIM_JOBS 64

struct sim_job {
    uint64_t from, to; /* seeds, both included */
    unsigned jobs;
    const struct sim_mutant_info *mutant; /* NULL: none */
    bool crash_everywhere;
    bool quiet; /* no progress, no story */
    /* out, when sim_pool_run() returned false */
    uint64_t failed_seed, failed_crash_at, done;
    char invariant[64], why[400];
};

/* Runs all seeds, or until one fails: the lowest that was found. True: none did. */
bool sim_pool_run(struct sim_job *job);
/* Runs one schedule again with its trace and prints it; 0 if it held, else 1. */
int sim_story(const struct sim_job *job, uint64_t seed, uint64_t crash_at, bool all);
const struct sim_mutant_info *sim_mutant_find(const char *name);

#endif
