/* SPDX-License-Identifier: Apache-2.0 */
/* pace - counts small claims over ten milliseconds. */
#include "relay/pace.h"

#define CRUMBS_MS 10

void ob_pace_note(struct ob_pace *p, int64_t now_ms, size_t n, size_t page)
{
    if (now_ms - p->since >= CRUMBS_MS) {
        p->on = p->on ? p->events > 3 * p->claims : p->claims > 2 * CRUMBS_MS;
        p->claims = p->events = 0;
        p->since = now_ms;
    }
    if (n < page / 2) {
        p->claims++;
        p->events += n;
        p->until = p->on ? now_ms + 1 : 0;
    }
}
