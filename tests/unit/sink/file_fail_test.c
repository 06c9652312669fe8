/* SPDX-License-Identifier: Apache-2.0 */
/* file_fail_test - what the file sink does when disks, folders and other people fail it. */
#include "faults.h"
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct fixture {
    struct place place;
    struct ob_sink_file_conf conf;
    struct watched w;
    struct readback read;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    if (!f)
        return -1;
    place_make(&f->place);
    f->conf = (struct ob_sink_file_conf){
        .path = f->place.path, .mode = "0640", .max_line = (int64_t)64 << 20, .sys = &faults_sys};
    faults_reset();
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    readback_free(&f->read);
    umount2(f->place.dir, MNT_DETACH); /* if full_disk() mounted it */
    place_remove(&f->place);
    free(f);
    return 0;
}

static void open_up(struct fixture *f)
{
    watched_open(&f->w, &ob_sink_file, &f->conf);
    assert_true(watched_until_state(&f->w, 1));
}

static void deliver(struct fixture *f, size_t n)
{
    uint64_t first = watched_add_many(&f->w, n, 3);
    assert_true(watched_deliver(&f->w, first, n));
}

static void read_all(struct fixture *f)
{
    readback_free(&f->read);
    readback_place(&f->read, &f->place);
    readback_holds(&f->read, &f->w);
}

static void expect_why(const struct fixture *f, const char *text)
{
    if (!strstr(f->w.why, text))
        fail_msg("\"%s\" is not in: %s", text, f->w.why);
}

/* Runs each row of a table in a place of its own. */
static void each_row(size_t n, void (*row)(struct fixture *f, size_t i))
{
    for (size_t i = 0; i < n; i++) {
        void *own = NULL;
        if (setup(&own) == 0) {
            row(own, i);
            teardown(&own);
        } else {
            fail();
        }
    }
}

/* ---- writes and syncs that fail ---- */

static const struct {
    const char *name;
    struct {
        enum fault fault;
        int n;
    } faults[3];
    const char *why;
    size_t asides;
    bool repeats; /* lines of the failed batch may be there twice */
} cases[] = {
    {"short write", {{FAULT_SHORT_WRITE, 1}}, "no room left", 0, false},
    {"three short writes", {{FAULT_SHORT_WRITE, 3}}, "no room left", 0, false},
    {"write fails", {{FAULT_WRITE_EIO, 2}}, "Input/output error", 0, false},
    {"short write that cannot be cut",
     {{FAULT_SHORT_WRITE, 1}, {FAULT_TRUNCATE, 1}},
     "no room left",
     0,
     true},
    {"short write that cannot be cut, nor at the next start",
     {{FAULT_SHORT_WRITE, 1}, {FAULT_TRUNCATE, 2}},
     "no room left",
     0,
     true},
    {"sync fails", {{FAULT_FSYNC, 1}}, "fdatasync: Input/output error", 1, false},
    {"sync fails twice", {{FAULT_FSYNC, 2}}, "fdatasync", 2, false},
    {"sync fails, cut fails", {{FAULT_FSYNC, 1}, {FAULT_TRUNCATE, 1}}, "fdatasync", 1, true},
    {"sync fails, rename fails", {{FAULT_FSYNC, 1}, {FAULT_RENAME, 2}}, "fdatasync", 1, false},
    {"sync, cut and rename fail",
     {{FAULT_FSYNC, 1}, {FAULT_TRUNCATE, 1}, {FAULT_RENAME, 3}},
     "fdatasync",
     1,
     true},
};

/* A batch fails: it is given back in order, the sink is down with a reason, comes up by itself and
 * everything is delivered; no line is torn, a file is never synced after a failed sync. */
