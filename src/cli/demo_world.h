/* SPDX-License-Identifier: Apache-2.0 */
/* demo_world - what a demo runs in: a temporary folder, the relay as a process of its own, and a
 * sink that can be taken away. */
#ifndef OB_CLI_DEMO_WORLD_H
#define OB_CLI_DEMO_WORLD_H

#include "cli/demo_writer.h"
#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct ob_demo_world {
    char dir[256];
    char config[300], db[300], log[300];
    char out_dir[300], away[300], out[320];
    pid_t relay; /* 0: none runs */
    bool sink_away;
};

/* Makes the folder, the config file and the database with the outbox's tables. */
enum ob_status ob_demo_world_open(struct ob_demo_world *w, struct ob_err *err) OB_MUST_CHECK;
/* Ends the relay if it runs; removes the folder unless keep. */
void ob_demo_world_close(struct ob_demo_world *w, bool keep);

/* This very program as `outbox run`, its log in the folder. */
enum ob_status ob_demo_relay_start(struct ob_demo_world *w, struct ob_err *err) OB_MUST_CHECK;
/* True: it runs. False: it has ended by itself; *how (if not NULL) is its wait status. */
bool ob_demo_relay_alive(struct ob_demo_world *w, int *how);
void ob_demo_relay_kill(struct ob_demo_world *w); /* SIGKILL, and waits */
/* SIGTERM; true if it ended well within deadline_ms. */
bool ob_demo_relay_stop(struct ob_demo_world *w, int64_t deadline_ms);

/* The folder that the sink writes to is replaced by a file: no path below it works, also for root.
 * Nothing of what was written is lost. */
enum ob_status ob_demo_sink_take(struct ob_demo_world *w, struct ob_err *err) OB_MUST_CHECK;
enum ob_status ob_demo_sink_give(struct ob_demo_world *w, struct ob_err *err) OB_MUST_CHECK;

/* Follows the sink's file, for the live view only; the verdict is demo_verify's. */
struct ob_demo_follow {
    uint64_t lines, published, repeats, gaps;
    uint64_t by_key[OB_DEMO_KEYS]; /* highest "no" seen of each key */
    int64_t offset;
    char rest[4096]; /* of a line whose end is not there yet */
    size_t n_rest;
};
void ob_demo_follow(struct ob_demo_follow *f, const struct ob_demo_world *w);
/* Takes one line; for tests. */
void ob_demo_follow_line(struct ob_demo_follow *f, const char *p, size_t n);

#endif
