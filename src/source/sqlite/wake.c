/* SPDX-License-Identifier: Apache-2.0 */
/* wake - notices commits of other processes: inotify on the write-ahead log.
 *
 * A writer first writes the log and then makes the commit visible in shared memory, which no
 * descriptor tells of; with `synchronous = FULL` an fsync lies in between. So a look that finds
 * nothing is repeated, at growing distance, for half a second; after that once a second (wake_at).
 * Our own settles and beats write the log too and cost the same few looks, but a look writes
 * nothing: an idle relay goes quiet after each. */
#include "source/sqlite/sqlite.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* Microseconds from one look to the next. */
static const long look_us[] = {200, 800, 4000, 15000, 80000, 400000};
#define LOOKS (sizeof(look_us) / sizeof(look_us[0]))

static bool add(int ep, int fd)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.fd = fd};

    return epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev) == 0;
}

static enum ob_status names(struct wake *w, const char *path, struct ob_err *err)
{
    size_t n = strlen(path);
    const char *slash = strrchr(path, '/');

    w->wal = malloc(n + sizeof("-wal"));
    w->dir = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    if (!w->wal || !w->dir)
        return ob_err_set(err, OB_DOWN, "no memory");
    memcpy(w->wal, path, n);
    memcpy(w->wal + n, "-wal", sizeof("-wal"));
    w->wal_name = slash ? w->wal + (slash - path) + 1 : w->wal;
    return OB_OK;
}

enum ob_status ob_sqlite_wake_open(struct wake *w, const char *path, struct ob_err *err)
{
    enum ob_status st;

    *w = (struct wake){.ep = -1, .in = -1, .timer = -1, .wal_wd = -1, .dir_wd = -1, .step = LOOKS};
    st = names(w, path, err);
    if (st == OB_OK) {
        w->ep = epoll_create1(EPOLL_CLOEXEC);
        w->in = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
        w->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
        if (w->ep < 0 || w->in < 0 || w->timer < 0 || !add(w->ep, w->in) || !add(w->ep, w->timer))
            st = ob_err_set(err, OB_DOWN,
                            "watching %s: %s; raise the limits of open files or of "
                            "fs.inotify.max_user_instances",
                            w->wal, strerror(errno));
    }
    if (st != OB_OK)
        ob_sqlite_wake_close(w);
    return st;
}

void ob_sqlite_wake_close(struct wake *w)
{
    const int fds[] = {w->ep, w->in, w->timer};

    for (size_t i = 0; i < 3; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    free(w->wal);
    free(w->dir);
    *w = (struct wake){.ep = -1, .in = -1, .timer = -1, .wal_wd = -1, .dir_wd = -1};
}

static void set_timer(struct wake *w, long us)
{
    struct itimerspec t = {.it_value = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000}};

    timerfd_settime(w->timer, 0, &t, NULL); /* fails only for bad arguments */
}

/* Without a watch (no inotify watches left, say) there is still the look every second. */
void ob_sqlite_wake_watch(struct wake *w)
{
    if (w->dir_wd < 0)
        w->dir_wd = inotify_add_watch(w->in, w->dir, IN_CREATE | IN_MOVED_TO | IN_ONLYDIR);
    if (w->wal_wd < 0)
        w->wal_wd = inotify_add_watch(w->in, w->wal, IN_MODIFY | IN_DELETE_SELF | IN_MOVE_SELF);
}

void ob_sqlite_wake_unwatch(struct wake *w)
{
    if (w->dir_wd >= 0)
        inotify_rm_watch(w->in, w->dir_wd);
    if (w->wal_wd >= 0)
        inotify_rm_watch(w->in, w->wal_wd);
    w->dir_wd = w->wal_wd = -1;
    ob_sqlite_wake_take(w);
    w->step = LOOKS;
    set_timer(w, 0);
}

static bool one(struct wake *w, const struct inotify_event *ev)
{
    if (ev->mask & IN_Q_OVERFLOW)
        return true;
    if (ev->wd == w->dir_wd) {
        if (!ev->len || strcmp(ev->name, w->wal_name) != 0)
            return false;
        /* A new log: the old watch, if any, is on a file that nobody writes any more. */
        if (w->wal_wd >= 0)
            inotify_rm_watch(w->in, w->wal_wd);
        w->wal_wd = -1;
        return true;
    }
    if (ev->wd != w->wal_wd)
        return false; /* left over from a watch that was removed */
    if (ev->mask & IN_MOVE_SELF)
        inotify_rm_watch(w->in, w->wal_wd);
    if (ev->mask & (IN_IGNORED | IN_MOVE_SELF))
        w->wal_wd = -1;
    return true;
}

bool ob_sqlite_wake_take(struct wake *w)
{
    _Alignas(struct inotify_event) char buf[4096];
    bool written = false;
    uint64_t ticks;
    ssize_t n;

    /* One read is enough to go on with: what is left keeps the descriptor readable. */
    n = read(w->in, buf, sizeof(buf));
    for (char *p = buf; n > 0 && p < buf + n;) {
        const struct inotify_event *ev = (const void *)p;
        written |= one(w, ev);
        p += sizeof(*ev) + ev->len;
    }
    if (w->dir_wd >= 0 && w->wal_wd < 0)
        ob_sqlite_wake_watch(w);
    n = read(w->timer, &ticks, sizeof(ticks));
    (void)n; /* EAGAIN: it was not the timer */
    return written;
}

void ob_sqlite_wake_again(struct wake *w, bool written)
{
    struct itimerspec left;

    if (written)
        w->step = 0;
    else if (timerfd_gettime(w->timer, &left) != 0 || left.it_value.tv_sec || left.it_value.tv_nsec)
        return; /* called for another reason: the next look stands */
    if (w->step < LOOKS)
        set_timer(w, look_us[w->step++]);
}
