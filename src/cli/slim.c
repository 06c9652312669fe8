/* SPDX-License-Identifier: Apache-2.0 */
/* slim - memory that only the start of the program needed.
 *
 * A relay that moves rows from PostgreSQL to Kafka has also loaded the clients of MongoDB and
 * RabbitMQ with all that they stand on: 9 of its 18 MB are pages that the dynamic linker touched
 * and nobody needs again. */
#include "cli/slim.h"

#include <malloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

void ob_slim_heap(void)
{
#ifdef __GLIBC__
    /* glibc's own threshold grows with the largest block that was freed and then keeps them. */
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
    mallopt(M_TRIM_THRESHOLD, 2 << 20);
    mallopt(M_ARENA_MAX, 2);
#endif
}

/* The head of a mapping in smaps. False: this is a line about the one before. */
static bool is_head(const char *line, void **from, void **to, bool *of_file)
{
    char rights[5], path[8] = "";
    void *a, *z; /* a line that begins with a hexadecimal digit fills the first in any case */
    if (sscanf(line, "%p-%p %4s %*s %*s %*s %7s", &a, &z, rights, path) < 3)
        return false;
    *from = a;
    *to = z;
    *of_file = path[0] == '/' && rights[0] == 'r' && rights[1] == '-' && rights[3] == 'p';
    return true;
}

void ob_slim_code(void)
{
    FILE *f = fopen("/proc/self/smaps", "re");
    char line[512];
    void *from = NULL, *to = NULL;
    bool of_file = false;
    unsigned long kb;
    while (f && fgets(line, sizeof(line), f)) {
        /* Pages that were written, as by relocation, exist nowhere else: "Anonymous". */
        if (is_head(line, &from, &to, &of_file))
            continue;
        if (of_file && sscanf(line, "Anonymous: %lu kB", &kb) == 1 && kb == 0)
            madvise(from, (size_t)((char *)to - (char *)from), MADV_DONTNEED);
    }
    if (f)
        fclose(f);
}
