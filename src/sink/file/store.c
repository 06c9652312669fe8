/* SPDX-License-Identifier: Apache-2.0 */
/* store - the file behind the sink: its lock, its end, its rotation. */
#include "sink/file/store.h"

#include "core/clock.h"
#include "sink/file/tail.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

/* How long a new owner waits for the lock before it sets the file aside. */
#define LOCK_WAIT_MS 1000
#define LOCK_STEP_MS 10
/* Owners that take the path from each other while we wait: give up after so many. */
#define TAKE_TRIES 1000
#define NAMES_PER_MS 1000u

static int rename_new(const char *from, const char *to)
{
    int rc = renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE);
    if (rc == 0 || (errno != EINVAL && errno != ENOSYS))
        return rc;
    struct stat sb; /* a file system that cannot refuse by itself */
    if (lstat(to, &sb) == 0) {
        errno = EEXIST;
        return -1;
    }
    return rename(from, to);
}

const struct ob_store_sys ob_store_sys_real = {writev, fdatasync, fsync, ftruncate, rename_new};

static enum ob_status down(const struct ob_store *s, const char *what, struct ob_err *err)
{
    return ob_err_set(err, OB_DOWN, "%s: %s: %s", s->path, what, strerror(errno));
}

enum ob_status ob_store_init(struct ob_store *s, const char *path, struct ob_err *err)
{
    *s = (struct ob_store){.fd = -1, .sync = true, .mode = 0640, .sys = &ob_store_sys_real};
    char *copy = strdup(path);
    s->path = strdup(path);
    s->dir = copy ? strdup(dirname(copy)) : NULL;
    free(copy);
    if (!s->path || !s->dir) {
        ob_store_clear(s);
        return ob_err_set(err, OB_FATAL, "no memory");
    }
    return OB_OK;
}

void ob_store_release(struct ob_store *s)
{
    if (s->fd >= 0)
        close(s->fd); /* frees the lock */
    s->fd = -1;
    s->no_room = 0;
}

void ob_store_clear(struct ob_store *s)
{
    ob_store_release(s);
    free(s->path);
    free(s->dir);
    s->path = s->dir = NULL;
}

static enum ob_status sync_dir(struct ob_store *s, struct ob_err *err)
{
    int fd = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return down(s, "its folder", err);
    enum ob_status st = OB_OK;
    if (s->sync && s->sys->fsync(fd) != 0) {
        st = down(s, "fsync of its folder", err);
        s->spoiled = true; /* only a new name makes the next sync mean something */
    }
    close(fd);
    return st;
}

/* ---- names ---- */

/* Renames the file at our path to path.<time>.<n><suffix> and syncs the folder. */
static enum ob_status move_away(struct ob_store *s, const char *suffix, const char *why,
                                struct ob_err *err)
{
    char text[OB_RFC3339_MAX], stamp[OB_RFC3339_MAX];
    size_t n_stamp = 0, n_text = ob_rfc3339(ob_clock_wall_us(&ob_clock_system), text);
    for (size_t i = 0; i < n_text; i++) {
        if (!strchr("-:.", text[i]))
            stamp[n_stamp++] = text[i];
    }
    size_t room = strlen(s->path) + n_stamp + strlen(suffix) + 16;
    char *to = malloc(room);
    if (!to)
        return ob_err_set(err, OB_DOWN, "%s: no memory", s->path);
    int rc = -1;
    errno = EEXIST;
    for (unsigned i = 0; i < NAMES_PER_MS && rc != 0 && errno == EEXIST; i++) {
        snprintf(to, room, "%s.%.*s.%03u%s", s->path, (int)n_stamp, stamp, i, suffix);
        rc = s->sys->rename(s->path, to);
    }
    enum ob_status st = OB_OK;
    if (rc != 0) {
        st = down(s, "rename", err);
    } else {
        ob_log(s->log, *suffix ? OB_LOG_WARN : OB_LOG_INFO,
               *suffix ? "sink.file.aside" : "sink.file.rotate", OB_KC("path", s->path),
               OB_KC("to", to), OB_KC("why", why));
        st = sync_dir(s, err);
    }
    free(to);
    return st;
}

/* ---- taking the file ---- */

static bool same_file(const struct ob_store *s, const struct stat *sb)
{
    return sb->st_dev == s->dev && sb->st_ino == s->ino;
}

