/* SPDX-License-Identifier: Apache-2.0 */
/* faults - the system calls of a file sink, made to fail. */
#include "faults.h"

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static struct {
    int left[FAULTS];
    bool hold, held;
    unsigned writes, syncs, dir_syncs, repeated;
    ino_t failed[16];
    unsigned n_failed;
} now;

static bool strikes(enum fault f)
{
    pthread_mutex_lock(&lock);
    bool yes = now.left[f] > 0;
    now.left[f] -= yes;
    pthread_mutex_unlock(&lock);
    return yes;
}

static ssize_t faulty_writev(int fd, const struct iovec *iov, int n)
{
    pthread_mutex_lock(&lock);
    now.writes++;
    pthread_mutex_unlock(&lock);
    if (strikes(FAULT_WRITE_EIO)) {
        errno = EIO;
        return -1;
    }
    if (!strikes(FAULT_SHORT_WRITE))
        return writev(fd, iov, n);
    size_t total = 0, done = 0;
    for (int i = 0; i < n; i++)
        total += iov[i].iov_len;
    for (int i = 0; i < n && done < total / 2; i++) {
        size_t want = total / 2 - done;
        want = want < iov[i].iov_len ? want : iov[i].iov_len;
        if (write(fd, iov[i].iov_base, want) != (ssize_t)want)
            return -1;
        done += want;
    }
    return (ssize_t)done;
}

static int faulty_fdatasync(int fd)
{
    struct stat sb;
    if (fstat(fd, &sb) != 0)
        return -1;
    bool fail = strikes(FAULT_FSYNC);
    pthread_mutex_lock(&lock);
    now.syncs++;
    for (unsigned i = 0; i < now.n_failed; i++)
        now.repeated += now.failed[i] == sb.st_ino;
    if (fail && now.n_failed < 16)
        now.failed[now.n_failed++] = sb.st_ino;
    now.held = now.hold;
    pthread_cond_broadcast(&cond);
    while (now.hold)
        pthread_cond_wait(&cond, &lock);
    now.held = false;
    pthread_mutex_unlock(&lock);
    if (fail) {
        errno = EIO;
        return -1;
    }
    return fdatasync(fd);
}

static int faulty_fsync(int fd)
{
    pthread_mutex_lock(&lock);
    now.dir_syncs++;
    pthread_mutex_unlock(&lock);
    if (strikes(FAULT_FSYNC_DIR)) {
        errno = EIO;
        return -1;
    }
    return fsync(fd);
}

static int faulty_ftruncate(int fd, off_t size)
{
    if (strikes(FAULT_TRUNCATE)) {
        errno = EIO;
        return -1;
    }
    return ftruncate(fd, size);
}

static int faulty_rename(const char *from, const char *to)
{
    if (strikes(FAULT_RENAME)) {
        errno = EROFS;
        return -1;
    }
    return ob_store_sys_real.rename(from, to);
}

const struct ob_store_sys faults_sys = {faulty_writev, faulty_fdatasync, faulty_fsync,
                                        faulty_ftruncate, faulty_rename};

void faults_reset(void)
{
    pthread_mutex_lock(&lock);
    memset(&now, 0, sizeof(now));
    pthread_mutex_unlock(&lock);
}

void faults_set(enum fault f, int n)
{
    pthread_mutex_lock(&lock);
    now.left[f] = n;
    pthread_mutex_unlock(&lock);
}

int faults_left(enum fault f)
{
    pthread_mutex_lock(&lock);
    int n = now.left[f];
    pthread_mutex_unlock(&lock);
    return n;
}

void faults_hold(bool hold)
{
    pthread_mutex_lock(&lock);
    now.hold = hold;
    pthread_cond_broadcast(&cond);
    pthread_mutex_unlock(&lock);
}

void faults_wait_held(void)
{
    pthread_mutex_lock(&lock);
    while (!now.held)
        pthread_cond_wait(&cond, &lock);
    pthread_mutex_unlock(&lock);
}

static unsigned count(const unsigned *what)
{
    pthread_mutex_lock(&lock);
    unsigned n = *what;
    pthread_mutex_unlock(&lock);
    return n;
}

unsigned faults_writes(void)
{
    return count(&now.writes);
}

unsigned faults_syncs(void)
{
    return count(&now.syncs);
}

unsigned faults_dir_syncs(void)
{
    return count(&now.dir_syncs);
}

unsigned faults_repeated(void)
{
    return count(&now.repeated);
}
