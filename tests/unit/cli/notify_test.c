/* SPDX-License-Identifier: Apache-2.0 */
/* notify_test - datagrams to a socket in a folder and to an abstract one. */
#include "cli/notify.h"

#include "texts.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int listener(const char *name)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    size_t n = strlen(name);
    memcpy(at.sun_path, name, n);
    if (name[0] == '@')
        at.sun_path[0] = 0;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    assert_int_equal(bind(fd, (const struct sockaddr *)&at, size), 0);
    return fd;
}

static void test_send(void **state)
{
    char dir[] = "/tmp/outbox-notify-XXXXXX", path[64], abstract[64];
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/s", dir);
    snprintf(abstract, sizeof abstract, "@outbox-notify-%ld", (long)getpid());
    const char *const names[] = {path, abstract};
    for (size_t i = 0; i < ROWS(names); i++) {
        struct ob_notify n;
        char got[64] = "";
        int fd = listener(names[i]);
        setenv("NOTIFY_SOCKET", names[i], 1);
        ob_notify_open(&n);
        ob_notify_send(&n, "READY=1");
        ssize_t len = recv(fd, got, sizeof got - 1, MSG_DONTWAIT);
        row_int(names[i], "bytes", len, 7);
        row_text(names[i], "text", got, "READY=1");
        ob_notify_close(&n);
        close(fd);
    }
    unlink(path);
    rmdir(dir);
}

static void test_watchdog(void **state)
{
    static const struct {
        const char *name, *usec, *pid;
        int64_t want;
    } cases[] = {
        {"not set", NULL, NULL, -1},       {"half of it", "3000000", NULL, 1500},
        {"another's", "3000000", "1", -1}, {"nonsense", "x", NULL, -1},
        {"tiny", "10", NULL, 1},
    };
    char abstract[64];
    (void)state;
    snprintf(abstract, sizeof abstract, "@outbox-watchdog-%ld", (long)getpid());
    int fd = listener(abstract);
    setenv("NOTIFY_SOCKET", abstract, 1);
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_notify n;
        unsetenv("WATCHDOG_USEC");
        unsetenv("WATCHDOG_PID");
        if (cases[i].usec)
            setenv("WATCHDOG_USEC", cases[i].usec, 1);
        if (cases[i].pid)
            setenv("WATCHDOG_PID", cases[i].pid, 1);
        ob_notify_open(&n);
        row_int(cases[i].name, "ms", n.watchdog_ms, cases[i].want);
        ob_notify_close(&n);
    }
    close(fd);
}

/* Nobody listens: nothing happens, nothing is said. */
static void test_silent(void **state)
{
    static const char *const names[] = {"", "relative", "/nowhere/at/all", NULL};
    (void)state;
    for (size_t i = 0; i < ROWS(names); i++) {
        struct ob_notify n;
        if (names[i])
            setenv("NOTIFY_SOCKET", names[i], 1);
        else
            unsetenv("NOTIFY_SOCKET");
        ob_notify_open(&n);
        row_int(names[i] ? names[i] : "unset", "fd", n.fd, -1);
        ob_notify_send(&n, "READY=1");
        ob_notify_close(&n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_send),
        cmocka_unit_test(test_watchdog),
        cmocka_unit_test(test_silent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
