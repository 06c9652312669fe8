/* SPDX-License-Identifier: Apache-2.0 */
/* address - connection strings as far as their secrets go: URLs, lists of URLs, and "key=value"
 * strings of libpq. */
#ifndef OB_CONFIG_ADDRESS_H
#define OB_CONFIG_ADDRESS_H

#include <stdbool.h>

/* Whether the string holds a password, however it is written. */
bool ob_address_has_password(const char *text);
/* True where a client library would take a part of the password for the host, and show it: user or
 * password of a URL has an '@' or '/' that is not written as %40 or %2F. */
bool ob_address_is_ambiguous(const char *text);

#endif
