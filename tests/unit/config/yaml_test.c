/* SPDX-License-Identifier: Apache-2.0 */
/* yaml_test - YAML to a tree: places, limits, refusals, variables. */
#include "config/node.h"
#include "core/buf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static const char *fake_env(void *user, const char *name)
{
    (void)user;
    if (strcmp(name, "SET") == 0)
        return "value";
    if (strcmp(name, "EMPTY") == 0)
        return "";
    if (strcmp(name, "NULLISH") == 0)
        return "~";
    return NULL;
}

static const char *const no_expand[] = {"pipelines.*.routes", "envelope", NULL};
static const struct ob_yaml_env env = {fake_env, NULL, true, no_expand};

static const struct {
    const char *name, *text, *want;
} bad[] = {
    {"empty", "", "f: the file is empty"},
    {"only a comment", "# nothing\n", "f: the file is empty"},
    {"duplicate key", "a: 1\nb: 2\na: 3\n",
     "f:3:1: duplicate key 'a'; it is already at line 1, column 1"},
    {"duplicate key in flow", "x: {k: 1, j: 2, \"k\": 3}",
     "f:1:17: duplicate key 'k'; it is already at line 1, column 5"},
    {"the first of several duplicates", "b: 1\na: 1\nb: 2\na: 2\n",
     "f:3:1: duplicate key 'b'; it is already at line 1, column 1"},
    {"three times", "a: 1\na: 2\na: 3\n",
     "f:2:1: duplicate key 'a'; it is already at line 1, column 1"},
    {"alias", "a: 1\nb: *x\n", "f:2:4: aliases ('*x') are not supported; write the value out"},
    {"alias as key", "*x : 1\n", "f:1:1: aliases ('*x') are not supported; write the value out"},
    {"anchor on text", "a: &x 1\n", "f:1:4: anchors ('&x') are not supported; remove it"},
    {"anchor on a map", "a: &x {b: 1}\n", "f:1:4: anchors ('&x') are not supported; remove it"},
    {"anchor on a list", "a: &x [1]\n", "f:1:4: anchors ('&x') are not supported; remove it"},
    {"tag", "a: !!int 3\n", "f:1:4: tags ('tag:yaml.org,2002:int') are not supported; remove it"},
    {"tag on a map", "a: !t {b: 1}\n", "f:1:4: tags ('!t') are not supported; remove it"},
    {"tag on a key", "!k a: 1\n", "f:1:1: tags ('!k') are not supported; remove it"},
    {"second document", "a: 1\n---\nb: 2\n", "f:2:1: a second document; only one is read"},
    {"key that is a map", "? {a: 1}\n: 2\n", "f:1:3: a key must be text, not a map or a list"},
    {"tab", "a:\n\tb: 1\n",
     "f:2:1: not valid YAML: found character that cannot start any token; indent with spaces, not "
     "tabs"},
    {"unclosed list", "a: [1, 2\n",
     "f:2:1: not valid YAML: did not find expected ',' or ']' (while parsing a flow sequence, line "
     "1)"},
    {"bad indentation", "a:\n  b: 1\n c: 2\n",
     "f:3:2: not valid YAML: did not find expected key (while parsing a block mapping, line 1)"},
    {"two colons", "a: b: c\n",
     "f:1:5: not valid YAML: mapping values are not allowed in this context"},
    {"not UTF-8", "a: 1\nb: \xff\xfe\n",
     "f:2:4: this is not UTF-8 text (invalid leading UTF-8 octet)"},
    {"control character", "a: 1\nbc: \x01\n",
     "f:2:5: this is not UTF-8 text (control characters are not allowed)"},
    {"escaped NUL", "a: \"x\\0y\"\n", "f:1:4: a NUL character is not allowed"},
    {"escaped NUL in a key", "\"x\\0y\": 1\n", "f:1:1: a NUL character is not allowed"},
    {"newline in a key", "a: 1\n\"b\\n\": 1\n\"b\\n\": 2\n",
     "f:3:1: duplicate key 'b?'; it is already at line 2, column 1"},
    {"unset variable", "a:\n  b: x${UNSET}y\n",
     "f:2:6: environment variable UNSET is not set; set it or write ${UNSET:-default}"},
    {"unset variable in a list", "a: [1, \"${UNSET}\"]\n",
     "f:1:8: environment variable UNSET is not set; set it or write ${UNSET:-default}"},
    {"no closing brace", "a: ${SET\n", "f:1:4: '${' has no '}'; write $${ for a literal ${"},
    {"no name", "a: x${}\n",
     "f:1:4: '${}' is no variable; write ${NAME} or ${NAME:-default}, or $${ for a literal ${"},
    {"a field is no variable", "a: ${payload:/x}\n",
     "f:1:4: '${payload:/x}' is no variable; write ${NAME} or ${NAME:-default}, or $${ for a "
     "literal ${"},
    {"a digit first", "a: ${1A}\n",
     "f:1:4: '${1A}' is no variable; write ${NAME} or ${NAME:-default}, or $${ for a literal ${"},
    {"default with a variable", "a: ${A:-${SET}}\n",
     "f:1:4: the default of ${A} cannot hold another ${...}"},
    {"a key named like a literal part elsewhere", "routes: ${UNSET}\n",
     "f:1:9: environment variable UNSET is not set; set it or write ${UNSET:-default}"},
};

