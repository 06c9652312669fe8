/* SPDX-License-Identifier: Apache-2.0 */
/* harden - what keeps the secrets of a running relay from other processes and from the disk. */
#include "cli/harden.h"

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>

/* LeakSanitizer attaches to its own process as a debugger does. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

void ob_harden_memory(void)
{
    const char *allow = getenv("OUTBOX_CORE");
    if (allow && strcmp(allow, "1") == 0)
        return;
    const struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
#ifndef SANITIZED
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* a core_pattern that is a pipe ignores the limit */
#endif
}
