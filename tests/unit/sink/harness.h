/* SPDX-License-Identifier: Apache-2.0 */
/* harness - what tests of sinks share: a place, messages, a sink that is watched, and a reader that
 * is not ours. */
#ifndef OB_TEST_SINK_HARNESS_H
#define OB_TEST_SINK_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/arena.h"
#include "sink/sink.h"

#define WAIT_MS 60000 /* no test waits longer for anything; sanitizers are slow */

/* ---- a folder of its own ---- */

struct place {
    char dir[64];
    char path[128]; /* dir/events.jsonl */
};

void place_make(struct place *p);
void place_remove(struct place *p);
/* How many names in the folder contain the text. */
size_t place_count(const struct place *p, const char *text);
/* Whole file; NUL-terminated; *n without it. The caller frees. */
char *slurp(const char *path, size_t *n);
void spit(const char *path, const char *text, size_t n);

/* ---- messages ---- */

struct message {
    struct ob_msg msg; /* first */
    struct ob_event event;
    struct ob_header header[4];
    char id[40];
};

/* On the heap with everything it points to; message_free() makes any later look at it an error that
 * the sanitizer sees. value NULL: a small JSON value. */
struct message *message_new(uint64_t number, struct ob_str key, const struct ob_str *value);
void message_free(struct message *m);

/* ---- a sink that is watched ---- */

struct token_state {
    struct message *m;
    bool accepted;
    unsigned verdicts; /* in this life: a message that was given back may be submitted again */
    enum ob_verdict verdict;
};

struct watched {
    const struct ob_sink_driver *driver;
    struct ob_sink *sink;
    struct ob_sink_caps caps;
    bool in_poll;
    uint64_t base; /* number of the first message that watched_add_many() makes */
    /* Token i + 1 is tokens[i]. */
    struct token_state *tokens;
    size_t n_tokens;
    size_t in_flight, count[5]; /* by verdict */
    uint64_t *order;            /* tokens as they were delivered */
    size_t n_order;
    int state; /* 0 unknown, 1 up, -1 down */
    unsigned ups, downs;
    size_t to_nobody; /* delivered with a reason */
    char why[512];    /* of the last DOWN */
    char reason[512]; /* of the last verdict that has one */
};

/* Opens and expects OB_OK. shards 0: 1. */
void watched_open(struct watched *w, const struct ob_sink_driver *driver, const void *conf);
void watched_close(struct watched *w, int grace_ms); /* also frees all messages, at once */
/* A message that will be submitted; returns its token. */
uint64_t watched_add(struct watched *w, struct message *m);
/* Adds n with keys "k0".."k<keys-1>" in turn. Returns the first token. */
uint64_t watched_add_many(struct watched *w, size_t n, unsigned keys);
/* Submits the tokens first..first+n-1; returns how many were taken. */
size_t watched_submit(struct watched *w, uint64_t first, size_t n, enum ob_status *st);
/* Waits as a relay does (descriptor, wake_at), then poll(). False: timeout_ms passed in silence. */
bool watched_wait(struct watched *w, int timeout_ms);
/* Submits all and waits until each has a verdict; what is returned is submitted again, in order,
 * once the sink is up. False: not within WAIT_MS. */
bool watched_deliver(struct watched *w, uint64_t first, size_t n);
/* Waits until the condition holds. */
bool watched_until_idle(struct watched *w);
bool watched_until_state(struct watched *w, int state);

/* ---- what a stranger reads ---- */

struct got {
    struct ob_str id, topic, stream, key, value;
    char kind[8];
    struct ob_header header[4];
    size_t n_headers;
};

struct readback {
    char *text;
    struct ob_arena *arena; /* where the slices are that are not in text */
    struct got *got;
    size_t n;
    char why[512]; /* not empty: the reader refused the file */
    bool no_key;   /* this broker carries no key */
};

/* Runs a command to its end: its output and its exit code. The caller frees. */
char *run_command(char *const *argv, size_t *size, int *code);
/* What a command prints in the words of read_lines.py. */
void readback_command(struct readback *r, char *const *argv);

/* Reads all files of the folder in the order of their names, the path itself last. */
void readback_place(struct readback *r, const struct place *p);
void readback_file(struct readback *r, const char *path);
void readback_free(struct readback *r);
/* Line of that id, from `from` on; -1: none. */
ptrdiff_t readback_find(const struct readback *r, const char *id, size_t from);
/* Every delivered message is there with its bytes, and per key the first lines are in order. */
void readback_holds(const struct readback *r, const struct watched *w);

#endif
