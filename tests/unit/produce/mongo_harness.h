/* SPDX-License-Identifier: Apache-2.0 */
/* mongo_harness - a database of a real replica set for each test, and a second
 * client that looks at what was committed. */
#ifndef OB_TESTS_MONGO_HARNESS_H
#define OB_TESTS_MONGO_HARNESS_H

#include "mongo_server.h"
#include "rows.h"

#include <mongoc/mongoc.h>
#include <stdbool.h>

struct bench {
    char name[32];                    /* of the database */
    mongoc_client_t *client;          /* the application's; its URI names the database */
    mongoc_client_session_t *session; /* of it */
    mongoc_client_t *other;           /* somebody else's, majority */
};

void bench_init(struct bench *b);
void bench_clear(struct bench *b);
/* Starts a transaction on the session. */
void begin(struct bench *b);
void commit(struct bench *b);
void undo(struct bench *b);
/* Inserts a document as JSON, in the session; false and the error where it fails. */
bool put(struct bench *b, const char *collection, const char *json, bson_error_t *e, bson_t *reply);
/* How many documents a majority has that fit. */
int64_t count(struct bench *b, const char *collection, const char *filter);
/* One document (the n-th by this sort) in canonical form without its created_at and seq. */
void document(struct bench *b, const char *collection, const char *sort, int64_t n, char *out,
              size_t size);
/* A field of the n-th as text: a string, or a number. */
void field_of(struct bench *b, const char *collection, const char *sort, int64_t n,
              const char *field, char *out, size_t size);
/* A command to the database admin by the second client; false where it fails. */
bool admin(struct bench *b, const char *json);

#endif
