/* SPDX-License-Identifier: Apache-2.0 */
/* notify - the datagrams of sd_notify(3), without its library. */
#include "cli/notify.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int64_t watchdog_ms(void)
{
    const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    long long us = usec ? atoll(usec) : 0;
    if (us <= 0 || (pid && atoll(pid) != (long long)getpid()))
        return -1;
    /* Half of it, so that one late round does no harm. */
    return us / 2000 > 0 ? us / 2000 : 1;
}

void ob_notify_open(struct ob_notify *n)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t len = path ? strlen(path) : 0;
    *n = (struct ob_notify){.fd = -1, .watchdog_ms = -1};
    if (!len || len >= sizeof to.sun_path || (path[0] != '/' && path[0] != '@'))
        return;
    memcpy(to.sun_path, path, len);
    if (path[0] == '@') /* an abstract name */
        to.sun_path[0] = 0;
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
    n->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (n->fd >= 0 && connect(n->fd, (const struct sockaddr *)&to, size) != 0)
        ob_notify_close(n);
    if (n->fd >= 0)
        n->watchdog_ms = watchdog_ms();
}

void ob_notify_send(const struct ob_notify *n, const char *state)
{
    if (n->fd >= 0)
        (void)!send(n->fd, state, strlen(state), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void ob_notify_close(struct ob_notify *n)
{
    if (n->fd >= 0)
        close(n->fd);
    n->fd = -1;
}
