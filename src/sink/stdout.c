/* SPDX-License-Identifier: Apache-2.0 */
/* stdout - one JSON line per message to standard output. Delivered means: taken by the kernel. */
#include "sink/lines.h"
#include "sink/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define CAP ((size_t)4096)
/* A slow reader gets its verdicts in small steps. */
#define BATCH_BYTES ((size_t)64 << 10)
/* A reader that takes nothing for so long after close() ran out of grace gets a torn line. */
#define LOOK_MS 250

struct stdout_conf {
    int64_t max_line;
};

struct ob_sink {
    struct ob_worker *worker;
    struct ob_lines lines[OB_WORKER_BATCHES];
    int fd;
    bool regular;
    bool torn; /* the last thing written was a part of a line */
};

static const struct ob_opt stdout_opts[] = {
    {.type = OB_OPT_BYTES,
     .name = "max_line",
     .def = "64M",
     .offset = offsetof(struct stdout_conf, max_line),
     .min = 1024,
     .max = (int64_t)1 << 30,
     .help = "Longest line; a message that needs a longer one is rejected."},
    {0},
};

static enum ob_status write_failed(int error, struct ob_err *err)
{
    if (error == EPIPE)
        return ob_err_set(err, OB_DOWN, "standard output: nobody reads it any more (broken pipe)");
    return ob_err_set(err, OB_DOWN, "standard output: %s", strerror(error));
}

/* Waits until a write of PIPE_BUF bytes does not block. */
static enum ob_status wait_room(struct ob_sink *s, struct ob_err *err)
{
    for (;;) {
        struct pollfd p = {.fd = s->fd, .events = POLLOUT};
        int rc = poll(&p, 1, LOOK_MS);
        if (rc < 0 && errno != EINTR)
            return write_failed(errno, err);
        if (rc > 0)
            return p.revents & POLLERR && !(p.revents & POLLOUT) ? write_failed(EPIPE, err) : OB_OK;
        if (ob_worker_expired(s->worker))
            return ob_err_set(err, OB_DOWN, "standard output: closed before it was read");
    }
}

static enum ob_status write_all(struct ob_sink *s, const char *p, size_t n, struct ob_err *err)
{
    enum ob_status st = OB_OK;
    while (n > 0 && st == OB_OK) {
        size_t step = n;
        if (!s->regular) {
            step = n < PIPE_BUF ? n : PIPE_BUF;
            st = wait_room(s, err);
            if (st != OB_OK)
                break;
        }
        ssize_t done = write(s->fd, p, step);
        if (done < 0) {
            if (errno != EINTR && errno != EAGAIN)
                st = write_failed(errno, err);
            continue;
        }
        s->torn = p[done - (done > 0)] != '\n';
        p += done;
        n -= (size_t)done;
    }
    return st;
}

/* ---- in the hidden threads ---- */

static enum ob_status prepare(void *user, unsigned batch, struct ob_worker_item *items, size_t *n,
                              struct ob_err *err)
{
    struct ob_sink *s = user;
    return ob_lines_take(&s->lines[batch], items, n, err);
}

static void discard(void *user, unsigned batch)
{
    struct ob_sink *s = user;
    ob_lines_reset(&s->lines[batch]);
}

static enum ob_status commit(void *user, unsigned batch, struct ob_err *err)
{
    struct ob_sink *s = user;
    size_t n;
    const struct iovec *iov = ob_lines_iov(&s->lines[batch], &n);
    enum ob_status st = OB_OK;
    if (n > 0 && s->torn) /* what is left of a failed batch becomes a line of its own */
        st = write_all(s, "\n", 1, err);
    for (size_t i = 0; i < n && st == OB_OK; i++)
        st = write_all(s, iov[i].iov_base, iov[i].iov_len, err);
    if (st == OB_OK)
        ob_lines_reset(&s->lines[batch]);
    return st;
}

static enum ob_status probe(void *user, struct ob_err *err)
{
    struct ob_sink *s = user;
    struct pollfd p = {.fd = s->fd, .events = POLLOUT};
    if (!s->regular && poll(&p, 1, 0) > 0 && p.revents & (POLLERR | POLLNVAL))
        return write_failed(EPIPE, err);
    return OB_OK;
}

static void release(void *user)
{
    (void)user; /* nothing is held that somebody else might want */
}

static const struct ob_worker_ops stdout_ops = {prepare, discard, commit, probe, release};

/* ---- the driver ---- */

static void stdout_close(struct ob_sink *s, int grace_ms)
{
    if (!s)
        return;
    ob_worker_close(s->worker, grace_ms);
    for (unsigned i = 0; i < OB_WORKER_BATCHES; i++)
        ob_lines_clear(&s->lines[i]);
    if (s->fd >= 0)
        close(s->fd);
    free(s);
}

static enum ob_status stdout_open(const struct ob_sink_env *env, const void *conf,
                                  struct ob_sink **out, struct ob_sink_caps *caps,
                                  struct ob_err *err)
{
    const struct stdout_conf *c = conf;
    struct ob_sink *s = calloc(1, sizeof(*s));
    if (!s)
        return ob_err_set(err, OB_FATAL, "no memory");
    enum ob_status st = OB_OK;
    struct stat sb;
    s->fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    if (s->fd < 0 || fstat(s->fd, &sb) != 0)
        st = ob_err_set(err, OB_FATAL, "standard output: %s", strerror(errno));
    else
        s->regular = S_ISREG(sb.st_mode);
    for (unsigned i = 0; i < OB_WORKER_BATCHES && st == OB_OK; i++)
        st = ob_lines_init(&s->lines[i], BATCH_BYTES, (size_t)c->max_line, err);
    if (st == OB_OK)
        st = ob_worker_open(env, &stdout_ops, s, CAP, &s->worker, err);
    if (st != OB_OK) {
        stdout_close(s, 0);
        return st;
    }
    *caps = (struct ob_sink_caps){
        .ordered = true, .max_in_flight = CAP, .max_bytes = (size_t)c->max_line};
    *out = s;
    return OB_OK;
}

static int stdout_wait_fd(const struct ob_sink *s)
{
    return ob_worker_fd(s->worker);
}

static int64_t stdout_wake_at(const struct ob_sink *s)
{
    (void)s;
    return INT64_MAX;
}

static enum ob_status stdout_submit(struct ob_sink *s, const struct ob_msg *const *msgs,
                                    const uint64_t *tokens, size_t *n, struct ob_err *err)
{
    return ob_worker_submit(s->worker, msgs, tokens, n, err);
}

static void stdout_poll(struct ob_sink *s)
{
    ob_worker_poll(s->worker);
}

static void stdout_reset(struct ob_sink *s)
{
    ob_worker_reset(s->worker);
}

const struct ob_sink_driver ob_sink_stdout = {
    .name = "stdout",
    .summary = "One JSON line per message to standard output.",
    .opts = stdout_opts,
    .conf_size = sizeof(struct stdout_conf),
    .open = stdout_open,
    .wait_fd = stdout_wait_fd,
    .wake_at = stdout_wake_at,
    .submit = stdout_submit,
    .poll = stdout_poll,
    .reset = stdout_reset,
    .close = stdout_close,
};