static void a_failed_batch_is_given_back_and_delivered_later_row(struct fixture *f, size_t i)
{
    open_up(f);
    deliver(f, 50);
    for (size_t k = 0; k < 3; k++) {
        if (cases[i].faults[k].n)
            faults_set(cases[i].faults[k].fault, cases[i].faults[k].n);
    }
    uint64_t first = watched_add_many(&f->w, 300, 3);
    assert_int_equal(watched_submit(&f->w, first, 300, NULL), 300);
    assert_true(watched_until_idle(&f->w));
    assert_int_equal(f->w.count[OB_V_DELIVERED], 50); /* one batch, none of it counts */
    assert_int_equal(f->w.count[OB_V_RETURNED], 300);
    assert_int_equal(f->w.state, -1);
    expect_why(f, cases[i].why);
    expect_why(f, "events.jsonl");
    assert_true(watched_deliver(&f->w, first, 300));
    assert_int_equal(f->w.count[OB_V_DELIVERED], 350);
    assert_int_equal(f->w.count[OB_V_REJECT] + f->w.count[OB_V_RETRY], 0);
    for (int k = 0; k < FAULTS; k++)
        assert_int_equal(faults_left((enum fault)k), 0);
    assert_int_equal(faults_repeated(), 0);
    assert_int_equal(place_count(&f->place, ".aside"), cases[i].asides);
    read_all(f);
    if (!cases[i].repeats && f->read.n != 350)
        fail_msg("%s: %zu lines", cases[i].name, f->read.n);
    deliver(f, 20);
    read_all(f);
    watched_close(&f->w, 0);
}

static void a_failed_batch_is_given_back_and_delivered_later(void **state)
{
    (void)state;
    each_row(sizeof(cases) / sizeof(cases[0]),
             a_failed_batch_is_given_back_and_delivered_later_row);
}

static void a_file_that_cannot_be_synced_at_the_start_is_set_aside(void **state)
{
    struct fixture *f = *state;
    open_up(f);
    deliver(f, 10);
    watched_close(&f->w, 0);
    faults_set(FAULT_FSYNC, 1);
    open_up(f);
    f->w.base = 100;
    deliver(f, 10);
    assert_int_equal(place_count(&f->place, ".aside"), 1);
    assert_int_equal(faults_repeated(), 0);
    read_all(f);
    assert_int_equal(f->read.n, 20);
    watched_close(&f->w, 0);
}

static void a_folder_that_cannot_be_synced(void **state)
{
    struct fixture *f = *state;
    faults_set(FAULT_FSYNC_DIR, 2); /* of the new file's name, then of its new name aside */
    open_up(f);
    uint64_t first = watched_add_many(&f->w, 10, 1);
    assert_int_equal(watched_submit(&f->w, first, 10, NULL), 10);
    assert_true(watched_until_idle(&f->w));
    assert_int_equal(f->w.count[OB_V_RETURNED], 10);
    expect_why(f, "fsync of its folder");
    assert_true(watched_deliver(&f->w, first, 10));
    assert_int_equal(faults_left(FAULT_FSYNC_DIR), 0);
    assert_int_equal(place_count(&f->place, ".aside"), 1); /* the next sync is of another name */
    read_all(f);
    assert_int_equal(f->read.n, 10);
    watched_close(&f->w, 0);
}

/* ---- full disks ---- */

/* Delivers until the disk is full, makes room, delivers the rest. */
static void fill_and_recover(struct fixture *f, const char *why,
                             void (*make_room)(struct fixture *f))
{
    open_up(f);
    deliver(f, 20);
    uint64_t first = watched_add_many(&f->w, 4000, 3);
    size_t sent = 0;
    while (sent < 4000 && f->w.state == 1) {
        sent += watched_submit(&f->w, first + sent, 100, NULL);
        assert_true(watched_until_idle(&f->w));
    }
    assert_int_equal(f->w.state, -1);
    expect_why(f, why);
    assert_true(f->w.count[OB_V_RETURNED] > 0);
    assert_int_equal(f->w.count[OB_V_REJECT] + f->w.count[OB_V_RETRY], 0);
    read_all(f); /* while it is full: what was delivered is there, nothing is torn */
    assert_int_equal(f->read.n, f->w.count[OB_V_DELIVERED]);
    make_room(f);
    assert_true(watched_deliver(&f->w, first, 4000)); /* comes up by itself */
    assert_int_equal(f->w.state, 1);
    read_all(f);
    assert_int_equal(f->read.n, 4020);
    watched_close(&f->w, 0);
}

