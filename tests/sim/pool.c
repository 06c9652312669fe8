/* SPDX-License-Identifier: Apache-2.0 */
/* pool - many seeds on several processes: a process that dies (an assertion of flow, a sanitizer)
 * is a failed seed like any other. */
#include "pool.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BLOCK 16 /* seeds that a process takes at a time */

bool sim_in_flow, sim_flow_allocated;

/* flow takes all its memory in ob_flow_new(): the linker sends its calls here (--wrap). */
void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);

void *__wrap_malloc(size_t n)
{
    sim_flow_allocated |= sim_in_flow;
    return __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    sim_flow_allocated |= sim_in_flow;
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    sim_flow_allocated |= sim_in_flow;
    return __real_realloc(p, n);
}

struct worker {
    _Atomic uint64_t seed, crash_at; /* what it runs now */
    uint64_t failed_seed, failed_crash_at;
    bool failed;
    char invariant[64], why[400];
};

struct shared {
    _Atomic uint64_t next, done, rounds, repeats, deaths, crashes, fenced;
    _Atomic bool stop;
    struct worker w[SIM_JOBS];
};

static void set_flow_mutant(const struct sim_mutant_info *m)
{
#ifdef OB_FLOW_MUTANTS
    ob_flow_mutant = m ? m->flow : 0;
#else
    if (m && m->flow) {
        fprintf(stderr, "sim: %s is a bug of flow: only in the build with OB_FLOW_MUTANTS\n",
                m->name);
        exit(64);
    }
#endif
}

static void *share(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        perror("sim");
        exit(70);
    }
    return p;
}

/* In a process of its own: an assertion of flow must not take the story with it. */
static void replay(const struct sim_job *job, struct sim *w, struct sim_trace *t, uint64_t seed,
                   uint64_t crash_at)
{
    int status = 0;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        set_flow_mutant(job->mutant);
        sim_run(w, seed, job->mutant ? job->mutant->glue : 0, crash_at, t);
        fflush(stdout);
        _exit(0);
    }
    if (pid > 0)
        waitpid(pid, &status, 0);
    if (pid > 0 && status == 0)
        return;
    w->failed = true;
    snprintf(w->invariant, sizeof w->invariant, "assertion");
    snprintf(w->why, sizeof w->why, "the process died, status 0x%x", (unsigned)status);
}

int sim_story(const struct sim_job *job, uint64_t seed, uint64_t crash_at, bool all)
{
    struct sim *w = share(sizeof *w);
    struct sim_trace *t = sim_trace_new(all);
    replay(job, w, t, seed, crash_at);
    printf("seed %llu", (unsigned long long)seed);
    if (crash_at)
        printf(", crash at step %llu", (unsigned long long)crash_at);
    printf("%s%s\n", job->mutant ? ", mutant " : "", job->mutant ? job->mutant->name : "");
    sim_conf_print(&w->conf);
    if (t)
        sim_trace_print(t);
    if (w->failed)
        printf("FAILED %s: %s\n", w->invariant, w->why);
    else
        printf("held: %llu rounds, %llu repeats, %llu dead, %llu crashes\n",
               (unsigned long long)w->rounds, (unsigned long long)w->repeats,
               (unsigned long long)w->deaths, (unsigned long long)w->crashes);
    int rc = w->failed ? 1 : 0;
    fflush(stdout);
    sim_trace_free(t);
    munmap(w, sizeof *w);
    return rc;
}

static bool run_one(struct sim *w, const struct sim_job *job, struct shared *sh, struct worker *me,
                    uint64_t seed, uint64_t crash_at)
{
    me->seed = seed;
    me->crash_at = crash_at;
    bool held = sim_run(w, seed, job->mutant ? job->mutant->glue : 0, crash_at, NULL);
    sh->rounds += w->rounds;
    sh->repeats += w->repeats;
    sh->deaths += w->deaths;
    sh->crashes += w->crashes;
    sh->fenced += w->fenced;
    sh->done++;
    if (held)
        return true;
    me->failed = true;
    me->failed_seed = seed;
    me->failed_crash_at = crash_at;
    memcpy(me->invariant, w->invariant, sizeof me->invariant);
    memcpy(me->why, w->why, sizeof me->why);
    sh->stop = true;
    return false;
}

