/* SPDX-License-Identifier: Apache-2.0 */
/* init_debezium - the options of Debezium's event router (table.field.*, route.*, table.expand.*,
 * table.fields.additional.placement), of its PostgreSQL connector and of Debezium Server's sinks,
 * as a pipeline with profile debezium. What has no counterpart is refused by name and never left
 * out silently. */
#include "cli/init_debezium.h"

#include "core/json.h"

#include <stdio.h>
#include <stdlib.h>

#define NAME_MAX_BYTES 256
#define PLACED_MAX 32

struct placed {
    char column[NAME_MAX_BYTES], name[NAME_MAX_BYTES];
    bool envelope;
};

struct router {
    struct ob_properties p;
    char prefix[NAME_MAX_BYTES]; /* "transforms.outbox." */
    const char *id, *key, *type, *payload, *timestamp, *schema_version, *by;
    char topic[512];
    char schema[NAME_MAX_BYTES], table[NAME_MAX_BYTES];
    bool expand, keeps_null;
    struct placed placed[PLACED_MAX];
    size_t n_placed;
    bool envelope; /* some are placed in the value */
};

static const char *option(const struct router *r, const char *name, const char *dflt)
{
    char whole[2 * NAME_MAX_BYTES];
    snprintf(whole, sizeof(whole), "%s%s", r->prefix, name);
    const char *v = ob_properties_get(&r->p, whole);
    return v && *v ? v : dflt;
}

/* Of the connector: with and without the prefix of Debezium Server. */
static const char *source(const struct router *r, const char *name, const char *dflt)
{
    char whole[NAME_MAX_BYTES];
    snprintf(whole, sizeof(whole), "debezium.source.%s", name);
    const char *v = ob_properties_get(&r->p, whole);
    if (!v)
        v = ob_properties_get(&r->p, name);
    return v && *v ? v : dflt;
}

/* "…transforms.NAME.type=…EventRouter" */
static enum ob_status find_router(struct router *r, const char *path, struct ob_err *err)
{
    for (size_t i = 0; i < r->p.n; i++) {
        const char *name = r->p.of[i].name, *value = r->p.of[i].value;
        size_t n = strlen(name), k = strlen(value);
        const char *at = strncmp(name, "debezium.", 9) == 0 ? name + 9 : name;
        if (strncmp(at, "transforms.", 11) != 0 || n < 6 || strcmp(name + n - 5, ".type") != 0)
            continue;
        if (k < 11 || strcmp(value + k - 11, "EventRouter") != 0 || n >= sizeof(r->prefix))
            continue;
        snprintf(r->prefix, sizeof(r->prefix), "%.*s", (int)(n - 4), name);
        return OB_OK;
    }
    return ob_err_set(err, OB_REJECT,
                      "%s: no transform is an outbox EventRouter (transforms.NAME.type)", path);
}

/* ---- what it does ---- */

/* Only a pattern that takes the whole value has a counterpart: "(?<name>.*)" or "(.*)". */
static enum ob_status read_topic(struct router *r, struct ob_err *err)
{
    const char *regex = option(r, "route.topic.regex", "(?<routedByValue>.*)");
    const char *to = option(r, "route.topic.replacement", "outbox.event.${routedByValue}");
    char name[NAME_MAX_BYTES] = "", group[NAME_MAX_BYTES + 4] = "$1";
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    size_t n = strlen(regex);
    if (n > 7 && strncmp(regex, "(?<", 3) == 0 && strcmp(regex + n - 4, ">.*)") == 0 &&
        n - 7 < sizeof(name) && strspn(regex + 3, letters) == n - 7) {
        snprintf(name, sizeof(name), "%.*s", (int)(n - 7), regex + 3);
        snprintf(group, sizeof(group), "${%s}", name);
    } else if (strcmp(regex, "(.*)") != 0) {
        return ob_err_set(err, OB_REJECT,
                          "route.topic.regex=%s has no counterpart: write the routes by hand "
                          "(docs/routes.md)",
                          regex);
    }
    struct ob_buf out;
    ob_buf_init(&out, sizeof(r->topic) - 1);
    for (const char *p = to; *p;) {
        size_t k = strlen(group);
        bool hit = strncmp(p, group, k) == 0;
        bool one = !hit && strncmp(p, "$1", 2) == 0;
        if (hit || one) {
            ob_buf_c(&out, "${aggregate_type}");
            p += hit ? k : 2;
        } else if (*p == '$') {
            ob_buf_clear(&out);
            return ob_err_set(err, OB_REJECT, "route.topic.replacement=%s names another group", to);
        } else {
            ob_buf_char(&out, *p++);
        }
    }
    snprintf(r->topic, sizeof(r->topic), "%s", ob_buf_z(&out));
    bool failed = out.failed;
    ob_buf_clear(&out);
    return failed ? ob_err_set(err, OB_REJECT, "route.topic.replacement is too long") : OB_OK;
}

