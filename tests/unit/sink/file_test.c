/* SPDX-License-Identifier: Apache-2.0 */
/* file_test - what the file sink does when nothing fails: batches, rotation, its end, its lock. */
#include "faults.h"
#include "harness.h"

#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
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

/* ---- batches ---- */

static void a_batch_is_one_write_and_one_sync(void **state)
{
    struct fixture *f = *state;
    open_up(f);
    deliver(f, 1); /* takes the file */
    unsigned writes = faults_writes(), syncs = faults_syncs();
    faults_hold(true);
    uint64_t first = watched_add_many(&f->w, 2001, 3);
    assert_int_equal(watched_submit(&f->w, first, 1, NULL), 1);
    faults_wait_held();
    /* While the disk hangs, submit() and poll() go on and nothing is said to be delivered. */
    assert_int_equal(watched_submit(&f->w, first + 1, 2000, NULL), 2000);
    assert_false(watched_wait(&f->w, 30));
    assert_int_equal(f->w.count[OB_V_DELIVERED], 1);
    faults_hold(false);
    assert_true(watched_until_idle(&f->w));
    assert_int_equal(faults_writes() - writes, 2); /* all that came meanwhile is one batch */
    assert_int_equal(faults_syncs() - syncs, 2);
    read_all(f);
    assert_int_equal(f->read.n, 2002);
    watched_close(&f->w, 0);
}

static void fsync_none_never_syncs(void **state)
{
    struct fixture *f = *state;
    f->conf.fsync = OB_FILE_FSYNC_NONE;
    open_up(f);
    deliver(f, 500);
    assert_true(faults_writes() > 0);
    assert_int_equal(faults_syncs(), 0);
    read_all(f);
    watched_close(&f->w, 0);
}

static void mode_is_exact(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *mode;
        int want; /* -1: refused */
    } cases[] = {{"0604", 0604}, {"666", 0666}, {"0600", 0600}, {"0400", -1}, {"0800", -1},
                 {"1777", -1},   {"", -1},      {"rw", -1},     {"-600", -1}, {"0600x", -1}};
    mode_t before = umask(077);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        f->conf.mode = cases[i].mode;
        unlink(f->place.path);
        if (cases[i].want >= 0) {
            struct stat sb;
            open_up(f);
            deliver(f, 1);
            assert_int_equal(stat(f->place.path, &sb), 0);
            assert_int_equal(sb.st_mode & 07777, cases[i].want);
            watched_close(&f->w, 0);
            continue;
        }
        struct ob_sink_events ev = {0};
        struct ob_sink_env env = {.shards = 1, .clock = &ob_clock_system, .events = &ev};
        struct ob_sink *sink;
        struct ob_sink_caps caps;
        struct ob_err err = {0};
        assert_int_equal(ob_sink_file.open(&env, &f->conf, &sink, &caps, &err), OB_FATAL);
        assert_non_null(strstr(err.text, "mode"));
    }
    umask(before);
}

static void each_shard_has_its_file(void **state)
{
    struct fixture *f = *state;
    struct ob_sink_events ev = {0};
    struct ob_sink_env env = {
        .shard = 2, .shards = 4, .clock = &ob_clock_system, .events = &ev, .user = f};
    struct ob_sink *sink;
    struct ob_sink_caps caps;
    struct ob_err err = {0};
    assert_int_equal(ob_sink_file.open(&env, &f->conf, &sink, &caps, &err), OB_OK);
    struct message *m = message_new(1, OB_STR("k"), NULL);
    const struct ob_msg *msg = &m->msg;
    uint64_t token = 1;
    size_t n = 1;
    assert_int_equal(ob_sink_file.submit(sink, &msg, &token, &n, &err), OB_OK);
    ob_sink_file.close(sink, WAIT_MS);
    message_free(m);
    assert_int_equal(place_count(&f->place, "events.jsonl.2"), 1);
    assert_int_equal(place_count(&f->place, ""), 1);
}

/* ---- what is at the path at the start ---- */

