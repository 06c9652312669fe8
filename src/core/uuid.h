/* SPDX-License-Identifier: Apache-2.0 */
/* uuid - version 7, strictly rising within a process, across its threads and forks. */
#ifndef OB_CORE_UUID_H
#define OB_CORE_UUID_H

#include <stdint.h>

#define OB_UUID_TEXT 37 /* 36 characters and a NUL */

void ob_uuid7(uint8_t out[16]);
void ob_uuid7_text(char out[OB_UUID_TEXT]);
/* The pure part: bytes from a time, a 12+14... bit counter and random bits. For tests. */
void ob_uuid7_make(uint64_t unix_ms, uint32_t counter26, uint64_t random48, uint8_t out[16]);
void ob_uuid_format(const uint8_t in[16], char out[OB_UUID_TEXT]);

#endif
