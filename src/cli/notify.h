/* SPDX-License-Identifier: Apache-2.0 */
/* notify - tells systemd how the service is: one datagram to $NOTIFY_SOCKET. */
#ifndef OB_CLI_NOTIFY_H
#define OB_CLI_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

struct ob_notify {
    int fd;              /* -1: nobody listens */
    int64_t watchdog_ms; /* how often WATCHDOG=1 is due; -1: never */
};

/* Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID. Never fails: without a listener it is
 * silent. */
void ob_notify_open(struct ob_notify *n);
/* "READY=1", "STOPPING=1", … Never blocks. */
void ob_notify_send(const struct ob_notify *n, const char *state);
void ob_notify_close(struct ob_notify *n);

#endif
