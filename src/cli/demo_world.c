/* SPDX-License-Identifier: Apache-2.0 */
/* demo_world - what a demo runs in. */
#include "cli/demo_world.h"

#include "cli/cli.h"
#include "core/clock.h"
#include "core/jscan.h"
#include "relay/conf.h"
#include "source/admin.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static enum ob_status sys_err(struct ob_err *err, const char *what)
{
    return ob_err_set(err, OB_FATAL, "%s: %s", what, strerror(errno));
}

static enum ob_status write_config(const struct ob_demo_world *w, struct ob_err *err)
{
    FILE *f = fopen(w->config, "we");
    if (!f)
        return sys_err(err, w->config);
    fprintf(f,
            "log: {level: info}\n"
            "pipelines:\n"
            "  demo:\n"
            "    source: {type: sqlite, path: \"%s\"}\n"
            "    sink: {type: file, path: \"%s\"}\n"
            "    retry: {first: 200ms, max: 1s}\n",
            w->db, w->out);
    return fclose(f) == 0 ? OB_OK : sys_err(err, w->config);
}

/* As `outbox schema --apply` does it. */
static enum ob_status make_tables(const struct ob_demo_world *w, struct ob_err *err)
{
    struct ob_config *config = NULL;
    struct ob_admin *admin = NULL;
    struct ob_buf text;
    unsigned changed = 0;
    ob_buf_init(&text, 0);
    enum ob_status st = ob_config_load(w->config, &config, err);
    if (st != OB_OK)
        goto done;
    const struct ob_pipeline_conf *p = &config->pipelines[0];
    st = p->source->admin->open(p->name, p->source_conf, &ob_clock_system, &admin, err);
    if (st == OB_OK)
        st = p->source->admin->schema(admin, false, &text, &changed, err);
    if (admin)
        p->source->admin->close(admin);
done:
    ob_buf_clear(&text);
    ob_config_free(config);
    return st;
}

enum ob_status ob_demo_world_open(struct ob_demo_world *w, struct ob_err *err)
{
    const char *tmp = getenv("TMPDIR");
    *w = (struct ob_demo_world){0};
    if (!tmp || tmp[0] != '/' || strlen(tmp) > 200 || strpbrk(tmp, "\"\\$\n"))
        tmp = "/tmp";
    snprintf(w->dir, sizeof w->dir, "%s/outbox-demo-XXXXXX", tmp);
    if (!mkdtemp(w->dir)) {
        w->dir[0] = 0;
        return sys_err(err, tmp);
    }
    snprintf(w->config, sizeof w->config, "%s/outbox.yaml", w->dir);
    snprintf(w->db, sizeof w->db, "%s/shop.db", w->dir);
    snprintf(w->log, sizeof w->log, "%s/relay.log", w->dir);
    snprintf(w->out_dir, sizeof w->out_dir, "%s/out", w->dir);
    snprintf(w->away, sizeof w->away, "%s/out.away", w->dir);
    snprintf(w->out, sizeof w->out, "%s/events.jsonl", w->out_dir);
    if (mkdir(w->out_dir, 0755) != 0)
        return sys_err(err, w->out_dir);
    enum ob_status st = write_config(w, err);
    return st == OB_OK ? make_tables(w, err) : st;
}

void ob_demo_world_close(struct ob_demo_world *w, bool keep)
{
    ob_demo_relay_kill(w);
    if (w->dir[0] && !keep)
        ob_cli_remove_tree(w->dir);
}