/* "type:header:eventType,tenant:envelope" */
static enum ob_status read_placement(struct router *r, struct ob_err *err)
{
    const char *p = option(r, "table.fields.additional.placement", "");
    while (*p) {
        char one[3 * NAME_MAX_BYTES], *save = NULL;
        size_t n = strcspn(p, ",");
        snprintf(one, sizeof(one), "%.*s", (int)n, p);
        p += n + (p[n] == ',');
        const char *column = strtok_r(one, ": ", &save), *where = strtok_r(NULL, ": ", &save);
        const char *alias = strtok_r(NULL, ": ", &save);
        if (!column)
            continue;
        bool envelope = where && strcmp(where, "envelope") == 0;
        if (!where || (!envelope && strcmp(where, "header") != 0) || r->n_placed == PLACED_MAX)
            return ob_err_set(err, OB_REJECT,
                              "table.fields.additional.placement: %s:%s has no counterpart; header "
                              "and envelope have",
                              column, where ? where : "");
        struct placed *at = &r->placed[r->n_placed++];
        snprintf(at->column, sizeof(at->column), "%s", column);
        snprintf(at->name, sizeof(at->name), "%s", alias ? alias : column);
        at->envelope = envelope;
        r->envelope = r->envelope || envelope;
    }
    return OB_OK;
}

/* A list of patterns for SCHEMA.TABLE; only one that names a table has a counterpart. */
static enum ob_status read_table(struct router *r, struct ob_err *err)
{
    const char *list = source(r, "table.include.list", "public.outbox");
    char plain[NAME_MAX_BYTES];
    size_t n = 0;
    for (const char *p = list; *p; p++) {
        if (p[0] == '\\' && p[1] == '.')
            continue;
        if (n == sizeof(plain) - 1 || strchr(",*+?|()[]{}^$\\", *p))
            return ob_err_set(
                err, OB_REJECT,
                "table.include.list=%s: a pipeline reads one table, by its name; make "
                "one of each",
                list);
        plain[n++] = *p;
    }
    plain[n] = '\0';
    const char *dot = strrchr(plain, '.');
    snprintf(r->schema, sizeof(r->schema), "%.*s", dot ? (int)(dot - plain) : 6,
             dot ? plain : "public");
    snprintf(r->table, sizeof(r->table), "%s", dot ? dot + 1 : plain);
    return OB_OK;
}

static enum ob_status read_router(struct router *r, struct ob_err *err)
{
    r->id = option(r, "table.field.event.id", "id");
    r->key = option(r, "table.field.event.key", "aggregateid");
    r->type = option(r, "table.field.event.type", "type");
    r->payload = option(r, "table.field.event.payload", "payload");
    r->timestamp = option(r, "table.field.event.timestamp", NULL);
    r->schema_version = option(r, "table.field.event.schema.version", NULL);
    r->by = option(r, "route.by.field", "aggregatetype");
    r->expand = strcmp(option(r, "table.expand.json.payload", "false"), "true") == 0;
    r->keeps_null =
        strcmp(option(r, "table.json.payload.null.behavior", "ignore"), "optional_bytes") == 0;
    enum ob_status st = read_topic(r, err);
    if (st == OB_OK)
        st = read_table(r, err);
    return st == OB_OK ? read_placement(r, err) : st;
}

/* ---- as YAML ---- */

/* ${…} in routes and envelopes is the message's; elsewhere it would be the environment's. */
static void quoted(struct ob_buf *out, const char *text, bool template)
{
    ob_buf_char(out, '"');
    for (; *text; text++) {
        if (!template && text[0] == '$' && text[1] == '{')
            ob_buf_char(out, '$');
        ob_json_escape(out, (struct ob_str){text, 1});
    }
    ob_buf_char(out, '"');
}

static void line(struct ob_buf *out, const char *name, const char *value)
{
    if (!value)
        return;
    ob_buf_printf(out, "        %s: ", name);
    quoted(out, value, false);
    ob_buf_char(out, '\n');
}

/* How a template names a column. */
static void field(struct ob_buf *out, const struct router *r, const char *column)
{
    const struct {
        const char *column, *name;
    } mapped[] = {{r->id, "id"},
                  {r->by, "aggregate_type"},
                  {r->key, "aggregate_id"},
                  {r->type, "type"},
                  {r->payload, "payload"}};
    for (size_t i = 0; i < sizeof(mapped) / sizeof(mapped[0]); i++) {
        if (strcmp(mapped[i].column, column) == 0) {
            ob_buf_printf(out, "\"${%s}\"", mapped[i].name);
            return;
        }
    }
    ob_buf_c(out, "\"${col:");
    ob_json_escape(out, ob_str_c(column));
    ob_buf_c(out, "}\"");
}

