/* SPDX-License-Identifier: Apache-2.0 */
/* conf_fixture - for tests of config files: a registry that stands in for drivers.c, so that the
 * messages do not change with the drivers; and a folder to be in. One test program includes it. */
#ifndef OB_TEST_CONF_FIXTURE_H
#define OB_TEST_CONF_FIXTURE_H

#include "config/load.h"
#include "relay/conf_table.h"
#include "relay/drivers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

struct db_conf {
    const char *path, *password;
    int64_t page;
};

struct out_conf {
    const char *path;
    struct ob_opt_map props;
    int64_t max;
};

static const struct ob_opt db_opts[] = {
    {.type = OB_OPT_STR,
     .name = "path",
     .offset = offsetof(struct db_conf, path),
     .flags = OB_OPT_REQUIRED,
     .help = "The database."},
    {.type = OB_OPT_STR,
     .name = "password",
     .offset = offsetof(struct db_conf, password),
     .flags = OB_OPT_SECRET},
    {.type = OB_OPT_INT,
     .name = "page",
     .def = "500",
     .min = 1,
     .max = 1000,
     .offset = offsetof(struct db_conf, page)},
    {0},
};

static const struct ob_opt out_opts[] = {
    {.type = OB_OPT_STR, .name = "path", .offset = offsetof(struct out_conf, path)},
    {.type = OB_OPT_MAP, .name = "props", .offset = offsetof(struct out_conf, props)},
    {.type = OB_OPT_BYTES, .name = "max", .def = "1M", .offset = offsetof(struct out_conf, max)},
    {0},
};

static const struct ob_source_driver db = {
    .name = "db", .opts = db_opts, .conf_size = sizeof(struct db_conf)};
static const struct ob_sink_driver out_sink = {
    .name = "out", .opts = out_opts, .conf_size = sizeof(struct out_conf)};
static const struct ob_sink_driver bare = {.name = "bare"};

const struct ob_source_driver *const ob_source_drivers[] = {&db, NULL};
const struct ob_sink_driver *const ob_sink_drivers[] = {&out_sink, &bare, NULL};
const struct ob_driver_absent ob_source_absent[] = {{"lake", "it was built without water"},
                                                    {NULL, NULL}};
const struct ob_driver_absent ob_sink_absent[] = {{NULL, NULL}};

#define GOOD "pipelines: {p: {source: {type: db, path: x}, sink: {type: out}}}\n"
/* One pipeline with more in it; what is added begins on line 4. */
#define PIPE "pipelines:\n  p:\n    {source: {type: db, path: x}, sink: {type: out},\n    "

static inline struct ob_config *parse(const char *text)
{
    struct ob_config *c = NULL;
    struct ob_err err = {0};
    enum ob_status st = ob_config_parse("f", ob_str_c(text), &c, NULL, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(st, OB_OK);
    return c;
}

struct folder {
    char dir[32];
    char cwd[256];
};

static inline void put_file(const char *name, const char *text)
{
    FILE *f = fopen(name, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static inline void enter(struct folder *f)
{
    strcpy(f->dir, "/tmp/ob-conf-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    assert_non_null(getcwd(f->cwd, sizeof(f->cwd)));
    assert_int_equal(chdir(f->dir), 0);
    assert_int_equal(mkdir("mine", 0700), 0);
    setenv("OUTBOX_PROFILES", "mine", 1);
}

static inline void leave(struct folder *f)
{
    char command[64];
    setenv("OUTBOX_PROFILES", "/nonexistent/profiles", 1);
    assert_int_equal(chdir(f->cwd), 0);
    snprintf(command, sizeof(command), "rm -rf %s", f->dir);
    assert_int_equal(system(command), 0);
}

static inline int setup(void **state)
{
    (void)state;
    unsetenv("OB_TEST_UNSET");
    return setenv("OUTBOX_PROFILES", "/nonexistent/profiles", 1);
}

#endif
