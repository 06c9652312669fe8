/* SPDX-License-Identifier: Apache-2.0 */
/* jcheck - is this one JSON value on one line? A single pass that keeps nothing but the open
 * brackets; the same language as core/jscan (jcheck_test compares them), several times faster. */
#ifndef OB_SINK_JCHECK_H
#define OB_SINK_JCHECK_H

#include "core/str.h"

#define OB_JCHECK_DEPTH 512

/* True if the text is one JSON value (RFC 8259, UTF-8) nested at most max_depth (<=
 * OB_JCHECK_DEPTH) and without any line break. */
bool ob_jcheck_line(struct ob_str text, unsigned max_depth);

#endif
