/* SPDX-License-Identifier: Apache-2.0 */
/* file - a whole small file in memory. */
#include "config/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ssize_t read_up_to(int fd, char *p, size_t room)
{
    size_t n = 0;
    while (n < room) {
        ssize_t got = read(fd, p + n, room - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        n += (size_t)got;
    }
    return (ssize_t)n;
}

enum ob_status ob_file_read(const char *file, size_t max, char **p, size_t *n, struct ob_err *err)
{
    enum ob_status st = OB_OK;
    char *mem = NULL;
    ssize_t got = -1;
    int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return ob_err_set(err, OB_FATAL, "%s: cannot open: %s", file, strerror(errno));
    mem = malloc(max + 1);
    if (mem)
        got = read_up_to(fd, mem, max + 1);
    if (!mem)
        st = ob_err_set(err, OB_FATAL, "%s: no memory to read it", file);
    else if (got < 0)
        st = ob_err_set(err, OB_FATAL, "%s: cannot read: %s", file, strerror(errno));
    close(fd);
    if (st != OB_OK) {
        free(mem);
        return st;
    }
    *p = mem;
    *n = (size_t)got;
    return OB_OK;
}
