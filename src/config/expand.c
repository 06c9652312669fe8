/* SPDX-License-Identifier: Apache-2.0 */
/* expand - ${VAR} and ${VAR:-default} in a value. */
#include "config/expand.h"

#include "core/buf.h"

#include <stdlib.h>

#define NAME_MAX_BYTES 128

static bool name_byte(char c, bool first)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' ||
           (!first && c >= '0' && c <= '9');
}

/* Reads "NAME}" or "NAME:-default}" at p; *def is NULL when there is none. */
static enum ob_status read_ref(const struct ob_opt_pos *pos, struct ob_str rest,
                               char name[NAME_MAX_BYTES + 1], struct ob_str *def, size_t *used,
                               struct ob_err *err)
{
    const char *close = memchr(rest.p, '}', rest.n);
    if (!close)
        return ob_node_err(pos, err, "'${' has no '}'; write $${ for a literal ${");
    size_t n = 0;
    struct ob_str inside = {rest.p, (size_t)(close - rest.p)};
    while (n < inside.n && n < NAME_MAX_BYTES && name_byte(inside.p[n], n == 0))
        n++;
    *def = (struct ob_str){NULL, 0};
    bool has_def = inside.n >= n + 2 && inside.p[n] == ':' && inside.p[n + 1] == '-';
    if (has_def)
        *def = (struct ob_str){inside.p + n + 2, inside.n - n - 2};
    if (n == 0 || (!has_def && n != inside.n)) {
        char show[OB_SHOW_MAX], cut[OB_SHOW_MAX];
        size_t c = inside.n < sizeof(cut) - 1 ? inside.n : sizeof(cut) - 1;
        memcpy(cut, inside.p, c);
        cut[c] = '\0';
        return ob_node_err(pos, err,
                           "'${%s}' is no variable; write ${NAME} or ${NAME:-default}, or $${ for "
                           "a literal ${",
                           ob_node_show(show, cut));
    }
    memcpy(name, rest.p, n);
    name[n] = '\0';
    if (def->p && memmem(def->p, def->n, "${", 2))
        return ob_node_err(pos, err, "the default of ${%s} cannot hold another ${...}", name);
    *used = inside.n + 1;
    return OB_OK;
}

static enum ob_status put_ref(const struct ob_yaml_env *env, const struct ob_opt_pos *pos,
                              struct ob_str rest, struct ob_buf *buf, size_t *used,
                              struct ob_err *err)
{
    char name[NAME_MAX_BYTES + 1];
    struct ob_str def;
    enum ob_status st = read_ref(pos, rest, name, &def, used, err);
    if (st != OB_OK)
        return st;
    const char *value = env->getenv_fn ? env->getenv_fn(env->user, name) : getenv(name);
    if (def.p && (!value || !*value))
        ob_buf_str(buf, def);
    else if (value)
        ob_buf_c(buf, value);
    else
        return ob_node_err(pos, err,
                           "environment variable %s is not set; set it or write ${%s:-default}",
                           name, name);
    return OB_OK;
}

enum ob_status ob_expand(struct ob_arena *arena, const struct ob_yaml_env *env,
                         const struct ob_opt_pos *pos, struct ob_str in, struct ob_str *out,
                         struct ob_err *err)
{
    if (!memmem(in.p, in.n, "${", 2)) {
        *out = in;
        return OB_OK;
    }
    enum ob_status st = OB_OK;
    struct ob_buf buf;
    ob_buf_init(&buf, OB_YAML_MAX_BYTES);
    for (size_t i = 0; i < in.n && st == OB_OK;) {
        struct ob_str rest = {in.p + i, in.n - i};
        size_t used = 0;
        if (rest.n >= 3 && memcmp(rest.p, "$${", 3) == 0) {
            ob_buf_c(&buf, "${");
            i += 3;
        } else if (rest.n >= 2 && memcmp(rest.p, "${", 2) == 0) {
            rest = (struct ob_str){rest.p + 2, rest.n - 2};
            st = put_ref(env, pos, rest, &buf, &used, err);
            i += 2 + used;
        } else {
            ob_buf_char(&buf, in.p[i++]);
        }
    }
    if (st == OB_OK && buf.failed)
        st = ob_node_err(pos, err, "the value is longer than 1 MiB with its variables");
    if (st == OB_OK) {
        *out = ob_arena_copy(arena, ob_buf_view(&buf));
        if (!out->p)
            st = ob_node_err(pos, err, "no memory for the config; it is too large");
    }
    ob_buf_clear(&buf);
    return st;
}
