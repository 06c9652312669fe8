/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_emit - `outbox emit`: write events by hand or from JSON lines, in one transaction. */
#include "cli/commands.h"
#include "cli/jsonl.h"
#include "core/json.h"
#include "relay/conf.h"

#include <stdlib.h>

#define MAX_INPUT ((size_t)256 << 20)

struct emission {
    const struct ob_emit *events;
    size_t n;
};

static int tell_ids(const struct ob_cli *cli, const char *pipeline, char (*ids)[64], size_t n)
{
    struct ob_buf out;
    int code = OB_EXIT_OK;
    for (size_t i = 0; i < n && code == OB_EXIT_OK; i++) {
        ob_buf_init(&out, 0);
        if (ob_cli_flag(cli, "json")) {
            struct ob_json j;
            ob_json_init(&j, &out);
            ob_json_open(&j, '{');
            ob_json_keyc(&j, "pipeline");
            ob_json_strc(&j, pipeline);
            ob_json_keyc(&j, "id");
            ob_json_strc(&j, ids[i]);
            ob_json_close(&j, '}');
        } else {
            ob_term_text(&out, ob_str_c(ids[i]), 0);
        }
        ob_buf_char(&out, '\n');
        code = ob_cli_put(cli, &out);
    }
    return code;
}

static int emit(struct ob_cli *cli, const struct ob_cli_pipe *pipe, void *user)
{
    const struct emission *e = user;
    struct ob_err err = {0};
    char(*ids)[64] = calloc(e->n ? e->n : 1, sizeof *ids);
    int code;
    if (!ids)
        return ob_cli_fail(cli, OB_EXIT_FAILURE, "no memory for %zu ids", e->n);
    if (e->n && pipe->ops->emit(pipe->admin, e->events, e->n, ids, &err) != OB_OK)
        code = ob_cli_fail_err(cli, pipe->conf->name, &err);
    else
        code = tell_ids(cli, pipe->conf->name, ids, e->n);
    free(ids);
    return code;
}

static void progress(void *user, size_t bytes)
{
    ob_progress_set(user, bytes);
}

static int emit_jsonl(struct ob_cli *cli, const char *path)
{
    struct ob_buf text;
    struct ob_err err = {0};
    struct ob_jsonl lines = {0};
    struct ob_progress bar;
    int code;
    if (ob_cli_read_file(path, MAX_INPUT, &text, &err) != OB_OK)
        return ob_cli_fail(cli, OB_EXIT_FAILURE, "%s", err.text);
    ob_progress_init(&bar, cli->err, "reading", text.n);
    enum ob_status st = ob_jsonl_read(&lines, path, ob_buf_view(&text), progress, &bar, &err);
    ob_progress_end(&bar);
    if (st != OB_OK) {
        code = ob_cli_fail(cli, OB_EXIT_FAILURE, "%s; nothing was written", err.text);
    } else {
        struct emission e = {lines.events, lines.n};
        code = ob_cli_with_pipelines(cli, OB_CLI_ONE, emit, &e);
    }
    ob_jsonl_clear(&lines);
    ob_buf_clear(&text);
    return code;
}

static enum ob_payload_kind kind_of(const struct ob_cli *cli)
{
    const char *kind = ob_cli_str(cli, "kind");
    if (kind && strcmp(kind, "text") == 0)
        return OB_PAYLOAD_TEXT;
    return kind && strcmp(kind, "bytes") == 0 ? OB_PAYLOAD_BYTES : OB_PAYLOAD_JSON;
}

static int emit_one(struct ob_cli *cli)
{
    const char *inline_text = ob_cli_str(cli, "payload"), *file = ob_cli_str(cli, "payload-file");
    struct ob_err err = {0};
    struct ob_buf bytes;
    struct ob_emit e = {.id = ob_str_c(ob_cli_str(cli, "id")),
                        .type = ob_str_c(ob_cli_str(cli, "type")),
                        .aggregate_type = ob_str_c(ob_cli_str(cli, "aggregate-type")),
                        .aggregate_id = ob_str_c(ob_cli_str(cli, "aggregate-id")),
                        .key = ob_str_c(ob_cli_str(cli, "key")),
                        .tenant = ob_str_c(ob_cli_str(cli, "tenant")),
                        .topic = ob_str_c(ob_cli_str(cli, "topic")),
                        .headers = ob_str_c(ob_cli_str(cli, "headers")),
                        .metadata = ob_str_c(ob_cli_str(cli, "metadata")),
                        .payload = ob_str_c(inline_text),
                        .payload_kind = kind_of(cli),
                        .entity_version = ob_cli_int(cli, "entity-version", OB_NO_VERSION),
                        .schema_version = ob_cli_int(cli, "schema-version", OB_NO_VERSION)};
    struct emission one = {&e, 1};
    ob_buf_init(&bytes, MAX_INPUT);
    if (inline_text && strcmp(inline_text, "-") == 0)
        file = "-";
    if (!file && !inline_text)
        e.payload_kind = OB_PAYLOAD_NULL;
    if (file) {
        if (ob_cli_read_file(file, MAX_INPUT, &bytes, &err) != OB_OK)
            return ob_cli_fail(cli, OB_EXIT_FAILURE, "%s", err.text);
        e.payload = ob_buf_view(&bytes);
    }
    int code = ob_jsonl_check(&e, &err) != OB_OK
                   ? ob_cli_fail(cli, OB_EXIT_FAILURE, "%s", err.text)
                   : ob_cli_with_pipelines(cli, OB_CLI_ONE, emit, &one);
    ob_buf_clear(&bytes);
    return code;
}

