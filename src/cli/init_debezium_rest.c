/* SPDX-License-Identifier: Apache-2.0 */
/* init_debezium_rest - the properties that init_debezium.c does not turn into ours. What would make
 * other messages is refused by name; the rest is named in a comment. Nothing is left out silently.
 */
#include "cli/init_debezium.h"

#include <stdio.h>

/* allowed: NULL: any value, it is read. Else values that change nothing here, split by '|'; the
 * first is Debezium's default. note: said in place of a refusal. */
struct rule {
    const char *name, *allowed, *note;
};

static const struct rule of_router[] = {
    {"type", NULL, NULL},
    {"table.field.event.id", NULL, NULL},
    {"table.field.event.key", NULL, NULL},
    {"table.field.event.type", NULL, NULL},
    {"table.field.event.payload", NULL, NULL},
    {"table.field.event.timestamp", NULL, NULL},
    {"table.field.event.schema.version", NULL, NULL},
    {"table.fields.additional.placement", NULL, NULL},
    {"table.fields.additional.error.on.missing", "true", NULL},
    {"table.expand.json.payload", "false|true", NULL},
    {"table.json.payload.null.behavior", "ignore|optional_bytes", NULL},
    {"table.op.invalid.behavior", "warn|error", NULL}, /* updates are passed over, as with both */
    {"route.by.field", NULL, NULL},
    {"route.topic.regex", NULL, NULL},
    {"route.topic.replacement", NULL, NULL},
    {"route.tombstone.on.empty.payload", "false",
     "a payload that is null is a tombstone, one that is empty has an empty value"},
    {"tracing.span.context.field", "tracingspancontext", NULL},
    {"tracing.operation.name", "debezium-read", NULL},
    {"tracing.with.context.field.only", "false", NULL},
    {NULL, NULL, NULL},
};

/* Of the connector, with and without the prefix of Debezium Server. Others are not taken over. */
static const struct rule of_source[] = {
    {"connector.class", "io.debezium.connector.postgresql.PostgresConnector", NULL},
    {"database.hostname", NULL, NULL},
    {"database.port", NULL, NULL},
    {"database.user", NULL, NULL},
    {"database.dbname", NULL, NULL},
    {"database.password", NULL, NULL}, /* said beside the dsn */
    {"database.sslmode", NULL, NULL},
    {"database.sslrootcert", NULL, NULL},
    {"database.sslcert", NULL, NULL},
    {"database.sslkey", NULL, NULL},
    {"table.include.list", NULL, NULL},
    {"binary.handling.mode", "bytes", NULL},
    {"column.include.list", "", NULL},
    {"column.exclude.list", "", NULL},
    {"table.exclude.list", "", NULL},
    {NULL, NULL, NULL},
};

static const struct rule of_sink[] = {
    {"debezium.sink.type", "kafka", "put the sink that takes its place below"},
    {"debezium.sink.kafka.producer.bootstrap.servers", NULL, NULL},
    {"bootstrap.servers", NULL, NULL},
    {NULL, NULL, NULL},
};

static const struct rule *find(const struct rule *rules, const char *name)
{
    for (; rules->name; rules++)
        if (strcmp(rules->name, name) == 0)
            return rules;
    return NULL;
}

static bool allows(const struct rule *rule, const char *value)
{
    const char *p = rule->allowed;
    size_t n = strlen(value);
    while (p && n > 0) { /* an empty value is the default */
        size_t k = strcspn(p, "|");
        if (k == n && strncasecmp(p, value, n) == 0)
            return true;
        p = p[k] ? p + k + 1 : NULL;
    }
    return !rule->allowed || n == 0;
}

static void comment(struct ob_buf *out, const char *name, const char *text)
{
    ob_buf_c(out, "# ");
    for (; *name; name++)
        ob_buf_char(out, (unsigned char)*name < ' ' ? '?' : *name);
    ob_buf_printf(out, ": %s\n", text);
}

static enum ob_status judge(const struct rule *rule, const struct ob_property *p,
                            struct ob_buf *out, struct ob_err *err)
{
    if (allows(rule, p->value))
        return OB_OK;
    if (rule->note) {
        comment(out, p->name, rule->note);
        return OB_OK;
    }
    return ob_err_set(
        err, OB_REJECT,
        "%s=%.100s has no counterpart%s%s; take the line out if you can do without it", p->name,
        p->value, *rule->allowed ? ": here it is as with " : "", rule->allowed);
}

/* "transforms=a,b": the router alone. router: "…transforms.NAME." */
static enum ob_status check_transforms(const struct ob_property *p, const char *router,
                                       struct ob_err *err)
{
    const char *name = strstr(router, "transforms.") + strlen("transforms.");
    size_t n = strlen(name) - 1;
    for (const char *at = p->value; *at;) {
        size_t k = strcspn(at, ", \t");
        if (k > 0 && (k != n || strncmp(at, name, n) != 0))
            return ob_err_set(err, OB_REJECT,
                              "%s: the transform %.*s has no counterpart; only the event router is "
                              "read",
                              p->name, (int)k, at);
        at += k + (at[k] != '\0');
    }
    return OB_OK;
}

static enum ob_status one(const struct ob_property *p, const char *router, struct ob_buf *out,
                          struct ob_err *err)
{
    const char *server = strncmp(p->name, "debezium.", 9) == 0 ? p->name + 9 : p->name;
    const char *source = strncmp(server, "source.", 7) == 0 ? server + 7 : p->name;
    size_t n = strlen(router);
    const struct rule *rule;
    if (strncmp(p->name, router, n) == 0) {
        rule = find(of_router, p->name + n);
        return rule ? judge(rule, p, out, err)
                    : ob_err_set(err, OB_REJECT, "%s has no counterpart", p->name);
    }
    if (strcmp(server, "transforms") == 0 || strcmp(source, "transforms") == 0)
        return check_transforms(p, router, err);
    rule = find(of_source, source);
    if (!rule)
        rule = find(of_sink, p->name);
    if (rule)
        return judge(rule, p, out, err);
    comment(out, p->name, "not taken over");
    return OB_OK;
}

enum ob_status ob_init_debezium_rest(const struct ob_properties *p, const char *router,
                                     struct ob_buf *out, struct ob_err *err)
{
    enum ob_status st = OB_OK;
    for (size_t i = 0; i < p->n && st == OB_OK; i++)
        st = one(&p->of[i], router, out, err);
    return st;
}
