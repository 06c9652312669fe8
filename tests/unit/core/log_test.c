/* SPDX-License-Identifier: Apache-2.0 */
/* log_test - lines as they are written: quoting, cutting, levels, and one write for each. */
#include "core/log.h"

#include "../rows.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int64_t fixed_us(void *user)
{
    (void)user;
    return 1770091506789000;
}

static const struct ob_clock fixed = {fixed_us, fixed_us, NULL};

/* A pipe in packet mode: each write(2) is read by one read(2), so lines and writes are counted. */
struct sink {
    int fds[2];
    char line[16384];
};

static struct ob_log open_log(struct sink *s, enum ob_log_format format)
{
    assert_int_equal(pipe2(s->fds, O_DIRECT | O_NONBLOCK), 0);
    return (struct ob_log){.fd = s->fds[1], .format = format, .clock = &fixed, .shard = -1};
}

static void close_log(struct sink *s)
{
    close(s->fds[0]);
    close(s->fds[1]);
}

/* The next write, NUL-terminated; packets are at most a page, so longer writes come in parts. */
static const char *next_line(struct sink *s)
{
    size_t n = 0;
    ssize_t got;

    while ((got = read(s->fds[0], s->line + n, sizeof(s->line) - 1 - n)) > 0) {
        n += (size_t)got;
        if (s->line[n - 1] == '\n')
            break;
    }
    s->line[n] = '\0';
    return s->line;
}

#define HEAD "ts=2026-02-03T04:05:06.789Z level=info msg=relay.start"

static void test_logfmt(void **state)
{
    static const struct {
        const char *name;
        struct ob_kv kv;
        const char *want;
    } cases[] = {
        {"number", {.key = "n", .kind = OB_KV_INT, .i = -42}, "n=-42"},
        {"least number", {.key = "n", .kind = OB_KV_INT, .i = INT64_MIN}, "n=-9223372036854775808"},
        {"yes", {.key = "ok", .kind = OB_KV_BOOL, .i = 1}, "ok=true"},
        {"no", {.key = "ok", .kind = OB_KV_BOOL, .i = 0}, "ok=false"},
        {"word", {.key = "a", .s = {"kafka-1/x:2", 11}}, "a=kafka-1/x:2"},
        {"empty", {.key = "a", .s = {"", 0}}, "a=\"\""},
        {"nothing", {.key = "a", .s = {NULL, 0}}, "a=\"\""},
        {"space", {.key = "a", .s = {"a b", 3}}, "a=\"a b\""},
        {"equals", {.key = "a", .s = {"a=b", 3}}, "a=\"a=b\""},
        {"quote", {.key = "a", .s = {"a\"b", 3}}, "a=\"a\\\"b\""},
        {"backslash", {.key = "a", .s = {"a\\b", 3}}, "a=\"a\\\\b\""},
        {"line end", {.key = "a", .s = {"a\nb", 3}}, "a=\"a\\nb\""},
        {"NUL", {.key = "a", .s = {"a\0b", 3}}, "a=\"a\\u0000b\""},
        {"escape sequence", {.key = "a", .s = {"\x1b[31m", 5}}, "a=\"\\u001b[31m\""},
        {"UTF-8", {.key = "a", .s = {"\xc3\xa9", 2}}, "a=\"\xc3\xa9\""},
        {"not UTF-8", {.key = "a", .s = {"\xff", 1}}, "a=\"\xef\xbf\xbd\""},
        {"bad key", {.key = "a b=\"c\n", .kind = OB_KV_INT, .i = 1}, "a_b__c_=1"},
    };
    struct sink s;
    struct ob_log log = open_log(&s, OB_LOG_LOGFMT);

    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        char want[256];

        snprintf(want, sizeof(want), HEAD " %s\n", cases[i].want);
        ob_log_write(&log, OB_LOG_INFO, "relay.start", &cases[i].kv, 1);
        row_str(cases[i].name, "line", ob_str_c(next_line(&s)), ob_str_c(want));
    }
    close_log(&s);
}

