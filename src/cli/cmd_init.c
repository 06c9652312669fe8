/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_init - `outbox init`: a commented configuration to start from. What was written is read back,
 * so a file that init made is one that run takes. */
#include "cli/commands.h"
#include "cli/init.h"
#include "cli/init_debezium.h"
#include "core/json.h"
#include "relay/conf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define DEFAULT_FILE "outbox.yaml"

static void yaml_text(struct ob_buf *out, const struct ob_cli *cli)
{
    const char *name = ob_cli_str(cli, "name"), *db = ob_cli_str(cli, "db");
    const char *sink = ob_cli_str(cli, "out");
    ob_buf_c(out, "# Outbox: which events go where. All options: docs/config.md\n"
                  "# Check this file with `outbox check`, see every value with `outbox check "
                  "--explain`.\n"
                  "# ${VAR:-default} is replaced from the environment.\n\n"
                  "log:\n"
                  "  format: logfmt        # or json\n"
                  "  level: info           # debug, info, warn, error\n\n"
                  "pipelines:\n  ");
    ob_yaml_quote(out, name ? name : "local");
    ob_buf_c(out, ":\n");
    ob_buf_c(out, "    # Where events come from: `outbox schema --apply` makes the tables there.\n"
                  "    source:\n"
                  "      type: sqlite\n"
                  "      path: ");
    ob_yaml_quote(out, db ? db : "./app.db");
    ob_buf_c(out, "\n\n"
                  "    # Where they go: one JSON line per event.\n"
                  "    sink:\n"
                  "      type: file\n"
                  "      path: ");
    ob_yaml_quote(out, sink ? sink : "./events.jsonl");
    ob_buf_c(out, "\n\n"
                  "    # The first route that matches decides. Without routes the row's own topic "
                  "is taken.\n"
                  "    # routes:\n"
                  "    #   - {match: {type: \"order.*\"}, topic: \"shop.${type}\", key: "
                  "\"${aggregate_id}\"}\n"
                  "    #   - {topic: shop.events}\n\n"
                  "    # After so many failed attempts an event is dead (`outbox dead list`).\n"
                  "    # max_attempts: 10\n");
}

/* A profile's sink may be missing in this build; the file is right all the same. */
static bool only_sink_missing(const struct ob_err *err)
{
    return strstr(err->text, ".sink.type: ") && strstr(err->text, "is not in this build") &&
           !strchr(err->text, '\n');
}

/* Writes the text to path and reads it back as a config. A file that is there is only replaced
 * when all went well. */
static enum ob_status write_checked(const char *path, bool force, bool profile, struct ob_str text,
                                    struct ob_err *err)
{
    char tmp[4096];
    enum ob_status st = OB_OK;
    struct ob_config *config = NULL;
    if ((size_t)snprintf(tmp, sizeof tmp, "%s.%ld.new", path, (long)getpid()) >= sizeof tmp)
        return ob_err_set(err, OB_REJECT, "the path is too long");
    int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                  profile ? 0600 : 0644); /* with a profile come passwords */
    ;
    if (fd < 0)
        return ob_err_set(err, OB_REJECT, "%s: %s", tmp, strerror(errno));
    if (write(fd, text.p, text.n) != (ssize_t)text.n || fsync(fd) != 0)
        st = ob_err_set(err, OB_REJECT, "%s: %s", tmp, strerror(errno));
    close(fd);
    if (st == OB_OK)
        st = ob_config_load(tmp, &config, err);
    if (st != OB_OK && profile && only_sink_missing(err))
        st = OB_OK;
    ob_config_free(config);
    /* link(2) does not replace: no race between the question and the answer. */
    if (st == OB_OK && (force ? rename(tmp, path) : link(tmp, path)) != 0)
        st = errno == EEXIST
                 ? ob_err_set(err, OB_REJECT, "%s is already there; --force replaces it", path)
                 : ob_err_set(err, OB_REJECT, "%s: %s", path, strerror(errno));
    if (st != OB_OK || !force)
        unlink(tmp);
    return st;
}

/* The arguments of a process are visible to every user of the machine. */
static void warn_of_argument(struct ob_cli *cli, const char *option, const char *value)
{
    if (value && ob_init_is_secret(value))
        fprintf(cli->err,
                "outbox init: warning: --%s has a password, which other users of this machine can "
                "see; use `--%s -` to give it on standard input, --%s-file, or the environment\n",
                option, option, option);
}

/* For a profile, or from the settings of the system that it replaces. */
static enum ob_status profile_text(struct ob_cli *cli, struct ob_buf *text, struct ob_err *err)
{
    struct ob_init in = {.arena = ob_arena_new(4096, 0),
                         .profile = ob_cli_str(cli, "profile"),
                         .name = ob_cli_str(cli, "name"),
                         .service = ob_cli_str(cli, "service"),
                         .source = ob_cli_str(cli, "source"),
                         .sink = ob_cli_str(cli, "sink"),
                         .source_file = ob_cli_str(cli, "source-file"),
                         .sink_file = ob_cli_str(cli, "sink-file")};
    const char *from = ob_cli_str(cli, "from");
    enum ob_status st = in.arena ? OB_OK : ob_err_set(err, OB_DOWN, "no memory");
    ob_buf_init(&in.source_more, 1 << 20);
    ob_buf_init(&in.sink_more, 1 << 20);
    ob_buf_init(&in.more, 1 << 20);
    warn_of_argument(cli, "source", in.source);
    warn_of_argument(cli, "sink", in.sink);
    if (st == OB_OK)
        st = ob_init_read(&in, err);
    in.copied[0] = !in.source;
    in.copied[1] = !in.sink;
    if (st == OB_OK && from)
        st = ob_init_from(&in, from, err);
    in.copied[0] = in.copied[0] && in.source;
    in.copied[1] = in.copied[1] && in.sink;
    if (st == OB_OK) {
        ob_init_ask(&in, cli->err);
        st = ob_init_profile(&in, text, err);
    }
    for (size_t i = 0; st == OB_OK && i < in.n_hidden; i++) {
        fprintf(cli->err,
                "outbox init: the password is not stored: set %s to the whole connection string "
                "before `outbox run`\n",
                in.hidden[i].variable);
        setenv(in.hidden[i].variable, in.hidden[i].value, 1); /* to read the file back */
    }
    ob_buf_clear(&in.source_more);
    ob_buf_clear(&in.sink_more);
    ob_buf_clear(&in.more);
    ob_arena_unref(in.arena);
    return st;
}

