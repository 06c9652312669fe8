/* SPDX-License-Identifier: Apache-2.0 */
/* file - one JSON line per message; a batch is one writev and one fdatasync, then delivered. */
#include "sink/file/file.h"

#include "sink/file/tail.h"
#include "sink/lines.h"
#include "sink/worker.h"

#include <stdio.h>
#include <stdlib.h>

#define CAP ((size_t)16384)

struct ob_sink {
    struct ob_worker *worker;
    struct ob_lines lines[OB_WORKER_BATCHES];
    struct ob_store store; /* whoever commits or probes */
};

static const struct ob_opt file_opts[] = {
    {.type = OB_OPT_STR,
     .name = "path",
     .offset = offsetof(struct ob_sink_file_conf, path),
     .help = "The file; with several shards `.<shard>` is added. Its folder must exist.",
     .flags = OB_OPT_REQUIRED},
    {.type = OB_OPT_BYTES,
     .name = "rotate_bytes",
     .def = "0",
     .offset = offsetof(struct ob_sink_file_conf, rotate_bytes),
     .min = 0,
     .max = INT64_MAX / 2,
     .help = "A batch that would make the file larger starts a new one; 0: never."},
    {.type = OB_OPT_ENUM,
     .name = "fsync",
     .def = "data",
     .offset = offsetof(struct ob_sink_file_conf, fsync),
     .choices = "data|none",
     .help = "data: delivered means on disk. none: delivered means taken by the kernel."},
    {.type = OB_OPT_STR,
     .name = "mode",
     .def = "0640",
     .offset = offsetof(struct ob_sink_file_conf, mode),
     .help = "Permissions of a new file, octal."},
    {.type = OB_OPT_BYTES,
     .name = "max_line",
     .def = "64M",
     .offset = offsetof(struct ob_sink_file_conf, max_line),
     .min = 1024,
     .max = OB_TAIL_LINE_MAX,
     .help = "Longest line; a message that needs a longer one is rejected."},
    {0},
};

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
    struct ob_lines *lines = &s->lines[batch];
    size_t n;
    const struct iovec *iov = ob_lines_iov(lines, &n);
    enum ob_status st = n > 0 ? ob_store_write(&s->store, iov, n, lines->bytes, err) : OB_OK;
    if (st == OB_OK)
        ob_lines_reset(lines);
    return st;
}

static enum ob_status probe(void *user, struct ob_err *err)
{
    struct ob_sink *s = user;
    return ob_store_probe(&s->store, err);
}

static void release(void *user)
{
    struct ob_sink *s = user;
    ob_store_release(&s->store);
}

static const struct ob_worker_ops file_ops = {prepare, discard, commit, probe, release};

/* ---- the driver ---- */

static void file_close(struct ob_sink *s, int grace_ms)
{
    if (!s)
        return;
    ob_worker_close(s->worker, grace_ms);
    for (unsigned i = 0; i < OB_WORKER_BATCHES; i++)
        ob_lines_clear(&s->lines[i]);
    ob_store_clear(&s->store);
    free(s);
}

static enum ob_status parse_mode(const char *text, mode_t *mode, struct ob_err *err)
{
    char *end = NULL;
    unsigned long v = text && *text >= '0' && *text <= '7' ? strtoul(text, &end, 8) : 0;
    if (!end || *end || v > 0777 || (v & 0600) != 0600)
        return ob_err_set(err, OB_FATAL,
                          "mode: \"%s\" is no octal number from 0600 to 0777 that lets its owner "
                          "read and write",
                          text ? text : "");
    *mode = (mode_t)v;
    return OB_OK;
}