/* A part of a connection string. */
static void dsn_part(struct ob_buf *out, const char *name, const char *value)
{
    if (!value)
        return;
    ob_buf_printf(out, "%s='", name);
    for (; *value; value++) {
        if (*value == '\'' || *value == '\\')
            ob_buf_char(out, '\\');
        ob_buf_char(out, *value);
    }
    ob_buf_c(out, "' ");
}

static void put_source(struct ob_buf *out, const struct router *r)
{
    struct ob_buf dsn;
    static const char *const parts[][2] = {
        {"host", "database.hostname"},   {"port", "database.port"},
        {"user", "database.user"},       {"dbname", "database.dbname"},
        {"sslmode", "database.sslmode"}, {"sslrootcert", "database.sslrootcert"},
        {"sslcert", "database.sslcert"}, {"sslkey", "database.sslkey"}};
    ob_buf_init(&dsn, 8192);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        dsn_part(&dsn, parts[i][0], source(r, parts[i][1], NULL));
    ob_buf_c(out, "    source:\n"
                  "      # The password comes from PGPASSWORD or ~/.pgpass; it was not copied.\n"
                  "      dsn: ");
    quoted(out, ob_buf_z(&dsn), false);
    ob_buf_clear(&dsn);
    ob_buf_c(out, "\n      mapping:\n");
    line(out, "schema", r->schema);
    line(out, "table", r->table);
    line(out, "id", r->id);
    line(out, "aggregate_type", r->by);
    line(out, "aggregate_id", r->key);
    line(out, "type", r->type);
    line(out, "payload", r->payload);
    line(out, "created", r->timestamp);
    line(out, "schema_version", r->schema_version);
    if (r->expand)
        line(out, "payload_kind", "json");
}

static void put_routes(struct ob_buf *out, const struct router *r)
{
    if (r->envelope) {
        ob_buf_c(out, "    envelope:\n      template:\n        payload: \"${payload}\"\n");
        for (size_t i = 0; i < r->n_placed; i++) {
            if (!r->placed[i].envelope)
                continue;
            ob_buf_c(out, "        ");
            quoted(out, r->placed[i].name, true);
            ob_buf_c(out, ": ");
            field(out, r, r->placed[i].column);
            ob_buf_char(out, '\n');
        }
    }
    ob_buf_c(out, "    routes:\n      - topic: ");
    quoted(out, r->topic, true);
    ob_buf_c(out, "\n        key: \"${aggregate_id}\"\n");
    if (r->envelope || r->n_placed > 0)
        ob_buf_c(out, "        headers:\n");
    if (r->envelope)
        ob_buf_c(out, "          id: \"${id}\"\n");
    for (size_t i = 0; i < r->n_placed; i++) {
        if (r->placed[i].envelope)
            continue;
        ob_buf_c(out, "          ");
        quoted(out, r->placed[i].name, true);
        ob_buf_c(out, ": ");
        field(out, r, r->placed[i].column);
        ob_buf_char(out, '\n');
    }
}

static void put_sink(struct ob_buf *out, const struct router *r)
{
    const char *brokers =
        ob_properties_get(&r->p, "debezium.sink.kafka.producer.bootstrap.servers");
    if (!brokers)
        brokers = ob_properties_get(&r->p, "bootstrap.servers");
    if (!brokers) {
        ob_buf_c(out, "    # The file names no Kafka brokers: put the sink here.\n"
                      "    sink: {type: file, path: ./events.jsonl}\n");
        return;
    }
    ob_buf_c(out, "    sink:\n      brokers: ");
    quoted(out, brokers, false);
    ob_buf_char(out, '\n');
}

enum ob_status ob_init_debezium(const char *path, const char *name, struct ob_buf *out,
                                struct ob_err *err)
{
    struct router *r = calloc(1, sizeof(*r));
    if (!r)
        return ob_err_set(err, OB_DOWN, "no memory");
    enum ob_status st = ob_properties_read(path, &r->p, err);
    if (st == OB_OK)
        st = find_router(r, path, err);
    if (st == OB_OK)
        st = read_router(r, err);
    if (st == OB_OK) {
        ob_buf_c(out, "# Made from the settings of Debezium's event router. All options: "
                      "docs/config.md; how to switch: docs/profiles/debezium.md\n");
        st = ob_init_debezium_rest(&r->p, r->prefix, out, err);
    }
    if (st == OB_OK) {
        if (r->expand && !r->keeps_null)
            ob_buf_c(out, "# table.json.payload.null.behavior: fields that are null are kept\n");
        ob_buf_c(out, "pipelines:\n  ");
        quoted(out, name ? name : "outbox", false);
        ob_buf_c(out, ":\n    profile: debezium\n");
        put_source(out, r);
        put_routes(out, r);
        put_sink(out, r);
    }
    ob_properties_clear(&r->p);
    free(r);
    return st;
}
