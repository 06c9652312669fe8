/* SPDX-License-Identifier: Apache-2.0 */
/* demo_writer - the application of the demo: a thread that writes orders and their events in
 * transactions, and rolls some of them back. */
#ifndef OB_CLI_DEMO_WRITER_H
#define OB_CLI_DEMO_WRITER_H

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

#define OB_DEMO_KEYS 20 /* customers "c0" to "c19"; an event's key is its customer */

struct ob_demo_writer;

struct ob_demo_counts {
    uint64_t transactions; /* committed */
    uint64_t rolled_back;  /* transactions undone, most after their event was written */
    uint64_t orders, events;
    uint64_t by_key[OB_DEMO_KEYS]; /* committed events; an event's "no" counts them from 1 */
    bool failed;                   /* the writer had to stop; error has the reason */
    char error[200];
};

/* Makes the table orders (the outbox's tables must be there) and starts the thread. rate:
 * transactions a second. */
enum ob_status ob_demo_writer_start(const char *db, unsigned rate, uint64_t seed,
                                    struct ob_demo_writer **out, struct ob_err *err) OB_MUST_CHECK;
void ob_demo_writer_counts(struct ob_demo_writer *w, struct ob_demo_counts *out);
/* Monotonic ms at which event `no` of a key was committed; 0: it was not. */
int64_t ob_demo_writer_when(struct ob_demo_writer *w, unsigned key, uint64_t no);
/* Ends the thread after the transaction under way. */
void ob_demo_writer_stop(struct ob_demo_writer *w);
void ob_demo_writer_free(struct ob_demo_writer *w); /* stops it first */

#endif
