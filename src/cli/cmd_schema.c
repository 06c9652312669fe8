/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_schema - `outbox schema`: the tables at the source, printed, applied or compared. */
#include "cli/commands.h"
#include "core/json.h"
#include "relay/conf.h"
#include "relay/drivers.h"
#include "source/admin.h"

/* Without a config file: of a source type. */
static int print_type(struct ob_cli *cli, const char *type)
{
    const char *why = NULL;
    const struct ob_source_driver *driver = ob_source_driver_find(type, &why);
    struct ob_buf out;
    if (!driver)
        return ob_cli_fail(cli, OB_EXIT_USAGE, "--source %s: %s", type, why ? why : "unknown");
    if (!driver->admin)
        return ob_cli_fail(cli, OB_EXIT_FAILURE, "source type %s has no schema", type);
    ob_buf_init(&out, 0);
    driver->admin->schema_print(&out);
    return ob_cli_put(cli, &out);
}

/* Each kind of source once, although several pipelines may use it. */
static int print_config(struct ob_cli *cli)
{
    struct ob_config *config = NULL;
    const struct ob_pipeline_conf *only = NULL;
    struct ob_buf out;
    int code = ob_cli_config(cli, &config);
    ob_buf_init(&out, 0);
    if (code == OB_EXIT_OK)
        code = ob_cli_chosen(cli, config, &only);
    for (size_t i = 0; code == OB_EXIT_OK && i < config->n; i++) {
        const struct ob_source_driver *source = config->pipelines[i].source;
        bool seen = only && only != &config->pipelines[i];
        for (size_t k = 0; k < i && !only; k++)
            seen = seen || config->pipelines[k].source == source;
        if (!seen && source->admin)
            source->admin->schema_print(&out);
    }
    ob_config_free(config);
    int put = ob_cli_put(cli, &out);
    return code != OB_EXIT_OK ? code : put;
}

static void tell_json(struct ob_buf *out, const char *pipeline, bool dry, unsigned changed,
                      const char *text)
{
    struct ob_json j;
    ob_json_init(&j, out);
    ob_json_open(&j, '{');
    ob_json_keyc(&j, "pipeline");
    ob_json_strc(&j, pipeline);
    ob_json_keyc(&j, "dry_run");
    ob_json_bool(&j, dry);
    ob_json_keyc(&j, "changes");
    ob_json_uint(&j, changed);
    ob_json_keyc(&j, "text");
    ob_json_strc(&j, text);
    ob_json_close(&j, '}');
    ob_buf_char(out, '\n');
}

static int apply(struct ob_cli *cli, const struct ob_cli_pipe *pipe, void *user)
{
    const bool *dry = user;
    struct ob_err err = {0};
    struct ob_buf text, out;
    unsigned changed = 0;
    int code;
    ob_buf_init(&text, 0);
    ob_buf_init(&out, 0);
    if (pipe->ops->schema(pipe->admin, *dry, &text, &changed, &err) != OB_OK) {
        code = ob_cli_fail_err(cli, pipe->conf->name, &err);
    } else {
        if (ob_cli_flag(cli, "json")) {
            tell_json(&out, pipe->conf->name, *dry, changed, ob_buf_z(&text));
        } else {
            ob_buf_str(&out, ob_buf_view(&text));
            if (text.n && text.p[text.n - 1] != '\n')
                ob_buf_char(&out, '\n');
            if (!changed)
                ob_buf_printf(&out, "%s: up to date, nothing to do\n", pipe->conf->name);
            else
                ob_buf_printf(&out, "%s: %u migration%s %s\n", pipe->conf->name, changed,
                              changed == 1 ? "" : "s", *dry ? "to apply" : "applied");
        }
        code = ob_cli_put(cli, &out);
    }
    ob_buf_clear(&text);
    ob_buf_clear(&out);
    return code;
}

/* The name of the text: of the profile, or of its other form. */
static const char *profile_name(struct ob_cli *cli, char out[96])
{
    snprintf(out, 96, "%.64s%s", ob_cli_str(cli, "profile"),
             ob_cli_flag(cli, "partitioned") ? "-partitioned" : "");
    return out;
}

static int print_profile(struct ob_cli *cli)
{
    char name[96];
    struct ob_err err = {0};
    struct ob_buf out;
    ob_buf_init(&out, 0);
    profile_name(cli, name);
    for (size_t i = 0; ob_source_drivers[i]; i++) {
        const struct ob_source_admin *ops = ob_source_drivers[i]->admin;
        if (ops && ops->profile_print && ops->profile_print(name, &out, &err) == OB_OK)
            return ob_cli_put(cli, &out);
    }
    return ob_cli_fail(cli, OB_EXIT_USAGE, "--profile %s: %s", name,
                       err.text[0] ? err.text : "no source of this build has tables of profiles");
}