static void test_pipeline_and_shard(void **state)
{
    struct sink s;
    struct ob_log log = open_log(&s, OB_LOG_LOGFMT);

    (void)state;
    ob_log(&log, OB_LOG_WARN, "sink.retry");
    assert_string_equal(next_line(&s), "ts=2026-02-03T04:05:06.789Z level=warn msg=sink.retry\n");
    log.pipeline = "orders";
    log.shard = 0;
    ob_log(&log, OB_LOG_INFO, "relay.start", OB_KI("n", 3));
    assert_string_equal(next_line(&s), HEAD " pipeline=orders shard=0 n=3\n");
    ob_log(&log, OB_LOG_INFO, "relay.start", OB_KC("pipeline", "own"), OB_KI("shard", 7));
    assert_string_equal(next_line(&s), HEAD " pipeline=own shard=7\n");
    close_log(&s);
}

static void test_json(void **state)
{
    struct sink s;
    struct ob_log log = open_log(&s, OB_LOG_JSON);
    const char *line;
    json_t *doc;

    (void)state;
    log.pipeline = "or\"ders";
    log.shard = 2;
    ob_log(&log, OB_LOG_ERROR, "sink.down", OB_KC("why", "refused\n\xff"), OB_KI("n", -1),
           OB_KB("again", true), OB_KC("none", NULL), OB_KS("nul", OB_STR("a\0b")),
           OB_KC("odd \"key\"", ""));
    line = next_line(&s);
    assert_int_equal(strchr(line, '\n') - line, (ptrdiff_t)strlen(line) - 1);
    doc = json_loads(line, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(doc);
    assert_int_equal(json_object_size(doc), 11);
    assert_string_equal(json_string_value(json_object_get(doc, "ts")), "2026-02-03T04:05:06.789Z");
    assert_string_equal(json_string_value(json_object_get(doc, "level")), "error");
    assert_string_equal(json_string_value(json_object_get(doc, "msg")), "sink.down");
    assert_string_equal(json_string_value(json_object_get(doc, "pipeline")), "or\"ders");
    assert_int_equal(json_integer_value(json_object_get(doc, "shard")), 2);
    assert_string_equal(json_string_value(json_object_get(doc, "why")), "refused\n\xef\xbf\xbd");
    assert_int_equal(json_integer_value(json_object_get(doc, "n")), -1);
    assert_true(json_is_true(json_object_get(doc, "again")));
    assert_true(json_is_null(json_object_get(doc, "none")));
    assert_int_equal(json_string_length(json_object_get(doc, "nul")), 3);
    assert_string_equal(json_string_value(json_object_get(doc, "odd \"key\"")), "");
    json_decref(doc);
    close_log(&s);
}

static void test_levels(void **state)
{
    static const struct {
        const char *name;
        enum ob_log_level of_log, of_line;
        bool written;
    } cases[] = {
        {"debug at debug", OB_LOG_DEBUG, OB_LOG_DEBUG, true},
        {"debug at info", OB_LOG_INFO, OB_LOG_DEBUG, false},
        {"info at info", OB_LOG_INFO, OB_LOG_INFO, true},
        {"warn at error", OB_LOG_ERROR, OB_LOG_WARN, false},
        {"error at error", OB_LOG_ERROR, OB_LOG_ERROR, true},
        {"error at off", OB_LOG_OFF, OB_LOG_ERROR, false},
        {"off is no level of a line", OB_LOG_DEBUG, OB_LOG_OFF, false},
    };
    struct sink s;
    struct ob_log log = open_log(&s, OB_LOG_LOGFMT);
    enum ob_log_level level = OB_LOG_WARN;

    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        log.level = cases[i].of_log;
        ob_log(&log, cases[i].of_line, "x", OB_KI("n", 1));
        row_int(cases[i].name, "written", *next_line(&s) != '\0', cases[i].written);
    }
    ob_log(NULL, OB_LOG_ERROR, "nobody listens", OB_KI("n", 1));
    assert_int_equal(ob_log_level_parse("debug", &level), 0);
    assert_int_equal(level, OB_LOG_DEBUG);
    assert_int_equal(ob_log_level_parse("off", &level), 0);
    assert_int_equal(level, OB_LOG_OFF);
    assert_int_equal(ob_log_level_parse("INFO", &level), -1);
    assert_int_equal(ob_log_level_parse("", &level), -1);
    assert_int_equal(ob_log_level_parse(NULL, &level), -1);
    assert_int_equal(level, OB_LOG_OFF);
    close_log(&s);
}

