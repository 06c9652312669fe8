/* SPDX-License-Identifier: Apache-2.0 */
/* status - the parts of the public library that belong to no database. */
#include "outbox/status.h"

#include "core/err.h"
#include "ob_build.h"

/* The public numbers are the inner ones; a cast turns one into the other. */
_Static_assert((int)OUTBOX_OK == (int)OB_OK, "status numbers differ");
_Static_assert((int)OUTBOX_AGAIN == (int)OB_AGAIN, "status numbers differ");
_Static_assert((int)OUTBOX_RETRY == (int)OB_RETRY, "status numbers differ");
_Static_assert((int)OUTBOX_REJECT == (int)OB_REJECT, "status numbers differ");
_Static_assert((int)OUTBOX_DOWN == (int)OB_DOWN, "status numbers differ");
_Static_assert((int)OUTBOX_FENCED == (int)OB_FENCED, "status numbers differ");
_Static_assert((int)OUTBOX_FATAL == (int)OB_FATAL, "status numbers differ");

const char *outbox_version(void)
{
    return OB_VERSION;
}

const char *outbox_status_name(enum outbox_status status)
{
    return ob_status_name((enum ob_status)status);
}
