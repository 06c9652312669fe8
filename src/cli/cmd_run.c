/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_run - `outbox run`: the relay in the foreground.
 *
 * All signals are blocked and read by one keeper thread from a signalfd, so that nothing but the
 * keeper decides what they do: SIGTERM and SIGINT stop (the second one at once), SIGHUP reloads. */
#include "cli/commands.h"
#include "cli/harden.h"
#include "cli/notify.h"
#include "cli/slim.h"
#include "relay/relay.h"
#include "source/admin.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define MAX_SHARDS 16
#define PROGRESS_MS 200

struct keeper {
    struct ob_cli *cli;
    struct ob_relay *relay;
    const char *file; /* where to reload from */
    struct ob_log log;
    struct ob_notify notify;
    struct ob_config *first, *current; /* the relay borrows the first one to its end */
    int signals, ended; /* signalfd; eventfd that main writes when the relay has ended */
    bool progress;      /* of --once, on a terminal */
    int64_t first_pending;
    struct ob_progress bar;
};

static void warn_of_exposed(const struct ob_log *log, const struct ob_config *config)
{
    for (size_t i = 0; i < config->secrets.n; i++)
        if (ob_secret_is_exposed(config->secrets.file[i]))
            ob_log(log, OB_LOG_WARN, "config.exposed", OB_KC("file", config->secrets.file[i]),
                   OB_KC("option", config->secrets.option[i]),
                   OB_KC("error", "every user of this machine can read a secret; chmod 600"));
}

static void reload(struct keeper *k)
{
    struct ob_config *config = NULL;
    struct ob_err err = {0};
    char text[64];
    snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%" PRId64,
             ob_clock_system.mono_us(ob_clock_system.user));
    ob_notify_send(&k->notify, text);
    enum ob_status st = ob_config_load(k->file, &config, &err);
    if (st == OB_OK)
        st = ob_relay_reload(k->relay, config, &err);
    if (st != OB_OK) {
        ob_log(&k->log, OB_LOG_ERROR, "config.reload_failed", OB_KC("error", err.text),
               OB_KC("kept", "the configuration that is running"));
        ob_config_free(config);
    } else {
        ob_log(&k->log, OB_LOG_INFO, "config.reloaded", OB_KC("file", config->file));
        warn_of_exposed(&k->log, config);
        if (k->current != k->first)
            ob_config_free(k->current);
        k->current = config;
    }
    ob_notify_send(&k->notify, "READY=1");
}

static void on_signal(struct keeper *k)
{
    struct signalfd_siginfo info;
    while (read(k->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGHUP) {
            reload(k);
            continue;
        }
        ob_log(&k->log, OB_LOG_INFO, "relay.signal",
               OB_KC("signal", info.ssi_signo == SIGINT ? "SIGINT" : "SIGTERM"));
        ob_notify_send(&k->notify, "STOPPING=1");
        ob_relay_stop(k->relay);
    }
}

/* Pending events of all pipelines, asked beside the relay. -1: not known. */
static int64_t pending(const struct ob_config *config)
{
    int64_t sum = 0;
    for (size_t i = 0; i < config->n; i++) {
        const struct ob_pipeline_conf *p = &config->pipelines[i];
        const struct ob_source_admin *ops = p->source->admin;
        struct ob_shard_status shards[MAX_SHARDS];
        struct ob_admin *admin = NULL;
        size_t n = 0;
        if (!ops || ops->open(p->name, p->source_conf, &ob_clock_system, &admin, NULL) != OB_OK)
            return -1;
        if (ops->status(admin, shards, MAX_SHARDS, &n, NULL) != OB_OK)
            sum = -1;
        for (size_t s = 0; s < n && sum >= 0; s++)
            sum += shards[s].source.pending > 0 ? shards[s].source.pending : 0;
        ops->close(admin);
        if (sum < 0)
            break;
    }
    return sum;
}

static void draw_progress(struct keeper *k)
{
    int64_t left = pending(k->current);
    if (left < 0)
        return;
    if (left > k->first_pending) {
        k->first_pending = left;
        k->bar.total = (uint64_t)left;
    }
    if (k->first_pending > 0)
        ob_progress_set(&k->bar, (uint64_t)(k->first_pending - left));
}

static void *keep(void *arg)
{
    struct keeper *k = arg;
    struct pollfd fds[] = {{.fd = k->signals, .events = POLLIN},
                           {.fd = k->ended, .events = POLLIN}};
    int64_t wait = k->notify.watchdog_ms;
    if (k->progress && (wait < 0 || wait > PROGRESS_MS))
        wait = PROGRESS_MS;
    for (;;) {
        int n = poll(fds, 2, wait > INT32_MAX ? INT32_MAX : (int)wait);
        if (n < 0 && errno != EINTR)
            break;
        if (n > 0 && fds[1].revents)
            break;
        if (n > 0 && fds[0].revents)
            on_signal(k);
        /* A thread that hangs is what a watchdog is for: then it hears nothing. */
        if (k->notify.watchdog_ms >= 0 && ob_relay_turns(k->relay))
            ob_notify_send(&k->notify, "WATCHDOG=1");
        if (k->progress)
            draw_progress(k);
    }
    ob_progress_end(&k->bar);
    return NULL;
}