/* Cut between characters, and said so. */
static void test_long_value(void **state)
{
    struct sink s;
    struct ob_log log = open_log(&s, OB_LOG_JSON);
    char text[3000];

    (void)state;
    for (size_t shift = 0; shift < 4; shift++) {
        const char *value;
        json_t *doc;

        memset(text, 'x', sizeof(text));
        for (size_t at = shift; at + 4 <= sizeof(text); at += 4)
            memcpy(text + at, "\xf0\x9f\x98\x80", 4);
        ob_log(&log, OB_LOG_INFO, "x", OB_KS("v", ((struct ob_str){text, sizeof(text)})));
        doc = json_loads(next_line(&s), 0, NULL);
        assert_non_null(doc);
        value = json_string_value(json_object_get(doc, "v"));
        assert_int_equal(strlen(value), (shift ? 1020 + shift : 1024) + 3);
        assert_string_equal(value + strlen(value) - 3, "\xe2\x80\xa6");
        assert_null(json_object_get(doc, "cut"));
        json_decref(doc);
    }
    memset(text, 'x', sizeof(text));
    ob_log(&log, OB_LOG_INFO, "x", OB_KS("v", ((struct ob_str){text, 1024})));
    assert_null(strstr(next_line(&s), "\xe2\x80\xa6")); /* exactly 1 KiB is whole */
    close_log(&s);
}

/* Whatever the sizes, a line is JSON, at most 8 KiB, and says if pairs are missing. */
static void test_long_line(void **state)
{
    struct sink s;
    struct ob_log log = open_log(&s, OB_LOG_JSON);
    char text[1024];
    bool whole_seen = false, cut_seen = false;

    (void)state;
    memset(text, 'y', sizeof(text));
    for (size_t size = 300; size < 1024; size += 1) {
        struct ob_kv kv[14];
        char keys[14][4];
        const char *line;
        json_t *doc;
        size_t n = 0;

        for (size_t i = 0; i < ROWS(kv); i++) {
            snprintf(keys[i], sizeof(keys[i]), "k%zu", i);
            kv[i] = OB_KS(keys[i], ((struct ob_str){text, size}));
        }
        ob_log_write(&log, OB_LOG_INFO, "x", kv, ROWS(kv));
        line = next_line(&s);
        assert_true(strlen(line) <= 8192);
        doc = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(doc);
        while (n < ROWS(kv) && json_object_get(doc, keys[n]))
            n++;
        assert_int_equal(json_is_true(json_object_get(doc, "cut")), n < ROWS(kv));
        assert_true(n == ROWS(kv) || strlen(line) + size > 8192 - 32); /* as many as fit */
        whole_seen |= n == ROWS(kv);
        cut_seen |= n < ROWS(kv);
        json_decref(doc);
    }
    assert_true(whole_seen && cut_seen);
    close_log(&s);
}

