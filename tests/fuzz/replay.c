/* SPDX-License-Identifier: Apache-2.0 */
/* replay - gives every file of a corpus to a fuzz target, without libFuzzer.
 *
 * Each file is also given cut off at every byte (the first 2 KiB), because readers mostly fail at
 * ends. Memory is exactly as long as the input, so that a sanitizer sees a byte too far. */
#include "fuzz.h"

#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

#define INPUT_MAX ((size_t)16 << 20)
#define CUT_MAX 2048u

static void give(const uint8_t *data, size_t n)
{
    uint8_t *copy = malloc(n ? n : 1);

    if (!copy)
        abort();
    if (n)
        memcpy(copy, data, n);
    LLVMFuzzerTestOneInput(copy, n);
    free(copy);
}

static int replay_file(const char *path)
{
    FILE *in = fopen(path, "rb");
    uint8_t *data = NULL;
    struct stat info;
    size_t n;
    int bad = 1;

    if (!in || fstat(fileno(in), &info) != 0 || (size_t)info.st_size > INPUT_MAX) {
        fprintf(stderr, "%s: cannot be read, or is larger than 16 MiB\n", path);
        goto done;
    }
    data = malloc((size_t)info.st_size + 1);
    if (!data)
        goto done;
    n = fread(data, 1, (size_t)info.st_size, in);
    fprintf(stderr, "replay %s\n", path); /* the last line names the culprit */
    give(data, n);
    for (size_t cut = 0; cut < n && cut < CUT_MAX; cut++)
        give(data, cut);
    bad = 0;
done:
    free(data);
    if (in)
        fclose(in);
    return bad;
}

static int is_file(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

int main(int argc, char **argv)
{
    struct dirent **entries = NULL;
    int n, bad = 0;

    if (argc != 2) {
        fprintf(stderr, "usage: %s CORPUS-FOLDER\n", argv[0]);
        return 64;
    }
    n = scandir(argv[1], &entries, is_file, alphasort);
    for (int i = 0; i < n; i++) {
        char path[4096];

        snprintf(path, sizeof(path), "%s/%s", argv[1], entries[i]->d_name);
        bad |= replay_file(path);
        free(entries[i]);
    }
    free(entries);
    if (n <= 0)
        fprintf(stderr, "%s: no corpus\n", argv[1]);
    return n <= 0 || bad;
}