static void remove_filler(struct fixture *f)
{
    char path[160];
    snprintf(path, sizeof(path), "%s/.filler", f->place.dir);
    assert_int_equal(unlink(path), 0);
}

static void full_disk(void **state)
{
    struct fixture *f = *state;
    if (mount("none", f->place.dir, "tmpfs", 0, "size=4m") != 0) {
        print_message("full_disk: skipped: cannot mount a small tmpfs: %s\n", strerror(errno));
        skip();
    }
    char path[160];
    snprintf(path, sizeof(path), "%s/.filler", f->place.dir);
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(posix_fallocate(fd, 0, (4 << 20) - (200 << 10)), 0);
    close(fd);
    fill_and_recover(f, "no room left", remove_filler); /* teardown() unmounts */
}

static void lift_limit(struct fixture *f)
{
    (void)f;
    struct rlimit r;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &r), 0);
    r.rlim_cur = r.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &r), 0);
}

static void limit_of_file_size(void **state)
{
    struct fixture *f = *state;
    struct rlimit r;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &r), 0);
    r.rlim_cur = 150000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &r), 0);
    fill_and_recover(f, "no room left", lift_limit);
}

/* ---- folders ---- */

static void a_missing_folder_may_come(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(rmdir(f->place.dir), 0);
    watched_open(&f->w, &ob_sink_file, &f->conf); /* not a failure of open() */
    assert_true(watched_until_state(&f->w, -1));
    expect_why(f, "folder");
    expect_why(f, "No such file");
    uint64_t first = watched_add_many(&f->w, 5, 1);
    enum ob_status st;
    assert_int_equal(watched_submit(&f->w, first, 5, &st), 0);
    assert_int_equal(st, OB_DOWN);
    assert_int_equal(mkdir(f->place.dir, 0700), 0);
    assert_true(watched_until_state(&f->w, 1));
    assert_true(watched_deliver(&f->w, first, 5));
    read_all(f);
    watched_close(&f->w, 0);
}

/* Root may write anywhere, so a child that is nobody does it. Exit code 0: as it should be. */
static int as_nobody(struct fixture *f)
{
    if (setgid(65534) != 0 || setuid(65534) != 0)
        return 2;
    watched_open(&f->w, &ob_sink_file, &f->conf);
    if (!watched_until_state(&f->w, -1) || !strstr(f->w.why, "Permission denied"))
        return 3;
    enum ob_status st;
    uint64_t first = watched_add_many(&f->w, 5, 1);
    if (watched_submit(&f->w, first, 5, &st) != 0 || st != OB_DOWN)
        return 4;
    watched_close(&f->w, 0);
    return 0;
}

static void run_as_nobody(struct fixture *f)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(as_nobody(f));
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 2) {
        print_message("skipped: only root can become nobody\n");
        skip();
    }
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void a_folder_that_is_read_only(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(chmod(f->place.dir, 0555), 0);
    run_as_nobody(f);
}

static void a_file_that_is_read_only(void **state)
{
    struct fixture *f = *state;
    spit(f->place.path, "{}\n", 3);
    assert_int_equal(chmod(f->place.path, 0444), 0);
    assert_int_equal(chmod(f->place.dir, 0777), 0);
    run_as_nobody(f);
}

/* ---- other people ---- */

enum deed { REMOVE, REPLACE, TRUNCATE, APPEND, APPEND_TORN, REMOVE_FOLDER };