/* Only async-signal-safe calls: other threads are running in the parent. */
static void become_relay(const struct ob_demo_world *w, pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    /* Whatever happens to the demo, its relay does not outlive it. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0); /* Ctrl-C is the demo's to handle */
    int log = open(w->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (getppid() != parent || log < 0 || null < 0 || dup2(null, 0) < 0 || dup2(log, 1) < 0 ||
        dup2(log, 2) < 0)
        _exit(126);
    char *const argv[] = {"outbox", "run", "-c", (char *)w->config, NULL};
    execv("/proc/self/exe", argv);
    _exit(127);
}

enum ob_status ob_demo_relay_start(struct ob_demo_world *w, struct ob_err *err)
{
    pid_t parent = getpid(), pid = fork();
    if (pid < 0)
        return sys_err(err, "fork");
    if (pid == 0)
        become_relay(w, parent);
    w->relay = pid;
    return OB_OK;
}

bool ob_demo_relay_alive(struct ob_demo_world *w, int *how)
{
    int status = 0;
    if (!w->relay)
        return false;
    if (waitpid(w->relay, &status, WNOHANG) != w->relay)
        return true;
    w->relay = 0;
    if (how)
        *how = status;
    return false;
}

void ob_demo_relay_kill(struct ob_demo_world *w)
{
    if (!w->relay)
        return;
    kill(w->relay, SIGKILL);
    while (waitpid(w->relay, NULL, 0) < 0 && errno == EINTR)
        ;
    w->relay = 0;
}

bool ob_demo_relay_stop(struct ob_demo_world *w, int64_t deadline_ms)
{
    int how = -1;
    int64_t end = ob_clock_mono_ms(&ob_clock_system) + deadline_ms;
    if (!w->relay)
        return false;
    kill(w->relay, SIGTERM);
    while (ob_demo_relay_alive(w, &how)) {
        if (ob_clock_mono_ms(&ob_clock_system) > end) {
            ob_demo_relay_kill(w);
            return false;
        }
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    return WIFEXITED(how) && WEXITSTATUS(how) == 0;
}

enum ob_status ob_demo_sink_take(struct ob_demo_world *w, struct ob_err *err)
{
    if (rename(w->out_dir, w->away) != 0)
        return sys_err(err, w->out_dir);
    w->sink_away = true;
    int fd = open(w->out_dir, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0)
        return sys_err(err, w->out_dir);
    close(fd);
    return OB_OK;
}

enum ob_status ob_demo_sink_give(struct ob_demo_world *w, struct ob_err *err)
{
    if (!w->sink_away)
        return OB_OK;
    if (unlink(w->out_dir) != 0 || rename(w->away, w->out_dir) != 0)
        return sys_err(err, w->out_dir);
    w->sink_away = false;
    return OB_OK;
}

void ob_demo_follow_line(struct ob_demo_follow *f, const char *p, size_t n)
{
    struct ob_str raw;
    enum ob_jtype type;
    struct ob_err err;
    char key[24] = "", no[24] = "";
    f->lines++;
    if (ob_json_pointer((struct ob_str){p, n}, OB_STR("/key"), &raw, &type, &err) == OB_OK)
        snprintf(key, sizeof key, "%.*s", (int)(raw.n < sizeof key ? raw.n : 0), raw.p);
    if (ob_json_pointer((struct ob_str){p, n}, OB_STR("/value/no"), &raw, &type, &err) == OB_OK)
        snprintf(no, sizeof no, "%.*s", (int)(raw.n < sizeof no ? raw.n : 0), raw.p);
    unsigned long k = key[0] == '"' && key[1] == 'c' ? strtoul(key + 2, NULL, 10) : OB_DEMO_KEYS;
    uint64_t number = strtoull(no, NULL, 10);
    if (k >= OB_DEMO_KEYS || number == 0) {
        f->gaps++;
        return;
    }
    if (number <= f->by_key[k]) {
        f->repeats++;
        return;
    }
    if (number != f->by_key[k] + 1)
        f->gaps++;
    f->by_key[k] = number;
    f->published++;
}

void ob_demo_follow(struct ob_demo_follow *f, const struct ob_demo_world *w)
{
    char path[340], part[65536];
    snprintf(path, sizeof path, "%s/events.jsonl", w->sink_away ? w->away : w->out_dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n;
    while (fd >= 0 && (n = pread(fd, part, sizeof part, f->offset)) > 0) {
        f->offset += n;
        for (ssize_t i = 0; i < n; i++) {
            if (part[i] == '\n') {
                ob_demo_follow_line(f, f->rest, f->n_rest);
                f->n_rest = 0;
            } else if (f->n_rest < sizeof f->rest) {
                f->rest[f->n_rest++] = part[i];
            }
        }
    }
    if (fd >= 0)
        close(fd);
}
