/* SPDX-License-Identifier: Apache-2.0 */
/* loop - what the benchmarks of sinks share. */
#include "loop.h"

#include "core/clock.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#define KEYS 10000
#define AT_ONCE 512

int64_t bench_now_us(void)
{
    return ob_clock_system.mono_us(ob_clock_system.user);
}

static void make_messages(struct bench *b)
{
    b->msgs = calloc(b->n, sizeof(*b->msgs));
    b->ids = calloc(b->n, sizeof(*b->ids));
    b->keys = calloc(KEYS, sizeof(*b->keys));
    b->sent_us = calloc(b->n, sizeof(*b->sent_us));
    b->took_us = calloc(b->n, sizeof(*b->took_us));
    if (!b->msgs || !b->ids || !b->keys || !b->sent_us || !b->took_us)
        abort();
    b->event.type = OB_STR("bench");
    b->event.created_us = INT64_C(1790000000000000);
    memset(b->value, 'x', sizeof(b->value));
    b->value[0] = b->value[BENCH_PAYLOAD - 1] = '"';
    for (size_t i = 0; i < KEYS; i++)
        snprintf(b->keys[i], sizeof(b->keys[i]), "key-%zu", i);
    for (size_t i = 0; i < b->n; i++) {
        /* As long as a real one; and of other runs other ids: a stream would call them duplicates.
         */
        uint64_t run = (uint64_t)bench_now_us() ^ (uint64_t)(uintptr_t)b->msgs;
        snprintf(b->ids[i], sizeof(b->ids[i]), "%08x-%04x-7000-8000-%012zx",
                 (unsigned)(run >> 16 & 0xffffffff), (unsigned)(run & 0xffff), i);
        b->msgs[i] = (struct ob_msg){.event = &b->event,
                                     .id = ob_str_c(b->ids[i]),
                                     .topic = ob_str_c(b->place),
                                     .destination = ob_str_c(b->place),
                                     .key = ob_str_c(b->keys[i % KEYS]),
                                     .value = {b->value, BENCH_PAYLOAD},
                                     .content_type = OB_STR("application/json"),
                                     .dest_hash = 1};
    }
}

size_t bench_allowed(const struct bench *b, int64_t start_us)
{
    if (b->rate == 0)
        return b->n;
    int64_t n = (bench_now_us() - start_us) * b->rate / 1000000 + 1;
    return n < (int64_t)b->n ? (size_t)n : b->n;
}

void bench_acked(struct bench *b, size_t i, bool ok)
{
    b->failed += !ok;
    b->took_us[i] = bench_now_us() - b->sent_us[i];
    atomic_fetch_add(&b->done, 1);
}

static void on_done(void *user, uint64_t token, enum ob_verdict verdict, const struct ob_err *why)
{
    struct bench *b = user;
    if (verdict != OB_V_DELIVERED && b->failed == 0)
        fprintf(stderr, "%s: %s\n", b->program, why ? why->text : "");
    bench_acked(b, (size_t)token, verdict == OB_V_DELIVERED);
}

static void on_state(void *user, enum ob_sink_state state, uint64_t dest, const struct ob_err *why)
{
    struct bench *b = user;
    if (dest == 0 && state == OB_SINK_DOWN)
        fprintf(stderr, "%s: %s\n", b->program, why->text);
}

void bench_sink(struct bench *b, const struct ob_sink_driver *driver, const void *conf)
{
    static const struct ob_sink_events events = {.done = on_done, .state = on_state};
    struct ob_sink_env env = {.pipeline = "bench",
                              .shards = 1,
                              .strict = true,
                              .clock = &ob_clock_system,
                              .events = &events,
                              .user = b};
    const struct ob_msg *batch[AT_ONCE];
    uint64_t tokens[AT_ONCE];
    struct ob_sink *s = NULL;
    struct ob_sink_caps caps;
    struct ob_err err;
    size_t sent = 0;
    if (driver->open(&env, conf, &s, &caps, &err) != OB_OK) {
        fprintf(stderr, "%s: %s\n", b->program, err.text);
        exit(1);
    }
    int64_t start = bench_now_us();
    while (b->done < b->n) {
        size_t may = bench_allowed(b, start), n = 0, taken;
        for (; sent + n < may && n < AT_ONCE && sent + n - b->done < b->window; n++) {
            batch[n] = &b->msgs[sent + n];
            tokens[n] = sent + n;
            b->sent_us[sent + n] = bench_now_us();
        }
        taken = n;
        if (n > 0 && driver->submit(s, batch, tokens, &taken, &err) == OB_OK)
            sent += taken;
        struct pollfd fd = {.fd = driver->wait_fd(s), .events = POLLIN};
        poll(&fd, 1, n > 0 && taken == n && sent < may ? 0 : 1);
        driver->poll(s);
    }
    driver->close(s, 0);
}

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Everything is prepared: whoever started this program says when. */
static void wait_for_start(void)
{
    puts("ready");
    fflush(stdout);
    while (getchar() != '\n' && !feof(stdin))
        ;
}

int bench_main(int argc, char **argv, size_t window, void (*raw)(struct bench *b),
               void (*ours)(struct bench *b))
{
    if (argc < 5) {
        fprintf(stderr, "%s raw|ours|gate SERVER PLACE EVENTS [RATE]\n", argv[0]);
        return 64;
    }
    struct bench b = {.program = argv[0],
                      .server = argv[2],
                      .place = argv[3],
                      .n = strtoull(argv[4], NULL, 10),
                      .rate = argc > 5 ? atoll(argv[5]) : 0,
                      .window = window};
    make_messages(&b);
    if (strcmp(argv[1], "gate") == 0)
        wait_for_start();
    int64_t start = bench_now_us();
    if (strcmp(argv[1], "ours") == 0)
        ours(&b);
    else
        raw(&b);
    double seconds = (double)(bench_now_us() - start) / 1e6;
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double cpu = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                 (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    size_t skip = b.rate > 0 && b.n > 500 ? 500 : 0; /* connecting is not latency */
    size_t left = b.n - skip;
    qsort(b.took_us + skip, left, sizeof(*b.took_us), by_size);
    size_t p50 = skip + left / 2, p99 = skip + left * 99 / 100;
    printf("events_s=%.0f p50_ms=%.3f p99_ms=%.3f failed=%zu cpu_s=%.2f\n", (double)b.n / seconds,
           (double)b.took_us[p50] / 1000, (double)b.took_us[p99] / 1000, b.failed, cpu);
    return b.failed > 0;
}