/* Opens the file, or makes it. OB_AGAIN: it came or went meanwhile. */
static enum ob_status open_file(struct ob_store *s, int *out, struct stat *sb, struct ob_err *err)
{
    int flags = O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    int fd = open(s->path, flags);
    if (fd < 0 && errno == ENOENT) {
        fd = open(s->path, flags | O_CREAT | O_EXCL, s->mode);
        if (fd < 0 && errno == EEXIST)
            return OB_AGAIN;
        if (fd >= 0 && fchmod(fd, s->mode) != 0) { /* whatever the umask says */
            close(fd);
            return down(s, "fchmod", err);
        }
    }
    if (fd < 0)
        return down(s, "open", err);
    enum ob_status st = OB_OK;
    if (fstat(fd, sb) != 0)
        st = down(s, "fstat", err);
    else if (!S_ISREG(sb->st_mode))
        st = ob_err_set(err, OB_DOWN, "%s: not a regular file", s->path);
    if (st != OB_OK)
        close(fd);
    else
        *out = fd;
    return st;
}

/* OB_OK: *fd is the file at our path, locked. OB_AGAIN: somebody else has the lock of *sb. */
static enum ob_status lock_file(struct ob_store *s, int *out, struct stat *sb, struct ob_err *err)
{
    int fd = -1;
    enum ob_status st = open_file(s, &fd, sb, err);
    if (st != OB_OK)
        return st;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        st = errno == EWOULDBLOCK ? OB_AGAIN : down(s, "flock", err);
    } else {
        struct stat at;
        if (lstat(s->path, &at) != 0 || at.st_ino != sb->st_ino || at.st_dev != sb->st_dev)
            st = OB_AGAIN; /* it was renamed between open and lock */
    }
    if (st != OB_OK)
        close(fd);
    else
        *out = fd;
    return st;
}

/* The lock, by the rule: who cannot get it within LOCK_WAIT_MS sets the file aside. */
static enum ob_status get_lock(struct ob_store *s, int *fd, struct ob_err *err)
{
    ino_t waits_for = 0;
    int waited_ms = 0;
    for (int i = 0; i < TAKE_TRIES; i++) {
        struct stat sb = {0}, at;
        enum ob_status st = lock_file(s, fd, &sb, err);
        if (st != OB_AGAIN)
            return st;
        if (sb.st_ino != waits_for) {
            waits_for = sb.st_ino;
            waited_ms = 0;
        }
        if (waited_ms >= LOCK_WAIT_MS) {
            if (lstat(s->path, &at) != 0 || at.st_ino != waits_for)
                continue;
            st = move_away(s, ".aside", "another writer holds its lock", err);
            if (st != OB_OK)
                return st;
            continue;
        }
        struct timespec step = {.tv_nsec = LOCK_STEP_MS * 1000000L};
        nanosleep(&step, NULL);
        waited_ms += LOCK_STEP_MS;
    }
    return ob_err_set(err, OB_FENCED, "%s: other writers keep taking it", s->path);
}

/* Cuts what a crash left of the last batch (file_test: crash_leaves_no_torn_line). */
static enum ob_status cut_tail(struct ob_store *s, struct ob_err *err)
{
    off_t good = 0;
    enum ob_status st = ob_tail_good(s->fd, s->size, (off_t)OB_STORE_BATCH, &good, err);
    if (st != OB_OK) {
        ob_err_prefix(err, "%s", s->path);
        return OB_DOWN;
    }
    if (good < s->size) {
        if (s->sys->ftruncate(s->fd, good) != 0)
            return down(s, "truncate to its last whole line", err);
        ob_log(s->log, OB_LOG_WARN, "sink.file.cut", OB_KC("path", s->path),
               OB_KI("bytes", s->size - good));
        s->size = good;
    }
    return OB_OK;
}

/* After a failed sync the kernel may have dropped the bytes and calls them clean: a second sync
 * would succeed and mean nothing. So the file is never synced again. */
static enum ob_status set_aside(struct ob_store *s, struct ob_err *err)
{
    struct stat at;
    enum ob_status st = OB_OK;
    if (lstat(s->path, &at) == 0 && same_file(s, &at))
        st = move_away(s, ".aside", "its fdatasync failed", err);
    if (st == OB_OK)
        s->spoiled = false;
    return st;
}

static enum ob_status sync_failed(struct ob_store *s, struct ob_err *err)
{
    down(s, "fdatasync", err);
    s->spoiled = true;
    if (s->sys->ftruncate(s->fd, s->size) != 0)
        ob_log(s->log, OB_LOG_WARN, "sink.file.untruncated", OB_KC("path", s->path));
    struct ob_err more = {0};
    if (set_aside(s, &more) != OB_OK)
        ob_log(s->log, OB_LOG_WARN, "sink.file.not_aside", OB_KC("error", more.text));
    ob_store_release(s);
    return OB_DOWN;
}