static void test_bad(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct ob_arena *arena = ob_arena_new(4096, 1 << 20);
        struct ob_node *out = (struct ob_node *)&bad;
        struct ob_err err = {0};
        enum ob_status st = ob_yaml_parse(arena, "f", ob_str_c(bad[i].text), &env, &out, &err);
        print_message("# %s\n", bad[i].name);
        assert_int_equal(st, OB_FATAL);
        assert_int_equal(err.status, OB_FATAL);
        assert_string_equal(err.text, bad[i].want);
        assert_ptr_equal(out, &bad); /* untouched */
        ob_arena_unref(arena);
    }
}

static const struct {
    const char *name, *text, *want;
    bool null;
} scalars[] = {
    {"plain", "v: abc", "abc", false},
    {"a number is text", "v: 007", "007", false},
    {"a bool is text", "v: yes", "yes", false},
    {"octal is text", "v: 0o17", "0o17", false},
    {"nothing", "v:", "", true},
    {"tilde", "v: ~", "~", true},
    {"null", "v: null", "null", true},
    {"quoted null is text", "v: \"null\"", "null", false},
    {"quoted nothing is text", "v: ''", "", false},
    {"block", "v: |\n  one\n  two\n", "one\ntwo\n", false},
    {"folded", "v: >-\n  one\n  two\n", "one two", false},
    {"utf-8", "v: zażółć", "zażółć", false},
    {"byte order mark", "\xef\xbb\xbfv: x", "x", false},
    {"variable", "v: ${SET}", "value", false},
    {"variable in text", "v: a-${SET}-${SET}.b", "a-value-value.b", false},
    {"variable in single quotes", "v: '${SET}'", "value", false},
    {"default not needed", "v: ${SET:-other}", "value", false},
    {"default when unset", "v: ${UNSET:-dbname=shop}", "dbname=shop", false},
    {"default when empty", "v: ${EMPTY:-other}", "other", false},
    {"empty without default", "v: ${EMPTY}", "", false},
    {"empty default", "v: ${UNSET:-}", "", false},
    {"default with a colon", "v: \"${UNSET:-a:-b}\"", "a:-b", false},
    {"a variable never is null", "v: ${NULLISH}", "~", false},
    {"literal dollar brace", "v: $${SET}", "${SET}", false},
    {"dollars alone", "v: a$b$$c$", "a$b$$c$", false},
    {"not expanded again", "v: $${SET}${SET}", "${SET}value", false},
};

static void test_scalars(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(scalars) / sizeof(scalars[0]); i++) {
        struct ob_arena *arena = ob_arena_new(4096, 1 << 20);
        struct ob_node *root = NULL;
        struct ob_err err = {0};
        print_message("# %s\n", scalars[i].name);
        assert_int_equal(ob_yaml_parse(arena, "f", ob_str_c(scalars[i].text), &env, &root, &err),
                         OB_OK);
        const struct ob_node *v = ob_node_get(root, "v");
        assert_non_null(v);
        assert_int_equal(v->kind, OB_NODE_SCALAR);
        assert_string_equal(v->text, scalars[i].want);
        assert_int_equal(ob_node_is_null(v), scalars[i].null);
        ob_arena_unref(arena);
    }
}

