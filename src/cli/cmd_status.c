/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_status - `outbox status`: one row per pipeline and shard, as the source knows them. */
#include "cli/commands.h"
#include "core/json.h"
#include "relay/conf.h"
#include "source/admin.h"

#include <inttypes.h>
#include <time.h>

#define MAX_SHARDS 16

static void json_count(struct ob_json *j, const char *key, int64_t v)
{
    ob_json_keyc(j, key);
    if (v < 0)
        ob_json_null(j); /* not known */
    else
        ob_json_int(j, v);
}

static void shard_json(struct ob_buf *out, const char *pipeline, const struct ob_shard_status *s)
{
    struct ob_json j;
    ob_json_init(&j, out);
    ob_json_open(&j, '{');
    ob_json_keyc(&j, "pipeline");
    ob_json_strc(&j, pipeline);
    json_count(&j, "shard", s->shard);
    json_count(&j, "shards", s->shards);
    ob_json_keyc(&j, "state");
    ob_json_strc(&j, s->state);
    json_count(&j, "pending", s->source.pending);
    json_count(&j, "lag_ms", s->source.lag_ms);
    json_count(&j, "published", s->published);
    json_count(&j, "failed", s->failed);
    json_count(&j, "dead", s->source.dead);
    json_count(&j, "parked", s->source.parked);
    json_count(&j, "in_flight", s->in_flight);
    ob_json_keyc(&j, "owner");
    ob_json_strc(&j, s->owner[0] ? s->owner : NULL);
    json_count(&j, "beat_age_ms", s->beat_age_ms);
    ob_json_keyc(&j, "finding");
    ob_json_strc(&j, s->finding[0] ? s->finding : NULL);
    ob_json_close(&j, '}');
    ob_buf_char(out, '\n');
}

static void count(struct ob_buf *out, int width, int64_t v)
{
    if (v < 0)
        ob_buf_printf(out, " %*s", width, "-");
    else
        ob_buf_printf(out, " %*" PRId64, width, v);
}

static enum ob_color state_color(const char *state)
{
    if (strcmp(state, "running") == 0)
        return OB_C_GREEN;
    if (strcmp(state, "down") == 0 || strcmp(state, "error") == 0)
        return OB_C_RED;
    return OB_C_YELLOW;
}

static void shard_row(struct ob_buf *out, const struct ob_term *t, const char *pipeline,
                      const struct ob_shard_status *s)
{
    struct ob_buf lag;
    ob_buf_init(&lag, 64);
    ob_term_duration(&lag, s->source.lag_ms);
    ob_buf_printf(out, "%-16s %5u %s%-9s%s", pipeline, s->shard,
                  ob_term_c(t, state_color(s->state)), s->state, ob_term_c(t, OB_C_RESET));
    count(out, 9, s->source.pending);
    ob_buf_printf(out, " %10s", ob_buf_z(&lag));
    count(out, 10, s->published);
    count(out, 7, s->failed);
    count(out, 6, s->source.dead);
    count(out, 7, s->source.parked);
    count(out, 9, s->in_flight);
    ob_buf_c(out, "  ");
    ob_term_text(out, ob_str_c(s->owner[0] ? s->owner : "-"), 0);
    ob_buf_char(out, '\n');
    if (s->finding[0]) {
        ob_buf_printf(out, "%s!%s ", ob_term_c(t, OB_C_RED), ob_term_c(t, OB_C_RESET));
        ob_term_text(out, ob_str_c(s->finding), 0);
        ob_buf_char(out, '\n');
    }
    ob_buf_clear(&lag);
}

/* A pipeline that cannot be asked is a row too: a monitor must see it. */
static void broken_row(struct ob_cli *cli, struct ob_buf *out, const char *pipeline,
                       const struct ob_err *err)
{
    if (ob_cli_flag(cli, "json")) {
        struct ob_json j;
        ob_json_init(&j, out);
        ob_json_open(&j, '{');
        ob_json_keyc(&j, "pipeline");
        ob_json_strc(&j, pipeline);
        ob_json_keyc(&j, "state");
        ob_json_strc(&j, "error");
        ob_json_keyc(&j, "error");
        ob_json_strc(&j, err->text);
        ob_json_close(&j, '}');
        ob_buf_char(out, '\n');
        return;
    }
    ob_buf_printf(out, "%-16s %5s %s%-9s%s ", pipeline, "-", ob_term_c(&cli->term, OB_C_RED),
                  "error", ob_term_c(&cli->term, OB_C_RESET));
    ob_term_text(out, ob_str_c(err->text), 0);
    ob_buf_char(out, '\n');
}

