/* SPDX-License-Identifier: Apache-2.0 */
/* demo_verify - reads the database and the output of a demo and compares them. It shares nothing
 * with the relay: plain SELECTs on one side, plain lines on the other. */
#ifndef OB_CLI_DEMO_VERIFY_H
#define OB_CLI_DEMO_VERIFY_H

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

struct ob_demo_report {
    uint64_t orders;       /* rows of the application's table */
    uint64_t committed;    /* events in the outbox */
    uint64_t keys;         /* different keys among them */
    uint64_t lines;        /* in the output */
    uint64_t delivered;    /* committed events that are in the output */
    uint64_t repeats;      /* lines beyond the first of an id */
    uint64_t missing;      /* committed, and in no line */
    uint64_t uncommitted;  /* lines whose id is not in the outbox */
    uint64_t out_of_order; /* first deliveries before an earlier event of their key */
    uint64_t altered;      /* lines whose value or key is not the event's */
    uint64_t damaged;      /* lines that are no JSON object with an id */
    uint64_t astray;       /* orders whose number of changes is not their number of events */
    char problem[200];     /* the first one that was seen */
};

/* out: the sink's file; files beside it whose names begin with its name (rotated or set aside) are
 * read first. OB_OK: both could be read; what they say is in *r. */
enum ob_status ob_demo_verify(const char *db, const char *out, struct ob_demo_report *r,
                              struct ob_err *err) OB_MUST_CHECK;
/* Every committed event delivered, nothing else, first deliveries in order, and nothing is empty.
 */
bool ob_demo_holds(const struct ob_demo_report *r);

#endif
