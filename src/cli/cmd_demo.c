/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_demo - `outbox demo`: an application, a relay, an outage and a crash, and then the proof. */
#include "cli/commands.h"
#include "cli/demo_verify.h"
#include "cli/demo_view.h"

#include "core/clock.h"
#include "core/json.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#define TICK_MS 50
#define DOWN_AFTER_KILL_MS 600
#define DRAIN_MS 30000 /* without any progress; under a sanitizer everything is slow */
#define STOP_MS 60000

static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig)
{
    (void)sig;
    interrupted = 1;
}

/* When things happen, in ms from the start. */
struct plan {
    int64_t sink_away, sink_back, kill, restart, writer_end;
};

static struct plan plan_of(int64_t seconds)
{
    int64_t all = seconds * 1000, outage = all / 5;
    struct plan p = {.sink_away = all / 5};
    if (outage > 4000)
        outage = 4000;
    p.sink_back = p.sink_away + outage;
    p.kill = p.sink_back + (all - p.sink_back) / 3;
    p.restart = p.kill + DOWN_AFTER_KILL_MS;
    p.writer_end = all - 800;
    if (p.writer_end < p.restart)
        p.writer_end = p.restart;
    return p;
}

static enum ob_status relay_watch(struct ob_demo *d, struct ob_err *err)
{
    int how = 0;
    if (d->step == OB_DEMO_KILLED || ob_demo_relay_alive(&d->world, &how))
        return OB_OK;
    return ob_err_set(err, OB_FATAL, "the relay ended by itself (%s %d); see %s",
                      WIFSIGNALED(how) ? "signal" : "exit code",
                      WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how), d->world.log);
}

/* Does what is due. */
static enum ob_status act(struct ob_demo *d, const struct plan *p, struct ob_err *err)
{
    int64_t t = d->elapsed_ms;
    enum ob_status st = relay_watch(d, err);
    if (st != OB_OK)
        return st;
    if (d->step == OB_DEMO_RUNNING && t >= p->sink_away) {
        st = ob_demo_sink_take(&d->world, err);
        d->step = OB_DEMO_SINK_AWAY;
        ob_demo_say(d, "the sink fails: its folder is taken away; orders go on");
    } else if (d->step == OB_DEMO_SINK_AWAY && t >= p->sink_back) {
        st = ob_demo_sink_give(&d->world, err);
        d->step = OB_DEMO_SINK_BACK;
        ob_demo_say(d, "the sink is back");
    } else if (d->step == OB_DEMO_SINK_BACK && t >= p->kill) {
        ob_demo_relay_kill(&d->world);
        d->step = OB_DEMO_KILLED;
        ob_demo_say(d, "the relay is killed (SIGKILL); orders go on");
    } else if (d->step == OB_DEMO_KILLED && t >= p->restart) {
        st = ob_demo_relay_start(&d->world, err);
        d->step = OB_DEMO_RESTARTED;
        ob_demo_say(d, "the relay is started again");
    } else if (d->step == OB_DEMO_RESTARTED && t >= p->writer_end) {
        ob_demo_writer_stop(d->writer);
        d->step = OB_DEMO_DRAINING;
        d->drain_from_ms = t;
        ob_demo_say(d, "the application stops; waiting until all is published");
    }
    return st;
}

static bool drained(const struct ob_demo *d)
{
    return d->step == OB_DEMO_DRAINING && d->follow.published >= d->counts.events;
}

/* From the first order until everything is published, or the deadline for that is over. */
static enum ob_status play(struct ob_demo *d, const struct plan *p, struct ob_err *err)
{
    int64_t start = ob_clock_mono_ms(&ob_clock_system);
    while (!interrupted) {
        d->elapsed_ms = ob_clock_mono_ms(&ob_clock_system) - start;
        enum ob_status st = act(d, p, err);
        if (st != OB_OK)
            return st;
        uint64_t published = d->follow.published;
        ob_demo_look(d);
        if (d->follow.published > published)
            d->drain_from_ms = d->elapsed_ms;
        if (d->counts.failed)
            return ob_err_set(err, OB_FATAL, "the application could not write: %s",
                              d->counts.error);
        if (drained(d))
            return OB_OK;
        if (d->step == OB_DEMO_DRAINING && d->elapsed_ms - d->drain_from_ms > DRAIN_MS) {
            ob_demo_say(d, "not all was published in time");
            return OB_OK; /* the verification will name what is missing */
        }
        nanosleep(&(struct timespec){.tv_nsec = TICK_MS * 1000000L}, NULL);
    }
    return ob_err_set(err, OB_AGAIN, "interrupted");
}

