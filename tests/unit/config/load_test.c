/* SPDX-License-Identifier: Apache-2.0 */
/* load_test - one table, one map: values, defaults, every kind of mistake, what explain shows. */
#include "config/load.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

struct conf {
    const char *path, *note, *password;
    bool sync;
    int64_t size, wait, count, share;
    int mode;
    struct ob_opt_map props, tokens;
    struct ob_opt_list hosts;
    const struct ob_node *tree;
};

#define FIELD(f) .offset = offsetof(struct conf, f)
static const struct ob_opt table[] = {
    {.type = OB_OPT_STR,
     .name = "path",
     FIELD(path),
     .flags = OB_OPT_REQUIRED,
     .help = "the file."},
    {.type = OB_OPT_STR, .name = "note", FIELD(note)},
    {.type = OB_OPT_STR, .name = "password", FIELD(password), .flags = OB_OPT_SECRET},
    {.type = OB_OPT_BOOL, .name = "sync", .def = "yes", FIELD(sync)},
    {.type = OB_OPT_BYTES, .name = "size", .def = "1M", FIELD(size), .min = 1024, .max = 1 << 30},
    {.type = OB_OPT_MS, .name = "wait", .def = "5s", FIELD(wait), .min = 100, .max = 60000},
    {.type = OB_OPT_INT, .name = "count", .def = "3", FIELD(count)},
    {.type = OB_OPT_PCT, .name = "share", .def = "20%", FIELD(share), .min = 0, .max = 100},
    {.type = OB_OPT_ENUM, .name = "mode", .def = "wal", .choices = "log|wal|rows", FIELD(mode)},
    {.type = OB_OPT_MAP, .name = "props", FIELD(props), .hide = "secret|key.pem"},
    {.type = OB_OPT_MAP, .name = "tokens", FIELD(tokens), .flags = OB_OPT_SECRET},
    {.type = OB_OPT_LIST, .name = "hosts", .def = "localhost", FIELD(hosts)},
    {.type = OB_OPT_NODE, .name = "tree", FIELD(tree)},
    {0},
};

struct run {
    struct ob_arena *arena;
    struct ob_problems problems;
    struct ob_explain explain;
    struct ob_loader l;
    struct conf conf;
};

/* Loads `text` (NULL: no map at all) as the section "app". */
static void run(struct run *r, const char *text)
{
    struct ob_err err = {0};
    struct ob_node *root = NULL;
    static const struct ob_opt_pos where = {"f", 9, 1};
    memset(r, 0, sizeof(*r));
    r->arena = ob_arena_new(4096, 1 << 22);
    if (text) {
        enum ob_status st = ob_yaml_parse(r->arena, "f", ob_str_c(text), NULL, &root, &err);
        assert_string_equal(err.text, "");
        assert_int_equal(st, OB_OK);
    }
    ob_explain_init(&r->explain, r->arena);
    r->l = (struct ob_loader){r->arena, &r->problems, &r->explain, NULL, NULL};
    const struct ob_opt_part part = {table, &r->conf};
    ob_load_parts(&r->l, "app", 0, root, &where, &part, 1);
}

static void check_problems(struct run *r, const char *want)
{
    struct ob_err err = {0};
    struct ob_buf all;
    ob_buf_init(&all, 0);
    enum ob_status st = ob_problems_end(&r->problems, &all, &err);
    assert_string_equal(ob_buf_z(&all), want);
    assert_int_equal(st, *want ? OB_FATAL : OB_OK);
    ob_buf_clear(&all);
    ob_arena_unref(r->arena);
}

