/* SPDX-License-Identifier: Apache-2.0 */
/* mongo_server - a real replica set for a test program. */
#ifndef OB_TESTS_MONGO_SERVER_H
#define OB_TESTS_MONGO_SERVER_H

#include <stddef.h>

/* Starts the servers with these options of tests/services/mongodb ("--nodes 3"); they end with the
 * program. Where there are none to be had the program ends with a skip. */
void server_start(const char *options);
void server_end(void);
/* Its URI, with this database. */
void server_uri(const char *database, char *out, size_t size);

#endif
