/* SPDX-License-Identifier: Apache-2.0 */
/* pg_harness - a real server for a test program, a database with the schema for each test, a source
 * on it, a clock that can be moved. */
#ifndef OB_TESTS_PG_HARNESS_H
#define OB_TESTS_PG_HARNESS_H

#include "rows.h"
#include "source/postgres/admin.h"
#include "source/postgres/log.h"

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

#define SOURCE ob_source_postgres
#define ADMIN ob_pg_admin
#define TABLE(table) "outbox." #table
#define ID(digit) "00000000-0000-7000-8000-00000000000" #digit
#define KIND_TEXT "t" /* of a payload, as the table has it */
#define LAST_ATTEMPT "(history -> -1 ->> 'attempt')::int"

#include "bench_sql.h"

const char *server_dsn(void);
void bench_empty(struct bench *b); /* without the schema */
void sql_on(PGconn *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
PGconn *session(struct bench *b); /* one more of the application's */

#endif