/* Blocks what the keeper reads; every thread that is started later inherits that. */
static int block_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    signal(SIGPIPE, SIG_IGN);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

static int run_relay(struct ob_cli *cli, struct keeper *k, const struct ob_relay_opts *opts)
{
    struct ob_err err = {0};
    pthread_t thread;
    int code = OB_EXIT_OK;
    if (ob_relay_new(k->current, opts, &k->relay, &err) != OB_OK)
        return ob_cli_fail(cli, OB_EXIT_CONFIG, "%s", err.text);
    k->signals = block_signals();
    k->ended = eventfd(0, EFD_CLOEXEC);
    ob_notify_open(&k->notify);
    if (k->signals < 0 || k->ended < 0 || pthread_create(&thread, NULL, keep, k) != 0) {
        code = ob_cli_fail(cli, OB_EXIT_FAILURE, "cannot start: %s", strerror(errno));
        goto done;
    }
    ob_slim_code();
    ob_notify_send(&k->notify, "READY=1");
    enum ob_status st = ob_relay_run(k->relay, &err);
    (void)!write(k->ended, &(uint64_t){1}, sizeof(uint64_t));
    pthread_join(thread, NULL);
    if (st != OB_OK)
        code = ob_cli_fail_err(cli, NULL, &err);
done:
    ob_notify_close(&k->notify);
    if (k->signals >= 0)
        close(k->signals);
    if (k->ended >= 0)
        close(k->ended);
    ob_relay_free(k->relay);
    return code;
}

static int run(struct ob_cli *cli)
{
    ob_harden_memory();
    ob_slim_heap();
    struct keeper k = {.cli = cli, .file = ob_cli_str(cli, "config"), .signals = -1, .ended = -1};
    const struct ob_pipeline_conf *only = NULL;
    struct ob_relay_opts opts = {.once = ob_cli_flag(cli, "once"),
                                 .accept_loss = ob_cli_flag(cli, "accept-loss"),
                                 .log = &k.log};
    int code = ob_cli_config(cli, &k.first);
    if (code == OB_EXIT_OK)
        code = ob_cli_chosen(cli, k.first, &only);
    if (code != OB_EXIT_OK)
        goto done;
    k.current = k.first;
    k.log = (struct ob_log){.fd = STDERR_FILENO,
                            .level = (enum ob_log_level)k.first->log_level,
                            .format = (enum ob_log_format)k.first->log_format,
                            .shard = -1};
    ob_progress_init(&k.bar, cli->err, "publishing", 0);
    k.progress = opts.once && k.bar.term.tty;
    if (k.progress && k.log.level < OB_LOG_WARN)
        k.log.level = OB_LOG_WARN; /* a person looks at the bar, not at lines */
    opts.only = only ? only->name : NULL;
    warn_of_exposed(&k.log, k.first);
    code = run_relay(cli, &k, &opts);
done:
    if (k.current != k.first)
        ob_config_free(k.current);
    ob_config_free(k.first);
    return code;
}

const struct ob_cmd ob_cmd_run = {
    .name = "run",
    .summary = "Run the relay",
    .about =
        "Publishes the events of every pipeline until it is told to stop. Pipelines do not disturb "
        "each other: one that cannot work keeps trying. Several relays may run on the same source; "
        "one is active per shard, the others stand by.\n\n"
        "SIGTERM and SIGINT let what is in flight settle within the grace period, then end; a "
        "second one ends at once. SIGHUP reads the configuration again and takes its routes; if it "
        "is wrong the error is logged and the running one stays. Under systemd (Type=notify) "
        "READY, "
        "RELOADING, STOPPING and WATCHDOG are reported. Log lines go to standard error.\n\n"
        "The relay leaves no core dump and lets no debugger of its own user attach, because its "
        "memory holds passwords and payloads; OUTBOX_CORE=1 in the environment allows both.\n\n"
        "With --once it publishes what is there, settles and ends: for cron, or in tests. The exit "
        "code is then 1 if a pipeline could not do its work.",
    .opts = (const struct ob_cli_opt[]){{"once", '1', OB_CLI_FLAG, NULL, NULL, 0, 0, NULL,
                                         "Publish what is there, then end."},
                                        {"accept-loss", 0, OB_CLI_FLAG, NULL, NULL, 0, 0, NULL,
                                         "Go on where a source has lost events and says which."},
                                        {0}},
    .shared = OB_CLI_OPTS_CONFIG | OB_CLI_OPTS_PIPELINE,
    .examples = (const struct ob_cli_example[]){{"In the foreground", "outbox run -c outbox.yaml"},
                                                {"Drain one pipeline and end",
                                                 "outbox run --once -p orders"},
                                                {0}},
    .run = run,
};
