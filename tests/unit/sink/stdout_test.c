/* SPDX-License-Identifier: Apache-2.0 */
/* stdout_test - readers that are slow, gone, or a full disk. */
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

struct fixture {
    int saved;   /* the real standard output */
    int ends[2]; /* [0] is read by the test, [1] is standard output */
    struct watched w;
    struct place place;
};

static const int64_t conf[1] = {1 << 20}; /* max_line, the only option */

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    if (!f)
        return -1;
    place_make(&f->place);
    fflush(stdout);
    f->saved = fcntl(1, F_DUPFD_CLOEXEC, 3);
    if (pipe2(f->ends, O_CLOEXEC) != 0 || dup2(f->ends[1], 1) != 1)
        return -1;
    close(f->ends[1]);
    *state = f;
    return 0;
}

/* Nothing may be asserted while standard output is the pipe: cmocka would write into it. */
static void restore(struct fixture *f)
{
    if (f->saved < 0)
        return;
    dup2(f->saved, 1);
    close(f->saved);
    f->saved = -1;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    restore(f);
    if (f->ends[0] >= 0)
        close(f->ends[0]);
    place_remove(&f->place);
    free(f);
    return 0;
}

static void open_sink(struct fixture *f)
{
    watched_open(&f->w, &ob_sink_stdout, conf); /* has a descriptor of its own from now on */
    restore(f);
}

/* Reads until n line breaks came; returns how many came. */
static size_t read_lines(int fd, size_t n)
{
    size_t lines = 0;
    char block[4096];
    while (lines < n) {
        ssize_t got = read(fd, block, sizeof(block));
        if (got <= 0)
            break;
        for (ssize_t i = 0; i < got; i++)
            lines += block[i] == '\n';
    }
    return lines;
}

static void a_reader_that_does_not_read_blocks_nobody(void **state)
{
    struct fixture *f = *state;
    open_sink(f);
    uint64_t first = watched_add_many(&f->w, 3000, 3);
    /* Far more than a pipe holds. submit() and poll() come back, or this test hangs. */
    assert_int_equal(watched_submit(&f->w, first, 3000, NULL), 3000);
    while (watched_wait(&f->w, 200))
        ;
    size_t some = f->w.count[OB_V_DELIVERED];
    assert_true(some < 3000); /* delivered is what the pipe took, a batch at a time */
    assert_int_equal(f->w.in_flight, 3000 - some);
    assert_int_not_equal(f->w.state, -1); /* slow is not down */
    size_t lines = 0;
    while (f->w.in_flight > 0) {
        lines += read_lines(f->ends[0], 1);
        watched_wait(&f->w, 0);
    }
    assert_int_equal(f->w.count[OB_V_DELIVERED], 3000);
    watched_close(&f->w, 0);
    lines += read_lines(f->ends[0], 3000 - lines);
    assert_int_equal(lines, 3000);
}

static void close_does_not_wait_for_a_reader(void **state)
{
    struct fixture *f = *state;
    open_sink(f);
    uint64_t first = watched_add_many(&f->w, 3000, 3);
    assert_int_equal(watched_submit(&f->w, first, 3000, NULL), 3000);
    while (watched_wait(&f->w, 100))
        ;
    int64_t since = ob_clock_mono_ms(&ob_clock_system);
    watched_close(&f->w, 100); /* frees the messages at once */
    assert_true(ob_clock_mono_ms(&ob_clock_system) - since < WAIT_MS / 2);
}

static void a_reader_that_is_gone_is_down(void **state)
{
    struct fixture *f = *state;
    open_sink(f);
    assert_true(watched_until_state(&f->w, 1));
    uint64_t first = watched_add_many(&f->w, 100, 3);
    assert_true(watched_deliver(&f->w, first, 10));
    close(f->ends[0]);
    f->ends[0] = -1;
    assert_int_equal(watched_submit(&f->w, first + 10, 90, NULL), 90); /* no SIGPIPE ends us */
    assert_true(watched_until_idle(&f->w));
    assert_int_equal(f->w.state, -1);
    assert_int_equal(f->w.count[OB_V_RETURNED], 90);
    assert_non_null(strstr(f->w.why, "standard output"));
    assert_non_null(strstr(f->w.why, "broken pipe"));
    while (watched_wait(&f->w, 300)) /* and stays so: probes find the same */
        ;
    assert_int_equal(f->w.state, -1);
    enum ob_status st;
    assert_int_equal(watched_submit(&f->w, first + 10, 90, &st), 0);
    assert_int_equal(st, OB_DOWN);
    watched_close(&f->w, 0);
}

/* Standard output is a file on a disk that is full for a while: what was torn is a line of its own,
 * all other lines are whole. */
static void a_full_disk(void **state)
{
    struct fixture *f = *state;
    int fd = open(f->place.path, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && dup2(fd, 1) == 1);
    close(fd);
    open_sink(f);
    struct rlimit r, full;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &r), 0);
    full = r;
    full.rlim_cur = 50001;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &full), 0);
    uint64_t first = watched_add_many(&f->w, 1000, 3);
    watched_submit(&f->w, first, 1000, NULL);
    bool idle = watched_until_idle(&f->w);
    size_t n;
    char *before = slurp(f->place.path, &n);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &r), 0);
    assert_true(idle);
    assert_int_equal(n, 50001);
    bool torn = before[n - 1] != '\n';
    free(before);
    assert_true(f->w.downs > 0);
    assert_true(watched_deliver(&f->w, first, 1000));
    char *text = slurp(f->place.path, &n);
    size_t broken = 0;
    for (char *p = text, *end; (end = strchr(p, '\n')); p = end + 1)
        broken += strncmp(p, "{\"id\":\"id-", 10) != 0 || end[-1] != '}';
    assert_int_equal(broken, torn);
    free(text);
    watched_close(&f->w, 0);
}

int main(void)
{
    signal(SIGXFSZ, SIG_IGN);
#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(a_reader_that_does_not_read_blocks_nobody),
        T(close_does_not_wait_for_a_reader),
        T(a_reader_that_is_gone_is_down),
        T(a_full_disk),
    };
    return cmocka_run_group_tests_name("stdout", tests, NULL, NULL);
}