static const struct {
    const char *name, *text, *want;
} bad[] = {
    {"no map", NULL, "f:9:1: app: 'path' is missing: the file."},
    {"a null map", "~", "f:9:1: app: 'path' is missing: the file."},
    {"text for a map", "hello", "f:1:1: app: needs a map, here is text"},
    {"a list for a map", "[a]", "f:1:1: app: needs a map, here is a list"},
    {"missing", "note: x", "f:1:1: app: 'path' is missing: the file."},
    {"null counts as missing", "path: ~", "f:1:7: app.path has no value: the file."},
    {"an empty value counts as missing", "path:", "f:1:6: app.path has no value: the file."},
    {"the word null", "path: null",
     "f:1:7: app.path has no value: null without quotes is YAML's null; write \"null\" for the "
     "text: the file."},
    {"unknown, near", "path: x\npaht: y", "f:2:1: unknown key 'paht' in app; did you mean 'path'?"},
    {"unknown, near a _file", "path: x\npasword_file: y",
     "f:2:1: unknown key 'pasword_file' in app; did you mean 'password_file'?"},
    {"unknown, far", "path: x\nzzzzzzzz: y",
     "f:2:1: unknown key 'zzzzzzzz' in app; known: path, note, password, password_file, sync, "
     "size, "
     "wait, count, share, mode, props, tokens, hosts, tree"},
    {"no _file for what is no secret", "path_file: x\npath: y",
     "f:1:1: unknown key 'path_file' in app; known: path, note, password, password_file, sync, "
     "size, wait, count, share, mode, props, tokens, hosts, tree"},
    {"no _file for a secret map", "path: y\ntokens_file: x",
     "f:2:1: unknown key 'tokens_file' in app; known: path, note, password, password_file, sync, "
     "size, wait, count, share, mode, props, tokens, hosts, tree"},
    {"a map for text", "path: {a: 1}", "f:1:7: app.path: needs text, here is a map"},
    {"a list for text", "path: [a]", "f:1:7: app.path: needs text, here is a list"},
    {"a list for a number", "path: x\ncount: [1]", "f:2:8: app.count: needs text, here is a list"},
    {"text for a map of text", "path: x\nprops: y", "f:2:8: app.props: needs a map, here is text"},
    {"a map for a list", "path: x\nhosts: {a: b}", "f:2:8: app.hosts: needs a list, here is a map"},
    {"deep map", "path: x\nprops: {a: b, c: {d: e}}",
     "f:2:18: app.props.c: needs text, here is a map"},
    {"deep list", "path: x\nhosts: [a, [b]]", "f:2:12: app.hosts[1]: needs text, here is a list"},
    {"no number", "path: x\ncount: three", "f:2:8: app.count: 'three' is no whole number"},
    {"a fraction", "path: x\ncount: 1.5", "f:2:8: app.count: '1.5' is no whole number"},
    {"empty number", "path: x\ncount: ''", "f:2:8: app.count: '' is no whole number"},
    {"too large", "path: x\ncount: 99999999999999999999",
     "f:2:8: app.count: 99999999999999999999 is too large"},
    {"no duration", "path: x\nwait: 5 seconds",
     "f:2:7: app.wait: '5 seconds' is no duration; write 250ms, 5s, 2m, 1h or 7d"},
    {"too short", "path: x\nwait: 99",
     "f:2:7: app.wait: 99 is out of range; allowed is 100ms to 1m"},
    {"too long", "path: x\nwait: 61s",
     "f:2:7: app.wait: 61s is out of range; allowed is 100ms to 1m"},
    {"far too long", "path: x\nwait: 99999999999999999999d",
     "f:2:7: app.wait: 99999999999999999999d is out of range; allowed is 100ms to 1m"},
    {"no size", "path: x\nsize: big",
     "f:2:7: app.size: 'big' is no size; write 4096, 64k, 16M or 1G"},
    {"too small", "path: x\nsize: 1", "f:2:7: app.size: 1 is out of range; allowed is 1k to 1G"},
    {"no share", "path: x\nshare: much",
     "f:2:8: app.share: 'much' is no share; write 20% or a factor like 1.5"},
    {"a factor for percent", "path: x\nshare: 20",
     "f:2:8: app.share: 20 is out of range; allowed is 0% to 100%"},
    {"no bool", "path: x\nsync: maybe", "f:2:7: app.sync: 'maybe' is neither true nor false"},
    {"no choice, near", "path: x\nmode: row",
     "f:2:7: app.mode: 'row' is none of log|wal|rows; did you mean 'rows'?"},
    {"no choice, far", "path: x\nmode: binlog",
     "f:2:7: app.mode: 'binlog' is none of log|wal|rows"},
    {"no file", "path: x\npassword_file: /nonexistent/p",
     "f:2:16: app.password_file: /nonexistent/p: cannot open: No such file or directory"},
    {"a folder", "path: x\npassword_file: /",
     "f:2:16: app.password_file: /: cannot read: Is a directory"},
    {"a list of files", "path: x\npassword_file: [a]",
     "f:2:16: app.password_file: needs text, here is a list"},
    {"both", "path: x\npassword: p\npassword_file: q",
     "f:3:16: app.password and password_file are both given; keep one of them"},
    {"several, in the order of the file", "wait: 1\nnope_nope: 2\nmode: x\ncount: y\n",
     "f:1:1: app: 'path' is missing: the file.\n"
     "f:1:7: app.wait: 1 is out of range; allowed is 100ms to 1m\n"
     "f:2:1: unknown key 'nope_nope' in app; known: path, note, password, password_file, sync, "
     "size, wait, count, share, mode, props, tokens, hosts, tree\n"
     "f:3:7: app.mode: 'x' is none of log|wal|rows\n"
     "f:4:8: app.count: 'y' is no whole number"},
};

