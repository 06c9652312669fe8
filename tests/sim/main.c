/* SPDX-License-Identifier: Apache-2.0 */
/* main - runs seeds on several processes, shows progress, and tells a failed seed's story. */
#include "pool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: sim --seeds A-B [--jobs N] [--mutant NAME] [--crash-everywhere]\n"
    "       sim --trace SEED [--mutant NAME]     every step of one schedule\n"
    "       sim --mutants [--jobs N]             each deliberate bug must be found\n"
    "       sim --list                           the deliberate bugs\n"
    "A seed is one schedule. --crash-everywhere runs each seed once for every step of its owner,\n"
    "with a crash at that step.\n";

static bool range(const char *text, uint64_t *from, uint64_t *to)
{
    char *end;
    errno = 0;
    *from = *to = strtoull(text, &end, 10);
    if (*end == '-')
        *to = strtoull(end + 1, &end, 10);
    return !errno && end != text && !*end && *from <= *to;
}

static int list(void)
{
    for (unsigned i = 0; i < sim_mutants_n; i++)
        printf("%-28s %s\n", sim_mutants[i].name, sim_mutants[i].what);
    return 0;
}

int main(int argc, char **argv)
{
    struct sim_job job = {.from = 1, .to = 0, .jobs = (unsigned)sysconf(_SC_NPROCESSORS_ONLN)};
    bool trace = false, mutants = false;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *v = i + 1 < argc ? argv[i + 1] : "";
        uint64_t x, y;
        if (!strcmp(a, "--list"))
            return list();
        if (!strcmp(a, "--mutants")) {
            mutants = true;
        } else if (!strcmp(a, "--crash-everywhere")) {
            job.crash_everywhere = true;
        } else if (!strcmp(a, "--seeds") && range(v, &job.from, &job.to)) {
            i++;
        } else if (!strcmp(a, "--trace") && range(v, &job.from, &job.to)) {
            trace = true;
            i++;
        } else if (!strcmp(a, "--jobs") && range(v, &x, &y) && x >= 1 && x <= SIM_JOBS) {
            job.jobs = (unsigned)x;
            i++;
        } else if (!strcmp(a, "--mutant") && (job.mutant = sim_mutant_find(v))) {
            i++;
        } else {
            fprintf(stderr, "sim: %s %s: not understood\n%s", a, v, usage);
            return 64;
        }
    }
    if (job.jobs > SIM_JOBS)
        job.jobs = SIM_JOBS;
    if (mutants)
        return sim_mutants_run(job.jobs);
    if (job.from > job.to) {
        fputs(usage, stderr);
        return 64;
    }
    if (trace)
        return sim_story(&job, job.from, 0, true);
    return sim_pool_run(&job) ? 0 : 1;
}
