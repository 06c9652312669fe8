/* SPDX-License-Identifier: Apache-2.0 */
/* relay - starts the shards' threads, watches them, stops and reloads them. */
#include "relay/shard.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static const struct ob_log no_log = {.fd = -1, .level = OB_LOG_OFF, .shard = -1};

static void poke(int fd)
{
    uint64_t one = 1;
    ssize_t put = write(fd, &one, sizeof(one));
    (void)put;
}

enum ob_status ob_relay_new(const struct ob_config *config, const struct ob_relay_opts *opts,
                            struct ob_relay **out, struct ob_err *err)
{
    struct ob_relay *r = calloc(1, sizeof(*r));
    if (!r)
        return ob_err_set(err, OB_FATAL, "no memory");
    pthread_mutex_init(&r->reload_lock, NULL);
    r->config = config;
    r->opts = *opts;
    if (!r->opts.clock)
        r->opts.clock = &ob_clock_system;
    if (!r->opts.log)
        r->opts.log = &no_log;
    struct ob_rand rand = {.state = (uint64_t)ob_clock_wall_us(r->opts.clock) ^
                                    ((uint64_t)getpid() << 32)};
    r->id = (unsigned)(ob_rand_next(&rand) & 0xffffffffu);
    r->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    size_t n = 0;
    for (size_t p = 0; p < config->n; p++)
        n += (size_t)config->pipelines[p].shards;
    r->shards = calloc(n > 0 ? n : 1, sizeof(*r->shards));
    enum ob_status st =
        r->shards && r->wake_fd >= 0 ? OB_OK : ob_err_set(err, OB_FATAL, "no memory");
    for (size_t p = 0; st == OB_OK && p < config->n; p++) {
        const struct ob_pipeline_conf *c = &config->pipelines[p];
        if (opts->only && strcmp(opts->only, c->name) != 0)
            continue;
        for (unsigned no = 0; st == OB_OK && no < (unsigned)c->shards; no++)
            st = ob__shard_init(&r->shards[r->n++], r, c, no, err);
    }
    if (st == OB_OK && r->n == 0)
        st = opts->only ? ob_err_set(err, OB_FATAL, "no pipeline is named '%s'", opts->only)
                        : ob_err_set(err, OB_FATAL, "the config has no pipelines");
    if (st != OB_OK) {
        ob_relay_free(r);
        return st;
    }
    *out = r;
    return OB_OK;
}

/* Says once which thread hangs inside which call; its own watch() covers what does not move
 * although it turns. */
static void watch_threads(struct ob_relay *r, bool *said)
{
    int64_t now = ob_clock_mono_ms(r->opts.clock);
    for (size_t i = 0; i < r->n; i++) {
        struct shard *s = &r->shards[i];
        int64_t age = now - atomic_load(&s->round_ms);
        bool ended = atomic_load(&s->phase_seen) == PHASE_ENDED;
        if (ended || age < s->conf->stuck_after_ms) {
            said[i] = false;
        } else if (!said[i]) {
            said[i] = true;
            ob_log(&s->log, OB_LOG_ERROR, "relay.hangs", OB_KC("stage", atomic_load(&s->stage)),
                   OB_KI("since_ms", age));
        }
    }
}

static void pass_stop(struct ob_relay *r)
{
    int stop = atomic_load(&r->stop);
    for (size_t i = 0; i < r->n; i++) {
        if (atomic_load(&r->shards[i].stop) != stop) {
            atomic_store(&r->shards[i].stop, stop);
            poke(r->shards[i].wake_fd);
        }
    }
}

