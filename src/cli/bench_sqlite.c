/* SPDX-License-Identifier: Apache-2.0 */
/* bench_sqlite - a SQLite outbox full of events, the raw ends, and the relay as a process. */
#include "cli/bench.h"

#include "core/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PER_TX 1000
#define PAGE 1000
#define LINES 1000 /* lines of one writev; IOV_MAX is 1,024 */

static double now_s(void)
{
    return (double)ob_clock_system.mono_us(NULL) / 1e6;
}

enum ob_status ob_bench_load(const char *path, uint64_t events, struct ob_err *err)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *ins = NULL;
    char payload[OB_BENCH_PAYLOAD + 1];
    enum ob_status st = OB_OK;
    memset(payload, 'x', sizeof(payload));
    memcpy(payload, "{\"order\":\"", 10);
    memcpy(payload + OB_BENCH_PAYLOAD - 2, "\"}", 3);
    if (sqlite3_open(path, &db) != SQLITE_OK ||
        sqlite3_prepare_v2(db,
                           "insert into outbox_event(type, aggregate_type, aggregate_id, payload) "
                           "values ('order.placed', 'order', ?1, ?2)",
                           -1, &ins, NULL) != SQLITE_OK)
        st = OB_FATAL;
    for (uint64_t i = 0; st == OB_OK && i < events; i++) {
        char id[32];
        int n = snprintf(id, sizeof(id), "order-%llu", (unsigned long long)(i % 10000));
        if (i % PER_TX == 0 && sqlite3_exec(db, "begin immediate", NULL, NULL, NULL) != SQLITE_OK)
            st = OB_FATAL;
        sqlite3_bind_text(ins, 1, id, n, SQLITE_STATIC);
        sqlite3_bind_text(ins, 2, payload, OB_BENCH_PAYLOAD, SQLITE_STATIC);
        if (sqlite3_step(ins) != SQLITE_DONE)
            st = OB_FATAL;
        sqlite3_reset(ins);
        if ((i % PER_TX == PER_TX - 1 || i + 1 == events) &&
            sqlite3_exec(db, "commit", NULL, NULL, NULL) != SQLITE_OK)
            st = OB_FATAL;
    }
    if (st != OB_OK)
        ob_err_set(err, st, "%s: %s", path, sqlite3_errmsg(db));
    sqlite3_finalize(ins);
    sqlite3_close(db);
    return st;
}

static enum ob_status write_one(void *user, const char *payload, struct ob_err *err)
{
    sqlite3_stmt *ins = user;
    sqlite3_bind_text(ins, 1, payload, OB_BENCH_PAYLOAD, SQLITE_STATIC);
    int rc = sqlite3_step(ins);
    sqlite3_reset(ins);
    return rc == SQLITE_DONE
               ? OB_OK
               : ob_err_set(err, OB_FATAL, "%s", sqlite3_errmsg(sqlite3_db_handle(ins)));
}

enum ob_status ob_bench_sqlite_writer(const char *path, struct ob_bench_writer *out,
                                      struct ob_err *err)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *ins = NULL;
    if (sqlite3_open(path, &db) != SQLITE_OK || sqlite3_busy_timeout(db, 5000) != SQLITE_OK ||
        sqlite3_exec(db, "pragma synchronous = normal", NULL, NULL, NULL) != SQLITE_OK ||
        sqlite3_prepare_v2(db,
                           "insert into outbox_event(type, aggregate_type, aggregate_id, payload) "
                           "values ('order.placed', 'order', abs(random() % 1000), ?1)",
                           -1, &ins, NULL) != SQLITE_OK) {
        ob_err_set(err, OB_FATAL, "%s: %s", path, sqlite3_errmsg(db));
        sqlite3_close(db);
        return OB_FATAL;
    }
    *out = (struct ob_bench_writer){.write = write_one, .user = ins};
    return OB_OK;
}

void ob_bench_sqlite_close(struct ob_bench_writer *w)
{
    sqlite3 *db = w->user ? sqlite3_db_handle(w->user) : NULL;
    sqlite3_finalize(w->user);
    sqlite3_close(db);
    w->user = NULL;
}