static int run(struct ob_cli *cli)
{
    static const char *const of_one[] = {"id",      "type",     "aggregate-type", "aggregate-id",
                                         "key",     "tenant",   "topic",          "headers",
                                         "payload", "metadata", "payload-file",   "kind"};
    const char *jsonl = ob_cli_str(cli, "jsonl");
    for (size_t i = 0; jsonl && i < sizeof of_one / sizeof *of_one; i++)
        if (ob_cli_flag(cli, of_one[i]))
            return ob_cli_fail(cli, OB_EXIT_USAGE,
                               "--jsonl brings its own fields; --%s is too much", of_one[i]);
    if (jsonl)
        return emit_jsonl(cli, jsonl);
    if (!ob_cli_flag(cli, "type"))
        return ob_cli_fail(cli, OB_EXIT_USAGE, "--type is needed (or --jsonl FILE)");
    if (ob_cli_flag(cli, "payload") && ob_cli_flag(cli, "payload-file"))
        return ob_cli_fail(cli, OB_EXIT_USAGE, "choose one of --payload and --payload-file");
    return emit_one(cli);
}

const struct ob_cmd ob_cmd_emit = {
    .name = "emit",
    .summary = "Write events into the outbox",
    .about = "Writes one event from options, or many from JSON lines, in one transaction and in "
             "order: all of them or none. Prints the ids.\n\nA JSON line is an object with type "
             "and, as needed, id, aggregate_type, aggregate_id, key, tenant, topic, payload (any "
             "JSON, kept byte by byte) or payload_text, headers, metadata, entity_version, "
             "schema_version. At most 256 MiB and a million events at a time.",
    .opts =
        (const struct ob_cli_opt[]){
            {"type", 't', OB_CLI_STR, "TYPE", NULL, 0, 0, NULL, "What happened: order.placed."},
            {"aggregate-type", 0, OB_CLI_STR, "NAME", NULL, 0, 0, NULL,
             "The kind of thing it happened to."},
            {"aggregate-id", 0, OB_CLI_STR, "ID", NULL, 0, 0, NULL, "Which one of them."},
            {"key", 'k', OB_CLI_STR, "KEY", NULL, 0, 0, "the aggregate id",
             "What order is kept by."},
            {"tenant", 0, OB_CLI_STR, "TENANT", NULL, 0, 0, NULL, "Whose event it is."},
            {"topic", 0, OB_CLI_STR, "TOPIC", NULL, 0, 0, NULL, "The topic that the row names."},
            {"payload", 0, OB_CLI_STR, "TEXT", NULL, 0, 0, "none",
             "The payload; - reads standard input."},
            {"payload-file", 0, OB_CLI_FILE, "FILE", NULL, 0, 0, NULL, "The payload from a file."},
            {"kind", 0, OB_CLI_CHOICE, "KIND", "json|text|bytes", 0, 0, "json",
             "What the payload is; json is checked."},
            {"headers", 0, OB_CLI_STR, "JSON", NULL, 0, 0, NULL, "Headers, a JSON object."},
            {"metadata", 0, OB_CLI_STR, "JSON", NULL, 0, 0, NULL, "Metadata, a JSON object."},
            {"entity-version", 0, OB_CLI_INT, "N", NULL, 0, 0, NULL,
             "Version of the thing, for order within it."},
            {"schema-version", 0, OB_CLI_INT, "N", NULL, 0, 0, NULL,
             "Version of the payload's shape; metadata only."},
            {"id", 0, OB_CLI_STR, "ID", NULL, 0, 0, "a new UUIDv7", "The event's id."},
            {"jsonl", 0, OB_CLI_FILE, "FILE", NULL, 0, 0, NULL,
             "Many events from a file of JSON lines; - is standard input."},
            {0}},
    .shared = OB_CLI_OPTS_CONFIG | OB_CLI_OPTS_PIPELINE | OB_CLI_OPTS_JSON,
    .examples =
        (const struct ob_cli_example[]){
            {"One event", "outbox emit --type order.placed --aggregate-id 17 "
                          "--payload '{\"total\": 12.5}'"},
            {"A file as payload",
             "outbox emit --type scan.done --key a1 --kind bytes --payload-file scan.png"},
            {"Many at once", "outbox emit --jsonl events.jsonl"},
            {0}},
    .run = run,
};