static void test_bad(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct run r;
        print_message("# %s\n", bad[i].name);
        run(&r, bad[i].text);
        check_problems(&r, bad[i].want);
    }
}

static void test_many_problems(void **state)
{
    (void)state;
    struct ob_buf text, all;
    struct ob_err err = {0};
    struct run r;
    ob_buf_init(&text, 0);
    ob_buf_init(&all, 0);
    ob_buf_c(&text, "path: x\n");
    for (int i = 0; i < 25; i++)
        ob_buf_printf(&text, "unknown_key_number_%02d: x\n", i);
    run(&r, ob_buf_z(&text));
    assert_int_equal(ob_problems_end(&r.problems, &all, &err), OB_FATAL);
    size_t lines = 1;
    for (const char *p = ob_buf_z(&all); *p; p++)
        lines += *p == '\n';
    assert_int_equal(lines, 11);
    assert_non_null(strstr(ob_buf_z(&all), "\n(and 15 more)"));
    /* The short form has whole lines only, and says how many are left out. */
    assert_true(strlen(err.text) < sizeof(err.text) - 1);
    assert_non_null(strstr(err.text, "f:2:1: unknown key 'unknown_key_number_00'"));
    unsigned left = 0;
    const char *tail = strrchr(err.text, '\n');
    assert_non_null(tail);
    assert_int_equal(sscanf(tail, "\n(and %u more)", &left), 1);
    lines = 0;
    for (const char *p = err.text; *p; p++)
        lines += *p == '\n';
    assert_int_equal(lines + left, 25);
    ob_buf_clear(&text);
    ob_buf_clear(&all);
    ob_arena_unref(r.arena);
}

static void test_defaults(void **state)
{
    (void)state;
    struct run r;
    run(&r, "path: x\nsync:\nwait: ~\n");
    assert_string_equal(r.conf.path, "x");
    assert_null(r.conf.note);
    assert_null(r.conf.password);
    assert_true(r.conf.sync);
    assert_int_equal(r.conf.size, 1 << 20);
    assert_int_equal(r.conf.wait, 5000);
    assert_int_equal(r.conf.count, 3);
    assert_int_equal(r.conf.share, 20);
    assert_int_equal(r.conf.mode, 1);
    assert_int_equal(r.conf.props.n, 0);
    assert_int_equal(r.conf.hosts.n, 1);
    assert_string_equal(r.conf.hosts.values[0], "localhost");
    assert_null(r.conf.hosts.pos[0].file);
    assert_null(r.conf.tree);
    check_problems(&r, "");
}