static void refused(struct fixture *f, const char *text)
{
    struct ob_sink_events ev = {0};
    struct ob_sink_env env = {.shards = 1, .clock = &ob_clock_system, .events = &ev};
    struct ob_sink *sink;
    struct ob_sink_caps caps;
    struct ob_err err = {0};
    assert_int_equal(ob_sink_file.open(&env, &f->conf, &sink, &caps, &err), OB_FATAL);
    if (!strstr(err.text, text))
        fail_msg("\"%s\" is not in: %s", text, err.text);
}

static void foreign_things_are_left_alone(void **state)
{
    struct fixture *f = *state;
    size_t n;
    spit(f->place.path, "dear diary\n", 11);
    refused(f, "something else than JSON lines");
    char *text = slurp(f->place.path, &n);
    assert_string_equal(text, "dear diary\n");
    free(text);
    unlink(f->place.path);
    char target[160];
    snprintf(target, sizeof(target), "%s/target", f->place.dir);
    assert_int_equal(symlink(target, f->place.path), 0);
    refused(f, "not a regular file");
    unlink(f->place.path);
    assert_int_equal(mkfifo(f->place.path, 0600), 0);
    refused(f, "not a regular file");
    unlink(f->place.path);
    assert_int_equal(mkdir(f->place.path, 0700), 0);
    refused(f, "not a regular file");
    rmdir(f->place.path);
    f->conf.path = "";
    refused(f, "path");
    f->conf.path = "/tmp/";
    refused(f, "path");
}

#define A "{\"id\":\"a\",\"topic\":\"t\",\"key\":\"k\",\"headers\":{},\"time\":null,\"value\":1}\n"
#define B "{\"id\":\"b\",\"topic\":\"t\",\"key\":\"k\",\"headers\":{},\"time\":null,\"value\":2}\n"

static const struct {
    const char *name;
    struct ob_str before;
    size_t keep; /* bytes that stay */
} ends[] = {
    {"whole", OB_STR(A B), sizeof(A B) - 1},
    {"no line break", OB_STR(A "{\"id\":\"x\"}"), sizeof(A) - 1},
    {"half a line", OB_STR(A B "{\"id\":\"x"), sizeof(A B) - 1},
    {"one brace", OB_STR(A "{"), sizeof(A) - 1},
    {"hole in the middle", OB_STR(A "{\"id\":\0\0\0\0}\n" B), sizeof(A) - 1},
    {"hole at the start", OB_STR("\0\0\0\0\0\0\n" A), 0},
    {"only a hole", OB_STR("\0\0\0\0\0\0"), 0},
    {"only half a line", OB_STR("{\"id\":"), 0},
    {"broken, then whole", OB_STR(A "{\"id\":}\n" B), sizeof(A) - 1},
    {"empty line", OB_STR(A "\n"), sizeof(A) - 1},
    {"not an object", OB_STR(A "17\n"), sizeof(A) - 1},
    {"two on a line", OB_STR(A "{}{}\n"), sizeof(A) - 1},
    {"line break only", OB_STR(A "{\n"), sizeof(A) - 1},
};

/* What a crash may leave of the last batch is cut at the first line that is not whole. */
static void crash_leaves_no_torn_line(void **state)
{
    struct fixture *f = *state;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        spit(f->place.path, ends[i].before.p, ends[i].before.n);
        open_up(f);
        deliver(f, 1);
        size_t n;
        char *text = slurp(f->place.path, &n);
        if (n <= ends[i].keep || memcmp(text, ends[i].before.p, ends[i].keep) != 0 ||
            strncmp(text + ends[i].keep, "{\"id\":\"id-", 10) != 0)
            fail_msg("%s: %s", ends[i].name, text);
        free(text);
        read_all(f);
        watched_close(&f->w, 0);
    }
}