/* Pipelines of that profile: our own tables, then the profile's. */
static int apply_profile(struct ob_cli *cli, const struct ob_cli_pipe *pipe, void *user)
{
    const bool *dry = user;
    char name[96];
    struct ob_err err = {0};
    struct ob_buf text, out;
    unsigned changed = 0;
    if (!pipe->conf->profile || strcmp(pipe->conf->profile, ob_cli_str(cli, "profile")) != 0)
        return OB_EXIT_OK;
    int code = apply(cli, pipe, user);
    if (code != OB_EXIT_OK)
        return code;
    ob_buf_init(&text, 0);
    ob_buf_init(&out, 0);
    profile_name(cli, name);
    enum ob_status st =
        pipe->ops->profile_apply
            ? pipe->ops->profile_apply(pipe->admin, name, *dry, &text, &changed, &err)
            : ob_err_set(&err, OB_REJECT, "this source has no tables of profiles");
    if (st != OB_OK) {
        code = ob_cli_fail_err(cli, pipe->conf->name, &err);
    } else if (ob_cli_flag(cli, "json")) {
        tell_json(&out, pipe->conf->name, *dry, changed, ob_buf_z(&text));
        code = ob_cli_put(cli, &out);
    } else {
        ob_buf_printf(&out, "%s: %s%s", pipe->conf->name,
                      !changed ? ""
                      : *dry   ? "to create: "
                               : "created: ",
                      ob_buf_z(&text));
        code = ob_cli_put(cli, &out);
    }
    ob_buf_clear(&text);
    return code;
}

static int run(struct ob_cli *cli)
{
    bool dry = ob_cli_flag(cli, "dry-run");
    bool does = ob_cli_flag(cli, "apply");
    bool print = ob_cli_flag(cli, "print");
    const char *type = ob_cli_str(cli, "source");
    if (dry + does + print > 1)
        return ob_cli_fail(cli, OB_EXIT_USAGE, "choose one of --print, --apply and --dry-run");
    if (type && (dry || does))
        return ob_cli_fail(cli, OB_EXIT_USAGE, "--source goes with --print only");
    if (type)
        return print_type(cli, type);
    if (ob_cli_str(cli, "profile"))
        return dry || does ? ob_cli_with_pipelines(cli, OB_CLI_EACH, apply_profile, &dry)
                           : print_profile(cli);
    if (!dry && !does)
        return print_config(cli);
    return ob_cli_with_pipelines(cli, OB_CLI_EACH, apply, &dry);
}

const struct ob_cmd ob_cmd_schema = {
    .name = "schema",
    .summary = "Print, compare or apply the tables that a source needs",
    .about = "Migrations are numbered and recorded at the source; applying them twice changes "
             "nothing. Without one of --apply and --dry-run the statements are printed, for a "
             "migration tool of your own.",
    .opts =
        (const struct ob_cli_opt[]){
            {"print", 0, OB_CLI_FLAG, NULL, NULL, 0, 0, NULL,
             "Print the statements (this is the default)."},
            {"apply", 0, OB_CLI_FLAG, NULL, NULL, 0, 0, NULL,
             "Apply what is missing, in one transaction."},
            {"dry-run", 'n', OB_CLI_FLAG, NULL, NULL, 0, 0, NULL,
             "Say what --apply would do; change nothing."},
            {"source", 0, OB_CLI_STR, "TYPE", NULL, 0, 0, NULL,
             "With --print: the source type, where there is no configuration file yet."},
            {"profile", 0, OB_CLI_STR, "NAME", NULL, 0, 0, NULL,
             "The table of a profile, for a user who has none; one that is there is only checked."},
            {"partitioned", 0, OB_CLI_FLAG, NULL, NULL, 0, 0, NULL,
             "With --profile: the form with a partition per month, where the profile has one."},
            {0}},
    .shared = OB_CLI_OPTS_CONFIG | OB_CLI_OPTS_PIPELINE | OB_CLI_OPTS_JSON,
    .examples =
        (const struct ob_cli_example[]){
            {"Create the tables", "outbox schema --apply"},
            {"What would change?", "outbox schema --dry-run -p orders"},
            {"The table of an existing system",
             "outbox schema --profile orion --print | psql tradingdb"},
            {"By hand", "outbox schema --print --source sqlite | sqlite3 app.db"},
            {0}},
    .run = run,
};
