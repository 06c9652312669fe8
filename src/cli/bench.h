/* SPDX-License-Identifier: Apache-2.0 */
/* bench - what the parts of `outbox bench` offer to each other. */
#ifndef OB_CLI_BENCH_H
#define OB_CLI_BENCH_H

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

#define OB_BENCH_PAYLOAD 300

/* Events a second of the flow alone on one core. 0: no memory. */
double ob_bench_flow(uint64_t events, bool ordered, uint64_t keys);

/* What one run of a relay, or of a raw end, took. */
struct ob_bench_run {
    double seconds, cpu_seconds;
    long peak_kb;
};

/* ---- bench_sqlite.c ---- */

/* A database with the outbox and so many events of OB_BENCH_PAYLOAD bytes, 1,000 a transaction. */
enum ob_status ob_bench_load(const char *path, uint64_t events, struct ob_err *err) OB_MUST_CHECK;
/* Bare paging of all rows and, or, a bare writev + fdatasync loop of as many lines, each in a
 * process of its own and at the same time; out: the slower. */
enum ob_status ob_bench_raw(const char *db, const char *file, uint64_t events, bool page,
                            bool write, struct ob_bench_run *out, struct ob_err *err) OB_MUST_CHECK;
/* `outbox run --once` of this very program on a config file. */
enum ob_status ob_bench_relay(const char *config, struct ob_bench_run *out,
                              struct ob_err *err) OB_MUST_CHECK;

/* ---- bench_latency.c ---- */

struct ob_bench_latency {
    uint64_t events;
    double p50_ms, p99_ms, max_ms; /* commit to delivered */
};
/* Commits one event with this payload, OB_BENCH_PAYLOAD bytes that begin with {"n":NUMBER, */
struct ob_bench_writer {
    enum ob_status (*write)(void *user, const char *payload, struct ob_err *err);
    void *user;
};
/* Writes `rate` events a second, one a transaction, for so long, beside a relay in this process. */
enum ob_status ob_bench_latency(const char *config, const struct ob_bench_writer *writer,
                                unsigned rate, unsigned seconds, struct ob_bench_latency *out,
                                struct ob_err *err) OB_MUST_CHECK;
/* bench_sqlite.c: a writer on this database. Ends with ob_bench_sqlite_close(). */
enum ob_status ob_bench_sqlite_writer(const char *path, struct ob_bench_writer *out,
                                      struct ob_err *err) OB_MUST_CHECK;
void ob_bench_sqlite_close(struct ob_bench_writer *w);

#endif
