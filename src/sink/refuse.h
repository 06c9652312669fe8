/* SPDX-License-Identifier: Apache-2.0 */
/* refuse - a file that says which messages a sink answers how; to rehearse what a broker's refusal
 * does. Lines of "VERDICT GLOB", the first that matches counts; a glob is matched against topic,
 * key and id. Lines that are empty or start with # are nothing. */
#ifndef OB_SINK_REFUSE_H
#define OB_SINK_REFUSE_H

#include "event/msg.h"
#include "event/settle.h"

struct ob_refuse {
    char *text;
    size_t n;
};

/* Reads the file anew; one that is not there refuses nothing. */
void ob_refuse_read(struct ob_refuse *r, const char *path);
void ob_refuse_clear(struct ob_refuse *r);
enum ob_verdict ob_refuse_verdict(const struct ob_refuse *r, const struct ob_msg *m);

#endif
