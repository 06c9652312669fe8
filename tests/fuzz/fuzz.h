/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz - what a fuzz target is: one function, which aborts when a promise does not hold. */
#ifndef OB_TESTS_FUZZ_H
#define OB_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Called by libFuzzer, or by replay.c with the files of a corpus. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static inline void fuzz_check(int holds, const char *what, int line)
{
    if (holds)
        return;
    fprintf(stderr, "line %d: does not hold: %s\n", line, what);
    abort();
}

#define FUZZ_CHECK(x) fuzz_check((x) != 0, #x, __LINE__)

#endif
