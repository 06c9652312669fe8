/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_check - `outbox check`: the config and the preconditions of each pipeline, with the fix. */
#include "cli/commands.h"
#include "core/json.h"
#include "flow/flow.h"
#include "relay/conf.h"
#include "source/admin.h"

struct check {
    struct ob_cli *cli;
    const char *pipeline;
    unsigned problems, findings;
};

static void tell(struct check *c, bool ok, const char *what, const char *fix)
{
    const struct ob_term *t = &c->cli->term;
    struct ob_buf out;
    ob_buf_init(&out, 0);
    c->findings++;
    c->problems += ok ? 0 : 1;
    if (ob_cli_flag(c->cli, "json")) {
        struct ob_json j;
        ob_json_init(&j, &out);
        ob_json_open(&j, '{');
        ob_json_keyc(&j, "pipeline");
        ob_json_strc(&j, c->pipeline);
        ob_json_keyc(&j, "ok");
        ob_json_bool(&j, ok);
        ob_json_keyc(&j, "what");
        ob_json_strc(&j, what);
        ob_json_keyc(&j, "fix");
        ob_json_strc(&j, ok ? NULL : fix);
        ob_json_close(&j, '}');
        ob_buf_char(&out, '\n');
    } else {
        ob_buf_printf(&out, "%s%-7s%s %s%s", ob_term_c(t, ok ? OB_C_GREEN : OB_C_RED),
                      ok ? "ok" : "problem", ob_term_c(t, OB_C_RESET),
                      c->pipeline ? c->pipeline : "", c->pipeline ? ": " : "");
        ob_term_text(&out, ob_str_c(what), 0);
        ob_buf_char(&out, '\n');
        if (!ok && fix)
            ob_buf_printf(&out, "        fix: %s\n", fix);
    }
    ob_cli_put(c->cli, &out);
}

static void found(void *user, bool ok, const char *what, const char *fix)
{
    tell(user, ok, what, fix);
}

static void check_routes(struct check *c, const struct ob_pipeline_conf *conf)
{
    struct ob_routes *routes = NULL;
    struct ob_err err = {0};
    if (ob_routes_new(&conf->route, &routes, &err) != OB_OK)
        tell(c, false, err.text, "correct the routes at that place");
    else
        tell(c, true, "routes and envelope can be used", NULL);
    ob_routes_free(routes);
}

static void check_source(struct check *c, const struct ob_pipeline_conf *conf)
{
    const struct ob_source_admin *ops = conf->source->admin;
    struct ob_admin *admin = NULL;
    struct ob_err err = {0};
    if (!ops)
        return;
    if (ops->open(conf->name, conf->source_conf, &ob_clock_system, &admin, &err) != OB_OK) {
        tell(c, false, err.text, "see that the source is there and can be reached");
        return;
    }
    if (ops->check(admin, found, c, &err) != OB_OK)
        tell(c, false, err.text, "see that the source is there and can be reached");
    ops->close(admin);
}

#define TOPICS_MAX 256

/* Topics that the routes name as they are; where a template decides, only an event tells. */
static size_t plain_topics(const struct ob_pipeline_conf *conf, struct ob_arena *arena,
                           const char **topics)
{
    const struct ob_node *routes = conf->route.routes;
    size_t n = 0;
    for (size_t i = 0; routes && routes->kind == OB_NODE_LIST && i < routes->n; i++) {
        const struct ob_node *topic = ob_node_get(routes->items[i], "topic");
        if (n < TOPICS_MAX && topic && topic->kind == OB_NODE_SCALAR && !strstr(topic->text, "${"))
            topics[n++] = topic->text;
    }
    for (size_t i = 0, plain = n; conf->dlt && i < plain && n < TOPICS_MAX; i++) {
        const char *letters = ob_arena_printf(arena, "%s.dlt", topics[i]);
        if (letters)
            topics[n++] = letters;
    }
    return n;
}

static void check_sink(struct check *c, const struct ob_pipeline_conf *conf)
{
    const char *topics[TOPICS_MAX];
    struct ob_arena *arena = ob_arena_new(1024, 1 << 20);
    struct ob_sink_env env = {.pipeline = conf->name,
                              .shards = (unsigned)conf->shards,
                              .strict = conf->order == OB_ORDER_STRICT,
                              .clock = &ob_clock_system,
                              .topics = topics,
                              .n_topics = arena ? plain_topics(conf, arena, topics) : 0,
                              .found = found,
                              .found_user = c};
    struct ob_err err = {0};
    unsigned before = c->problems;
    if (!conf->sink->check)
        goto done;
    if (conf->sink->check(&env, conf->sink_conf, &err) != OB_OK)
        tell(c, false, err.text,
             err.status == OB_FATAL ? "correct the sink's options"
                                    : "see that the sink is there and can be written to");
    else if (c->problems == before)
        tell(c, true, "the sink can be written to", NULL);
done:
    ob_arena_unref(arena);
}

static int run(struct ob_cli *cli)
{
    struct ob_config *config = NULL;
    const struct ob_pipeline_conf *only = NULL;
    struct check c = {.cli = cli};
    int code = ob_cli_config(cli, &config);
    if (code == OB_EXIT_OK)
        code = ob_cli_chosen(cli, config, &only);
    if (code != OB_EXIT_OK)
        goto done;
    if (ob_cli_flag(cli, "explain")) {
        struct ob_buf out;
        ob_buf_init(&out, 0);
        if (ob_cli_flag(cli, "json")) {
            ob_config_explain_json(config, &out);
            ob_buf_char(&out, '\n');
        } else {
            ob_config_explain(config, &out);
        }
        code = ob_cli_put(cli, &out);
        goto done;
    }
    tell(&c, true, "the configuration is understood", NULL);
    for (size_t i = 0; i < config->n; i++) {
        if (only && only != &config->pipelines[i])
            continue;
        c.pipeline = config->pipelines[i].name;
        check_routes(&c, &config->pipelines[i]);
        check_source(&c, &config->pipelines[i]);
        check_sink(&c, &config->pipelines[i]);
    }
    if (!ob_cli_flag(cli, "json"))
        fprintf(cli->out, "%u checked, %u problem%s\n", c.findings, c.problems,
                c.problems == 1 ? "" : "s");
    code = c.problems ? OB_EXIT_FAILURE : OB_EXIT_OK;
done:
    ob_config_free(config);
    return code;
}

const struct ob_cmd ob_cmd_check = {
    .name = "check",
    .summary = "Check the configuration and what it relies on, with the fix",
    .about =
        "Reads the configuration, compiles the routes and looks at each source: is it there, "
        "are its tables the right ones, can it be written? And at the sink, without taking it: is "
        "its folder there, may it be written? Every problem is told with what to "
        "do about it; the exit code is 1 if there is one, 78 if the file itself is wrong. "
        "Nothing is changed.\n\nWith --explain the resulting configuration is printed instead, "
        "each value with where it came from (file:line:column, profile or default); secrets "
        "are hidden.",
    .opts = (const struct ob_cli_opt[]){{"explain", 'e', OB_CLI_FLAG, NULL, NULL, 0, 0, NULL,
                                         "Print every value and where it came from."},
                                        {0}},
    .shared = OB_CLI_OPTS_CONFIG | OB_CLI_OPTS_PIPELINE | OB_CLI_OPTS_JSON,
    .examples =
        (const struct ob_cli_example[]){
            {"Before a deployment", "outbox check -c /etc/outbox/outbox.yaml"},
            {"Where does this value come from?", "outbox check --explain | grep max_attempts"},
            {0}},
    .run = run,
};
