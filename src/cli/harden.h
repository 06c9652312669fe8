/* SPDX-License-Identifier: Apache-2.0 */
/* harden - what keeps the secrets of a running relay from other processes and from the disk. */
#ifndef OB_CLI_HARDEN_H
#define OB_CLI_HARDEN_H

/* No core dumps, no debugger of the same user: memory holds passwords and payloads. OUTBOX_CORE=1
 * in the environment leaves both as they are. */
void ob_harden_memory(void);

#endif
