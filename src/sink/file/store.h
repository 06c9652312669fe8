/* SPDX-License-Identifier: Apache-2.0 */
/* store - the file behind the sink: its lock, its end, its rotation.
 *
 * Invariant: bytes 0..size of the file are whole lines that were synced (unless sync is off); what
 * stands behind them was never reported as delivered. The file is taken (created, locked, its end
 * checked) by the first write and not before, so that a stand-by leaves it to the owner.
 * Thread: one at a time. */
#ifndef OB_SINK_FILE_STORE_H
#define OB_SINK_FILE_STORE_H

#include "core/err.h"
#include "core/log.h"

#include <sys/stat.h>
#include <sys/uio.h>

/* No batch is longer, unless it is one line: so much may be torn by a crash. */
#define OB_STORE_BATCH ((size_t)2 << 20)

/* What can fail in ways that a test cannot bring about otherwise. */
struct ob_store_sys {
    ssize_t (*writev)(int fd, const struct iovec *iov, int n);
    int (*fdatasync)(int fd);
    int (*fsync)(int fd); /* of the folder */
    int (*ftruncate)(int fd, off_t size);
    int (*rename)(const char *from, const char *to); /* never replaces: EEXIST */
};

extern const struct ob_store_sys ob_store_sys_real;

struct ob_store {
    char *path, *dir;
    off_t rotate_bytes; /* 0: never */
    bool sync;
    mode_t mode;
    const struct ob_store_sys *sys;
    const struct ob_log *log;

    int fd; /* -1: not taken */
    dev_t dev;
    ino_t ino;
    off_t size;    /* as we left it */
    bool spoiled;  /* a sync of dev/ino or of its name failed: it is set aside first of all */
    off_t no_room; /* bytes of the write that failed; 0: none did */
};

enum ob_status ob_store_init(struct ob_store *s, const char *path, struct ob_err *err);
void ob_store_clear(struct ob_store *s);
/* OB_OK: a write may succeed. OB_DOWN: it cannot now. OB_FATAL: it never will at this path. Takes
 * nothing and changes nothing, but reserves room on a file that is already taken. */
enum ob_status ob_store_probe(struct ob_store *s, struct ob_err *err) OB_MUST_CHECK;
/* One writev, one fdatasync. OB_DOWN: nothing of it counts. OB_FENCED: likewise, and somebody else
 * has the path or changed the file. n <= IOV_MAX. */
enum ob_status ob_store_write(struct ob_store *s, const struct iovec *iov, size_t n, size_t bytes,
                              struct ob_err *err) OB_MUST_CHECK;
/* Lets go of file and lock. */
void ob_store_release(struct ob_store *s);

#endif
