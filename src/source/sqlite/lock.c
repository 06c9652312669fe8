/* SPDX-License-Identifier: Apache-2.0 */
/* lock - who may own a shard: flock(2) on <database>-outbox-<pipeline>-<shard>.lock. The kernel
 * frees it when its holder ends. It excludes; it does not fence (that is the epoch's work). */
#include "source/sqlite/sqlite.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Characters of the pipeline's name that would mean something in a path become %xx. */
static enum ob_status lock_path(char out[PATH_MAX], const char *db_path, const char *pipeline,
                                unsigned shard, struct ob_err *err)
{
    struct ob_buf b;
    enum ob_status st = OB_OK;

    ob_buf_init(&b, PATH_MAX - 1);
    ob_buf_c(&b, db_path);
    ob_buf_c(&b, "-outbox-");
    for (const char *p = pipeline; *p; p++) {
        unsigned char c = (unsigned char)*p;
        if (isalnum(c) || c == '_' || c == '-' || c == '.')
            ob_buf_char(&b, (char)c);
        else
            ob_buf_printf(&b, "%%%02x", c);
    }
    ob_buf_printf(&b, "-%u.lock", shard);
    if (b.failed)
        st = ob_err_set(err, OB_FATAL, "the path of the lock file is too long");
    else
        memcpy(out, ob_buf_z(&b), b.n + 1);
    ob_buf_clear(&b);
    return st;
}

/* A lock can be taken by every user who can read its file: those who can write the database, and
 * nobody else. */
static mode_t lock_mode(const struct stat *db)
{
    mode_t mode = S_IRUSR | S_IWUSR;
    if (db->st_mode & S_IWGRP)
        mode |= S_IRGRP | S_IWGRP;
    if (db->st_mode & S_IWOTH)
        mode |= S_IROTH | S_IWOTH;
    return mode;
}

/* An existing file may have been created by another user, or with wider permissions. */
static enum ob_status check_lock(int fd, const char *path, const struct stat *db, mode_t mode,
                                 struct ob_err *err)
{
    struct stat st;
    uid_t self = geteuid();
    if (fstat(fd, &st) != 0)
        return ob_err_set(err, OB_DOWN, "lock file %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode) ||
        (st.st_uid != self && st.st_uid != db->st_uid && st.st_uid != 0 && mode == 0600))
        return ob_err_set(err, OB_FATAL,
                          "lock file %s belongs to user %lu, who owns neither the database nor the "
                          "relay and could hold the relay off; remove it",
                          path, (unsigned long)st.st_uid);
    if (st.st_nlink > 1) /* its permissions are those of the other name's file too */
        return ob_err_set(err, OB_FATAL,
                          "lock file %s is a hard link to another file, or has one; remove it",
                          path);
    if ((st.st_mode & 0777) == mode || (st.st_uid != self && self != 0))
        return OB_OK;
    if (fchmod(fd, mode) != 0)
        return ob_err_set(err, OB_DOWN, "permissions of lock file %s: %s", path, strerror(errno));
    if (st.st_gid != db->st_gid && (mode & S_IRGRP) && fchown(fd, (uid_t)-1, db->st_gid) != 0)
        return OB_OK; /* not in that group: its members cannot be standbys, which is safe */
    return OB_OK;
}

static enum ob_status open_lock(const char *path, const char *db_path, int flags, int *fd,
                                struct ob_err *err)
{
    struct stat db;
    if (stat(db_path, &db) != 0)
        return ob_err_set(err, OB_DOWN, "database %s: %s", db_path, strerror(errno));
    mode_t mode = lock_mode(&db);
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | flags, mode);
    if (*fd < 0)
        return ob_err_set(err, errno == EACCES || errno == EROFS ? OB_FATAL : OB_DOWN,
                          "lock file %s: %s; the relay must be able to write the database's folder",
                          path, strerror(errno));
    enum ob_status st = check_lock(*fd, path, &db, mode, err);
    if (st != OB_OK) {
        close(*fd);
        *fd = -1;
    }
    return st;
}

/* The file that was locked may have been replaced before it was locked. */
static bool still_there(int fd, const char *path)
{
    struct stat a, b;

    return fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

enum ob_status ob_sqlite_lock(struct lock *lock, const char *db_path, const char *pipeline,
                              unsigned shard, struct ob_err *err)
{
    char path[PATH_MAX];
    enum ob_status st = lock_path(path, db_path, pipeline, shard, err);

    for (int tries = 0; st == OB_OK && tries < 8; tries++) {
        int fd;
        st = open_lock(path, db_path, 0, &fd, err);
        if (st != OB_OK)
            break;
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            st = errno == EWOULDBLOCK
                     ? OB_AGAIN
                     : ob_err_set(err, OB_DOWN, "locking %s: %s", path, strerror(errno));
            close(fd);
            return st;
        }
        if (still_there(fd, path)) {
            lock->fd = fd;
            return OB_OK;
        }
        close(fd);
    }
    return st == OB_OK ? OB_AGAIN : st;
}

enum ob_status ob_sqlite_lock_replace(struct lock *lock, const char *db_path, const char *pipeline,
                                      unsigned shard, struct ob_err *err)
{
    char path[PATH_MAX];
    int fd = -1;
    enum ob_status st = lock_path(path, db_path, pipeline, shard, err);

    if (st != OB_OK)
        return st;
    if (unlink(path) != 0 && errno != ENOENT)
        return ob_err_set(err, OB_DOWN, "removing %s: %s", path, strerror(errno));
    st = open_lock(path, db_path, O_EXCL, &fd, err);
    if (st != OB_OK)
        return st;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        /* A stand-by opened it in between and was faster. */
        close(fd);
        return OB_AGAIN;
    }
    lock->fd = fd;
    return OB_OK;
}

void ob_sqlite_unlock(struct lock *lock)
{
    if (lock->fd >= 0)
        close(lock->fd);
    lock->fd = -1;
}
