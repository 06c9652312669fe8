/* SPDX-License-Identifier: Apache-2.0 */
/* contract_test - the sinks that keep the contract. */
#include "contract.h"
#include "sink/file/file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- null ---- */

static void *null_begin(void *conf, const char **skip)
{
    (void)conf;
    (void)skip;
    return NULL;
}

static void *null_slow_begin(void *conf, const char **skip)
{
    (void)skip;
    *(int64_t *)conf = 200; /* latency_us, the only option */
    return NULL;
}

static void null_end(void *data)
{
    (void)data;
}

static const struct contract_sink null_sink = {
    .name = "null", .driver = &ob_sink_null, .begin = null_begin, .end = null_end};
static const struct contract_sink null_slow = {.name = "null with latency",
                                               .driver = &ob_sink_null,
                                               .begin = null_slow_begin,
                                               .end = null_end};

/* ---- file ---- */

static void *begin_file(struct ob_sink_file_conf *conf)
{
    struct place *p = calloc(1, sizeof(*p));
    assert_non_null(p);
    place_make(p);
    conf->path = p->path;
    conf->mode = "0600";
    conf->max_line = (int64_t)CONTRACT_MAX;
    return p;
}

static void *file_begin(void *conf, const char **skip)
{
    (void)skip;
    return begin_file(conf);
}

static void *rotating_begin(void *conf, const char **skip)
{
    (void)skip;
    struct ob_sink_file_conf *c = conf;
    void *p = begin_file(c);
    c->rotate_bytes = 100000;
    c->fsync = OB_FILE_FSYNC_NONE;
    return p;
}

static void file_read(void *data, struct readback *out)
{
    readback_place(out, data);
}

static void file_end(void *data)
{
    place_remove(data);
    free(data);
}

static const struct contract_sink file_sink = {.name = "file",
                                               .driver = &ob_sink_file,
                                               .begin = file_begin,
                                               .read = file_read,
                                               .end = file_end};
static const struct contract_sink file_rotating = {.name = "file, rotating",
                                                   .driver = &ob_sink_file,
                                                   .begin = rotating_begin,
                                                   .read = file_read,
                                                   .end = file_end};

/* ---- stdout: a pipe whose other end is copied into a file ---- */

struct pipe_place {
    struct place place;
    int out, saved; /* where the pipe is read; the real standard output */
    pthread_t thread;
};

static void *copy_pipe(void *arg)
{
    struct pipe_place *p = arg;
    int fd = open(p->place.path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    char *block = malloc(1 << 16);
    for (ssize_t n; (n = read(p->out, block, 1 << 16)) != 0;) {
        if (n < 0 || write(fd, block, (size_t)n) != n)
            abort();
    }
    free(block);
    close(fd);
    return NULL;
}

static void *stdout_begin(void *conf, const char **skip)
{
    (void)skip;
    *(int64_t *)conf = (int64_t)CONTRACT_MAX; /* max_line, the only option */
    struct pipe_place *p = calloc(1, sizeof(*p));
    assert_non_null(p);
    place_make(&p->place);
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    p->out = ends[0];
    p->saved = fcntl(1, F_DUPFD_CLOEXEC, 3);
    assert_true(p->saved >= 0 && dup2(ends[1], 1) == 1);
    close(ends[1]);
    assert_int_equal(pthread_create(&p->thread, NULL, copy_pipe, p), 0);
    return p;
}

/* The sink is closed, so that the last writer is our own standard output. */
static void finish_pipe(struct pipe_place *p)
{
    if (p->saved < 0)
        return;
    assert_int_equal(dup2(p->saved, 1), 1);
    close(p->saved);
    p->saved = -1;
    pthread_join(p->thread, NULL);
    close(p->out);
}

static void stdout_read(void *data, struct readback *out)
{
    struct pipe_place *p = data;
    finish_pipe(p);
    readback_file(out, p->place.path);
}

static void stdout_end(void *data)
{
    struct pipe_place *p = data;
    finish_pipe(p);
    place_remove(&p->place);
    free(p);
}

static const struct contract_sink stdout_sink = {.name = "stdout",
                                                 .driver = &ob_sink_stdout,
                                                 .begin = stdout_begin,
                                                 .read = stdout_read,
                                                 .end = stdout_end};

int main(void)
{
    static const struct contract_sink *const sinks[] = {
        &null_sink, &null_slow, &file_sink, &file_rotating, &stdout_sink,
    };
    return contract_run(sinks, sizeof(sinks) / sizeof(sinks[0]));
}
