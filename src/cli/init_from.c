/* SPDX-License-Identifier: Apache-2.0 */
/* init_from - the settings of a system that is replaced, as a configuration. By the kind of file;
 * what a setting becomes is beside it in the table of that profile's page. */
#include "cli/cli.h"
#include "cli/init.h"
#include "core/jscan.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MAX ((size_t)1 << 20)
#define PAGE_MAX 10000L

/* ---- appsettings.json ---- */

/* .NET takes comments and commas before a closing bracket; JSON does not. Both become spaces. */
static void plain_json(struct ob_buf *text)
{
    char *p = text->p;
    bool in_string = false;
    for (size_t i = 0; i < text->n; i++) {
        if (in_string) {
            if (p[i] == '\\')
                i++;
            else
                in_string = p[i] != '"';
            continue;
        }
        if (p[i] == '"') {
            in_string = true;
        } else if (p[i] == '/' && i + 1 < text->n && p[i + 1] == '/') {
            while (i < text->n && p[i] != '\n')
                p[i++] = ' ';
        } else if (p[i] == '/' && i + 1 < text->n && p[i + 1] == '*') {
            size_t end = i + 2;
            while (end + 1 < text->n && !(p[end] == '*' && p[end + 1] == '/'))
                end++;
            for (end += 2; i < end && i < text->n; i++)
                p[i] = ' ';
            i--;
        } else if (p[i] == ',') {
            size_t next = i + 1;
            while (next < text->n && isspace((unsigned char)p[next]))
                next++;
            if (next < text->n && (p[next] == '}' || p[next] == ']'))
                p[i] = ' ';
        }
    }
}

/* A setting as text; NULL: it is not there. */
static const char *setting(struct ob_init *in, struct ob_str json, const char *pointer)
{
    struct ob_str raw;
    enum ob_jtype type;
    struct ob_err err;
    struct ob_buf buf;
    if (ob_json_pointer(json, ob_str_c(pointer), &raw, &type, &err) != OB_OK || type == OB_J_NULL)
        return NULL;
    if (type != OB_J_STRING)
        return ob_arena_copy(in->arena, raw).p;
    ob_buf_init(&buf, FILE_MAX);
    ob_jscan_unescape(&buf, (struct ob_str){raw.p + 1, raw.n - 2});
    const char *out = ob_arena_copy(in->arena, ob_buf_view(&buf)).p;
    ob_buf_clear(&buf);
    return out;
}

static enum ob_status number(struct ob_init *in, struct ob_str json, const char *pointer, long dflt,
                             long *out, struct ob_err *err)
{
    const char *text = setting(in, json, pointer);
    char *end = NULL;
    *out = text ? strtol(text, &end, 10) : dflt;
    if (text && (end == text || *end || *out < 1 || *out > 86400))
        return ob_err_set(err, OB_REJECT, "%s: '%s' is no number from 1 to 86400", pointer + 1,
                          text);
    return OB_OK;
}

/* "Host=db;Port=5432;Database=farm;Username=u;Password=p" as libpq writes it. */
static const char *npgsql(struct ob_init *in, const char *text)
{
    static const char *const names[][2] = {
        {"host", "host"},       {"server", "host"},      {"port", "port"},
        {"database", "dbname"}, {"username", "user"},    {"user id", "user"},
        {"userid", "user"},     {"uid", "user"},         {"password", "password"},
        {"pwd", "password"},    {"ssl mode", "sslmode"}, {"sslmode", "sslmode"},
    };
    struct ob_buf out;
    ob_buf_init(&out, FILE_MAX);
    while (*text) {
        size_t n = strcspn(text, ";"), eq = strcspn(text, "=");
        for (size_t i = 0; eq < n && i < sizeof(names) / sizeof(names[0]); i++) {
            if (strlen(names[i][0]) != eq || strncasecmp(text, names[i][0], eq) != 0)
                continue;
            bool mode = strcmp(names[i][1], "sslmode") == 0;
            ob_buf_printf(&out, "%s%s='", out.n ? " " : "", names[i][1]);
            for (size_t k = eq + 1; k < n; k++) {
                if (text[k] == '\'' || text[k] == '\\')
                    ob_buf_char(&out, '\\');
                ob_buf_char(&out, mode ? (char)tolower((unsigned char)text[k]) : text[k]);
            }
            ob_buf_char(&out, '\'');
            break;
        }
        text += n + (text[n] == ';');
    }
    const char *dsn = out.n ? ob_arena_copy(in->arena, ob_buf_view(&out)).p : NULL;
    ob_buf_clear(&out);
    return dsn;
}

static void percent(struct ob_buf *out, const char *text)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (isalnum(c) || strchr("-._~", c))
            ob_buf_char(out, *text);
        else
            ob_buf_printf(out, "%%%02X", c);
    }
}