static struct ob_node *parse(struct ob_arena *arena, const char *text, const struct ob_yaml_env *e)
{
    struct ob_node *root = NULL;
    struct ob_err err = {0};
    enum ob_status st = ob_yaml_parse(arena, "f", ob_str_c(text), e, &root, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(st, OB_OK);
    return root;
}

static void test_tree_and_places(void **state)
{
    (void)state;
    struct ob_arena *arena = ob_arena_new(4096, 1 << 20);
    struct ob_node *root = parse(arena, "log:\n  level: info\nlist:\n- ä: [x, {y: z}]\n", NULL);
    assert_int_equal(root->n, 2);
    assert_string_equal(root->keys[1], "list");
    assert_string_equal(root->pos.file, "f");
    const struct ob_node *level = ob_node_get(ob_node_get(root, "log"), "level");
    assert_int_equal(level->pos.line, 2);
    assert_int_equal(level->pos.column, 10);
    const struct ob_opt_pos *key = ob_node_key_pos(root, "list");
    assert_int_equal(key->line, 3);
    assert_int_equal(key->column, 1);
    const struct ob_node *flow = ob_node_get(ob_node_get(root, "list")->items[0], "ä");
    assert_int_equal(flow->n, 2);
    assert_int_equal(flow->items[1]->pos.line, 4);
    assert_int_equal(flow->items[1]->pos.column, 10); /* characters, not bytes */
    assert_string_equal(ob_node_get(flow->items[1], "y")->text, "z");
    assert_null(ob_node_get(root, "nope"));
    assert_null(ob_node_get(level, "x"));
    assert_null(ob_node_get(NULL, "x"));
    ob_arena_unref(arena);
}

static void test_templates_keep_their_fields(void **state)
{
    (void)state;
    struct ob_arena *arena = ob_arena_new(4096, 1 << 20);
    struct ob_node *root = parse(arena,
                                 "pipelines:\n  p:\n    routes:\n    - {topic: \"${type}\"}\n"
                                 "    sink: {path: \"${SET}\", routes: \"${SET}\"}\n"
                                 "envelope: {a: {b: \"$${x}\"}}\nz: ${SET}\n",
                                 &env);
    const struct ob_node *p = ob_node_get(ob_node_get(root, "pipelines"), "p");
    const struct ob_node *route = ob_node_get(p, "routes")->items[0];
    assert_string_equal(ob_node_get(route, "topic")->text, "${type}");
    assert_string_equal(ob_node_get(ob_node_get(p, "sink"), "path")->text, "value");
    assert_string_equal(ob_node_get(ob_node_get(p, "sink"), "routes")->text, "value");
    const struct ob_node *a = ob_node_get(ob_node_get(root, "envelope"), "a");
    assert_string_equal(ob_node_get(a, "b")->text, "$${x}");
    assert_string_equal(ob_node_get(root, "z")->text, "value");
    root = parse(arena, "z: ${SET}\n", NULL);
    assert_string_equal(ob_node_get(root, "z")->text, "${SET}");
    ob_arena_unref(arena);
}

static void repeat(struct ob_buf *buf, const char *text, size_t times)
{
    while (times--)
        ob_buf_c(buf, text);
}

/* Parses a generated text and checks the end of the message ("" for success). */
static void check_big(struct ob_buf *buf, size_t ceiling, const char *want)
{
    struct ob_arena *arena = ob_arena_new(64 << 10, ceiling);
    struct ob_node *root = NULL;
    struct ob_err err = {0};
    enum ob_status st = ob_yaml_parse(arena, "f", ob_buf_view(buf), &env, &root, &err);
    assert_string_equal(err.text, want);
    assert_int_equal(st, *want ? OB_FATAL : OB_OK);
    ob_arena_unref(arena);
    ob_buf_reset(buf);
}

static void test_limits(void **state)
{
    (void)state;
    struct ob_buf buf;
    ob_buf_init(&buf, 0);
    repeat(&buf, "[", 64);
    repeat(&buf, "]", 64);
    check_big(&buf, 0, "");
    repeat(&buf, "[", 65);
    repeat(&buf, "]", 65);
    check_big(&buf, 0, "f:1:65: nested deeper than 64 levels");
    repeat(&buf, "{a: ", 70);
    check_big(&buf, 0, "f:1:257: nested deeper than 64 levels");
    repeat(&buf, "[", 1000000);
    check_big(&buf, 0, "f:1:65: nested deeper than 64 levels");
    repeat(&buf, "- a\n", 99999);
    check_big(&buf, 0, "");
    repeat(&buf, "- a\n", 100000);
    check_big(&buf, 0, "f:100000:3: more than 100000 values");
    repeat(&buf, "# ten MiB of it\n", 10 << 16);
    check_big(&buf, 0, "f: larger than 1 MiB; this cannot be a config");
    repeat(&buf, "a", 1 << 20);
    check_big(&buf, 0, "");
    repeat(&buf, "- a\n", 90000);
    check_big(&buf, 1 << 20, "f: no memory for the config; it is too large");
    for (unsigned i = 0; i < 40000; i++)
        ob_buf_printf(&buf, "k%u: v\n", i);
    ob_buf_c(&buf, "k0: again\n");
    check_big(&buf, 0, "f:40001:1: duplicate key 'k0'; it is already at line 1, column 1");
    ob_buf_c(&buf, "a: ");
    repeat(&buf, "${SET}", 170000);
    check_big(&buf, 0, "");
    ob_buf_clear(&buf);
}

static void test_load(void **state)
{
    (void)state;
    char dir[] = "/tmp/ob-yaml-XXXXXX", file[64], want[160];
    assert_non_null(mkdtemp(dir));
    struct ob_arena *arena = ob_arena_new(4096, 1 << 20);
    struct ob_node *root = NULL;
    struct ob_err err = {0};
    snprintf(file, sizeof(file), "%s/c.yaml", dir);
    assert_int_equal(ob_yaml_load(arena, file, &env, &root, &err), OB_FATAL);
    snprintf(want, sizeof(want), "%s: cannot open: No such file or directory", file);
    assert_string_equal(err.text, want);
    assert_int_equal(ob_yaml_load(arena, dir, &env, &root, &err), OB_FATAL);
    snprintf(want, sizeof(want), "%s: cannot read: Is a directory", dir);
    assert_string_equal(err.text, want);
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    fputs("a: ${SET}\n", f);
    fclose(f);
    assert_int_equal(ob_yaml_load(arena, file, &env, &root, &err), OB_OK);
    assert_string_equal(ob_node_get(root, "a")->text, "value");
    f = fopen(file, "w");
    assert_non_null(f);
    for (int i = 0; i < 10 << 16; i++)
        fputs("- 16 bytes each\n", f);
    fclose(f);
    assert_int_equal(ob_yaml_load(arena, file, &env, &root, &err), OB_FATAL);
    snprintf(want, sizeof(want), "%s: larger than 1 MiB; this cannot be a config", file);
    assert_string_equal(err.text, want);
    unlink(file);
    rmdir(dir);
    ob_arena_unref(arena);
}

static void test_merge(void **state)
{
    (void)state;
    struct ob_arena *arena = ob_arena_new(4096, 1 << 20);
    struct ob_node *base = parse(arena, "a: {x: 1, y: 2}\nl: [1, 2]\ns: base\nm: {k: v}\n", NULL);
    struct ob_node *user =
        parse(arena, "n: new\ns: user\nl: [3]\na: {y: 5, z: 6}\nm: text\n", NULL);
    struct ob_node *m = ob_node_merge(arena, base, user);
    assert_int_equal(m->n, 5);
    const struct ob_node *a = ob_node_get(m, "a");
    assert_int_equal(a->n, 3);
    assert_string_equal(ob_node_get(a, "x")->text, "1");
    assert_string_equal(ob_node_get(a, "y")->text, "5");
    assert_int_equal(ob_node_get(a, "y")->pos.line, 4);
    assert_string_equal(ob_node_get(a, "z")->text, "6");
    assert_int_equal(ob_node_get(m, "l")->n, 1);
    assert_string_equal(ob_node_get(m, "s")->text, "user");
    assert_int_equal(ob_node_key_pos(m, "s")->line, 2);
    assert_string_equal(ob_node_get(m, "m")->text, "text");
    assert_string_equal(ob_node_get(m, "n")->text, "new");
    assert_ptr_equal(ob_node_merge(arena, base, NULL), base);
    assert_ptr_equal(ob_node_merge(arena, NULL, user), user);
    ob_arena_unref(arena);
}

static void test_show(void **state)
{
    (void)state;
    char out[OB_SHOW_MAX];
    assert_string_equal(ob_node_show(out, "plain"), "plain");
    assert_string_equal(ob_node_show(out, "a\nb\x1b[31m"), "a?b?[31m");
    char text[200];
    memset(text, 'x', sizeof(text));
    text[199] = '\0';
    assert_int_equal(strlen(ob_node_show(out, text)), 63);
    memcpy(text + 59, "\xc3\xa4", 2); /* would be cut in two */
    ob_node_show(out, text);
    assert_int_equal(strlen(out), 62);
    assert_true(ob_utf8_valid(ob_str_c(out)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad),    cmocka_unit_test(test_scalars),
        cmocka_unit_test(test_limits), cmocka_unit_test(test_tree_and_places),
        cmocka_unit_test(test_load),   cmocka_unit_test(test_templates_keep_their_fields),
        cmocka_unit_test(test_merge),  cmocka_unit_test(test_show),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