static void test_values(void **state)
{
    (void)state;
    struct run r;
    run(&r, "path: 007\nnote: ''\npassword: s3cret\nsync: off\nsize: 64k\nwait: 1.5s\ncount: -4\n"
            "share: 0.5\nmode: rows\nprops: {z: 1, a.b: two}\nhosts: [a, b]\ntree: {x: [1]}\n");
    assert_string_equal(r.conf.path, "007");
    assert_string_equal(r.conf.note, "");
    assert_string_equal(r.conf.password, "s3cret");
    assert_false(r.conf.sync);
    assert_int_equal(r.conf.size, 65536);
    assert_int_equal(r.conf.wait, 1500);
    assert_int_equal(r.conf.count, -4);
    assert_int_equal(r.conf.share, 50);
    assert_int_equal(r.conf.mode, 2);
    assert_int_equal(r.conf.props.n, 2);
    assert_string_equal(r.conf.props.keys[0], "z"); /* in file order */
    assert_string_equal(r.conf.props.keys[1], "a.b");
    assert_string_equal(r.conf.props.values[1], "two");
    assert_int_equal(r.conf.props.pos[1].line, 10);
    assert_int_equal(r.conf.props.pos[1].column, 20);
    assert_int_equal(r.conf.hosts.n, 2);
    assert_string_equal(r.conf.hosts.values[1], "b");
    assert_int_equal(ob_node_get(r.conf.tree, "x")->n, 1);
    check_problems(&r, "");
    run(&r, "path: x\nhosts: alone\n");
    assert_int_equal(r.conf.hosts.n, 1);
    assert_string_equal(r.conf.hosts.values[0], "alone");
    check_problems(&r, "");
}

static void write_file(const char *file, const void *p, size_t n)
{
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void test_secret_file(void **state)
{
    (void)state;
    static const struct {
        const char *name, *bytes;
        size_t n;
        const char *want, *problem; /* one of them */
    } rows[] = {
        {"no newline", "pw", 2, "pw", NULL},
        {"one newline goes", "pw\n", 3, "pw", NULL},
        {"only one", "pw\n\n", 4, "pw\n", NULL},
        {"as Windows writes", "pw\r\n", 4, "pw", NULL},
        {"spaces stay", " p w ", 5, " p w ", NULL},
        {"empty", "", 0, NULL, "is empty"},
        {"only a newline", "\n", 1, NULL, "is empty"},
        {"binary", "p\0w", 3, NULL, "holds a NUL character"},
    };
    char file[] = "/tmp/ob-secret-XXXXXX", text[128], want[256];
    int fd = mkstemp(file);
    assert_true(fd >= 0);
    close(fd);
    snprintf(text, sizeof(text), "path: x\npassword_file: %s\n", file);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct run r;
        print_message("# %s\n", rows[i].name);
        write_file(file, rows[i].bytes, rows[i].n);
        run(&r, text);
        if (rows[i].want)
            assert_string_equal(r.conf.password, rows[i].want);
        want[0] = '\0';
        if (rows[i].problem)
            snprintf(want, sizeof(want), "f:2:16: app.password_file: %s %s", file, rows[i].problem);
        check_problems(&r, want);
    }
    char *big = calloc(1, OB_YAML_MAX_BYTES);
    assert_non_null(big);
    memset(big, 'x', OB_YAML_MAX_BYTES);
    write_file(file, big, (64 << 10) + 1);
    free(big);
    struct run r;
    run(&r, text);
    snprintf(want, sizeof(want),
             "f:2:16: app.password_file: %s: larger than 64 KiB; this cannot be a secret", file);
    check_problems(&r, want);
    unlink(file);
}

/* A profile's text yields to the user's file, and the other way round. */
static void test_secret_over_profile(void **state)
{
    (void)state;
    char file[] = "/tmp/ob-secret-XXXXXX", user[128];
    int fd = mkstemp(file);
    assert_true(fd >= 0);
    close(fd);
    write_file(file, "from-file", 9);
    snprintf(user, sizeof(user), "path: x\npassword_file: %s\n", file);
    for (int user_has_file = 0; user_has_file < 2; user_has_file++) {
        const char *plain = "path: x\npassword: plain\n";
        struct ob_arena *arena = ob_arena_new(4096, 1 << 20);
        struct ob_problems problems = {.n = 0};
        struct ob_loader l = {arena, &problems, NULL, "profile", NULL};
        struct ob_node *base = NULL, *own = NULL;
        struct conf conf = {0};
        struct ob_err err;
        const struct ob_opt_part part = {table, &conf};
        const char *texts[] = {user_has_file ? plain : user, user_has_file ? user : plain};
        assert_int_equal(ob_yaml_parse(arena, "profile", ob_str_c(texts[0]), NULL, &base, &err), 0);
        assert_int_equal(ob_yaml_parse(arena, "own", ob_str_c(texts[1]), NULL, &own, &err), 0);
        ob_load_parts(&l, "app", 0, ob_node_merge(arena, base, own), NULL, &part, 1);
        assert_int_equal(ob_problems_end(&problems, NULL, &err), OB_OK);
        assert_string_equal(conf.password, user_has_file ? "from-file" : "plain");
        ob_arena_unref(arena);
    }
    unlink(file);
}

