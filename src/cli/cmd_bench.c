/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_bench - `outbox bench`: this program beside the raw limit of what it stands on, in one run.
 */
#include "cli/bench.h"
#include "cli/commands.h"
#include "relay/conf.h"
#include "source/admin.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct world {
    struct ob_cli *cli;
    char dir[256], db[300], file[300], config[300];
    uint64_t events;
    unsigned rounds;
};

#define ROUNDS_MAX 99

static void line(struct world *w, const char *name, double ours, double limit, const char *more)
{
    fprintf(w->cli->out, "bench name=%s ours=%.0f limit=%.0f ratio=%.2f%s%s\n", name, ours, limit,
            limit > 0 ? ours / limit : 0, *more ? " " : "", more);
    fflush(w->cli->out);
}

static void step(struct world *w, const char *text)
{
    fprintf(w->cli->err, "bench: %s\n", text);
}

/* One pipeline on the database; each run has its own name, so its own cursor. */
static enum ob_status write_config(struct world *w, const char *name, const char *sink,
                                   const char *envelope, struct ob_err *err)
{
    FILE *out = fopen(w->config, "w");
    if (!out)
        return ob_err_set(err, OB_FATAL, "cannot write %s", w->config);
    fprintf(out,
            "log: {level: error}\npipelines:\n  %s:\n    source: {type: sqlite, path: \"%s\"}\n"
            "    sink: %s\n    envelope: %s\n",
            name, w->db, sink, envelope);
    return fclose(out) == 0 ? OB_OK : ob_err_set(err, OB_FATAL, "cannot write %s", w->config);
}

