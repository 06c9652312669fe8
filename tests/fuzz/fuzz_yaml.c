/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_yaml - any bytes as a config file: a tree or a message, never a crash; a config that loads
 * is shown in a form that loads again to the same. */
#include "fuzz.h"
#include "relay/conf.h"

static const char *some_env(void *user, const char *name)
{
    (void)user;
    return name[0] == 'A' ? "value ${B}" : name[0] == 'E' ? "" : NULL;
}

static const char *const no_expand[] = {"pipelines.*.routes", NULL};

/* Every place is inside the text. */
static void check_places(const struct ob_node *node, size_t n)
{
    FUZZ_CHECK(node->pos.line >= 1 && node->pos.column >= 1);
    FUZZ_CHECK(node->pos.line <= n + 1 && node->pos.column <= n + 1);
    if (node->kind == OB_NODE_SCALAR) {
        FUZZ_CHECK(node->text != NULL);
        return;
    }
    for (size_t i = 0; i < node->n; i++)
        check_places(node->items[i], n);
}

static void check_tree(struct ob_str text, bool expand)
{
    struct ob_arena *arena = ob_arena_new(4096, 64u << 20);
    struct ob_node *root = NULL;
    struct ob_err err = {.status = OB_OK};
    const struct ob_yaml_env env = {some_env, NULL, expand, no_expand};
    enum ob_status st = ob_yaml_parse(arena, "f", text, &env, &root, &err);
    FUZZ_CHECK((st == OB_OK) == (root != NULL));
    if (st == OB_OK)
        check_places(root, text.n);
    else
        FUZZ_CHECK(err.text[0] == 'f' && err.text[1] == ':');
    ob_arena_unref(arena);
}

/* Comments tell places, which differ. */
static void json_values(const struct ob_config *c, struct ob_buf *out)
{
    for (const struct ob_explain_row *r = c->explain.first; r; r = r->next)
        ob_buf_printf(out, "%s=%s\n", r->path,
                      r->kind == OB_EXPLAIN_HIDDEN ? "(hidden)"
                      : r->value                   ? r->value
                                                   : "");
}

static void check_config(struct ob_str text)
{
    struct ob_config *c = NULL, *again = NULL;
    struct ob_err err = {.status = OB_OK};
    struct ob_buf shown, a, b;
    if (ob_config_parse("f", text, &c, NULL, &err) != OB_OK) {
        FUZZ_CHECK(c == NULL && err.text[0] != '\0');
        return;
    }
    ob_buf_init(&shown, 0);
    ob_buf_init(&a, 0);
    ob_buf_init(&b, 0);
    ob_config_explain(c, &shown);
    json_values(c, &a);
    if (text.n < 1000) { /* a longer one may be too large when shown, or have too long a key */
        FUZZ_CHECK(ob_config_parse("f", ob_buf_view(&shown), &again, NULL, &err) == OB_OK);
        json_values(again, &b);
        FUZZ_CHECK(ob_str_eq(ob_buf_view(&a), ob_buf_view(&b)));
    }
    ob_config_explain_json(c, &shown);
    ob_config_free(c);
    ob_config_free(again);
    ob_buf_clear(&shown);
    ob_buf_clear(&a);
    ob_buf_clear(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct ob_str text = {(const char *)data, n};
    check_tree(text, false);
    check_tree(text, true);
    setenv("OUTBOX_PROFILES", "/nonexistent", 1);
    check_config(text);
    return 0;
}