static void test_secrets_stay_hidden(void **state)
{
    (void)state;
    static const struct ob_opt numbers[] = {
        {.type = OB_OPT_INT,
         .name = "pin",
         .offset = 0,
         .min = 1,
         .max = 9,
         .flags = OB_OPT_SECRET},
        {0},
    };
    struct run r;
    struct ob_buf out;
    ob_buf_init(&out, 0);
    run(&r, "path: x\npassword: hunter2\ntokens: {a: hunter2, b: hunter2}\n"
            "props: {client.Secret: hunter2, key.pem: hunter2, key.file: shown1, last: shown2}\n");
    ob_explain_yaml(&r.explain, &out);
    ob_explain_json(&r.explain, &out);
    assert_null(strstr(ob_buf_z(&out), "hunter2"));
    assert_non_null(strstr(ob_buf_z(&out), "password: (hidden)"));
    assert_non_null(strstr(ob_buf_z(&out), "client.Secret: (hidden)"));
    assert_non_null(strstr(ob_buf_z(&out), "\"app.props.key.pem\",\"value\":\"(hidden)\""));
    assert_non_null(strstr(ob_buf_z(&out), "key.file: shown1"));
    assert_non_null(strstr(ob_buf_z(&out), "last: shown2"));
    assert_non_null(strstr(ob_buf_z(&out), "\"app.tokens.b\",\"value\":\"(hidden)\""));
    check_problems(&r, "");
    int64_t pin = 0;
    struct ob_arena *arena = ob_arena_new(4096, 1 << 20);
    struct ob_node *root = NULL;
    struct ob_err err = {0};
    assert_int_equal(ob_yaml_parse(arena, "f", OB_STR("pin: 4711"), NULL, &root, &err), OB_OK);
    assert_int_equal(ob_opt_load(numbers, root, &pin, arena, &err), OB_FATAL);
    assert_string_equal(err.text, "f:1:6: pin: (hidden) is out of range; allowed is 1 to 9");
    ob_arena_unref(arena);
    ob_buf_clear(&out);
}

static void test_explain(void **state)
{
    (void)state;
    struct run r;
    struct ob_buf out;
    ob_buf_init(&out, 0);
    run(&r, "path: \"a b\"\nwait: 2s\nprops: {k: v, e: ''}\nhosts: [h1, h2]\n");
    ob_explain_yaml(&r.explain, &out);
    assert_string_equal(ob_buf_z(&out),
                        "path: \"a b\"                                  # from f:1:7\n"
                        "note: ~                                      # not set\n"
                        "password: ~                                  # not set\n"
                        "sync: yes                                    # default\n"
                        "size: 1M                                     # default\n"
                        "wait: 2s                                     # from f:2:7\n"
                        "count: 3                                     # default\n"
                        "share: 20%                                   # default\n"
                        "mode: wal                                    # default\n"
                        "props:\n"
                        "  k: v                                       # from f:3:12\n"
                        "  e: \"\"                                      # from f:3:18\n"
                        "tokens: ~                                    # not set\n"
                        "hosts:\n"
                        "  - h1                                       # from f:4:9\n"
                        "  - h2                                       # from f:4:13\n");
    ob_buf_reset(&out);
    ob_explain_json(&r.explain, &out);
    assert_non_null(strstr(ob_buf_z(&out),
                           "[{\"path\":\"app.path\",\"value\":\"a b\",\"from\":\"f:1:7\"},"
                           "{\"path\":\"app.note\",\"value\":null,"));
    assert_non_null(
        strstr(ob_buf_z(&out), "{\"path\":\"app.count\",\"value\":3,\"from\":\"default\"}"));
    assert_non_null(strstr(ob_buf_z(&out),
                           "{\"path\":\"app.hosts[1]\",\"value\":\"h2\",\"from\":\"f:4:13\"}]"));
    ob_buf_clear(&out);
    check_problems(&r, "");
}

