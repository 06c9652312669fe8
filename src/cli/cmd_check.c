/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_check - `outbox check`: the config and the preconditions of each pipeline, with the fix. */
#include "cli/commands.h"
#include "core/json.h"
#include "event/mapping.h"
#include "flow/flow.h"
#include "relay/conf.h"
#include "source/admin.h"

struct check {
    struct ob_cli *cli;
    const char *pipeline;
    unsigned problems, findings, warnings;
};

/* ok with a fix: a warning, which is not counted as a problem. */
static void tell(struct check *c, bool ok, const char *what, const char *fix)
{
    const struct ob_term *t = &c->cli->term;
    bool warning = ok && fix;
    struct ob_buf out;
    ob_buf_init(&out, 0);
    c->findings++;
    c->problems += ok ? 0 : 1;
    c->warnings += warning ? 1 : 0;
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
        ob_json_strc(&j, fix);
        ob_json_close(&j, '}');
        ob_buf_char(&out, '\n');
    } else {
        ob_buf_printf(&out, "%s%-7s%s %s%s",
                      ob_term_c(t, warning ? OB_C_YELLOW
                                   : ok    ? OB_C_GREEN
                                           : OB_C_RED),
                      warning ? "warning"
                      : ok    ? "ok"
                              : "problem",
                      ob_term_c(t, OB_C_RESET), c->pipeline ? c->pipeline : "",
                      c->pipeline ? ": " : "");
        ob_term_text(&out, ob_str_c(what), 0);
        ob_buf_char(&out, '\n');
        if (fix)
            ob_buf_printf(&out, "        fix: %s\n", fix);
    }
    ob_cli_put(c->cli, &out);
}

/* Not a problem of the pipelines: the exit code stays. */
static void warn_of_exposed(struct ob_cli *cli, const struct ob_config *config)
{
    for (size_t i = 0; i < config->secrets.n; i++)
        if (ob_secret_is_exposed(config->secrets.file[i]))
            fprintf(
                cli->err,
                "outbox check: warning: every user of this machine can read %s, which holds %s\n"
                "        fix: chmod 600 %s\n",
                config->secrets.file[i], config->secrets.option[i], config->secrets.file[i]);
}

static void found(void *user, bool ok, const char *what, const char *fix)
{
    tell(user, ok, what, ok ? NULL : fix);
}