static enum ob_status take(struct ob_store *s, struct ob_err *err)
{
    enum ob_status st = s->spoiled ? set_aside(s, err) : OB_OK;
    int fd = -1;
    if (st == OB_OK)
        st = get_lock(s, &fd, err);
    if (st != OB_OK)
        return st;
    struct stat sb;
    s->fd = fd;
    if (fstat(fd, &sb) != 0) {
        st = down(s, "fstat", err);
        goto done;
    }
    s->dev = sb.st_dev;
    s->ino = sb.st_ino;
    s->size = sb.st_size;
    st = cut_tail(s, err);
    if (st == OB_OK && s->sync && sb.st_size > 0 && s->sys->fdatasync(fd) != 0)
        return sync_failed(s, err);
    if (st == OB_OK)
        st = sync_dir(s, err); /* also for a file whose maker did not live to do it */
done:
    if (st != OB_OK)
        ob_store_release(s);
    return st;
}

/* ---- writing ---- */

/* The path is still our file and nobody wrote to it: else we are fenced and let go of it. */
static enum ob_status check_mine(struct ob_store *s, off_t size, struct ob_err *err)
{
    struct stat at;
    const char *what = NULL;
    if (lstat(s->path, &at) != 0)
        what = errno == ENOENT ? "it was removed" : strerror(errno);
    else if (!same_file(s, &at))
        what = "another file has its place";
    else if (at.st_size != size)
        what = "somebody else changed its size";
    if (!what)
        return OB_OK;
    ob_store_release(s);
    return ob_err_set(err, OB_FENCED, "%s: %s; will be opened anew", s->path, what);
}

static enum ob_status rotate(struct ob_store *s, struct ob_err *err)
{
    enum ob_status st = move_away(s, "", "size", err);
    ob_store_release(s);
    return st == OB_OK ? take(s, err) : st;
}

/* A short write, or none. Cuts the file back to what was synced. */
static enum ob_status write_failed(struct ob_store *s, ssize_t written, size_t bytes,
                                   struct ob_err *err)
{
    int error = errno;
    off_t left = s->size + (written < 0 ? 0 : (off_t)written);
    enum ob_status st = check_mine(s, left, err);
    if (st != OB_OK)
        return st;
    if (left > s->size && s->sys->ftruncate(s->fd, s->size) != 0)
        ob_store_release(s); /* what is torn is cut when the file is taken again */
    else
        s->no_room = (off_t)bytes;
    if (written < 0 && error != ENOSPC && error != EDQUOT && error != EFBIG)
        return ob_err_set(err, OB_DOWN, "%s: write: %s", s->path, strerror(error));
    return ob_err_set(err, OB_DOWN,
                      "%s: wrote %zd of %zu bytes: no room left on the disk, in the quota or under "
                      "the size limit",
                      s->path, written < 0 ? 0 : written, bytes);
}

enum ob_status ob_store_write(struct ob_store *s, const struct iovec *iov, size_t n, size_t bytes,
                              struct ob_err *err)
{
    enum ob_status st = s->fd < 0 ? take(s, err) : OB_OK;
    if (st == OB_OK)
        st = check_mine(s, s->size, err);
    if (st == OB_OK && s->rotate_bytes > 0 && s->size > 0 &&
        s->size + (off_t)bytes > s->rotate_bytes)
        st = rotate(s, err);
    if (st != OB_OK)
        return st;
    ssize_t written = s->sys->writev(s->fd, iov, (int)n);
    if (written != (ssize_t)bytes)
        return write_failed(s, written, bytes, err);
    if (s->sync && s->sys->fdatasync(s->fd) != 0)
        return sync_failed(s, err);
    s->size += (off_t)bytes;
    s->no_room = 0;
    return OB_OK;
}

/* ---- without writing ---- */

static enum ob_status probe_path(const struct ob_store *s, struct ob_err *err)
{
    struct stat sb;
    if (stat(s->dir, &sb) != 0 || access(s->dir, W_OK | X_OK) != 0)
        return down(s, "its folder", err);
    if (lstat(s->path, &sb) != 0)
        return errno == ENOENT ? OB_OK : down(s, "lstat", err);
    if (!S_ISREG(sb.st_mode))
        return ob_err_set(err, OB_FATAL, "%s: not a regular file", s->path);
    int fd = open(s->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return errno == ENOENT ? OB_OK : down(s, "open", err);
    char first = '{';
    ssize_t n = pread(fd, &first, 1, 0);
    close(fd);
    if (n == 1 && first != '{' && first != '\0')
        return ob_err_set(err, OB_FATAL,
                          "%s: it holds something else than JSON lines and is left alone; choose "
                          "another path",
                          s->path);
    return OB_OK;
}

enum ob_status ob_store_probe(struct ob_store *s, struct ob_err *err)
{
    if (s->fd < 0)
        return probe_path(s, err);
    /* Where a file system cannot reserve, the next write tells. */
    if (s->no_room > 0 && fallocate(s->fd, FALLOC_FL_KEEP_SIZE, s->size, s->no_room) != 0 &&
        (errno == ENOSPC || errno == EDQUOT))
        return down(s, "no room for the next batch", err);
    return OB_OK;
}
