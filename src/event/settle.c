/* SPDX-License-Identifier: Apache-2.0 */
/* settle - names of verdicts, as logs and metrics show them. */
#include "event/settle.h"

const char *ob_verdict_name(enum ob_verdict v)
{
    static const char *const names[] = {
        [OB_V_DELIVERED] = "delivered", [OB_V_RETRY] = "retry",       [OB_V_REJECT] = "reject",
        [OB_V_BLOCKED] = "blocked",     [OB_V_RETURNED] = "returned",
    };

    return (size_t)v < sizeof(names) / sizeof(names[0]) ? names[v] : "unknown";
}