/* A tree as it is shown reads back as the same tree. */
static bool same(const struct ob_node *a, const struct ob_node *b, bool literal)
{
    if (a->kind != b->kind || a->n != b->n)
        return false;
    if (a->kind == OB_NODE_SCALAR)
        return ob_node_is_null(a) ? ob_node_is_null(b)
                                  : strcmp(a->text, b->text) == 0 && !ob_node_is_null(b) &&
                                        (!literal || a->quoted == b->quoted);
    for (size_t i = 0; i < a->n; i++)
        if ((a->kind == OB_NODE_MAP && strcmp(a->keys[i], b->keys[i]) != 0) ||
            !same(a->items[i], b->items[i], literal))
            return false;
    return true;
}

static void test_explain_reads_back(void **state)
{
    (void)state;
    static const char text[] = "x:\n"
                               "  - {match: {type: \"a*\"}, n: 1, t: \"1\", z: ~, q: \"~\"}\n"
                               "  - [[a, b], [], {}, [c, {d: e, f: [g]}]]\n"
                               "  - \"line\\nbreak \\\"q\\\" ${f} $${g} # no\"\n"
                               "  - '- dash'\n"
                               "  - -1\n"
                               "  - \"\\x7f \\x85 \\x9f \\u2028\\u2029 \\ufffe\\uffff \\u20ac\"\n"
                               "  - {\"odd key: \": null, '': x, \"null\": \"null\"}\n";
    for (int literal = 0; literal < 2; literal++) {
        struct ob_arena *arena = ob_arena_new(4096, 1 << 20);
        struct ob_node *root = NULL, *back = NULL;
        struct ob_err err = {0};
        struct ob_explain e;
        struct ob_buf out;
        const struct ob_yaml_env env = {.expand = !literal};
        ob_buf_init(&out, 0);
        assert_int_equal(ob_yaml_parse(arena, "f", ob_str_c(text), NULL, &root, &err), OB_OK);
        ob_explain_init(&e, arena);
        ob_explain_node(&e, "x", "x", 0, ob_node_get(root, "x"), literal, NULL);
        ob_explain_yaml(&e, &out);
        enum ob_status st = ob_yaml_parse(arena, "f", ob_buf_view(&out), &env, &back, &err);
        assert_string_equal(err.text, "");
        assert_int_equal(st, OB_OK);
        assert_true(same(root, back, literal));
        ob_buf_clear(&out);
        ob_arena_unref(arena);
    }
}

static void test_no_memory(void **state)
{
    (void)state;
    unsigned loaded = 0, refused = 0;
    for (size_t ceiling = 16; ceiling < 2048; ceiling += 16) {
        struct ob_arena *big = ob_arena_new(4096, 1 << 20), *arena = ob_arena_new(256, ceiling);
        struct ob_node *root = NULL;
        struct conf conf = {0};
        struct ob_err err = {0};
        assert_int_equal(ob_yaml_parse(big, "f", OB_STR("path: x\nhosts: [a, b]\nprops: {a: b}"),
                                       NULL, &root, &err),
                         OB_OK);
        enum ob_status st = arena ? ob_opt_load(table, root, &conf, arena, &err) : OB_FATAL;
        if (st == OB_OK) {
            assert_string_equal(conf.hosts.values[1], "b");
            loaded++;
        } else if (arena) {
            assert_non_null(strstr(err.text, "no memory for the config"));
            refused++;
        }
        ob_arena_unref(arena);
        ob_arena_unref(big);
    }
    assert_true(loaded > 0 && refused > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_many_problems),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_secret_file),
        cmocka_unit_test(test_secret_over_profile),
        cmocka_unit_test(test_secrets_stay_hidden),
        cmocka_unit_test(test_explain),
        cmocka_unit_test(test_explain_reads_back),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
