/* SPDX-License-Identifier: Apache-2.0 */
/* driver_find - a driver by the name in `type:`. */
#include "relay/drivers.h"

static const char *why_not(const struct ob_driver_absent *absent, const char *name)
{
    for (; absent->name; absent++)
        if (strcmp(absent->name, name) == 0)
            return absent->why;
    return "there is no such type";
}

const struct ob_source_driver *ob_source_driver_find(const char *name, const char **why)
{
    for (size_t i = 0; ob_source_drivers[i]; i++)
        if (strcmp(ob_source_drivers[i]->name, name) == 0)
            return ob_source_drivers[i];
    *why = why_not(ob_source_absent, name);
    return NULL;
}

const struct ob_sink_driver *ob_sink_driver_find(const char *name, const char **why)
{
    for (size_t i = 0; ob_sink_drivers[i]; i++)
        if (strcmp(ob_sink_drivers[i]->name, name) == 0)
            return ob_sink_drivers[i];
    *why = why_not(ob_sink_absent, name);
    return NULL;
}