/* Only the last batch's worth is looked at, but a line that reaches into it is looked at whole. */
static void the_end_of_a_large_file(void **state)
{
    struct fixture *f = *state;
    size_t big = OB_STORE_BATCH * 2 + 12345, head = sizeof("{}\nnot json, long ago\n") - 1;
    for (int torn = 0; torn < 3; torn++) {
        char *text = malloc(head + big + 64);
        assert_non_null(text);
        size_t n = head;
        memcpy(text, "{}\nnot json, long ago\n", head);
        memcpy(text + n, "{\"v\":\"", 6);
        memset(text + n + 6, 'x', big);
        n += 6 + big;
        if (torn == 0) {
            memcpy(text + n, "\"}\n", 3);
            n += 3;
        } else if (torn == 2) {
            memcpy(text + n - big / 2, "\0\0\0\0", 4); /* a hole before the window */
            memcpy(text + n, "\"}\n", 3);
            n += 3;
        }
        size_t keep = torn ? head : n;
        spit(f->place.path, text, n);
        open_up(f);
        deliver(f, 1);
        size_t got;
        char *now = slurp(f->place.path, &got);
        assert_true(got > keep && got < keep + 300);
        assert_memory_equal(now, text, keep);
        assert_memory_equal(now + keep, "{\"id\":", 6);
        free(now);
        free(text);
        watched_close(&f->w, 0);
    }
}