static void test_all_escaped(void **state)
{
    static const char zeros[1024];
    struct sink s;
    struct ob_log log = open_log(&s, OB_LOG_LOGFMT);
    const char *line;

    (void)state;
    ob_log(&log, OB_LOG_INFO, "x", OB_KS("a", ((struct ob_str){zeros, sizeof(zeros)})),
           OB_KS("b", ((struct ob_str){zeros, sizeof(zeros)})), OB_KI("c", 1));
    line = next_line(&s);
    assert_non_null(strstr(line, " a=\"\\u0000"));
    assert_null(strstr(line, " b="));
    assert_string_equal(line + strlen(line) - 10, " cut=true\n");
    close_log(&s);
}

static void test_errno_and_dead_descriptor(void **state)
{
    struct ob_log log = {.fd = -1, .shard = -1};

    (void)state;
    errno = ENOSPC;
    ob_log(&log, OB_LOG_ERROR, "x", OB_KI("n", 1));
    assert_int_equal(errno, ENOSPC);
}

#define WRITERS 4
#define LINES 500

struct writer {
    const struct ob_log *log;
    int number;
};

static void *write_lines(void *arg)
{
    struct writer *w = arg;
    char text[200];

    memset(text, 'a' + w->number, sizeof(text));
    for (int i = 0; i < LINES; i++)
        ob_log(w->log, OB_LOG_INFO, "x", OB_KI("writer", w->number), OB_KI("i", i),
               OB_KS("t", ((struct ob_str){text, sizeof(text)})));
    return NULL;
}

/* Lines of several threads in one file: all whole, those of one thread in order. */
static void test_threads(void **state)
{
    FILE *file = tmpfile();
    struct ob_log log = {.format = OB_LOG_JSON, .shard = -1};
    struct writer writers[WRITERS];
    pthread_t threads[WRITERS];
    int next[WRITERS] = {0}, lines = 0;
    char line[1024];

    (void)state;
    assert_non_null(file);
    log.fd = fileno(file);
    assert_int_equal(fcntl(log.fd, F_SETFL, fcntl(log.fd, F_GETFL) | O_APPEND), 0);
    for (int i = 0; i < WRITERS; i++) {
        writers[i] = (struct writer){&log, i};
        assert_int_equal(pthread_create(&threads[i], NULL, write_lines, &writers[i]), 0);
    }
    for (int i = 0; i < WRITERS; i++)
        pthread_join(threads[i], NULL);
    rewind(file);
    while (fgets(line, sizeof(line), file)) {
        json_t *doc = json_loads(line, 0, NULL);
        json_int_t w;

        assert_non_null(doc);
        w = json_integer_value(json_object_get(doc, "writer"));
        assert_in_range(w, 0, WRITERS - 1);
        assert_int_equal(json_integer_value(json_object_get(doc, "i")), next[w]++);
        json_decref(doc);
        lines++;
    }
    assert_int_equal(lines, WRITERS * LINES);
    fclose(file);
}

/* One packet of the pipe is one write(2). */
static void test_one_write(void **state)
{
    struct sink s;
    struct ob_log log = open_log(&s, OB_LOG_LOGFMT);
    char got[4096];
    ssize_t n;

    (void)state;
    ob_log(&log, OB_LOG_INFO, "a", OB_KI("n", 1), OB_KC("t", "some text"));
    ob_log(&log, OB_LOG_INFO, "b", OB_KI("n", 2));
    n = read(s.fds[0], got, sizeof(got));
    assert_true(n > 1 && got[n - 1] == '\n' && memchr(got, '\n', (size_t)n) == got + n - 1);
    n = read(s.fds[0], got, sizeof(got));
    assert_true(n > 1 && got[n - 1] == '\n');
    assert_int_equal(read(s.fds[0], got, sizeof(got)), -1);
    close_log(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logfmt),      cmocka_unit_test(test_pipeline_and_shard),
        cmocka_unit_test(test_json),        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_long_value),  cmocka_unit_test(test_long_line),
        cmocka_unit_test(test_all_escaped), cmocka_unit_test(test_errno_and_dead_descriptor),
        cmocka_unit_test(test_threads),     cmocka_unit_test(test_one_write),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