static void work(const struct sim_job *job, struct shared *sh, struct worker *me)
{
    static struct sim w;
    set_flow_mutant(job->mutant);
    uint64_t block = job->crash_everywhere ? 1 : BLOCK;
    while (!sh->stop) {
        uint64_t seed = job->from + block * sh->next++;
        if (seed > job->to)
            return;
        for (uint64_t end = seed + block; seed < end && seed <= job->to && !sh->stop; seed++) {
            if (!run_one(&w, job, sh, me, seed, 0))
                return;
            uint64_t points = job->crash_everywhere ? w.points : 0;
            for (uint64_t at = 1; at <= points; at++)
                if (!run_one(&w, job, sh, me, seed, at))
                    return;
        }
    }
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void progress(const struct sim_job *job, const struct shared *sh, double since, bool end)
{
    uint64_t all = job->to - job->from + 1, done = sh->done;
    double s = seconds() - since;
    char bar[41];
    size_t full = job->crash_everywhere ? 0 : (size_t)(40 * done / all);
    for (size_t i = 0; i < 40; i++)
        bar[i] = i < full ? '#' : '.';
    bar[40] = 0;
    double left = done && !job->crash_everywhere ? s * (double)(all - done) / (double)done : 0;
    fprintf(stderr, "\rsim [%s] %llu of %llu, %.0f a second, %.0f s left %s", bar,
            (unsigned long long)done, (unsigned long long)all, s > 0 ? (double)done / s : 0, left,
            end ? "\n" : "");
}

static void gather(struct sim_job *job, struct shared *sh)
{
    bool found = false;
    for (unsigned i = 0; i < job->jobs; i++) {
        struct worker *me = &sh->w[i];
        if (!me->failed || (found && me->failed_seed > job->failed_seed))
            continue;
        found = true;
        job->failed_seed = me->failed_seed;
        job->failed_crash_at = me->failed_crash_at;
        memcpy(job->invariant, me->invariant, sizeof job->invariant);
        memcpy(job->why, me->why, sizeof job->why);
    }
    job->done = sh->done;
}

static void reaped(struct shared *sh, struct worker *me, int status)
{
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return;
    me->failed = true;
    me->failed_seed = me->seed;
    me->failed_crash_at = me->crash_at;
    snprintf(me->invariant, sizeof me->invariant, "assertion");
    snprintf(me->why, sizeof me->why, "the process ended with %s %d",
             WIFSIGNALED(status) ? "signal" : "status",
             WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    sh->stop = true;
}

static void wait_all(const struct sim_job *job, struct shared *sh, const pid_t *pid)
{
    bool bar = !job->quiet && isatty(STDERR_FILENO);
    double since = seconds();
    unsigned left = job->jobs;
    while (left > 0) {
        int status;
        pid_t p = waitpid(-1, &status, bar ? WNOHANG : 0);
        for (unsigned i = 0; p > 0 && i < job->jobs; i++)
            if (pid[i] == p) {
                reaped(sh, &sh->w[i], status);
                left--;
            }
        if (p < 0)
            break;
        if (p == 0) {
            progress(job, sh, since, false);
            nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
        }
    }
    if (bar)
        progress(job, sh, since, true);
    if (!job->quiet)
        printf("sim: %llu schedules in %.1f s: %llu rounds, %llu crashes, %llu owners fenced, "
               "%llu repeats, %llu dead\n",
               (unsigned long long)sh->done, seconds() - since, (unsigned long long)sh->rounds,
               (unsigned long long)sh->crashes, (unsigned long long)sh->fenced,
               (unsigned long long)sh->repeats, (unsigned long long)sh->deaths);
}

bool sim_pool_run(struct sim_job *job)
{
    pid_t pid[SIM_JOBS];
    struct shared *sh = share(sizeof *sh);
    fflush(stdout);
    fflush(stderr);
    for (unsigned i = 0; i < job->jobs; i++) {
        pid[i] = fork();
        if (pid[i] == 0) {
            if (job->quiet && !freopen("/dev/null", "w", stderr))
                _exit(70);
            work(job, sh, &sh->w[i]);
            _exit(0);
        }
        if (pid[i] < 0) {
            perror("sim");
            exit(70);
        }
    }
    wait_all(job, sh, pid);
    bool held = !sh->stop;
    gather(job, sh);
    munmap(sh, sizeof *sh);
    if (held || job->quiet)
        return held;
    printf("FAILED at seed %llu, %s: %s\nagain:  sim --trace %llu\n",
           (unsigned long long)job->failed_seed, job->invariant, job->why,
           (unsigned long long)job->failed_seed);
    sim_story(job, job->failed_seed, job->failed_crash_at, false);
    return false;
}