static void do_deed(struct fixture *f, enum deed deed)
{
    char other[160];
    FILE *out;
    switch (deed) {
    case REMOVE_FOLDER:
    case REMOVE:
        assert_int_equal(unlink(f->place.path), 0);
        if (deed == REMOVE_FOLDER)
            assert_int_equal(rmdir(f->place.dir), 0);
        break;
    case REPLACE:
        snprintf(other, sizeof(other), "%s/other", f->place.dir);
        spit(
            other,
            "{\"id\":\"x\",\"topic\":\"\",\"key\":\"\",\"headers\":{},\"time\":null,\"value\":0}\n",
            66);
        assert_int_equal(rename(other, f->place.path), 0);
        break;
    case TRUNCATE:
        assert_int_equal(truncate(f->place.path, 0), 0);
        break;
    case APPEND:
    case APPEND_TORN:
        out = fopen(f->place.path, "a");
        assert_non_null(out);
        fputs(deed == APPEND
                  ? "{\"id\":\"x\",\"topic\":\"\",\"key\":\"\",\"headers\":{},\"time\":null,"
                    "\"value\":0}\n"
                  : "hello",
              out);
        fclose(out);
    }
}

static const struct {
    const char *name;
    enum deed deed;
    const char *why;
    size_t others; /* lines in the file that are not of the second delivery */
} deeds[] = {
    {"removed", REMOVE, "it was removed", 0},
    {"replaced", REPLACE, "another file has its place", 1},
    {"truncated", TRUNCATE, "somebody else changed its size", 0},
    {"appended to", APPEND, "somebody else changed its size", 51},
    {"appended half a line to", APPEND_TORN, "somebody else changed its size", 50},
    {"removed with its folder", REMOVE_FOLDER, "it was removed", 0},
};

static void who_changes_the_file_fences_us_row(struct fixture *f, size_t i)
{
    open_up(f);
    deliver(f, 50);
    do_deed(f, deeds[i].deed);
    uint64_t first = watched_add_many(&f->w, 40, 3);
    assert_int_equal(watched_submit(&f->w, first, 40, NULL), 40);
    assert_true(watched_until_idle(&f->w));
    assert_int_equal(f->w.count[OB_V_RETURNED], 40);
    assert_int_equal(f->w.state, -1);
    expect_why(f, deeds[i].why);
    if (deeds[i].deed == REMOVE_FOLDER)
        assert_int_equal(mkdir(f->place.dir, 0700), 0);
    assert_true(watched_deliver(&f->w, first, 40));
    readback_free(&f->read);
    readback_place(&f->read, &f->place);
    if (f->read.why[0] || f->read.n != deeds[i].others + 40)
        fail_msg("%s: %zu lines %s", deeds[i].name, f->read.n, f->read.why);
    for (uint64_t t = first; t < first + 40; t++)
        assert_true(readback_find(&f->read, f->w.tokens[t - 1].m->id, 0) >= 0);
    watched_close(&f->w, 0);
}

static void who_changes_the_file_fences_us(void **state)
{
    (void)state;
    each_row(sizeof(deeds) / sizeof(deeds[0]), who_changes_the_file_fences_us_row);
}

/* A writer that finds its file set aside must not cut it, although its write had failed. */
static void a_fenced_writer_cuts_nothing(void **state)
{
    struct fixture *f = *state;
    open_up(f);
    deliver(f, 5);
    char aside[160];
    snprintf(aside, sizeof(aside), "%s/moved", f->place.dir);
    faults_hold(true);
    uint64_t first = watched_add_many(&f->w, 5, 1);
    assert_int_equal(watched_submit(&f->w, first, 5, NULL), 5);
    faults_wait_held(); /* it is written, not synced */
    assert_int_equal(rename(f->place.path, aside), 0);
    faults_hold(false);
    assert_true(watched_until_idle(&f->w)); /* that batch is on disk, wherever it is */
    faults_set(FAULT_SHORT_WRITE, 1);
    first = watched_add_many(&f->w, 5, 1);
    assert_int_equal(watched_submit(&f->w, first, 5, NULL), 5);
    assert_true(watched_until_idle(&f->w));
    assert_int_equal(f->w.state, -1);
    assert_int_equal(faults_left(FAULT_SHORT_WRITE), 1); /* not one byte was written */
    faults_reset();
    assert_true(watched_deliver(&f->w, first, 5));
    read_all(f);
    assert_int_equal(f->read.n, 15);
    watched_close(&f->w, 0);
}

