/* SPDX-License-Identifier: Apache-2.0 */
/* unfit - events that there is no memory for although they are within the limits. The window is
 * given time to drain; an event that still does not fit is dead, because every later event waits
 * behind it. */
#include "source/postgres/pg.h"

#define TIMES_MAX 3

bool ob_pg_is_unfit(const struct ob_source *s, struct ob_str id)
{
    return s->unfit_times >= TIMES_MAX && s->unfit_hash == ob_hash64(id.p, id.n);
}

bool ob_pg_unfit(struct ob_source *s, struct ob_str id)
{
    uint64_t hash = ob_hash64(id.p, id.n);
    s->unfit_times = s->unfit_hash == hash ? s->unfit_times + 1 : 1;
    s->unfit_hash = hash;
    return s->unfit_times >= TIMES_MAX;
}