static bool is_properties(const char *file)
{
    size_t n = file ? strlen(file) : 0;
    return n > 11 && strcmp(file + n - 11, ".properties") == 0;
}

static int run(struct ob_cli *cli)
{
    const char *path = cli->n_operands ? cli->operands[0] : DEFAULT_FILE;
    struct ob_buf text, out;
    struct ob_err err = {0};
    int code;
    ob_buf_init(&text, 1 << 20);
    ob_buf_init(&out, 0);
    bool profile = ob_cli_str(cli, "profile") || ob_cli_str(cli, "from");
    enum ob_status st = OB_OK;
    if (is_properties(ob_cli_str(cli, "from")))
        st = ob_init_debezium(ob_cli_str(cli, "from"), ob_cli_str(cli, "name"), &text, &err);
    else if (profile)
        st = profile_text(cli, &text, &err);
    else
        yaml_text(&text, cli);
    if (st == OB_OK)
        st = write_checked(path, ob_cli_flag(cli, "force"), profile, ob_buf_view(&text), &err);
    if (st != OB_OK) {
        code = ob_cli_fail(cli, OB_EXIT_FAILURE, "%s", err.text);
    } else if (ob_cli_flag(cli, "json")) {
        struct ob_json j;
        ob_json_init(&j, &out);
        ob_json_open(&j, '{');
        ob_json_keyc(&j, "file");
        ob_json_strc(&j, path);
        ob_json_close(&j, '}');
        ob_buf_char(&out, '\n');
        code = ob_cli_put(cli, &out);
    } else {
        ob_buf_printf(&out,
                      "wrote %s\nnext:\n"
                      "  outbox schema --apply    make the tables\n"
                      "  outbox check             see that all is there\n"
                      "  outbox run               publish\n"
                      "  outbox emit --type hello --payload '{}'\n",
                      path);
        code = ob_cli_put(cli, &out);
    }
    ob_buf_clear(&text);
    return code;
}

const struct ob_cmd ob_cmd_init = {
    .name = "init",
    .summary = "Write a configuration file to start from",
    .about =
        "Writes a commented configuration (default: ./outbox.yaml) with one pipeline from a "
        "SQLite file to a file of JSON lines. With --profile it is one for an existing system: "
        "what is not given is asked for on a terminal, and else comes from the environment "
        "when the relay starts. A file that is there is left alone unless --force is given.",
    .operands = "[FILE]",
    .max_operands = 1,
    .opts =
        (const struct ob_cli_opt[]){
            {"name", 0, OB_CLI_STR, "NAME", NULL, 0, 0, "local", "The pipeline's name."},
            {"db", 0, OB_CLI_FILE, "FILE", NULL, 0, 0, "./app.db", "The SQLite file."},
            {"out", 'o', OB_CLI_FILE, "FILE", NULL, 0, 0, "./events.jsonl",
             "The file that events are written to."},
            {"profile", 0, OB_CLI_STR, "NAME", NULL, 0, 0, NULL,
             "For the tables and messages of an existing system."},
            {"from", 0, OB_CLI_FILE, "FILE", NULL, 0, 0, NULL,
             "Take the settings of the system that is replaced: an appsettings.json (profile "
             "farmwise), an application.properties (debezium)."},
            {"source", 0, OB_CLI_STR, "STRING", NULL, 0, 0, NULL,
             "With --profile: the connection string of the database; `-`: a line of standard "
             "input. "
             "A string with a password is not stored; a variable stands for it."},
            {"sink", 0, OB_CLI_STR, "STRING", NULL, 0, 0, NULL,
             "With --profile: the address of the broker; likewise."},
            {"source-file", 0, OB_CLI_FILE, "FILE", NULL, 0, 0, NULL,
             "With --profile: a file that holds the connection string of the database."},
            {"sink-file", 0, OB_CLI_FILE, "FILE", NULL, 0, 0, NULL,
             "With --profile: a file that holds the address of the broker."},
            {"service", 0, OB_CLI_STR, "NAME", NULL, 0, 0, NULL,
             "With --profile: the name of the service that writes the events."},
            {"force", 0, OB_CLI_FLAG, NULL, NULL, 0, 0, NULL, "Replace a file that is there."},
            {0}},
    .shared = OB_CLI_OPTS_JSON,
    .examples =
        (const struct ob_cli_example[]){
            {"Start here", "outbox init"},
            {"For an application's database", "outbox init --db /var/lib/shop/shop.db --out "
                                              "/var/lib/shop/events.jsonl"},
            {"For an existing system", "outbox init --profile orion"},
            {"With its settings", "outbox init --from appsettings.json"},
            {0}},
    .run = run,
};
