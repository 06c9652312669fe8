/* SPDX-License-Identifier: Apache-2.0 */
/* gen_docs - writes docs/config.md, or with --check compares it: gen-docs [--check] FILE. */
#include "config/file.h"
#include "relay/conf.h"

#include <stdio.h>
#include <stdlib.h>

#define FILE_MAX_BYTES ((size_t)1 << 20)

static int check(const char *file, struct ob_str want)
{
    char *have = NULL;
    size_t n = 0;
    struct ob_err err;
    if (ob_file_read(file, FILE_MAX_BYTES, &have, &n, &err) != OB_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    bool same = ob_str_eq(want, (struct ob_str){have, n});
    free(have);
    if (!same)
        fprintf(stderr, "%s is stale; write it anew with: ninja -C build config-docs\n", file);
    return same ? 0 : 1;
}

static int write_file(const char *file, struct ob_str text)
{
    FILE *f = fopen(file, "w");
    if (!f) {
        perror(file);
        return 1;
    }
    bool ok = fwrite(text.p, 1, text.n, f) == text.n;
    ok = fclose(f) == 0 && ok;
    if (!ok)
        perror(file);
    return ok ? 0 : 1;
}

int main(int argc, char **argv)
{
    bool checking = argc == 3 && strcmp(argv[1], "--check") == 0;
    if (argc != 2 && !checking) {
        fputs("usage: gen-docs [--check] FILE\n", stderr);
        return 64;
    }
    struct ob_buf out;
    ob_buf_init(&out, FILE_MAX_BYTES);
    ob_config_docs(&out);
    int rc = out.failed ? 1
             : checking ? check(argv[2], ob_buf_view(&out))
                        : write_file(argv[1], ob_buf_view(&out));
    ob_buf_clear(&out);
    return rc;
}
