/* SPDX-License-Identifier: Apache-2.0 */
/* conf - the config file as structs. What is wrong is collected, not only the first. */
#include "relay/conf.h"

#include "config/load.h"
#include "relay/conf_table.h"
#include "relay/drivers.h"
#include "relay/profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MEMORY_MAX (64u << 20)

static const char *const no_expand[] = {"pipelines.*.routes", "pipelines.*.envelope", NULL};
static const struct ob_yaml_env env = {.expand = true, .no_expand = no_expand};

/* One loading. */
struct loading {
    struct ob_loader l;
    struct ob_problems problems;
    struct ob_config *config;
};

/* One pipeline of it. */
struct pipe {
    struct loading *ld;
    struct ob_pipeline_conf *conf;
    const char *path;             /* pipelines.orders */
    const struct ob_opt_pos *pos; /* of its name */
    const struct ob_node *node;   /* with its profile */
    struct ob_pipeline_nodes nodes;
};

static void explain_group(struct loading *ld, const char *path, const char *key, unsigned depth,
                          const struct ob_opt_pos *pos)
{
    struct ob_explain_row row = {.kind = OB_EXPLAIN_GROUP, .path = path, .key = key};
    row.depth = depth;
    if (pos)
        row.pos = *pos;
    ob_explain_add(ld->l.explain, &row);
}

static const char *join(struct loading *ld, const char *path, const char *key)
{
    const char *both = ob_arena_printf(ld->l.arena, "%s.%s", path, key);
    return both ? both : path;
}

#define TYPES_MAX 64

/* The names of one registry, for the driver that is asked for and for messages. */
struct end {
    const char *key; /* source or sink */
    const char *names[TYPES_MAX];
    size_t n;
    bool found;
    const struct ob_opt *opts; /* of the driver that was found; NULL: it has none */
    size_t conf_size;
    const char *why; /* none was found */
};

static void find_source(struct pipe *p, struct end *end, const char *type)
{
    for (size_t i = 0; i < TYPES_MAX && ob_source_drivers[i]; i++)
        end->names[end->n++] = ob_source_drivers[i]->name;
    const struct ob_source_driver *d = type ? ob_source_driver_find(type, &end->why) : NULL;
    if (d) {
        p->conf->source = d;
        end->found = true;
        end->opts = d->opts;
        end->conf_size = d->conf_size;
    }
}

static void find_sink(struct pipe *p, struct end *end, const char *type)
{
    for (size_t i = 0; i < TYPES_MAX && ob_sink_drivers[i]; i++)
        end->names[end->n++] = ob_sink_drivers[i]->name;
    const struct ob_sink_driver *d = type ? ob_sink_driver_find(type, &end->why) : NULL;
    if (d) {
        p->conf->sink = d;
        end->found = true;
        end->opts = d->opts;
        end->conf_size = d->conf_size;
    }
}

