/* SPDX-License-Identifier: Apache-2.0 */
/* docs - an option table as a Markdown table. */
#ifndef OB_CONFIG_DOCS_H
#define OB_CONFIG_DOCS_H

#include "core/buf.h"
#include "core/opt.h"

/* One row per option: name, type, default, allowed, what it does. "There are no options." if none.
 */
void ob_opt_docs(struct ob_buf *out, const struct ob_opt *table);

#endif
