/* SPDX-License-Identifier: Apache-2.0 */
/* mongo_server - a real replica set for a test program. */
#include "mongo_server.h"

#include "rows.h"

#include <mongoc/mongoc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[200], uri[400];

static const char *services(void)
{
    const char *folder = getenv("OUTBOX_SERVICES");
    return folder ? folder : "tests/services";
}

void server_end(void)
{
    char command[512];

    snprintf(command, sizeof(command), "%s/mongodb stop %s --kill >/dev/null 2>&1", services(),
             dir);
    if (dir[0] && system(command) != 0)
        fprintf(stderr, "# %s\n", command);
    dir[0] = '\0';
}

static void read_setting(const char *line, const char *name, char *out, size_t size)
{
    size_t n = strlen(name);

    if (strncmp(line, name, n) == 0 && line[n] == '=')
        snprintf(out, size, "%.*s", (int)strcspn(line + n + 1, "\n"), line + n + 1);
}

void server_start(const char *options)
{
    char command[512], line[512], last[512] = "";
    FILE *f;
    int code;

    snprintf(command, sizeof(command), "%s/mongodb start --while %d %s", services(), (int)getpid(),
             options);
    f = popen(command, "r");
    while (f && fgets(line, sizeof(line), f)) {
        snprintf(last, sizeof(last), "%s", line);
        read_setting(line, "MONGODB_DIR", dir, sizeof(dir));
        read_setting(line, "MONGODB_URI", uri, sizeof(uri));
    }
    code = f ? pclose(f) : -1;
    if (code != 0 || !uri[0]) {
        bool none = WIFEXITED(code) && WEXITSTATUS(code) == 77;
        printf(none ? "1..0 # SKIP %s" : "Bail out! no server: %s\n", last);
        exit(none ? 0 : 1);
    }
    atexit(server_end);
    mongoc_init();
}

/* The database stands between the hosts and the options. */
void server_uri(const char *database, char *out, size_t size)
{
    const char *slash = strrchr(uri, '/');

    assert_non_null(slash);
    snprintf(out, size, "%.*s/%s%s", (int)(slash - uri), uri, database, slash + 1);
}