static enum ob_status start(struct ob_relay *r, struct ob_err *err)
{
    sigset_t all, old;
    sigfillset(&all); /* signals are for the caller's threads */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    enum ob_status st = OB_OK;
    int64_t now = ob_clock_mono_ms(r->opts.clock);
    for (size_t i = 0; st == OB_OK && i < r->n; i++) {
        struct shard *s = &r->shards[i];
        atomic_store(&s->round_ms, now);
        atomic_store(&s->stage, "start");
        if (pthread_create(&s->thread, NULL, ob__shard_main, s) != 0)
            st = ob_err_set(err, OB_FATAL, "pipeline %s: cannot start a thread", s->conf->name);
        else
            s->started = true;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return st;
}

enum ob_status ob_relay_run(struct ob_relay *r, struct ob_err *err)
{
    bool *said = calloc(r->n, sizeof(*said));
    if (!said)
        return ob_err_set(err, OB_FATAL, "no memory");
    enum ob_status st = start(r, err);
    if (st != OB_OK)
        ob_relay_stop(r);
    int started = 0;
    for (size_t i = 0; i < r->n; i++)
        started += r->shards[i].started;
    while (atomic_load(&r->ended) < started) {
        struct pollfd p = {.fd = r->wake_fd, .events = POLLIN};
        uint64_t count;
        if (poll(&p, 1, 500) > 0) {
            ssize_t got = read(r->wake_fd, &count, sizeof(count));
            (void)got;
        }
        pass_stop(r);
        watch_threads(r, said);
    }
    for (size_t i = 0; i < r->n; i++) {
        struct shard *s = &r->shards[i];
        if (!s->started)
            continue;
        pthread_join(s->thread, NULL);
        s->started = false;
        if (s->result != OB_OK && st == OB_OK && r->opts.once)
            st = ob_err_set(err, s->result, "pipeline %s: %s", s->conf->name,
                            s->sink_why.text[0] ? s->sink_why.text
                            : s->last.text[0]   ? s->last.text
                                                : "did not finish within the grace period");
    }
    free(said);
    return st;
}

void ob_relay_stop(struct ob_relay *r)
{
    int was = atomic_load(&r->stop);
    if (was < 2)
        atomic_store(&r->stop, was + 1);
    poke(r->wake_fd);
}

enum ob_status ob_relay_reload(struct ob_relay *r, const struct ob_config *config,
                               struct ob_err *err)
{
    for (size_t i = 0; i < r->n; i++)
        if (!ob_config_pipeline(config, r->shards[i].conf->name))
            return ob_err_set(
                err, OB_REJECT,
                "pipeline %s is not in the new config; only routes are reloaded, restart to add or "
                "remove pipelines",
                r->shards[i].conf->name);
    pthread_mutex_lock(&r->reload_lock);
    for (size_t i = 0; i < r->n; i++) {
        atomic_store(&r->shards[i].reload, config);
        poke(r->shards[i].wake_fd);
    }
    pthread_mutex_unlock(&r->reload_lock);
    return OB_OK;
}

void ob_relay_stats(const struct ob_relay *r, struct ob_relay_stats *out)
{
    memset(out, 0, sizeof(*out));
    for (size_t i = 0; i < r->n; i++) {
        const struct shard *s = &r->shards[i];
        out->delivered += atomic_load(&s->delivered);
        out->failed += atomic_load(&s->failed);
        out->overtaken += atomic_load(&s->overtaken);
        out->unroutable += atomic_load(&s->unroutable);
        out->running += atomic_load(&s->phase_seen) == PHASE_RUNNING;
        ob_hist_merge(&out->latency_us, &s->latency_us);
    }
}

bool ob_relay_turns(const struct ob_relay *r)
{
    int64_t now = ob_clock_mono_ms(r->opts.clock);
    for (size_t i = 0; i < r->n; i++) {
        const struct shard *s = &r->shards[i];
        if (atomic_load(&s->phase_seen) != PHASE_ENDED &&
            now - atomic_load(&s->round_ms) >= s->conf->stuck_after_ms)
            return false;
    }
    return true;
}

void ob_relay_free(struct ob_relay *r)
{
    if (!r)
        return;
    for (size_t i = 0; r->shards && i < r->n; i++)
        ob__shard_clear(&r->shards[i]);
    free(r->shards);
    if (r->wake_fd >= 0)
        close(r->wake_fd);
    pthread_mutex_destroy(&r->reload_lock);
    free(r);
}