static const char *or_else(const char *text, const char *dflt)
{
    return text && *text ? text : dflt;
}

static enum ob_status rabbitmq(struct ob_init *in, struct ob_str json, struct ob_err *err)
{
    long port = 5672;
    struct ob_buf url;
    enum ob_status st = number(in, json, "/RabbitMQ/Port", 5672, &port, err);
    const char *kind = or_else(setting(in, json, "/RabbitMQ/ExchangeType"), "topic");
    const char *exchange = or_else(setting(in, json, "/RabbitMQ/ExchangeName"), "farmwise.events");
    if (st == OB_OK && strcasecmp(kind, "topic") != 0)
        st = ob_err_set(err, OB_REJECT, "RabbitMQ/ExchangeType: '%s'; only topic is published to",
                        kind);
    if (st != OB_OK)
        return st;
    ob_buf_init(&url, 4096);
    ob_buf_c(&url, "amqp://");
    percent(&url, or_else(setting(in, json, "/RabbitMQ/UserName"), "guest"));
    ob_buf_char(&url, ':');
    percent(&url, or_else(setting(in, json, "/RabbitMQ/Password"), "guest"));
    ob_buf_printf(&url, "@%s:%ld/", or_else(setting(in, json, "/RabbitMQ/HostName"), "localhost"),
                  port);
    if (!in->sink)
        in->sink = ob_arena_copy(in->arena, ob_buf_view(&url)).p;
    ob_buf_clear(&url);
    if (strcmp(exchange, "farmwise.events") != 0) {
        ob_buf_c(&in->sink_more, "      exchange: ");
        ob_yaml_quote(&in->sink_more, exchange);
        ob_buf_char(&in->sink_more, '\n');
    }
    return OB_OK;
}

static enum ob_status appsettings(struct ob_init *in, struct ob_buf *text, struct ob_err *err)
{
    static const char *const strings[] = {"/ConnectionStrings/DefaultConnection",
                                          "/ConnectionStrings/Default",
                                          "/ConnectionStrings/Postgres"};
    long batch, interval, attempts, delay;
    plain_json(text);
    struct ob_str json = ob_buf_view(text);
    enum ob_status st = ob_json_check(json, NULL, err);
    if (st != OB_OK)
        return st;
    if ((st = number(in, json, "/Outbox/BatchSize", 0, &batch, err)) != OB_OK ||
        (st = number(in, json, "/Outbox/IntervalSeconds", 5, &interval, err)) != OB_OK ||
        (st = number(in, json, "/Outbox/MaxRetryAttempts", 3, &attempts, err)) != OB_OK ||
        (st = number(in, json, "/Outbox/RetryDelaySeconds", 10, &delay, err)) != OB_OK)
        return st;
    for (size_t i = 0; !in->source && i < sizeof(strings) / sizeof(strings[0]); i++) {
        const char *found = setting(in, json, strings[i]);
        in->source = found ? npgsql(in, found) : NULL;
    }
    if (!in->profile)
        in->profile = "farmwise";
    if (batch > 0) /* said by the file, whatever it says */
        ob_buf_printf(
            &in->source_more,
            "      page: %ld # BatchSize: rows of one round trip. Without this line 1000, "
            "which is faster\n",
            batch > PAGE_MAX ? PAGE_MAX : batch);
    ob_buf_printf(&in->source_more, "      poll_max: %lds\n", interval > 60 ? 60 : interval);
    ob_buf_printf(&in->more, "    max_attempts: %ld\n", attempts);
    ob_buf_printf(&in->more, "    retry: {first: %lds, factor: 1, max: %lds, jitter: 0%%}\n", delay,
                  delay);
    return rabbitmq(in, json, err);
}

/* ---- by the kind of file ---- */

static const struct {
    const char *suffix;
    enum ob_status (*read)(struct ob_init *in, struct ob_buf *text, struct ob_err *err);
} kinds[] = {
    {".json", appsettings},
};

enum ob_status ob_init_from(struct ob_init *in, const char *file, struct ob_err *err)
{
    struct ob_buf text;
    enum ob_status st =
        ob_err_set(err, OB_REJECT, "nothing is known of files like this; appsettings.json is");
    ob_buf_init(&text, FILE_MAX + 1);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        size_t n = strlen(file), k = strlen(kinds[i].suffix);
        if (n < k || strcasecmp(file + n - k, kinds[i].suffix) != 0)
            continue;
        st = ob_cli_read_file(file, FILE_MAX, &text, err);
        if (st == OB_OK)
            st = kinds[i].read(in, &text, err);
        break;
    }
    ob_buf_clear(&text);
    if (st != OB_OK)
        ob_err_prefix(err, "%s", file);
    return st;
}