/* ---- kill -9 ---- */

/* Writes until it is killed; tells each delivered id. */
static void write_until_killed(struct fixture *f, uint64_t base, int tell)
{
    watched_open(&f->w, &ob_sink_file, &f->conf);
    f->w.base = base;
    char value[700];
    memset(value, 'v', sizeof(value));
    size_t told = 0;
    for (;;) {
        for (int i = 0; i < 200; i++) {
            struct ob_str s = {value, 100 + (size_t)(i * 37) % 600};
            watched_add(&f->w, message_new(base + f->w.n_tokens, OB_STR("k"), &s));
        }
        size_t n = f->w.n_tokens, sent = n - 200;
        while (sent < n) {
            sent += watched_submit(&f->w, sent + 1, n - sent, NULL);
            watched_wait(&f->w, 0);
        }
        for (; told < f->w.n_order; told++) {
            uint64_t number = base + f->w.order[told] - 1;
            if (write(tell, &number, sizeof(number)) != sizeof(number))
                _exit(1);
        }
    }
}

#define KILLS 12

static void kill_9_loses_nothing_and_tears_nothing(void **state)
{
    struct fixture *f = *state;
    size_t n_told = 0, cap = 1 << 20;
    uint64_t *numbers = calloc(cap, sizeof(*numbers));
    assert_non_null(numbers);
    for (unsigned round = 0; round < KILLS; round++) {
        int ends[2];
        assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
            write_until_killed(f, (uint64_t)round * 1000000, ends[1]);
        close(ends[1]);
        /* It is killed in the middle of whatever it does after a few hundred deliveries. */
        size_t until = n_told + 200 + round * 97;
        ssize_t got = 1;
        bool killed = false;
        while (got > 0 && n_told < cap) {
            got = read(ends[0], &numbers[n_told], sizeof(*numbers));
            n_told += got == sizeof(*numbers);
            if (n_told >= until && !killed) {
                kill(pid, SIGKILL);
                killed = true; /* what is still in the pipe counts */
            }
        }
        close(ends[0]);
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        /* The next one takes the file at once, without setting it aside. */
    }
    open_up(f);
    f->w.base = 999000000;
    deliver(f, 1);
    assert_int_equal(place_count(&f->place, ""), 1);
    read_all(f);
    size_t at = 0;
    for (size_t i = 0; i < n_told; i++) {
        char id[40];
        snprintf(id, sizeof(id), "id-%010llu", (unsigned long long)numbers[i]);
        ptrdiff_t found = readback_find(&f->read, id, at);
        if (found < 0)
            fail_msg("%s was delivered and is not there, or not in order", id);
        at = (size_t)found;
    }
    assert_true(n_told > 200 * KILLS);
    free(numbers);
    watched_close(&f->w, 0);
}

int main(void)
{
    signal(SIGXFSZ, SIG_IGN);
#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(a_failed_batch_is_given_back_and_delivered_later),
        T(a_file_that_cannot_be_synced_at_the_start_is_set_aside),
        T(a_folder_that_cannot_be_synced),
        T(full_disk),
        T(limit_of_file_size),
        T(a_missing_folder_may_come),
        T(a_folder_that_is_read_only),
        T(a_file_that_is_read_only),
        T(who_changes_the_file_fences_us),
        T(a_fenced_writer_cuts_nothing),
        T(kill_9_loses_nothing_and_tears_nothing),
    };
    return cmocka_run_group_tests_name("file_fail", tests, NULL, NULL);
}