/* ---- rotation ---- */

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int visible(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

static void rotation_keeps_files_within_their_size(void **state)
{
    struct fixture *f = *state;
    open_up(f);
    deliver(f, 1);
    struct stat sb;
    assert_int_equal(stat(f->place.path, &sb), 0);
    off_t line = sb.st_size; /* all lines of deliver() are as long as long as numbers are short */
    watched_close(&f->w, 0);
    unlink(f->place.path);

    f->conf.rotate_bytes = line * 4;
    open_up(f);
    deliver(f, 10); /* numbers 0..9 */
    struct dirent **names;
    int n = scandir(f->place.dir, &names, visible, by_name);
    assert_int_equal(n, 3); /* 4, 4, 2: exactly full is not over */
    size_t total = 0;
    for (int i = 0; i < n; i++) {
        char path[512];
        snprintf(path, sizeof(path), "%s/%s", f->place.dir, names[i]->d_name);
        assert_int_equal(stat(path, &sb), 0);
        assert_true(sb.st_size <= f->conf.rotate_bytes);
        total += (size_t)sb.st_size;
        free(names[i]);
    }
    free(names);
    assert_int_equal(total, line * 10);
    read_all(f); /* in the order of the names, the path itself last */
    for (size_t i = 0; i < f->read.n; i++)
        assert_true(ob_str_eqc(f->read.got[i].id, f->w.tokens[i].m->id));
    watched_close(&f->w, 0);

    open_up(f); /* the file that is there is taken on: 2 lines in it, room for 2 more */
    f->w.base = 5;
    deliver(f, 2);
    assert_int_equal(place_count(&f->place, ""), 3);
    deliver(f, 1);
    assert_int_equal(place_count(&f->place, ""), 4);
    watched_close(&f->w, 0);
}

static void every_new_name_is_synced(void **state)
{
    struct fixture *f = *state;
    open_up(f);
    assert_int_equal(faults_dir_syncs(), 0);
    deliver(f, 1); /* made */
    assert_int_equal(faults_dir_syncs(), 1);
    deliver(f, 1);
    assert_int_equal(faults_dir_syncs(), 1);
    watched_close(&f->w, 0);
    open_up(f);
    deliver(f, 1); /* found; whoever made it may not have lived to do it */
    assert_int_equal(faults_dir_syncs(), 2);
    watched_close(&f->w, 0);
    f->conf.rotate_bytes = 1;
    open_up(f);
    deliver(f, 1); /* found, renamed, made */
    assert_int_equal(faults_dir_syncs(), 5);
    watched_close(&f->w, 0);
}

static void a_line_longer_than_a_file_has_its_own(void **state)
{
    struct fixture *f = *state;
    f->conf.rotate_bytes = 1000;
    open_up(f);
    char big[5000];
    memset(big, 'x', sizeof(big));
    struct ob_str value = {big, sizeof(big)};
    watched_add_many(&f->w, 2, 1);
    watched_add(&f->w, message_new(2, OB_STR("k0"), &value));
    watched_add_many(&f->w, 2, 1);
    assert_true(watched_deliver(&f->w, 1, 5));
    assert_int_equal(place_count(&f->place, ""), 3);
    read_all(f);
    watched_close(&f->w, 0);
}

/* ---- the lock ---- */

static void a_stand_by_takes_nothing(void **state)
{
    struct fixture *f = *state;
    struct watched standby;
    watched_open(&standby, &ob_sink_file, &f->conf);
    assert_true(watched_until_state(&standby, 1));
    assert_int_equal(place_count(&f->place, ""), 0);
    open_up(f);
    deliver(f, 10);
    assert_false(watched_wait(&standby, 20));
    deliver(f, 10);
    assert_int_equal(f->w.downs, 0);
    assert_int_equal(place_count(&f->place, ""), 1);
    /* The owner stops; the other goes on in the same file, at once. */
    read_all(f);
    watched_close(&f->w, 0);
    standby.base = 100;
    uint64_t first = watched_add_many(&standby, 10, 1);
    assert_true(watched_deliver(&standby, first, 10));
    assert_int_equal(place_count(&f->place, ""), 1);
    readback_free(&f->read);
    readback_place(&f->read, &f->place);
    readback_holds(&f->read, &standby);
    assert_int_equal(f->read.n, 30);
    watched_close(&standby, 0);
}

static void reset_lets_go_of_the_lock(void **state)
{
    struct fixture *f = *state;
    open_up(f);
    deliver(f, 5);
    ob_sink_file.reset(f->w.sink);
    struct watched other;
    watched_open(&other, &ob_sink_file, &f->conf);
    other.base = 100;
    assert_true(watched_wait(&f->w, WAIT_MS)); /* the reset is over */
    uint64_t first = watched_add_many(&other, 5, 1);
    assert_true(watched_deliver(&other, first, 5));
    assert_int_equal(place_count(&f->place, "aside"), 0);
    read_all(f);
    assert_int_equal(f->read.n, 10);
    watched_close(&other, 0);
    watched_close(&f->w, 0);
}

static void a_second_writer_sets_the_file_aside(void **state)
{
    struct fixture *f = *state;
    open_up(f);
    deliver(f, 100);
    struct watched other;
    watched_open(&other, &ob_sink_file, &f->conf);
    other.base = 1000;
    int64_t since = ob_clock_mono_ms(&ob_clock_system);
    uint64_t first = watched_add_many(&other, 100, 3);
    assert_true(watched_deliver(&other, first, 100));
    assert_true(ob_clock_mono_ms(&ob_clock_system) - since >= 900); /* it waited for the lock */
    assert_int_equal(place_count(&f->place, ".aside"), 1);
    /* The first one is fenced: it says so and gives back, and writes to nobody's file. */
    size_t before;
    free(slurp(f->place.path, &before));
    uint64_t mine = watched_add_many(&f->w, 20, 3);
    assert_int_equal(watched_submit(&f->w, mine, 20, NULL), 20);
    assert_true(watched_until_idle(&f->w));
    assert_int_equal(f->w.state, -1);
    assert_non_null(strstr(f->w.why, "another file has its place"));
    assert_int_equal(f->w.count[OB_V_RETURNED], 20);
    size_t after;
    free(slurp(f->place.path, &after));
    assert_int_equal(before, after);
    read_all(f);
    readback_holds(&f->read, &other);
    assert_int_equal(f->read.n, 200);
    watched_close(&f->w, 0);
    first = watched_add_many(&other, 10, 3);
    assert_true(watched_deliver(&other, first, 10));
    assert_int_equal(other.downs, 0);
    watched_close(&other, 0);
}

int main(void)
{
#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(a_batch_is_one_write_and_one_sync),
        T(fsync_none_never_syncs),
        T(mode_is_exact),
        T(each_shard_has_its_file),
        T(foreign_things_are_left_alone),
        T(crash_leaves_no_torn_line),
        T(the_end_of_a_large_file),
        T(rotation_keeps_files_within_their_size),
        T(every_new_name_is_synced),
        T(a_line_longer_than_a_file_has_its_own),
        T(a_stand_by_takes_nothing),
        T(reset_lets_go_of_the_lock),
        T(a_second_writer_sets_the_file_aside),
    };
    return cmocka_run_group_tests_name("file", tests, NULL, NULL);
}
