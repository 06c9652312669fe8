/* SPDX-License-Identifier: Apache-2.0 */
/* relay - the relay inside another program: what `outbox run` does, as four calls. */
#ifndef OUTBOX_RELAY_H
#define OUTBOX_RELAY_H

#include "outbox/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct outbox_relay; /* opaque */

enum {
    OUTBOX_RELAY_ONCE = 1, /* relay what is there, settle, end */
};

/* Reads the config file and prepares its pipelines; starts nothing. config_file NULL:
 * $OUTBOX_CONFIG, ./outbox.yaml, /etc/outbox/outbox.yaml. pipeline: only that one; NULL: all.
 * log_fd: where log lines go (the caller closes it, after outbox_relay_close()); -1: no log.
 * *out is set on OUTBOX_OK only and is ended by outbox_relay_close(). OUTBOX_FATAL: the config is
 * at fault; the text names file, line and column. err may be NULL. */
OUTBOX_API enum outbox_status outbox_relay_open(const char *config_file, const char *pipeline,
                                                unsigned flags, int log_fd,
                                                struct outbox_relay **out,
                                                struct outbox_error *err);

/* Relays until outbox_relay_stop(), or with OUTBOX_RELAY_ONCE until nothing is left. Blocks; makes
 * its own threads; touches no signal handler. Call it once. */
OUTBOX_API enum outbox_status outbox_relay_run(struct outbox_relay *relay,
                                               struct outbox_error *err);

/* Ask outbox_relay_run() to drain, settle and return; the second call ends it at once. From any
 * thread or a signal handler. */
OUTBOX_API void outbox_relay_stop(struct outbox_relay *relay);

/* Reads the config file again and takes its routes. What was running goes on if the new file is at
 * fault. One call at a time, from any thread, while outbox_relay_run() runs. */
OUTBOX_API enum outbox_status outbox_relay_reload(struct outbox_relay *relay,
                                                  struct outbox_error *err);

/* After outbox_relay_run() has returned. NULL is fine. */
OUTBOX_API void outbox_relay_close(struct outbox_relay *relay);

#ifdef __cplusplus
}
#endif

#endif
