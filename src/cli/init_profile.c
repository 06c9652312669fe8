/* SPDX-License-Identifier: Apache-2.0 */
/* init_profile - the configuration of a profile: two connection strings and the service's name. */
#include "cli/init.h"

#include "config/address.h"
#include "core/json.h"
#include "relay/profile.h"

#include <stdlib.h>
#include <unistd.h>

/* What connects a kind of end, and where it is found if nobody says so. */
static const struct end {
    const char *type, *key, *usual, *variable;
} ends[] = {
    {"postgres", "dsn", "dbname=app", "DATABASE_URL"},
    {"mongodb", "uri", "mongodb://127.0.0.1/?replicaSet=rs0", "MONGODB_URI"},
    {"sqlite", "path", "./app.db", "DATABASE_PATH"},
    {"kafka", "brokers", "127.0.0.1:9092", "KAFKA_BROKERS"},
    {"rabbitmq", "url", "amqp://guest:guest@localhost:5672/", "RABBITMQ_URL"},
    {"nats", "url", "nats://127.0.0.1:4222", "NATS_URL"},
};

void ob_yaml_quote(struct ob_buf *out, const char *text)
{
    struct ob_buf plain;
    ob_buf_init(&plain, 0);
    for (; *text; text++) {
        if (text[0] == '$' && text[1] == '{')
            ob_buf_char(&plain, '$');
        ob_buf_char(&plain, *text);
    }
    ob_buf_char(out, '"');
    ob_json_escape(out, ob_buf_view(&plain));
    ob_buf_char(out, '"');
    ob_buf_clear(&plain);
}

static const struct end *end_of(const struct ob_node *root, const char *which)
{
    const struct ob_node *type = ob_node_get(ob_node_get(root, which), "type");
    for (size_t i = 0; type && type->kind == OB_NODE_SCALAR && i < sizeof(ends) / sizeof(ends[0]);
         i++)
        if (strcmp(ends[i].type, type->text) == 0)
            return &ends[i];
    return NULL;
}

/* A line of standard input; NULL: none, or an empty one. */
static const char *read_line(struct ob_init *in)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n = getline(&line, &cap, stdin);
    while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
        n--;
    const char *text = n > 0 ? ob_arena_copy(in->arena, (struct ob_str){line, (size_t)n}).p : NULL;
    if (line)
        explicit_bzero(line, cap);
    free(line);
    return text;
}

enum ob_status ob_init_read(struct ob_init *in, struct ob_err *err)
{
    const char **texts[] = {&in->source, &in->sink};
    for (size_t i = 0; i < 2; i++) {
        if (!*texts[i] || strcmp(*texts[i], "-") != 0)
            continue;
        *texts[i] = read_line(in);
        if (!*texts[i])
            return ob_err_set(err, OB_REJECT, "--%s -: standard input has no line for it",
                              i == 0 ? "source" : "sink");
    }
    return OB_OK;
}

static const char *ask(struct ob_init *in, FILE *out, const char *what, const char *usual)
{
    fprintf(out, "%s [%s]: ", what, usual);
    fflush(out);
    const char *answer = read_line(in);
    return answer ? answer : usual;
}

/* A token of NATS stands where a user would. */
bool ob_init_is_secret(const char *text)
{
    return ob_address_has_password(text) || (strncmp(text, "nats://", 7) == 0 && strchr(text, '@'));
}

void ob_init_ask(struct ob_init *in, FILE *out)
{
    struct ob_err ignored;
    const struct ob_node *root = NULL;
    if (!isatty(STDIN_FILENO) || ob_profile_load(in->arena, in->profile, &root, &ignored) != OB_OK)
        return;
    const struct end *source = end_of(root, "source"), *sink = end_of(root, "sink");
    if (!in->source && !in->source_file && source)
        in->source = ask(in, out, "Connection string of the database", source->usual);
    if (!in->sink && !in->sink_file && sink)
        in->sink = ask(in, out, "Address of the broker", sink->usual);
    if (!in->service)
        in->service = ask(in, out, "Name of the service", in->name ? in->name : in->profile);
}

/* Known: as it is, unless it holds a password. Not known: from the environment when the relay
 * starts. */
static void put_end(struct ob_init *in, struct ob_buf *out, const char *which,
                    const struct end *end)
{
    bool source = strcmp(which, "source") == 0;
    const char *value = source ? in->source : in->sink;
    const char *file = source ? in->source_file : in->sink_file;
    ob_buf_printf(out, "    %s:\n", which);
    if (!end)
        return;
    ob_buf_printf(out, "      %s%s: ", end->key, file ? "_file" : "");
    if (file) {
        ob_yaml_quote(out, file);
    } else if (value && !in->copied[source ? 0 : 1] && strcmp(value, end->usual) != 0 &&
               ob_init_is_secret(value)) {
        ob_buf_printf(out, "\"${%s}\"   # a string with a password is not stored here",
                      end->variable);
        in->hidden[in->n_hidden].variable = end->variable;
        in->hidden[in->n_hidden++].value = value;
    } else if (value) {
        ob_yaml_quote(out, value);
    } else {
        ob_buf_printf(out, "\"${%s:-%s}\"", end->variable, end->usual);
    }
    ob_buf_char(out, '\n');
}

/* Where topics name their stream by prefix (microdao), the declaration of these streams. */
static void put_streams(struct ob_buf *out, const struct ob_node *root, const struct end *sink)
{
    const struct ob_node *map =
        ob_node_get(ob_node_get(ob_node_get(root, "source"), "mapping"), "streams");
    if (!map || map->kind != OB_NODE_MAP || !sink || strcmp(sink->type, "nats") != 0)
        return;
    ob_buf_c(out, "      # Uncomment to create the streams that are missing when the relay "
                  "connects. Three replicas need a\n"
                  "      # cluster of three servers; with one server write \"replicas\":1.\n"
                  "      # declare: create\n"
                  "      # streams:\n");
    for (size_t i = 0; i < map->n; i++)
        ob_buf_printf(out,
                      "      #   - {\"name\":\"%s\",\"subjects\":[\"%s.*\"],\"replicas\":3,"
                      "\"storage\":\"file\"}\n",
                      map->items[i]->text, map->keys[i]);
}

enum ob_status ob_init_profile(struct ob_init *in, struct ob_buf *out, struct ob_err *err)
{
    const struct ob_node *root = NULL;
    enum ob_status st = ob_profile_load(in->arena, in->profile, &root, err);
    if (st != OB_OK)
        return st;
    const char *name = in->name ? in->name : in->profile;
    ob_buf_printf(out,
                  "# Outbox for %s. The profile has everything else: docs/profiles/%s.md, and\n"
                  "# `outbox check --explain` shows every value that results.\n\n"
                  "pipelines:\n  ",
                  in->profile, in->profile);
    ob_yaml_quote(out, name);
    ob_buf_c(out, ":\n    profile: ");
    ob_yaml_quote(out, in->profile);
    ob_buf_c(out, "\n    service: ");
    ob_yaml_quote(out, in->service ? in->service : name);
    ob_buf_char(out, '\n');
    put_end(in, out, "source", end_of(root, "source"));
    ob_buf_str(out, ob_buf_view(&in->source_more));
    put_end(in, out, "sink", end_of(root, "sink"));
    put_streams(out, root, end_of(root, "sink"));
    ob_buf_str(out, ob_buf_view(&in->sink_more));
    ob_buf_str(out, ob_buf_view(&in->more));
    return OB_OK;
}
