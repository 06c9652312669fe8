/* SPDX-License-Identifier: Apache-2.0 */
/* conf_docs - docs/config.md, from the option tables. */
#include "config/docs.h"
#include "relay/conf_table.h"
#include "relay/drivers.h"

static const char intro[] =
    "# The config file\n"
    "\n"
    "This page is generated from the option tables in the program (`ninja -C build config-docs`); "
    "a "
    "test fails\n"
    "when it is stale. `outbox check --explain` prints the config that results, with the file, "
    "line "
    "and column that\n"
    "each value came from.\n"
    "\n"
    "```yaml\n"
    "log: {format: logfmt, level: info}\n"
    "pipelines:\n"
    "  orders:\n"
    "    source: {type: sqlite, path: ./app.db}\n"
    "    routes:\n"
    "      - {match: {type: \"order.*\"}, topic: \"shop.${type}\", key: \"${aggregate_id}\"}\n"
    "      - {topic: shop.events}\n"
    "    sink: {type: file, path: ./events.jsonl}\n"
    "```\n"
    "\n"
    "The file is the one given with `-c`, else `$OUTBOX_CONFIG`, else `./outbox.yaml`, else "
    "`/etc/outbox/outbox.yaml`.\n"
    "Relative paths in it are relative to the folder in which the program runs.\n"
    "\n"
    "## How it is read\n"
    "\n"
    "- UTF-8, at most 1 MiB, 64 levels and 100,000 values; one document; no anchors, aliases or "
    "tags.\n"
    "- An unknown key and a key that stands twice are errors. Up to ten problems are reported at "
    "once, each as\n"
    "  `file:line:column: what is wrong`.\n"
    "- Every value is text until the tables below give it a type: `on`, `0755` and `1.10` are "
    "never "
    "changed on the way.\n"
    "- A key without a value, `~` and `null` count as not given.\n"
    "- Numbers are decimal. Durations: `250ms`, `5s`, `2m`, `1h`, `7d`; a bare number is "
    "milliseconds. Sizes: `4096`, `64k`,\n"
    "  `16M`, `1G`, in powers of 1024. Shares: `20%`, or a factor: `1.5`. True or false: "
    "`true`, `yes`, `on`, `false`, `no`,\n"
    "  `off`. A list of one may be written without brackets.\n"
    "\n"
    "## Variables\n"
    "\n"
    "`${NAME}` in a value is replaced by the environment variable; one that is not set is an "
    "error. "
    "`${NAME:-default}`\n"
    "takes the default when it is unset or empty; a default cannot hold another variable. `$${` is "
    "a "
    "literal `${`.\n"
    "What a variable holds is text: it is not read as YAML and not replaced again. Keys are left "
    "as "
    "they are.\n"
    "\n"
    "Nothing is replaced inside a pipeline's `routes` and `envelope`: there `${...}` is a field of "
    "the event. What a\n"
    "template needs from the environment goes through `service: ${NAME}`, which templates see as "
    "`${service}`.\n"
    "\n"
    "## Secrets\n"
    "\n"
    "Where an option is marked as secret, `<option>_file` may stand in its place: the value is "
    "that "
    "file's text without\n"
    "one newline at its end. Both at once are an error. Secrets are hidden in `--explain` and in "
    "messages.\n"
    "\n"
    "## Profiles\n"
    "\n"
    "`profile: NAME` takes what the pipeline does not say from `NAME.yaml`, a file in the shape of "
    "one pipeline, from\n"
    "the folder `$OUTBOX_PROFILES`, or else from the installed `share/outbox/profiles`, or else "
    "from "
    "`./profiles`, or else from the program itself. Maps are\n"
    "merged key by key; a list or a single value of yours replaces the profile's; `~` takes a "
    "value "
    "of the profile\n"
    "away. A `source` or `sink` of another `type` takes nothing from the profile's.\n"
    "\n";

static void put_section(struct ob_buf *out, const char *title, const char *text)
{
    ob_buf_printf(out, "\n## %s\n\n%s%s", title, text, *text ? "\n" : "");
}

static void put_driver(struct ob_buf *out, const char *kind, const char *name, const char *summary,
                       const struct ob_opt *opts)
{
    ob_buf_printf(out, "\n### %s `%s`\n\n%s\n\n", kind, name, summary ? summary : "");
    ob_opt_docs(out, opts);
    for (; opts && opts->type != OB_OPT_END; opts++) {
        if (opts->type != OB_OPT_GROUP)
            continue;
        ob_buf_printf(out, "\n#### %s `%s`: `%s`\n\n", kind, name, opts->name);
        ob_opt_docs(out, opts->group);
    }
}

/* The tables of a pipeline as one. */
static void put_pipeline(struct ob_buf *out)
{
    static const struct ob_opt *const tables[] = {ob_pipeline_opts, ob_pipeline_node_opts,
                                                  ob_pipeline_route_opts};
    struct ob_opt all[64];
    size_t n = 0;
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
        for (const struct ob_opt *opt = tables[i]; opt->type != OB_OPT_END && n < 63; opt++)
            all[n++] = *opt;
    all[n] = (struct ob_opt){0};
    ob_opt_docs(out, all);
}

void ob_config_docs(struct ob_buf *out)
{
    ob_buf_c(out, intro);
    ob_buf_c(out, "## Top level\n\n");
    ob_opt_docs(out, ob_top_opts);
    put_section(out, "log", "");
    ob_opt_docs(out, ob_log_opts);
    put_section(out, "pipelines.NAME", "");
    put_pipeline(out);
    put_section(out, "pipelines.NAME.retry", "");
    ob_opt_docs(out, ob_retry_opts);
    put_section(
        out, "pipelines.NAME.limits",
        "An event with a column over its limit is dead with a reason that names the column, "
        "its size and the limit.\nThe value is not read into memory, and the dead event "
        "keeps only the first bytes of it.\n"
        "\n"
        "The relay's resident memory per shard is at most 32 MB + 4 x the largest payload + "
        "`window_bytes`. In mode\n"
        "`wal` the largest row takes the place of the largest payload, because the server "
        "sends a row as one message.\n"
        "Where memory is shorter than that, pages are halved down to one event, and an event "
        "that does not fit alone is\n"
        "dead with its size; `dead retry` delivers it when there is more memory. The write "
        "side refuses columns over the\n"
        "default limits.\n");
    ob_opt_docs(out, ob_limits_opts);
    put_section(out, "pipelines.NAME.source",
                "`type` says which of these it is; the other keys are its options.");
    for (size_t i = 0; ob_source_drivers[i]; i++)
        put_driver(out, "source", ob_source_drivers[i]->name, ob_source_drivers[i]->summary,
                   ob_source_drivers[i]->opts);
    put_section(out, "pipelines.NAME.sink",
                "`type` names the sink. Every sink has the options of this table, and those of its "
                "own table below.\n");
    ob_opt_docs(out, ob_sink_type_opts);
    for (size_t i = 0; ob_sink_drivers[i]; i++)
        put_driver(out, "sink", ob_sink_drivers[i]->name, ob_sink_drivers[i]->summary,
                   ob_sink_drivers[i]->opts);
}