static enum ob_status make_schema(struct world *w, struct ob_err *err)
{
    struct ob_config *conf = NULL;
    struct ob_admin *admin = NULL;
    unsigned changed = 0;
    enum ob_status st = write_config(w, "bench", "{type: \"null\"}", "none", err);
    if (st == OB_OK)
        st = ob_config_load(w->config, &conf, err);
    if (st != OB_OK)
        return st;
    const struct ob_pipeline_conf *p = &conf->pipelines[0];
    st = p->source->admin->open(p->name, p->source_conf, &ob_clock_system, &admin, err);
    if (st == OB_OK) {
        st = p->source->admin->schema(admin, false, NULL, &changed, err);
        p->source->admin->close(admin);
    }
    ob_config_free(conf);
    return st;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, unsigned n)
{
    qsort(v, n, sizeof(*v), by_size);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* What the rounds of one drain gave; sorted by median(). */
struct rounds {
    double ours[ROUNDS_MAX], limit[ROUNDS_MAX], ratio[ROUNDS_MAX];
    double cpu[ROUNDS_MAX], raw_cpu[ROUNDS_MAX];
    long peak_kb;
    unsigned n;
};

static void sum_up(struct world *w, const char *name, struct rounds *r)
{
    double ours = median(r->ours, r->n), limit = median(r->limit, r->n);
    double ratio = median(r->ratio, r->n);
    fprintf(w->cli->out,
            "bench name=%s ours=%.0f limit=%.0f ratio=%.2f rounds=%u ratio_min=%.2f ratio_max=%.2f "
            "cpu_s_per_million=%.2f raw_cpu_s_per_million=%.2f peak_mb=%.1f\n",
            name, ours, limit, ratio, r->n, r->ratio[0], r->ratio[r->n - 1], median(r->cpu, r->n),
            median(r->raw_cpu, r->n), (double)r->peak_kb / 1024);
    fflush(w->cli->out);
}

/* Raw and ours in turn, so that both meet the same machine; all figures are medians. */
static enum ob_status drain(struct world *w, const char *name, const char *sink,
                            const char *envelope, bool file, struct ob_err *err)
{
    static struct rounds r;
    double million = 1e6 / (double)w->events;
    enum ob_status st = OB_OK;
    r.n = 0;
    r.peak_kb = 0;
    for (unsigned i = 0; i < w->rounds && st == OB_OK; i++) {
        struct ob_bench_run raw, ours;
        char own[64]; /* a pipeline of its own: from the first event on */
        snprintf(own, sizeof(own), "%s-%u", name, i);
        st = ob_bench_raw(w->db, w->file, w->events, true, file, &raw, err);
        if (st == OB_OK)
            st = write_config(w, own, sink, envelope, err);
        if (st == OB_OK)
            st = ob_bench_relay(w->config, &ours, err);
        if (st != OB_OK)
            break;
        unlink(w->file);
        r.ours[i] = (double)w->events / ours.seconds;
        r.limit[i] = (double)w->events / raw.seconds;
        r.ratio[i] = r.ours[i] / r.limit[i];
        r.cpu[i] = ours.cpu_seconds * million;
        r.raw_cpu[i] = raw.cpu_seconds * million;
        r.peak_kb = ours.peak_kb > r.peak_kb ? ours.peak_kb : r.peak_kb;
        r.n++;
    }
    if (st == OB_OK)
        sum_up(w, name, &r);
    return st;
}

static enum ob_status bench_flow(struct world *w)
{
    step(w, "the flow alone, between two ends that cost nothing (limit: the target of 2 million)");
    line(w, "flow", ob_bench_flow(5000000, false, 10000), 2e6, "keys=10000 per_key=one");
    line(w, "flow-ordered", ob_bench_flow(5000000, true, 10000), 2e6, "keys=10000 per_key=many");
    line(w, "flow-one-key", ob_bench_flow(5000000, true, 1), 2e6, "keys=1 per_key=many");
    return OB_OK;
}

static enum ob_status bench_sqlite(struct world *w, struct ob_err *err)
{
    char text[128], sink[400];
    snprintf(text, sizeof(text), "writing %llu events of %d bytes", (unsigned long long)w->events,
             OB_BENCH_PAYLOAD);
    step(w, text);
    enum ob_status st = make_schema(w, err);
    if (st == OB_OK)
        st = ob_bench_load(w->db, w->events, err);
    step(w, "SQLite to null (limit: bare paging of the same rows)");
    if (st == OB_OK)
        st = drain(w, "sqlite-null", "{type: \"null\"}", "none", false, err);
    step(
        w,
        "SQLite to a file (limit: the slower of bare paging and bare writev + fdatasync, at once)");
    snprintf(sink, sizeof(sink), "{type: file, path: \"%s\"}", w->file);
    if (st == OB_OK)
        st = drain(w, "sqlite-file", sink, "none", true, err);
    step(w, "the same to null with the default envelope, CloudEvents, which the bare work has not");
    if (st == OB_OK)
        st = drain(w, "sqlite-null-cloudevents", "{type: \"null\"}", "cloudevents", false, err);
    return st;
}

static enum ob_status bench_latency(struct world *w, struct ob_err *err)
{
    struct ob_bench_latency got = {0};
    step(w,
         "commit to delivered at 1,000 events a second, for 5 seconds (limit: 5 ms at the median)");
    snprintf(w->db, sizeof(w->db), "%s/latency.db", w->dir);
    enum ob_status st = make_schema(w, err);
    if (st == OB_OK)
        st = write_config(w, "latency", "{type: \"null\"}", "none", err);
    struct ob_bench_writer writer = {0};
    if (st == OB_OK)
        st = ob_bench_sqlite_writer(w->db, &writer, err);
    if (st == OB_OK)
        st = ob_bench_latency(w->config, &writer, 1000, 5, &got, err);
    ob_bench_sqlite_close(&writer);
    if (st == OB_OK)
        fprintf(w->cli->out,
                "bench name=sqlite-latency ours=%.2f limit=5.00 ratio=%.2f p50_ms=%.2f p99_ms=%.2f "
                "max_ms=%.2f "
                "events=%llu\n",
                got.p50_ms, got.p50_ms / 5, got.p50_ms, got.p99_ms, got.max_ms,
                (unsigned long long)got.events);
    return st;
}

static int run(struct ob_cli *cli)
{
    struct world w = {.cli = cli,
                      .events = (uint64_t)ob_cli_int(cli, "events", 1000000),
                      .rounds = (unsigned)ob_cli_int(cli, "rounds", 5)};
    const char *only = ob_cli_str(cli, "only"), *base = ob_cli_str(cli, "dir");
    struct ob_err err = {.text = ""};
    snprintf(w.dir, sizeof(w.dir), "%s/outbox-bench-XXXXXX",
             base               ? base
             : getenv("TMPDIR") ? getenv("TMPDIR")
                                : "/tmp");
    if (!mkdtemp(w.dir))
        return ob_cli_fail(cli, OB_EXIT_FAILURE, "cannot make a folder in %s",
                           base ? base : "the temporary folder");
    snprintf(w.db, sizeof(w.db), "%s/bench.db", w.dir);
    snprintf(w.file, sizeof(w.file), "%s/events.jsonl", w.dir);
    snprintf(w.config, sizeof(w.config), "%s/outbox.yaml", w.dir);
    enum ob_status st = OB_OK;
    if (!only || strcmp(only, "flow") == 0)
        st = bench_flow(&w);
    if (st == OB_OK && (!only || strcmp(only, "sqlite") == 0))
        st = bench_sqlite(&w, &err);
    if (st == OB_OK && (!only || strcmp(only, "latency") == 0))
        st = bench_latency(&w, &err);
    ob_cli_remove_tree(w.dir);
    return st == OB_OK ? OB_EXIT_OK : ob_cli_fail_err(cli, NULL, &err);
}

static const struct ob_cli_opt opts[] = {
    {.name = "events",
     .letter = 'n',
     .kind = OB_CLI_INT,
     .meta = "N",
     .min = 1000,
     .max = 100000000,
     .def = "1000000",
     .help = "Events to drain."},
    {.name = "rounds",
     .kind = OB_CLI_INT,
     .meta = "N",
     .min = 1,
     .max = ROUNDS_MAX,
     .def = "5",
     .help = "Drain so many times, raw and ours in turn; figures are medians."},
    {.name = "only",
     .kind = OB_CLI_CHOICE,
     .meta = "PART",
     .choices = "flow|sqlite|latency",
     .help = "Measure only this part."},
    {.name = "dir",
     .kind = OB_CLI_FILE,
     .meta = "DIR",
     .def = "$TMPDIR or /tmp",
     .help = "Where to put the database and the file while measuring."},
    {0},
};

const struct ob_cmd ob_cmd_bench = {
    .name = "bench",
    .summary = "Measure this machine: the relay beside the raw limits it stands on",
    .about = "Runs the flow alone, SQLite to a null sink, SQLite to a file, and the time from "
             "commit to delivery, each "
             "beside the bare work of the same size in the same run. A line is `bench name=… "
             "ours=… limit=… "
             "ratio=…`, in events a second (latency: milliseconds). Nothing outside a temporary "
             "folder is touched.",
    .opts = opts,
    .examples =
        (const struct ob_cli_example[]){
            {"Everything, with a million events", "outbox bench"},
            {"Only the drain, smaller", "outbox bench --only sqlite -n 200000"},
            {0}},
    .run = run,
};