static void catch_signals(void)
{
    struct sigaction sa = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
}

/* Ends what runs, reads both files and tells. */
static int conclude(struct ob_cli *cli, struct ob_demo *d)
{
    struct ob_demo_report report;
    struct ob_err err = {0};
    bool stopped = ob_demo_relay_stop(&d->world, STOP_MS);
    ob_demo_view_end(d);
    if (ob_demo_verify(d->world.db, d->world.out, &report, &err) != OB_OK)
        return ob_cli_fail(cli, OB_EXIT_FAILURE, "cannot verify: %s", err.text);
    bool holds = ob_demo_holds(&report) && stopped;
    ob_demo_summary(d, &report, stopped, holds);
    return holds ? OB_EXIT_OK : OB_EXIT_FAILURE;
}

static int run(struct ob_cli *cli)
{
    struct ob_demo d = {.cli = cli,
                        .json = ob_cli_flag(cli, "json"),
                        .keep = ob_cli_flag(cli, "keep"),
                        .seconds = ob_cli_int(cli, "seconds", 15)};
    struct plan p = plan_of(d.seconds);
    struct ob_err err = {0};
    unsigned rate = (unsigned)ob_cli_int(cli, "rate", 200);
    uint64_t seed = (uint64_t)ob_cli_int(cli, "seed", 1);
    int code;
    catch_signals();
    enum ob_status st = ob_demo_world_open(&d.world, &err);
    if (st == OB_OK)
        st = ob_demo_relay_start(&d.world, &err);
    if (st == OB_OK)
        st = ob_demo_writer_start(d.world.db, rate, seed, &d.writer, &err);
    if (st == OB_OK) {
        ob_demo_view_start(&d);
        st = play(&d, &p, &err);
    }
    ob_demo_view_end(&d);
    if (st == OB_OK)
        code = conclude(cli, &d);
    else
        code =
            ob_cli_fail(cli, interrupted ? OB_EXIT_INTERRUPTED : OB_EXIT_FAILURE, "%s", err.text);
    ob_demo_writer_free(d.writer);
    /* What failed can be looked at. */
    bool keep = d.keep || code == OB_EXIT_FAILURE;
    ob_demo_world_close(&d.world, keep);
    if (keep && !d.keep && d.world.dir[0])
        fprintf(cli->err, "the files are in %s\n", d.world.dir);
    return code;
}

const struct ob_cmd ob_cmd_demo = {
    .name = "demo",
    .summary = "See it work: an outage, a crash, and nothing lost",
    .about =
        "Makes a SQLite database in a temporary folder and writes orders and their events into it "
        "in transactions, some of which are rolled back. A relay runs as a process of its own and "
        "writes the events to a file. While orders go on, the file's folder is taken away for some "
        "seconds and the relay is killed once with SIGKILL.\n\n"
        "At the end both files are read by themselves and compared: every committed event was "
        "delivered, nothing that was rolled back was, the first deliveries of each key are in "
        "order. Repeats are counted; they come from the kill and carry the same id. The exit code "
        "is 0 only if all of that holds. The folder is removed unless --keep is given or the check "
        "failed.\n\n"
        "On a terminal there is a live view; otherwise one line a second.",
    .opts =
        (const struct ob_cli_opt[]){
            {"seconds", 's', OB_CLI_INT, "N", NULL, 3, 600, "15", "About how long it takes."},
            {"rate", 0, OB_CLI_INT, "N", NULL, 1, 5000, "200", "Transactions a second."},
            {"seed", 0, OB_CLI_INT, "N", NULL, 0, INT64_MAX, "1",
             "Chooses which orders change and which are rolled back."},
            {"keep", 0, OB_CLI_FLAG, NULL, NULL, 0, 0, NULL,
             "Leave the folder with both files and the relay's log."},
            {0}},
    .shared = OB_CLI_OPTS_JSON,
    .examples = (const struct ob_cli_example[]){{"See it", "outbox demo"},
                                                {"Longer, and look at the files afterwards",
                                                 "outbox demo --seconds 60 --keep"},
                                                {"In a script", "outbox demo --seconds 5 --json"},
                                                {0}},
    .run = run,
};