static enum ob_status open_store(struct ob_sink *s, const struct ob_sink_env *env,
                                 const struct ob_sink_file_conf *c, struct ob_err *err)
{
    char shard[16] = "";
    if (env->shards > 1)
        snprintf(shard, sizeof(shard), ".%u", env->shard);
    if (!c->path || !*c->path || c->path[strlen(c->path) - 1] == '/')
        return ob_err_set(err, OB_FATAL, "path: the name of a file is needed");
    size_t n = strlen(c->path) + sizeof(shard);
    char *path = malloc(n);
    if (!path)
        return ob_err_set(err, OB_FATAL, "no memory");
    snprintf(path, n, "%s%s", c->path, shard);
    enum ob_status st = ob_store_init(&s->store, path, err);
    free(path);
    if (st == OB_OK)
        st = parse_mode(c->mode, &s->store.mode, err);
    if (st != OB_OK)
        return st;
    s->store.rotate_bytes = (off_t)c->rotate_bytes;
    s->store.sync = c->fsync == OB_FILE_FSYNC_DATA;
    s->store.log = env->log;
    if (c->sys)
        s->store.sys = c->sys;
    struct ob_err found = {0};
    if (ob_store_probe(&s->store, &found) == OB_FATAL) { /* what is only down may come up */
        *err = found;
        return OB_FATAL;
    }
    return OB_OK;
}

static enum ob_status file_open(const struct ob_sink_env *env, const void *conf,
                                struct ob_sink **out, struct ob_sink_caps *caps, struct ob_err *err)
{
    const struct ob_sink_file_conf *c = conf;
    struct ob_sink *s = calloc(1, sizeof(*s));
    if (!s)
        return ob_err_set(err, OB_FATAL, "no memory");
    s->store.fd = -1;
    size_t limit = OB_STORE_BATCH;
    if (c->rotate_bytes > 0 && (size_t)c->rotate_bytes < limit)
        limit = (size_t)c->rotate_bytes; /* so that a file is larger only if one line is */
    enum ob_status st = open_store(s, env, c, err);
    for (unsigned i = 0; i < OB_WORKER_BATCHES && st == OB_OK; i++)
        st = ob_lines_init(&s->lines[i], limit, (size_t)c->max_line, err);
    if (st == OB_OK)
        st = ob_worker_open(env, &file_ops, s, CAP, &s->worker, err);
    if (st != OB_OK) {
        file_close(s, 0);
        return st;
    }
    *caps = (struct ob_sink_caps){
        .ordered = true, .max_in_flight = CAP, .max_bytes = (size_t)c->max_line};
    *out = s;
    return OB_OK;
}

static enum ob_status file_check(const struct ob_sink_env *env, const void *conf,
                                 struct ob_err *err)
{
    struct ob_sink s = {.store = {.fd = -1}};
    enum ob_status st = open_store(&s, env, conf, err);
    if (st == OB_OK)
        st = ob_store_probe(&s.store, err);
    ob_store_clear(&s.store);
    return st;
}

static int file_wait_fd(const struct ob_sink *s)
{
    return ob_worker_fd(s->worker);
}

static int64_t file_wake_at(const struct ob_sink *s)
{
    (void)s;
    return INT64_MAX;
}

static enum ob_status file_submit(struct ob_sink *s, const struct ob_msg *const *msgs,
                                  const uint64_t *tokens, size_t *n, struct ob_err *err)
{
    return ob_worker_submit(s->worker, msgs, tokens, n, err);
}

static void file_poll(struct ob_sink *s)
{
    ob_worker_poll(s->worker);
}

static void file_reset(struct ob_sink *s)
{
    ob_worker_reset(s->worker);
}

const struct ob_sink_driver ob_sink_file = {
    .name = "file",
    .summary = "One JSON line per message to a file, synced before it counts as delivered.",
    .opts = file_opts,
    .conf_size = sizeof(struct ob_sink_file_conf),
    .open = file_open,
    .check = file_check,
    .wait_fd = file_wait_fd,
    .wake_at = file_wake_at,
    .submit = file_submit,
    .poll = file_poll,
    .reset = file_reset,
    .close = file_close,
};