static void bad_type(struct pipe *p, const struct end *end, const char *path,
                     const struct ob_node *map, const struct ob_node *type)
{
    char show[OB_SHOW_MAX], list[200] = "";
    size_t len = 0;
    for (size_t i = 0; i < end->n && len < sizeof(list); i++)
        len +=
            (size_t)snprintf(list + len, sizeof(list) - len, "%s%s", i ? ", " : "", end->names[i]);
    if (!type) {
        ob_problem_add(p->ld->l.problems, &map->pos, "%s: 'type' is missing; this build has: %s",
                       path, list);
    } else if (ob_node_is_null(type)) {
        ob_problem_add(p->ld->l.problems, &type->pos, "%s.type %s; this build has: %s", path,
                       ob_node_why_null(type), list);
    } else if (type->kind != OB_NODE_SCALAR) {
        ob_problem_add(p->ld->l.problems, &type->pos, "%s.type: needs text; this build has: %s",
                       path, list);
    } else {
        const char *near = ob_nearest(type->text, end->names, end->n);
        ob_problem_add(p->ld->l.problems, &type->pos,
                       "%s.type: '%s' is not in this build: %s; it has: %s%s%s%s", path,
                       ob_node_show(show, type->text), end->why, list,
                       near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    }
}

/* A source or a sink: common has its type and what all drivers share; the options of the driver are
 * in a struct of their own. */
static const void *load_end(struct pipe *p, struct end *end, const struct ob_node *map,
                            void (*find)(struct pipe *, struct end *, const char *),
                            const struct ob_opt_part *common)
{
    static const struct ob_opt none[] = {{0}};
    const char *path = join(p->ld, p->path, end->key);
    if (!map)
        return NULL; /* the pipeline's table says that it is missing */
    if (map->kind != OB_NODE_MAP) {
        ob_problem_add(p->ld->l.problems, &map->pos, "%s: needs a map with a type", path);
        return NULL;
    }
    const struct ob_node *type = ob_node_get(map, "type");
    bool text = !ob_node_is_null(type) && type->kind == OB_NODE_SCALAR;
    find(p, end, text ? type->text : NULL);
    if (!end->found) {
        bad_type(p, end, path, map, type);
        return NULL;
    }
    void *conf = ob_arena_zalloc(p->ld->l.arena, end->conf_size + 1);
    if (!conf) {
        ob_problem_add(p->ld->l.problems, &map->pos, "no memory for the config");
        return NULL;
    }
    const struct ob_opt_part parts[] = {*common, {end->opts ? end->opts : none, conf}};
    explain_group(p->ld, path, end->key, 2, &map->pos);
    ob_load_parts(&p->ld->l, path, 3, map, p->pos, parts, 2);
    return conf;
}

static void load_retry(struct pipe *p)
{
    const char *path = join(p->ld, p->path, "retry");
    const struct ob_node *map = p->nodes.retry;
    const struct ob_opt_part part = {ob_retry_opts, p->conf};
    size_t before = p->ld->problems.n + p->ld->problems.more;
    explain_group(p->ld, path, "retry", 2, map ? &map->pos : NULL);
    ob_load_parts(&p->ld->l, path, 3, map, p->pos, &part, 1);
    if (p->ld->problems.n + p->ld->problems.more != before ||
        p->conf->retry_first_ms <= p->conf->retry_max_ms)
        return;
    const struct ob_node *first = ob_node_get(map, "first"), *max = ob_node_get(map, "max");
    ob_problem_add(p->ld->l.problems,
                   first ? &first->pos
                   : max ? &max->pos
                         : p->pos,
                   "%s: first is longer than max", path);
}

/* Templates and envelopes: shown as written, and compiled once so that what is wrong with them is
 * said now. */
static void load_routes(struct pipe *p)
{
    const struct ob_route_conf *route = &p->conf->route;
    const struct ob_node *nodes[] = {route->routes, route->envelope};
    static const char *const keys[] = {"routes", "envelope"};
    for (size_t i = 0; i < 2; i++) {
        const char *path = join(p->ld, p->path, keys[i]);
        struct ob_explain_row unset = {.kind = OB_EXPLAIN_UNSET, .path = path, .key = keys[i]};
        unset.depth = 2;
        if (nodes[i])
            ob_explain_node(p->ld->l.explain, path, keys[i], 2, nodes[i], true, NULL);
        else
            ob_explain_add(p->ld->l.explain, &unset);
    }
    struct ob_err err;
    struct ob_routes *routes = NULL;
    if (ob_routes_new(route, &routes, &err) != OB_OK) {
        const struct ob_opt_pos *pos = nodes[0] ? &nodes[0]->pos : p->pos;
        ob_problem_add_placed(p->ld->l.problems, nodes[1] && !nodes[0] ? &nodes[1]->pos : pos,
                              err.text);
    }
    ob_routes_free(routes);
}

#define OPTS_MAX 64

/* `service` is the pipeline's name unless set: the table of this pipeline says so. */
static void own_table(const char *name, struct ob_opt table[OPTS_MAX])
{
    size_t n = 0;
    for (const struct ob_opt *opt = ob_pipeline_opts; opt->type != OB_OPT_END; opt++) {
        table[n] = *opt;
        if (strcmp(opt->name, "service") == 0)
            table[n].def = name;
        n++;
    }
    table[n] = (struct ob_opt){0};
}

/* What the option tables cannot tell. */
static void validate_sink(struct pipe *p)
{
    const struct ob_sink_driver *sink = p->conf->sink;
    const char *why = "";
    struct ob_err err;
    struct ob_wire wire = {.network = false};
    bool valid =
        !sink->validate || sink->validate(p->conf->sink_conf, p->nodes.sink, &err) == OB_OK;
    if (!valid)
        ob_problem_add_placed(p->ld->l.problems, &p->nodes.sink->pos, err.text);
    if (valid && sink->wire)
        sink->wire(p->conf->sink_conf, &wire);
    if (p->conf->require_tls && wire.network && !wire.tls)
        ob_problem_add(p->ld->l.problems, ob_wire_pos(p->nodes.sink, "require_tls"),
                       "%s.sink.require_tls: the sink does not use TLS; use a url with TLS or "
                       "`tls: true`, as the sink has it",
                       p->path);
    if (sink->max_shards && p->conf->shards > sink->max_shards(p->conf->sink_conf, &why))
        ob_problem_add(p->ld->l.problems, &p->nodes.sink->pos, "%s.sink: %s", p->path, why);
}

static void load_parts(struct pipe *p)
{
    struct ob_opt table[OPTS_MAX];
    own_table(p->conf->name, table);
    const struct ob_opt_part parts[] = {{table, p->conf},
                                        {ob_pipeline_node_opts, &p->nodes},
                                        {ob_pipeline_route_opts, &p->conf->route}};
    ob_load_parts(&p->ld->l, p->path, 2, p->node, p->pos, parts, 3);
    if (p->node->kind != OB_NODE_MAP)
        return;
    p->conf->route.service = p->conf->service ? p->conf->service : p->conf->name;
    struct end source = {.key = "source"}, sink = {.key = "sink"};
    struct ob_end_type source_type = {NULL};
    const struct ob_opt_part source_common = {ob_source_type_opts, &source_type};
    const struct ob_opt_part sink_common = {ob_sink_type_opts, p->conf};
    load_retry(p);
    p->conf->source_conf = load_end(p, &source, p->nodes.source, find_source, &source_common);
    size_t before = p->ld->problems.n + p->ld->problems.more;
    p->conf->sink_conf = load_end(p, &sink, p->nodes.sink, find_sink, &sink_common);
    if (p->conf->sink_conf && p->ld->problems.n + p->ld->problems.more == before)
        validate_sink(p);
    load_routes(p);
}

static void load_pipeline(struct loading *ld, const struct ob_node *map, size_t i)
{
    const char *name = map->keys[i], *file = NULL;
    char show[OB_SHOW_MAX];
    struct ob_pipeline_conf *conf = &ld->config->pipelines[ld->config->n++];
    struct pipe p = {.ld = ld, .conf = conf, .pos = &map->key_pos[i]};
    conf->name = name;
    conf->pos = map->key_pos[i];
    if (!ob_name_valid(name)) {
        ob_problem_add(ld->l.problems, p.pos,
                       "'%s' is no name for a pipeline; take 1 to 64 of A-Z a-z 0-9 _ . -",
                       ob_node_show(show, name));
        return;
    }
    p.path = join(ld, "pipelines", name);
    explain_group(ld, p.path, name, 1, p.pos);
    if (!ob_profile_merge(&ld->l, p.path, map->items[i], &p.node, &file))
        return;
    ld->l.base_file = file;
    load_parts(&p);
    ld->l.base_file = NULL;
}

static void load_pipelines(struct loading *ld, const struct ob_node *map)
{
    if (!map)
        return; /* the table says that it is missing */
    if (map->kind != OB_NODE_MAP || map->n == 0) {
        ob_problem_add(ld->l.problems, &map->pos, "pipelines: needs a map with at least one name");
        return;
    }
    if (map->n > OB_PIPELINES_MAX) {
        ob_problem_add(ld->l.problems, &map->key_pos[OB_PIPELINES_MAX],
                       "pipelines: more than %d are too many for one process", OB_PIPELINES_MAX);
        return;
    }
    ld->config->pipelines = ob_arena_zalloc(ld->l.arena, map->n * sizeof(*ld->config->pipelines));
    if (!ld->config->pipelines) {
        ob_problem_add(ld->l.problems, &map->pos, "no memory for the config");
        return;
    }
    explain_group(ld, "pipelines", "pipelines", 0, &map->pos);
    for (size_t i = 0; i < map->n; i++)
        load_pipeline(ld, map, i);
}

static enum ob_status load_tree(struct ob_config *c, const struct ob_node *root,
                                struct ob_buf *problems, struct ob_err *err)
{
    struct loading ld = {.config = c, .problems = {.n = 0}};
    struct ob_top_nodes top = {NULL, NULL};
    const struct ob_opt_part top_part = {ob_top_opts, &top}, log_part = {ob_log_opts, c};
    ob_explain_init(&c->explain, c->arena);
    ld.l = (struct ob_loader){c->arena, &ld.problems, &c->explain, NULL, &c->secrets};
    ob_load_parts(&ld.l, "", 0, root, &root->pos, &top_part, 1);
    explain_group(&ld, "log", "log", 0, top.log ? &top.log->pos : NULL);
    ob_load_parts(&ld.l, "log", 1, top.log, &root->pos, &log_part, 1);
    load_pipelines(&ld, top.pipelines);
    if (c->explain.failed)
        ob_problem_add(&ld.problems, NULL, "%s: no memory for the config; it is too large",
                       c->file);
    return ob_problems_end(&ld.problems, problems, err);
}

/* text.p NULL: read the file. */
static enum ob_status load(const char *file, const struct ob_str *text, struct ob_config **out,
                           struct ob_buf *problems, struct ob_err *err)
{
    struct ob_err own = {0};
    struct ob_node *root = NULL;
    struct ob_arena *arena = ob_arena_new(16 << 10, MEMORY_MAX);
    struct ob_config *c = arena ? ob_arena_zalloc(arena, sizeof(*c)) : NULL;
    enum ob_status st = OB_OK;
    if (!c)
        st = ob_err_set(&own, OB_FATAL, "%s: no memory for the config", file);
    if (st == OB_OK) {
        c->arena = arena;
        c->file = ob_arena_copy(arena, ob_str_c(file)).p;
        st = text ? ob_yaml_parse(arena, file, *text, &env, &root, &own)
                  : ob_yaml_load(arena, file, &env, &root, &own);
    }
    if (st != OB_OK && problems)
        ob_buf_c(problems, own.text);
    if (st == OB_OK)
        st = load_tree(c, root, problems, &own);
    if (st == OB_OK) {
        *out = c;
        return OB_OK;
    }
    if (err)
        *err = own;
    ob_arena_unref(arena);
    return st;
}

enum ob_status ob_config_parse(const char *name, struct ob_str text, struct ob_config **out,
                               struct ob_buf *problems, struct ob_err *err)
{
    return load(name, &text, out, problems, err);
}

enum ob_status ob_config_load_all(const char *file, struct ob_config **out, struct ob_buf *problems,
                                  struct ob_err *err)
{
    static const char *const usual[] = {"outbox.yaml", "/etc/outbox/outbox.yaml"};
    const char *set = getenv("OUTBOX_CONFIG");
    if (!file && set && *set)
        file = set;
    for (size_t i = 0; !file && i < 2; i++)
        if (access(usual[i], F_OK) == 0)
            file = usual[i];
    if (file)
        return load(file, NULL, out, problems, err);
    struct ob_err own;
    enum ob_status st = ob_err_set(&own, OB_FATAL,
                                   "no config file: neither ./%s nor %s is there; give one with -c "
                                   "FILE or $OUTBOX_CONFIG",
                                   usual[0], usual[1]);
    if (problems)
        ob_buf_c(problems, own.text);
    if (err)
        *err = own;
    return st;
}

enum ob_status ob_config_load(const char *file, struct ob_config **out, struct ob_err *err)
{
    return ob_config_load_all(file, out, NULL, err);
}

void ob_config_free(struct ob_config *c)
{
    if (c)
        ob_arena_unref(c->arena); /* c is in it */
}

const struct ob_pipeline_conf *ob_config_pipeline(const struct ob_config *c, const char *name)
{
    if (!name)
        return c->n == 1 ? &c->pipelines[0] : NULL;
    for (size_t i = 0; i < c->n; i++)
        if (strcmp(c->pipelines[i].name, name) == 0)
            return &c->pipelines[i];
    return NULL;
}

bool ob_pipeline_allows(const struct ob_pipeline_conf *conf, struct ob_str topic, bool letter)
{
    static const char suffix[] = ".dlt";
    size_t n = sizeof(suffix) - 1;
    if (conf->topics.n == 0)
        return true;
    for (size_t i = 0; i < conf->topics.n; i++)
        if (ob_glob(ob_str_c(conf->topics.values[i]), topic))
            return true;
    if (!letter || topic.n < n || memcmp(topic.p + topic.n - n, suffix, n) != 0)
        return false;
    topic.n -= n;
    return ob_pipeline_allows(conf, topic, false);
}

void ob_config_explain(const struct ob_config *c, struct ob_buf *out)
{
    ob_explain_yaml(&c->explain, out);
}

void ob_config_explain_json(const struct ob_config *c, struct ob_buf *out)
{
    ob_explain_json(&c->explain, out);
}
