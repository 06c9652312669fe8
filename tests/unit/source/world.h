/* SPDX-License-Identifier: Apache-2.0 */
/* world - the bench that a test of the contract is compiled for. */
#ifndef OB_TESTS_WORLD_H
#define OB_TESTS_WORLD_H

#if defined(WORLD_SQLITE)
#include "sqlite_harness.h"
#elif defined(WORLD_POSTGRES)
#include "pg_harness.h"
#elif defined(WORLD_MONGODB)
#include "mongo_bench.h"
#else
#error "no bench for this world"
#endif

#endif
