/* SPDX-License-Identifier: Apache-2.0 */
/* whole - events that no table keeps: a parked or dead row has all of them, in `event` (a JSON
 * object of texts) and `payload`. */
#ifndef OB_SOURCE_POSTGRES_WHOLE_H
#define OB_SOURCE_POSTGRES_WHOLE_H

#include "core/buf.h"
#include "source/postgres/pg.h"

/* Everything but the payload. */
void ob_pg_whole_pack(const struct ob_event *ev, struct ob_buf *out);
/* The reverse, into the arena; payload is taken as it is. OB_REJECT: it is no such object. */
enum ob_status ob_pg_whole_unpack(struct ob_str json, struct ob_str payload, bool null_payload,
                                  struct ob_arena *arena, struct ob_event *ev,
                                  struct ob_err *err) OB_MUST_CHECK;
/* A reader's fetch(). */
enum ob_status ob_pg_whole_fetch(struct ob_source *s, const struct ob_str *refs, size_t n,
                                 struct ob_batch *batch, struct ob_err *err) OB_MUST_CHECK;

#endif