static void check_wire(struct check *c, const struct ob_pipeline_conf *conf)
{
    struct ob_wire w = {.network = false};
    char what[OB_HOST_MAX + 80];
    if (conf->sink->wire)
        conf->sink->wire(conf->sink_conf, &w);
    if (ob_wire_exposed(&w, what, sizeof(what)))
        tell(c, true, what, "use TLS: anyone who sees the traffic can use these credentials");
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

static void add_name(struct ob_names *names, const char *name)
{
    for (size_t i = 0; i < names->n; i++)
        if (strcmp(names->list[i], name) == 0)
            return;
    if (name && names->n < OB_NAMES_MAX)
        names->list[names->n++] = name;
}

/* What belongs to the addresses that routes name: the topics of dead letters, and where rows say
 * the stream, those that `emit` gives them. */
static void add_more(const struct ob_pipeline_conf *conf, struct ob_arena *arena,
                     struct ob_known *known)
{
    const struct ob_mapping *m = ob_mapping_in(conf->source->opts, conf->source_conf);
    for (size_t i = 0, n = known->topics.n; conf->dlt && i < n; i++) {
        const char *letters = ob_arena_printf(arena, "%s.dlt", known->topics.list[i]);
        if (!letters)
            continue;
        add_name(&known->topics, letters);
        for (size_t k = 0, places = known->n_places; k < places; k++)
            if (known->places[k].topic == known->topics.list[i] && known->n_places < OB_NAMES_MAX)
                known->places[known->n_places++] =
                    (struct ob_place){letters, known->places[k].stream};
    }
    for (size_t i = 0; m && known->row_streams && i < m->streams.n; i++)
        add_name(&known->streams, m->streams.values[i]);
}

static void check_routes(struct check *c, const struct ob_pipeline_conf *conf,
                         struct ob_arena *arena, struct ob_known *known)
{
    struct ob_routes *routes = NULL;
    struct ob_err err = {0};
    *known = (struct ob_known){.all_topics = true};
    if (ob_routes_new(&conf->route, &routes, &err) != OB_OK) {
        tell(c, false, err.text, "correct the routes at that place");
        return;
    }
    tell(c, true, "routes and envelope can be used", NULL);
    if (ob_routes_known(routes, arena, known, &err) != OB_OK)
        tell(c, false, err.text, "free some memory");
    add_more(conf, arena, known);
    ob_routes_free(routes);
}

/* Topics that routes name and `sink.topics` does not allow. */
static void check_topics(struct check *c, const struct ob_pipeline_conf *conf,
                         const struct ob_known *known)
{
    char what[300];
    for (size_t i = 0; i < known->topics.n; i++) {
        if (ob_pipeline_allows(conf, ob_str_c(known->topics.list[i]), conf->dlt))
            continue;
        snprintf(what, sizeof(what),
                 "topic %.200s is not allowed by sink.topics: its events would "
                 "be dead",
                 known->topics.list[i]);
        tell(c, false, what, "add the topic to sink.topics, or change the route");
    }
}

static void check_sink(struct check *c, const struct ob_pipeline_conf *conf,
                       const struct ob_known *known)
{
    const struct ob_mapping *m = ob_mapping_in(conf->source->opts, conf->source_conf);
    struct ob_sink_env env = {.pipeline = conf->name,
                              .shards = (unsigned)conf->shards,
                              .strict = conf->order == OB_ORDER_STRICT,
                              .clock = &ob_clock_system,
                              .topics = known->topics.list,
                              .n_topics = known->topics.n,
                              .streams = known->streams.list,
                              .n_streams = known->streams.n,
                              .places = known->places,
                              .n_places = known->n_places,
                              .streamless = known->streamless,
                              .row_streams = m && m->col[OB_MAP_STREAM],
                              .more_topics = !known->all_topics,
                              .found = found,
                              .found_user = c};
    struct ob_err err = {0};
    unsigned before = c->problems;
    if (!conf->sink->check)
        return;
    if (conf->sink->check(&env, conf->sink_conf, &err) != OB_OK)
        tell(c, false, err.text,
             err.status == OB_FATAL ? "correct the sink's options"
                                    : "see that the sink is there and can be written to");
    else if (c->problems == before)
        tell(c, true, "the sink can be written to", NULL);
}

static void check_pipeline(struct check *c, const struct ob_pipeline_conf *conf)
{
    struct ob_arena *arena = ob_arena_new(1024, 1 << 20);
    struct ob_known known;
    c->pipeline = conf->name;
    if (arena) {
        check_routes(c, conf, arena, &known);
        check_source(c, conf);
        check_wire(c, conf);
        check_topics(c, conf, &known);
        check_sink(c, conf, &known);
    } else {
        tell(c, false, "no memory", "free some memory");
    }
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
    warn_of_exposed(cli, config);
    for (size_t i = 0; i < config->n; i++) {
        if (only && only != &config->pipelines[i])
            continue;
        check_pipeline(&c, &config->pipelines[i]);
    }
    if (!ob_cli_flag(cli, "json"))
        fprintf(cli->out, "%u checked, %u problem%s%s\n", c.findings, c.problems,
                c.problems == 1 ? "" : "s", c.warnings ? ", with warnings" : "");
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
        "its folder there, may it be written, are the topics, streams and exchanges there that "
        "routes name or make of what their match lists? Every problem is told with what to "
        "do about it; the exit code is 1 if there is one, 78 if the file itself is wrong. A "
        "warning does not change the exit code. "
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
