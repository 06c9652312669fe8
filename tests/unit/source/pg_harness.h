/* SPDX-License-Identifier: Apache-2.0 */
/* pg_harness - a real server for a test program, a database with the schema for each test, a source
 * on it, a clock that can be moved. */
#ifndef OB_TESTS_PG_HARNESS_H
#define OB_TESTS_PG_HARNESS_H

#include "rows.h"
#include "source/postgres/admin.h"
#include "source/postgres/log.h"

#define PIPE "orders"

extern const struct ob_source_driver ob_source_postgres;

struct fake {
    struct ob_clock clock;
    int64_t ahead_us; /* of the real monotonic clock */
};

struct bench {
    char name[32], dsn[256];
    PGconn *app; /* the application's connection */
    struct pg_conf conf;
    struct fake fake;
};

/* The server lives as long as the program. True: there is none; the reason was said as TAP does. */
bool server_missing(void);
const char *server_dsn(void);

void bench_init(struct bench *b);  /* schema applied, application connected */
void bench_empty(struct bench *b); /* without the schema */
void bench_clear(struct bench *b);
void sql(struct bench *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void sql_on(PGconn *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
PGconn *session(struct bench *b); /* one more of the application's */
/* First column of the first row, -1 if there is none. */
int64_t num(struct bench *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void text(struct bench *b, char *out, size_t size, const char *query);
/* n events of keys k0, k1, … k(keys - 1) in turn, in one transaction. */
void emit(struct bench *b, size_t n, size_t keys);

struct ob_source *open_shard(struct bench *b, unsigned shard, unsigned shards, const char *owner);
struct ob_source *open_own(struct bench *b); /* shard 0 of 1, owned */
struct ob_admin *open_admin(struct bench *b);

/* Claims until something comes or, for OB_AGAIN, until a whole look has found nothing. */
struct ob_batch *claim(struct ob_source *s, size_t max, enum ob_status want);
/* Claims all that is there and settles it as delivered; returns how many. */
size_t deliver_all(struct ob_source *s);

/* Settling by hand. */
struct settling {
    struct ob_settle s;
    struct ob_settle_op ops[4096];
    uint64_t released[4096];
    struct ob_settled out;
    struct ob_err err;
};
struct ob_settle_op *op_add(struct settling *g, enum ob_settle_kind kind, const struct ob_event *ev,
                            uint64_t hash);
void settling_reset(struct settling *g);
enum ob_status settle(struct ob_source *s, struct settling *g);
bool released(const struct settling *g, uint64_t hash);

/* What outbox.parked_key and the counters must be, derived anew by other means. */
void assert_side_tables(struct bench *b);

#endif