static int pipeline_rows(struct ob_cli *cli, struct ob_buf *out,
                         const struct ob_pipeline_conf *conf)
{
    const struct ob_source_admin *ops = conf->source->admin;
    struct ob_shard_status shards[MAX_SHARDS];
    struct ob_admin *admin = NULL;
    struct ob_err err = {0};
    size_t n = 0;
    enum ob_status st = OB_OK;
    if (!ops)
        st = ob_err_set(&err, OB_FATAL, "source type %s has no status", conf->source->name);
    else
        st = ops->open(conf->name, conf->source_conf, &ob_clock_system, &admin, &err);
    if (st == OB_OK)
        st = ops->status(admin, shards, MAX_SHARDS, &n, &err);
    if (admin)
        ops->close(admin);
    if (st != OB_OK) {
        broken_row(cli, out, conf->name, &err);
        return ob_cli_exit_of(st);
    }
    for (size_t i = 0; i < n; i++) {
        if (ob_cli_flag(cli, "json"))
            shard_json(out, conf->name, &shards[i]);
        else
            shard_row(out, &cli->term, conf->name, &shards[i]);
    }
    return OB_EXIT_OK;
}

static int show(struct ob_cli *cli, const struct ob_config *config,
                const struct ob_pipeline_conf *only, bool redraw)
{
    struct ob_buf out;
    int code = OB_EXIT_OK;
    ob_buf_init(&out, 0);
    if (redraw)
        ob_buf_c(&out, "\x1b[H\x1b[2J");
    if (!ob_cli_flag(cli, "json"))
        ob_buf_printf(&out, "%s%-16s %5s %-9s %9s %10s %10s %7s %6s %7s %9s  %s%s\n",
                      ob_term_c(&cli->term, OB_C_BOLD), "PIPELINE", "SHARD", "STATE", "PENDING",
                      "LAG", "PUBLISHED", "FAILED", "DEAD", "PARKED", "IN-FLIGHT", "OWNER",
                      ob_term_c(&cli->term, OB_C_RESET));
    for (size_t i = 0; i < config->n; i++) {
        if (only && only != &config->pipelines[i])
            continue;
        int one = pipeline_rows(cli, &out, &config->pipelines[i]);
        code = one > code ? one : code;
    }
    int put = ob_cli_put(cli, &out);
    return code != OB_EXIT_OK ? code : put;
}

static int run(struct ob_cli *cli)
{
    struct ob_config *config = NULL;
    const struct ob_pipeline_conf *only = NULL;
    int64_t every_s = ob_cli_int(cli, "every", 1), rounds = ob_cli_int(cli, "rounds", 0);
    bool watch = ob_cli_flag(cli, "watch");
    int code = ob_cli_config(cli, &config);
    if (code == OB_EXIT_OK)
        code = ob_cli_chosen(cli, config, &only);
    if (code != OB_EXIT_OK)
        goto done;
    for (int64_t round = 1;; round++) {
        code = show(cli, config, only, watch && cli->term.tty && !ob_cli_flag(cli, "json"));
        if (!watch || (rounds && round >= rounds) || fflush(cli->out) != 0)
            break;
        nanosleep(&(struct timespec){.tv_sec = every_s}, NULL);
    }
done:
    ob_config_free(config);
    return code;
}

const struct ob_cmd ob_cmd_status = {
    .name = "status",
    .summary = "Show each pipeline: state, pending, lag, published, dead",
    .about =
        "Asks the source, not the relay, so it works from any machine that reaches the "
        "database and also when no relay runs. One row per pipeline and shard. State is "
        "running, standby, paused, down (the sink cannot be reached), stopped, or error.\n\n"
        "pending is a lower bound that costs no table scan; lag is the age of the oldest event "
        "that is not settled. published and failed are totals kept at the source. With --json: "
        "pipeline, shard, shards, state, pending, lag_ms, published, failed, dead, parked, "
        "in_flight, owner, beat_age_ms, finding; null where not known. finding, or a line after "
        "the "
        "row, is what is wrong with the shard at its source and what to do about it.",
    .opts = (const struct ob_cli_opt[]){{"watch", 'w', OB_CLI_FLAG, NULL, NULL, 0, 0, NULL,
                                         "Show again and again until Ctrl-C."},
                                        {"every", 0, OB_CLI_INT, "SECONDS", NULL, 1, 3600, "1",
                                         "With --watch: how often."},
                                        {"rounds", 0, OB_CLI_INT, "N", NULL, 1, 1000000, "no end",
                                         "With --watch: end after so many times."},
                                        {0}},
    .shared = OB_CLI_OPTS_CONFIG | OB_CLI_OPTS_PIPELINE | OB_CLI_OPTS_JSON,
    .examples = (const struct ob_cli_example[]){{"Look once", "outbox status"},
                                                {"Keep looking", "outbox status --watch"},
                                                {"Pending events of a pipeline",
                                                 "outbox status -p orders --json | jq .pending"},
                                                {0}},
    .run = run,
};
