/* SPDX-License-Identifier: Apache-2.0 */
/* bench_sql - what the benches of the SQL databases have beside. Each defines TABLE(table). */
#ifndef OB_TESTS_BENCH_SQL_H
#define OB_TESTS_BENCH_SQL_H

#define HAS_CURSOR 1
#define HAS_SHARDS 1
#define HISTORY_FULL 60
#define HISTORY_BYTES 50000

#include "bench.h"

void sql(struct bench *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* First column of the first row, -1 if there is none. */
int64_t num(struct bench *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void text(struct bench *b, char *out, size_t size, const char *query);

#endif
