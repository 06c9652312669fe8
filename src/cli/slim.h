/* SPDX-License-Identifier: Apache-2.0 */
/* slim - memory that only the start of the program needed. */
#ifndef OB_CLI_SLIM_H
#define OB_CLI_SLIM_H

/* Before the first allocation of size: pages of events come and go by the megabyte, and what is
 * freed goes back to the system. */
void ob_slim_heap(void);
/* Gives back the pages of code and constants that loading a dozen libraries touched; what is used
 * again comes back from the page cache. Of this process only; never fails. */
void ob_slim_code(void);

#endif
