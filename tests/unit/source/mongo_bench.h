/* SPDX-License-Identifier: Apache-2.0 */
/* mongo_bench - a database of a real replica set with the native collections for each test, a
 * source on it, a clock that can be moved. */
#ifndef OB_TESTS_MONGO_BENCH_H
#define OB_TESTS_MONGO_BENCH_H

#include "rows.h"
#include "source/mongodb/mongo.h"

struct fake {
    struct ob_clock clock;
    _Atomic int64_t ahead_us; /* of the real monotonic clock; the reader's thread looks at it too */
};

/* What a source points to. A test that fails leaves its source running: then this stays too. */
struct ground {
    char name[32], uri[512]; /* of the database */
    struct mongo_conf conf;
    struct fake fake;
};

struct bench {
    struct ground *on;
    mongoc_client_t *app; /* the application's; majority */
    int emitted;          /* the number of the last event */
};

#define SOURCE ob_source_mongodb
#define ADMIN ob_mongo_admin
#define ID(digit) "00000000-0000-7000-8000-00000000000" #digit

#define HAS_CURSOR 0
#define HAS_SHARDS 0
#define HISTORY_FULL 110
#define HISTORY_BYTES 110000

#include "bench.h"

#endif
