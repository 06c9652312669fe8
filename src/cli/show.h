/* SPDX-License-Identifier: Apache-2.0 */
/* show - events and dead events as rows for people or as JSON lines. */
#ifndef OB_CLI_SHOW_H
#define OB_CLI_SHOW_H

#include "cli/cli.h"
#include "source/admin.h"

/* {"n","id","key","type","aggregate_type","aggregate_id","tenant","topic","state","created",…};
 * payload: also "payload" (JSON as it is, text as a string) or "payload_base64". */
void ob_show_event_json(struct ob_buf *out, const char *pipeline, const struct ob_event *ev,
                        const char *state, bool payload);
void ob_show_event_head(struct ob_buf *out, const struct ob_term *t);
void ob_show_event_row(struct ob_buf *out, const struct ob_term *t, const struct ob_event *ev,
                       const char *state, bool payload);
/* {pipeline, id, key, type, attempts, error, at}; full: also destination, n, history and event. */
void ob_show_dead_json(struct ob_buf *out, const char *pipeline, const struct ob_dead *d,
                       bool full);
void ob_show_dead_head(struct ob_buf *out, const struct ob_term *t);
void ob_show_dead_row(struct ob_buf *out, const struct ob_term *t, const char *pipeline,
                      const struct ob_dead *d);
void ob_show_dead_full(struct ob_buf *out, const struct ob_term *t, const char *pipeline,
                       const struct ob_dead *d);

#endif
