/* SPDX-License-Identifier: Apache-2.0 */
/* pace - when to leave a source alone for a millisecond.
 *
 * A stream that is read as fast as it comes gives an event or two at a time, and each costs a
 * wake-up and a page of its own. Where that happens oftener than twice a millisecond the source is
 * left alone for one after each claim, until that no longer makes claims larger. (pace_test) */
#ifndef OB_RELAY_PACE_H
#define OB_RELAY_PACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ob_pace {
    int64_t since, until;  /* ms; nothing is claimed before `until` */
    size_t claims, events; /* small ones since then */
    bool on;
};

/* n events were claimed at now_ms, where a page has `page`. */
void ob_pace_note(struct ob_pace *p, int64_t now_ms, size_t n, size_t page);

#endif
