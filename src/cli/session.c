/* SPDX-License-Identifier: Apache-2.0 */
/* session - config, pipelines and their sources, as commands need them; and how failures are told.
 */
#include "cli/cli.h"
#include "relay/conf.h"
#include "source/admin.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <unistd.h>

int ob_cli_fail(const struct ob_cli *cli, int code, const char *fmt, ...)
{
    va_list ap;
    struct ob_buf clean;
    ob_buf_init(&clean, 0);
    char line[1024];
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    ob_term_text(&clean, ob_str_c(line), 0);
    fflush(cli->out);
    fprintf(cli->err, "outbox%s%s: %s\n", cli->cmd ? " " : "", cli->cmd ? cli->cmd->name : "",
            ob_buf_z(&clean));
    ob_buf_clear(&clean);
    return code;
}

int ob_cli_exit_of(enum ob_status st)
{
    if (st == OB_OK)
        return OB_EXIT_OK;
    bool later = st == OB_AGAIN || st == OB_RETRY || st == OB_DOWN;
    return later ? OB_EXIT_TEMPORARY : OB_EXIT_FAILURE;
}

int ob_cli_fail_err(const struct ob_cli *cli, const char *pipeline, const struct ob_err *err)
{
    int code = ob_cli_exit_of(err->status);
    if (pipeline)
        return ob_cli_fail(cli, code, "pipeline %s: %s", pipeline, err->text);
    return ob_cli_fail(cli, code, "%s", err->text);
}

int ob_cli_put(const struct ob_cli *cli, struct ob_buf *buf)
{
    int code = OB_EXIT_OK;
    if (buf->failed)
        code = ob_cli_fail(cli, OB_EXIT_FAILURE, "the text is too large");
    else if (buf->n && fwrite(buf->p, 1, buf->n, cli->out) != buf->n)
        code = OB_EXIT_FAILURE;
    ob_buf_clear(buf);
    return code;
}

int ob_cli_config(struct ob_cli *cli, struct ob_config **out)
{
    struct ob_buf problems;
    int code = OB_EXIT_OK;
    ob_buf_init(&problems, 0);
    if (ob_config_load_all(ob_cli_str(cli, "config"), out, &problems, NULL) != OB_OK) {
        const char *line = ob_buf_z(&problems);
        for (size_t n; code == OB_EXIT_OK || *line; line += n + (line[n] == '\n')) {
            n = strcspn(line, "\n");
            code = ob_cli_fail(cli, OB_EXIT_CONFIG, "%.*s", (int)n, line);
        }
    }
    ob_buf_clear(&problems);
    return code;
}

static void names_of(const struct ob_config *config, struct ob_buf *out)
{
    for (size_t i = 0; i < config->n; i++)
        ob_buf_printf(out, "%s%s", i ? ", " : "", config->pipelines[i].name);
}

int ob_cli_chosen(struct ob_cli *cli, const struct ob_config *config,
                  const struct ob_pipeline_conf **out)
{
    const char *name = ob_cli_str(cli, "pipeline");
    int code = OB_EXIT_OK;
    *out = name ? ob_config_pipeline(config, name) : NULL;
    if (name && !*out) {
        struct ob_buf names;
        ob_buf_init(&names, 4096);
        names_of(config, &names);
        code = ob_cli_fail(cli, OB_EXIT_USAGE, "%s has no pipeline '%s'; it has: %s", config->file,
                           name, ob_buf_z(&names));
        ob_buf_clear(&names);
    }
    return code;
}

static int with_pipeline(struct ob_cli *cli, const struct ob_pipeline_conf *conf,
                         ob_cli_pipe_fn *fn, void *user)
{
    struct ob_err err = {0};
    struct ob_cli_pipe pipe = {.conf = conf, .ops = conf->source->admin};
    if (!pipe.ops)
        return ob_cli_fail(cli, OB_EXIT_FAILURE,
                           "pipeline %s: source type %s cannot do this from the command line",
                           conf->name, conf->source->name);
    enum ob_status st =
        pipe.ops->open(conf->name, conf->source_conf, &ob_clock_system, &pipe.admin, &err);
    if (st != OB_OK)
        return ob_cli_fail_err(cli, conf->name, &err);
    int code = fn(cli, &pipe, user);
    pipe.ops->close(pipe.admin);
    return code;
}

int ob_cli_with_pipelines(struct ob_cli *cli, enum ob_cli_how how, ob_cli_pipe_fn *fn, void *user)
{
    struct ob_config *config = NULL;
    const struct ob_pipeline_conf *only = NULL;
    int code = ob_cli_config(cli, &config);
    if (code == OB_EXIT_OK)
        code = ob_cli_chosen(cli, config, &only);
    if (code != OB_EXIT_OK)
        goto done;
    if (!only && how == OB_CLI_ONE && config->n != 1) {
        struct ob_buf names;
        ob_buf_init(&names, 4096);
        names_of(config, &names);
        code =
            ob_cli_fail(cli, OB_EXIT_USAGE, "which pipeline? choose with -p: %s", ob_buf_z(&names));
        ob_buf_clear(&names);
        goto done;
    }
    for (size_t i = 0; i < config->n; i++) {
        if (only && only != &config->pipelines[i])
            continue;
        int one = with_pipeline(cli, &config->pipelines[i], fn, user);
        code = one > code ? one : code;
    }
done:
    ob_config_free(config);
    return code;
}

enum ob_status ob_cli_read_file(const char *path, size_t ceiling, struct ob_buf *out,
                                struct ob_err *err)
{
    enum ob_status st = OB_OK;
    bool in = strcmp(path, "-") == 0;
    int fd = in ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return ob_err_set(err, OB_REJECT, "%s: %s", path, strerror(errno));
    ob_buf_init(out, ceiling);
    for (;;) {
        char part[65536];
        ssize_t n = read(fd, part, sizeof part);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            st = ob_err_set(err, OB_REJECT, "%s: %s", path, strerror(errno));
        if (n <= 0)
            break;
        ob_buf_put(out, part, (size_t)n);
        if (out->failed) {
            st = ob_err_set(err, OB_REJECT, "%s: larger than %zu MiB", path, ceiling >> 20);
            break;
        }
    }
    if (!in)
        close(fd);
    if (st != OB_OK)
        ob_buf_clear(out);
    return st;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

void ob_cli_remove_tree(const char *dir)
{
    nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
