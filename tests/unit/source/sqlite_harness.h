/* SPDX-License-Identifier: Apache-2.0 */
/* sqlite_harness - a database in a temporary folder, a source on it, a clock that can be moved. */
#ifndef OB_TESTS_SQLITE_HARNESS_H
#define OB_TESTS_SQLITE_HARNESS_H

#include "rows.h"
#include "source/sqlite/sqlite.h"

struct fake {
    struct ob_clock clock;
    int64_t mono_us, wall_us;
    bool real;
};

struct bench {
    char dir[64], path[96];
    sqlite3 *app; /* the application's connection */
    struct fake fake;
};

#define SOURCE ob_source_sqlite
#define ADMIN ob_sqlite_admin
#define TABLE(table) "outbox_" #table
#define ID(digit) "id" #digit
#define KIND_TEXT "text" /* of a payload, as the table has it */
#define LAST_ATTEMPT "json_extract(history, '$[#-1].attempt')"

#include "bench_sql.h"

void bench_dir(struct bench *b); /* only the folder */
enum ob_status try_open(struct bench *b, struct ob_err *err);

#endif
