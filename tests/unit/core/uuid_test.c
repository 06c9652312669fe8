/* SPDX-License-Identifier: Apache-2.0 */
/* uuid_test - layout, strictly rising in each thread and over all of them, no repeats after fork.
 */
#include "core/uuid.h"

#include "../rows.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define THREADS 4
#define PER_THREAD 20000
#define CHILDREN 8
#define PER_CHILD 1000

static void test_make(void **state)
{
    static const struct {
        const char *name;
        uint64_t ms;
        uint32_t counter;
        uint64_t random;
        const char *want;
    } cases[] = {
        {"zero", 0, 0, 0, "00000000-0000-7000-8000-000000000000"},
        {"all bits", UINT64_MAX, UINT32_MAX, UINT64_MAX, "ffffffff-ffff-7fff-bfff-ffffffffffff"},
        {"time", 0x017f22e279b0, 0, 0, "017f22e2-79b0-7000-8000-000000000000"},
        {"counter, low bit", 0, 1, 0, "00000000-0000-7000-8001-000000000000"},
        {"counter, low half full", 0, 0x3fff, 0, "00000000-0000-7000-bfff-000000000000"},
        {"counter, carries over", 0, 0x4000, 0, "00000000-0000-7001-8000-000000000000"},
        {"random", 0, 0, 0x123456789abc, "00000000-0000-7000-8000-123456789abc"},
    };

    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        uint8_t id[16];
        char text[OB_UUID_TEXT];

        ob_uuid7_make(cases[i].ms, cases[i].counter, cases[i].random, id);
        ob_uuid_format(id, text);
        row_str(cases[i].name, "text", ob_str_c(text), ob_str_c(cases[i].want));
    }
}

static void test_text(void **state)
{
    int64_t before = (int64_t)time(NULL) - 1, after;
    char text[OB_UUID_TEXT], head[13];
    long long ms;

    (void)state;
    ob_uuid7_text(text);
    after = (int64_t)time(NULL) + 2;
    assert_int_equal(strlen(text), 36);
    assert_int_equal(text[14], '7');
    assert_non_null(strchr("89ab", text[19]));
    memcpy(head, text, 8);
    memcpy(head + 8, text + 9, 4);
    head[12] = '\0';
    ms = strtoll(head, NULL, 16);
    assert_true(ms >= before * 1000 && ms <= after * 1000);
}

static uint64_t ms_of(const uint8_t id[16])
{
    uint64_t ms = 0;

    for (int i = 0; i < 6; i++)
        ms = ms << 8 | id[i];
    return ms;
}

static int compare(const void *a, const void *b)
{
    return memcmp(a, b, 16);
}

static void check_distinct(uint8_t (*ids)[16], size_t n)
{
    qsort(ids, n, 16, compare);
    for (size_t i = 1; i < n; i++)
        assert_true(memcmp(ids[i - 1], ids[i], 16) < 0);
}

static void *make_many(void *arg)
{
    uint8_t(*ids)[16] = arg;

    for (size_t i = 0; i < PER_THREAD; i++)
        ob_uuid7(ids[i]);
    return NULL;
}

static void test_rising_across_threads(void **state)
{
    uint8_t(*ids)[16] = calloc(THREADS * PER_THREAD, 16), last[16];
    pthread_t threads[THREADS];
    time_t before = time(NULL), now;

    (void)state;
    assert_non_null(ids);
    for (size_t t = 0; t < THREADS; t++)
        assert_int_equal(pthread_create(&threads[t], NULL, make_many, ids + t * PER_THREAD), 0);
    for (size_t t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    ob_uuid7(last);
    now = time(NULL);
    now = now > before ? now : before; /* the clock may have been set back meanwhile */
    assert_in_range(ms_of(last), 0, (uint64_t)(now + 1) * 1000); /* the counter, not the time */
    for (size_t t = 0; t < THREADS; t++)
        for (size_t i = 0; i < PER_THREAD; i++) {
            uint8_t *id = ids[t * PER_THREAD + i];

            assert_true(i == 0 || memcmp(id - 16, id, 16) < 0);
            assert_true(memcmp(id, last, 16) < 0);
        }
    check_distinct(ids, THREADS * PER_THREAD);
    free(ids);
}

/* Reads exactly n bytes, or fewer at the end. */
static size_t read_all(int fd, void *to, size_t n)
{
    size_t got = 0;
    ssize_t r = 1;

    while (got < n && r > 0) {
        r = read(fd, (char *)to + got, n - got);
        got += r > 0 ? (size_t)r : 0;
    }
    return got;
}

static void child(int fd, const uint8_t last[16])
{
    static uint8_t ids[PER_CHILD][16];
    const uint8_t *before = last;
    int bad = 0;

    for (size_t i = 0; i < PER_CHILD; i++) {
        ob_uuid7(ids[i]);
        bad |= memcmp(before, ids[i], 16) >= 0; /* goes on above its parent's */
        before = ids[i];
    }
    for (size_t done = 0; done < sizeof(ids);) {
        ssize_t w = write(fd, (char *)ids + done, sizeof(ids) - done);

        if (w <= 0)
            _exit(2);
        done += (size_t)w;
    }
    _exit(bad);
}

/* All children start from the same state in the same millisecond. */
static void test_forks_do_not_repeat(void **state)
{
    uint8_t(*ids)[16] = calloc((CHILDREN + 1) * PER_CHILD, 16), last[16];
    int pipes[CHILDREN][2];
    pid_t pids[CHILDREN];

    (void)state;
    ob_uuid7(last);
    for (size_t c = 0; c < CHILDREN; c++) {
        assert_int_equal(pipe(pipes[c]), 0);
        pids[c] = fork();
        assert_true(pids[c] >= 0);
        if (pids[c] == 0)
            child(pipes[c][1], last);
        close(pipes[c][1]);
    }
    for (size_t i = 0; i < PER_CHILD; i++)
        ob_uuid7(ids[CHILDREN * PER_CHILD + i]);
    for (size_t c = 0; c < CHILDREN; c++) {
        int status;

        assert_int_equal(read_all(pipes[c][0], ids + c * PER_CHILD, PER_CHILD * 16),
                         PER_CHILD * 16);
        close(pipes[c][0]);
        assert_int_equal(waitpid(pids[c], &status, 0), pids[c]);
        assert_int_equal(status, 0);
    }
    check_distinct(ids, (CHILDREN + 1) * PER_CHILD);
    free(ids);
}

static void *make_until_told(void *arg)
{
    volatile int *stop = arg;
    uint8_t id[16];

    while (!__atomic_load_n(stop, __ATOMIC_RELAXED))
        ob_uuid7(id);
    return NULL;
}

/* fork() while another thread holds the lock: the child must not wait for it for ever. */
static void test_fork_while_locked(void **state)
{
    pthread_t thread;
    int stop = 0;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, make_until_told, &stop), 0);
    for (int i = 0; i < 50; i++) {
        pid_t pid = fork();
        int status;

        assert_true(pid >= 0);
        if (pid == 0) {
            uint8_t id[16];

            alarm(20);
            ob_uuid7(id);
            _exit(0);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_make),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_rising_across_threads),
        cmocka_unit_test(test_forks_do_not_repeat),
        cmocka_unit_test(test_fork_while_locked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
