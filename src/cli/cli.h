/* SPDX-License-Identifier: Apache-2.0 */
/* cli - a command is one row: its options, help text and examples. Parsing, --help, completions,
 * man pages and docs/cli.md all come from these rows. */
#ifndef OB_CLI_CLI_H
#define OB_CLI_CLI_H

#include "cli/term.h"
#include "core/buf.h"
#include "core/err.h"

#include <stdint.h>
#include <stdio.h>

enum ob_cli_exit {
    OB_EXIT_OK = 0,
    OB_EXIT_FAILURE = 1,
    OB_EXIT_USAGE = 2,
    OB_EXIT_TEMPORARY = 75,
    OB_EXIT_CONFIG = 78,
    OB_EXIT_INTERRUPTED = 130,
};

enum ob_cli_kind {
    OB_CLI_FLAG, /* takes no value */
    OB_CLI_STR,
    OB_CLI_FILE,
    OB_CLI_INT,    /* within min..max */
    OB_CLI_TIME,   /* RFC 3339, or a duration ago: 90s, 15m, 2h, 7d */
    OB_CLI_CHOICE, /* one of choices */
};

struct ob_cli_opt {
    const char *name; /* without the dashes; NULL ends a table */
    char letter;      /* 0: none */
    enum ob_cli_kind kind;
    const char *meta;    /* name of the value in help texts */
    const char *choices; /* CHOICE: "a|b|c" */
    int64_t min, max;    /* INT */
    const char *def;     /* what holds when it is not given, for help texts; may be NULL */
    const char *help;    /* one sentence */
};

struct ob_cli_example {
    const char *what, *command; /* what NULL ends a table */
};

enum { /* options that several commands share */
       OB_CLI_OPTS_CONFIG = 1,
       OB_CLI_OPTS_PIPELINE = 2,
       OB_CLI_OPTS_JSON = 4,
       OB_CLI_OPTS_DEAD = 8,  /* filter of dead events */
       OB_CLI_OPTS_APPLY = 16 /* --all, --dry-run, --yes */
};

struct ob_cli;

struct ob_cmd {
    const char *name;     /* "status", or "dead list" inside a group */
    const char *summary;  /* one line, no full stop */
    const char *about;    /* paragraphs, separated by an empty line */
    const char *operands; /* as in the usage line; NULL: none */
    const char *operand_choices;
    unsigned min_operands, max_operands;
    const struct ob_cli_opt *opts; /* may be NULL */
    unsigned shared;               /* OB_CLI_OPTS_… */
    const struct ob_cli_example *examples;
    int (*run)(struct ob_cli *cli); /* returns an exit code; NULL: a group of commands */
};

#define OB_CLI_MAX_OPTS 40
#define OB_CLI_MAX_OPERANDS 4

/* One invocation. */
struct ob_cli {
    const struct ob_cmd *const *cmds; /* NULL-terminated */
    const struct ob_cmd *cmd;
    const char *values[OB_CLI_MAX_OPTS]; /* by position of the option; a flag's is "" */
    const char *operands[OB_CLI_MAX_OPERANDS];
    size_t n_operands;
    bool help; /* --help was given */
    FILE *out, *err;
    struct ob_term term; /* of out */
};

/* The whole program: parses, runs, returns the exit code. */
int ob_cli_main(const struct ob_cmd *const *cmds, int argc, char **argv);

/* -- args.c -- */
/* The i-th option of a command: its own, then the shared ones, then --help. NULL: no more. */
const struct ob_cli_opt *ob_cmd_opt(const struct ob_cmd *cmd, size_t i);
/* name may be of one or two words ("dead list"); NULL: there is none. */
const struct ob_cmd *ob_cmd_find(const struct ob_cmd *const *cmds, const char *word,
                                 const char *second);
/* The nearest command that begins or is spelled like word; NULL: none is near. group: look at the
 * second words of that group. */
const char *ob_cmd_nearest(const struct ob_cmd *const *cmds, const char *group, const char *word);
/* True if cmd is inside group ("dead list" is inside "dead"). */
bool ob_cmd_inside(const struct ob_cmd *cmd, const struct ob_cmd *group);
/* Reads the words behind the command into cli. OB_REJECT: a usage error, in err. */
enum ob_status ob_cli_parse(struct ob_cli *cli, int argc, char **argv,
                            struct ob_err *err) OB_MUST_CHECK;
