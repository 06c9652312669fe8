/* SPDX-License-Identifier: Apache-2.0 */
/* init_debezium - a pipeline from the settings of Debezium's event router. */
#ifndef OB_CLI_INIT_DEBEZIUM_H
#define OB_CLI_INIT_DEBEZIUM_H

#include "cli/properties.h"
#include "core/buf.h"

/* Writes the pipeline `name` (NULL: outbox) as YAML, from a properties file of Debezium Server or
 * of a connector. OB_REJECT: it has no event router, or an option that has no counterpart here; err
 * names it. */
enum ob_status ob_init_debezium(const char *path, const char *name, struct ob_buf *out,
                                struct ob_err *err) OB_MUST_CHECK;
/* What that leaves over, for a router with this prefix ("transforms.NAME."): as comments.
 * OB_REJECT: one that would make other messages; err names it. */
enum ob_status ob_init_debezium_rest(const struct ob_properties *p, const char *router,
                                     struct ob_buf *out, struct ob_err *err) OB_MUST_CHECK;

#endif
