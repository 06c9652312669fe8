/* SPDX-License-Identifier: Apache-2.0 */
/* profile - a file in the shape of one pipeline whose values stand under the user's. */
#include "relay/profile.h"

#include "ob_build.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define FOLDERS 3
#define LISTED_MAX 64

static const char *const no_expand[] = {"routes", "envelope", NULL};
static const struct ob_yaml_env env = {.expand = true, .no_expand = no_expand};

bool ob_name_valid(const char *name)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
    size_t n = strspn(name, allowed);
    return n >= 1 && n <= 64 && name[n] == '\0';
}

/* Where to look, first to last. $OUTBOX_PROFILES stands alone: whoever sets it means it. */
static size_t folders(const char *list[FOLDERS])
{
    const char *own = getenv("OUTBOX_PROFILES");
    size_t n = 0;
    if (own && *own) {
        list[n++] = own;
        return n;
    }
    list[n++] = OB_PROFILE_DIR;
    list[n++] = "profiles";
    return n;
}

/* The profiles of this program, made from profiles/ by the build. */
extern const char *const ob_profile_texts[];
extern const char *const ob_profile_text_names[];
extern const unsigned ob_profile_n_texts;

static const char *built_in(const char *name)
{
    const char *own = getenv("OUTBOX_PROFILES");
    for (unsigned i = 0; !(own && *own) && i < ob_profile_n_texts; i++)
        if (strcmp(ob_profile_text_names[i], name) == 0)
            return ob_profile_texts[i];
    return NULL;
}

static const char *find_file(struct ob_arena *arena, const char *name)
{
    const char *list[FOLDERS];
    size_t n = folders(list);
    for (size_t i = 0; i < n; i++) {
        const char *file = ob_arena_printf(arena, "%s/%s.yaml", list[i], name);
        if (file && access(file, F_OK) == 0)
            return file;
    }
    return built_in(name) ? ob_arena_printf(arena, "built-in:%s.yaml", name) : NULL;
}

static size_t list_names(struct ob_arena *arena, const char **names, size_t max)
{
    const char *list[FOLDERS];
    size_t n = 0, n_folders = folders(list);
    for (unsigned i = 0; i < ob_profile_n_texts && n < max; i++)
        if (built_in(ob_profile_text_names[i]))
            names[n++] = ob_profile_text_names[i];
    for (size_t i = 0; i < n_folders; i++) {
        DIR *dir = opendir(list[i]);
        if (!dir)
            continue;
        for (struct dirent *e; n < max && (e = readdir(dir)) != NULL;) {
            size_t len = strlen(e->d_name);
            if (len <= 5 || strcmp(e->d_name + len - 5, ".yaml") != 0)
                continue;
            names[n] = ob_arena_copy(arena, (struct ob_str){e->d_name, len - 5}).p;
            n += names[n] != NULL;
        }
        closedir(dir);
    }
    return n;
}

static enum ob_status read_profile(struct ob_arena *arena, const char *name, const char *file,
                                   struct ob_node **root, struct ob_err *err)
{
    const char *text = strncmp(file, "built-in:", 9) == 0 ? built_in(name) : NULL;
    return text ? ob_yaml_parse(arena, file, ob_str_c(text), &env, root, err)
                : ob_yaml_load(arena, file, &env, root, err);
}

enum ob_status ob_profile_load(struct ob_arena *arena, const char *name, const struct ob_node **out,
                               struct ob_err *err)
{
    struct ob_node *root = NULL;
    const char *file = ob_name_valid(name) ? find_file(arena, name) : NULL;
    if (!file)
        return ob_err_set(err, OB_REJECT, "there is no profile '%.64s'", name);
    enum ob_status st = read_profile(arena, name, file, &root, err);
    if (st == OB_OK)
        *out = root;
    return st;
}

static void not_found(struct ob_loader *l, const char *path, const struct ob_node *name)
{
    const char *names[LISTED_MAX], *list[FOLDERS];
    char show[OB_SHOW_MAX], looked[200] = "";
    size_t n = list_names(l->arena, names, LISTED_MAX), n_folders = folders(list), len = 0;
    for (size_t i = 0; i < n_folders && len < sizeof(looked); i++)
        len +=
            (size_t)snprintf(looked + len, sizeof(looked) - len, "%s%s", i ? " and " : "", list[i]);
    const char *near = ob_nearest(name->text, names, n);
    ob_problem_add(l->problems, &name->pos, "%s.profile: there is no profile '%s' in %s%s%s%s",
                   path, ob_node_show(show, name->text), looked, near ? "; did you mean '" : "",
                   near ? near : "", near ? "'?" : "");
}

static const struct ob_node *load_file(struct ob_loader *l, const struct ob_node *name,
                                       const char *file)
{
    struct ob_err err;
    struct ob_node *root = NULL;
    if (read_profile(l->arena, name->text, file, &root, &err) != OB_OK) {
        ob_problem_add_placed(l->problems, &name->pos, err.text);
        return NULL;
    }
    if (root->kind != OB_NODE_MAP) {
        ob_problem_add(l->problems, &root->pos, "a profile is a map, in the shape of a pipeline");
        return NULL;
    }
    const struct ob_opt_pos *own = ob_node_key_pos(root, "profile");
    if (own) {
        ob_problem_add(l->problems, own, "a profile cannot name another profile");
        return NULL;
    }
    return root;
}

/* A user who names another `type` wants none of the profile's options for that end. */
static const struct ob_node *without_other_types(struct ob_arena *arena, const struct ob_node *base,
                                                 const struct ob_node *user)
{
    static const char *const ends[] = {"source", "sink"};
    struct ob_node *copy = ob_arena_alloc(arena, sizeof(*copy));
    struct ob_node **items = ob_arena_alloc(arena, (base->n + 1) * sizeof(*items));
    if (!copy || !items)
        return NULL;
    *copy = *base;
    copy->items = items;
    for (size_t i = 0; i < base->n; i++) {
        items[i] = base->items[i];
        for (size_t e = 0; e < 2; e++) {
            if (strcmp(base->keys[i], ends[e]) != 0)
                continue;
            const struct ob_node *end = ob_node_get(user, ends[e]);
            const struct ob_node *mine = ob_node_get(end, "type");
            const struct ob_node *theirs = ob_node_get(base->items[i], "type");
            if (mine && theirs && mine->kind == OB_NODE_SCALAR && theirs->kind == OB_NODE_SCALAR &&
                strcmp(mine->text, theirs->text) != 0)
                items[i] = (struct ob_node *)end;
        }
    }
    return copy;
}

bool ob_profile_merge(struct ob_loader *l, const char *path, const struct ob_node *user,
                      const struct ob_node **out, const char **file)
{
    const struct ob_node *name = ob_node_get(user, "profile");
    *out = user;
    *file = NULL;
    if (ob_node_is_null(name) || name->kind != OB_NODE_SCALAR)
        return true; /* what is no text is refused by the option table */
    if (!ob_name_valid(name->text) || !(*file = find_file(l->arena, name->text))) {
        not_found(l, path, name);
        return false;
    }
    const struct ob_node *base = load_file(l, name, *file);
    if (!base)
        return false;
    base = without_other_types(l->arena, base, user);
    *out = base ? ob_node_merge(l->arena, base, user) : NULL;
    if (!*out)
        ob_problem_add(l->problems, &name->pos, "no memory for the config; it is too large");
    return *out != NULL;
}