bool ob_cli_flag(const struct ob_cli *cli, const char *name);
const char *ob_cli_str(const struct ob_cli *cli, const char *name); /* NULL: not given */
int64_t ob_cli_int(const struct ob_cli *cli, const char *name, int64_t otherwise);
/* now_us: what "ago" counts from. 0: not given. */
int64_t ob_cli_time(const struct ob_cli *cli, const char *name, int64_t now_us);
/* RFC 3339 or a duration ago. 0, or -1 if it is neither. */
int ob_cli_time_parse(const char *text, int64_t now_us, int64_t *out);

/* -- texts made of the table -- */
struct ob_cli_exit_text {
    int code;
    const char *what; /* NULL ends the table */
};
extern const struct ob_cli_exit_text ob_cli_exits[];
struct ob_cli_env_text {
    const char *name, *what; /* name NULL ends the table */
};
extern const struct ob_cli_env_text ob_cli_envs[];

/* Paragraphs broken at width, each line after indent spaces. */
void ob_help_wrap(struct ob_buf *out, const char *text, unsigned indent, unsigned width);
/* "outbox dead retry [options] [ID]" */
void ob_help_usage(struct ob_buf *out, const struct ob_cmd *cmd);
/* "-c, --config FILE" */
void ob_help_opt_names(struct ob_buf *out, const struct ob_cli_opt *opt);
void ob_help_command(struct ob_buf *out, const struct ob_cmd *const *cmds, const struct ob_cmd *cmd,
                     const struct ob_term *term);
void ob_help_all(struct ob_buf *out, const struct ob_cmd *const *cmds, const struct ob_term *term);
void ob_help_markdown(struct ob_buf *out, const struct ob_cmd *const *cmds); /* docs/cli.md */
/* A man page in roff; cmd NULL: outbox(1). */
void ob_man(struct ob_buf *out, const struct ob_cmd *const *cmds, const struct ob_cmd *cmd);
/* shell: bash, zsh or fish. */
void ob_completion(struct ob_buf *out, const struct ob_cmd *const *cmds, const char *shell);

/* -- session.c: what commands that work on pipelines share -- */
struct ob_config;
struct ob_pipeline_conf;
struct ob_source_admin;
struct ob_admin;

struct ob_cli_pipe {
    const struct ob_pipeline_conf *conf;
    const struct ob_source_admin *ops;
    struct ob_admin *admin;
};
/* Returns an exit code. */
typedef int ob_cli_pipe_fn(struct ob_cli *cli, const struct ob_cli_pipe *pipe, void *user);

enum ob_cli_how { OB_CLI_ONE, OB_CLI_EACH };
/* Loads the config, opens the chosen pipelines' sources (with ONE exactly one pipeline must be
 * meant) and calls fn for each. Failures are told on cli->err. Returns the worst exit code. */
int ob_cli_with_pipelines(struct ob_cli *cli, enum ob_cli_how how, ob_cli_pipe_fn *fn, void *user);
/* -c or the search path. OB_EXIT_OK, or the exit code of a failure that has been told. */
int ob_cli_config(struct ob_cli *cli, struct ob_config **out);
/* The pipeline that -p names, or NULL in *out for "all". */
int ob_cli_chosen(struct ob_cli *cli, const struct ob_config *config,
                  const struct ob_pipeline_conf **out);
/* "outbox status: text" on cli->err; returns code. */
int ob_cli_fail(const struct ob_cli *cli, int code, const char *fmt, ...) OB_PRINTF(3, 4);
int ob_cli_exit_of(enum ob_status st);
/* Likewise from an error; the exit code follows from its status. */
int ob_cli_fail_err(const struct ob_cli *cli, const char *pipeline, const struct ob_err *err);
/* Writes buf to cli->out and clears it. */
int ob_cli_put(const struct ob_cli *cli, struct ob_buf *buf);
/* A folder of our own making, with all that is in it. */
void ob_cli_remove_tree(const char *dir);
/* Reads a whole file ("-": standard input) of at most ceiling bytes. OB_REJECT: larger. */
enum ob_status ob_cli_read_file(const char *path, size_t ceiling, struct ob_buf *out,
                                struct ob_err *err) OB_MUST_CHECK;

#endif
