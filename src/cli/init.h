/* SPDX-License-Identifier: Apache-2.0 */
/* init - what `outbox init` writes: for a profile, and from the settings of a system that it
 * replaces. */
#ifndef OB_CLI_INIT_H
#define OB_CLI_INIT_H

#include "core/arena.h"
#include "core/buf.h"
#include "core/err.h"

#include <stdbool.h>
#include <stdio.h>

/* What is known of the pipeline. NULL: not known. Texts are the arena's or the command line's. */
struct ob_init {
    struct ob_arena *arena;
    const char *profile, *name, *service;
    const char *source, *sink;           /* the two connection strings */
    const char *source_file, *sink_file; /* files that hold them */
    bool copied[2]; /* source, sink: from a settings file, with the password that it has */
    /* Strings with a password, which are not written: the variables that stand for them. */
    struct {
        const char *variable, *value;
    } hidden[2];
    size_t n_hidden;
    /* Lines of YAML that are added inside the source, inside the sink, and to the pipeline. */
    struct ob_buf source_more, sink_more, more;
};

/* A YAML double-quoted scalar; ${ stands for itself. */
void ob_yaml_quote(struct ob_buf *out, const char *text);
/* Asks on the terminal for what is not known; without one it comes from the environment at run
 * time. */
void ob_init_ask(struct ob_init *in, FILE *out);
/* "-" becomes the next line of standard input. OB_REJECT: there is none. */
enum ob_status ob_init_read(struct ob_init *in, struct ob_err *err) OB_MUST_CHECK;
/* Whether a connection string holds what must not be in a file or on a command line. */
bool ob_init_is_secret(const char *text);
/* The configuration. OB_REJECT: there is no such profile. */
enum ob_status ob_init_profile(struct ob_init *in, struct ob_buf *out,
                               struct ob_err *err) OB_MUST_CHECK;
/* Reads settings by the kind of file: appsettings.json (profile farmwise). OB_REJECT: what is wrong
 * with it. Fills what is not known yet. */
enum ob_status ob_init_from(struct ob_init *in, const char *file, struct ob_err *err) OB_MUST_CHECK;

#endif