/* The same columns as the relay's claim, looked at and thrown away. */
static int raw_page(const char *path, uint64_t events)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *q = NULL;
    uint64_t seen = 0;
    int64_t last = 0;
    size_t bytes = 0;
    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL) != SQLITE_OK ||
        sqlite3_prepare_v2(
            db,
            "select seq, id, type, aggregate_type, aggregate_id, key, tenant, topic, payload, "
            "payload_kind, headers, metadata, entity_version, schema_version, max_attempts, "
            "created_at from outbox_event where seq > ?1 order by seq limit ?2",
            -1, &q, NULL) != SQLITE_OK)
        return 1;
    for (bool more = true; more;) {
        int rows = 0;
        sqlite3_bind_int64(q, 1, last);
        sqlite3_bind_int(q, 2, PAGE);
        while (sqlite3_step(q) == SQLITE_ROW) {
            last = sqlite3_column_int64(q, 0);
            for (int c = 1; c < 16; c++) {
                const void *p = sqlite3_column_blob(q, c);
                bytes += p ? (size_t)sqlite3_column_bytes(q, c) : 0;
            }
            rows++;
        }
        sqlite3_reset(q);
        seen += (uint64_t)rows;
        more = rows == PAGE;
    }
    sqlite3_finalize(q);
    sqlite3_close(db);
    return seen >= events && bytes > 0 ? 0 : 1;
}

/* Lines about as long as the file sink's. */
static int raw_write(const char *path, uint64_t events)
{
    static char line[OB_BENCH_PAYLOAD + 400];
    struct iovec iov[LINES];
    memset(line, 'y', sizeof(line));
    line[sizeof(line) - 1] = '\n';
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0)
        return 1;
    for (uint64_t i = 0; i < events; i += LINES) {
        size_t n = events - i < LINES ? (size_t)(events - i) : LINES, want = n * sizeof(line);
        for (size_t k = 0; k < n; k++)
            iov[k] = (struct iovec){.iov_base = line, .iov_len = sizeof(line)};
        ssize_t put = writev(fd, iov, (int)n);
        if (put < 0 || (size_t)put != want || fdatasync(fd) != 0)
            return 1;
    }
    return close(fd) == 0 ? 0 : 1;
}

static enum ob_status wait_for(pid_t pid, const char *what, double start, struct ob_bench_run *out,
                               struct ob_err *err)
{
    int status = 0;
    struct rusage ru;
    while (wait4(pid, &status, 0, &ru) < 0)
        if (errno != EINTR)
            return ob_err_set(err, OB_FATAL, "%s: %s", what, strerror(errno));
    double took = now_s() - start;
    if (took > out->seconds)
        out->seconds = took;
    out->cpu_seconds += (double)(ru.ru_utime.tv_sec + ru.ru_stime.tv_sec) +
                        (double)(ru.ru_utime.tv_usec + ru.ru_stime.tv_usec) / 1e6;
    if (ru.ru_maxrss > out->peak_kb)
        out->peak_kb = ru.ru_maxrss;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return ob_err_set(err, OB_FATAL, "%s failed (wait status %d)", what, status);
    return OB_OK;
}

enum ob_status ob_bench_raw(const char *db, const char *file, uint64_t events, bool page,
                            bool write, struct ob_bench_run *out, struct ob_err *err)
{
    double start = now_s();
    *out = (struct ob_bench_run){0};
    pid_t pager = page ? fork() : 0, writer = 0;
    if (page && pager == 0)
        _exit(raw_page(db, events));
    writer = write ? fork() : 0;
    if (write && writer == 0)
        _exit(raw_write(file, events));
    enum ob_status st = OB_OK;
    if (pager < 0 || writer < 0)
        st = ob_err_set(err, OB_FATAL, "fork: %s", strerror(errno));
    if (page && pager > 0) {
        enum ob_status got = wait_for(pager, "bare paging", start, out, err);
        st = st == OB_OK ? got : st;
    }
    if (write && writer > 0) {
        enum ob_status got = wait_for(writer, "bare writing", start, out, err);
        st = st == OB_OK ? got : st;
    }
    if (write)
        unlink(file);
    return st;
}

enum ob_status ob_bench_relay(const char *config, struct ob_bench_run *out, struct ob_err *err)
{
    double start = now_s();
    *out = (struct ob_bench_run){0};
    pid_t pid = fork();
    if (pid < 0)
        return ob_err_set(err, OB_FATAL, "fork: %s", strerror(errno));
    if (pid == 0) {
        execl("/proc/self/exe", "outbox", "run", "--once", "-c", config, (char *)NULL);
        _exit(127);
    }
    return wait_for(pid, "outbox run --once", start, out, err);
}
