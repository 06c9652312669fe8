/* SPDX-License-Identifier: Apache-2.0 */
/* drivers - the registry: one line per driver. */
#ifndef OB_RELAY_DRIVERS_H
#define OB_RELAY_DRIVERS_H

#include "sink/sink.h"
#include "source/source.h"

/* NULL-terminated. */
extern const struct ob_source_driver *const ob_source_drivers[];
extern const struct ob_sink_driver *const ob_sink_drivers[];

/* A driver that exists and was left out when this binary was built. */
struct ob_driver_absent {
    const char *name, *why;
};

/* {0}-terminated. */
extern const struct ob_driver_absent ob_source_absent[];
extern const struct ob_driver_absent ob_sink_absent[];

/* NULL: no such driver in this build; *why (not NULL) says whether it is unknown or was left out at
 * build time. */
const struct ob_source_driver *ob_source_driver_find(const char *name, const char **why);
const struct ob_sink_driver *ob_sink_driver_find(const char *name, const char **why);

#endif
