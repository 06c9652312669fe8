/* SPDX-License-Identifier: Apache-2.0 */
/* address - connection strings as far as their secrets go. */
#include "config/address.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

/* What follows "://", or NULL where the text is not a URL. */
static const char *after_scheme(const char *text)
{
    const char *p = strstr(text, "://");
    const char *equals = strchr(text, '=');
    return p && (!equals || p < equals) ? p + 3 : NULL;
}

bool ob_address_is_ambiguous(const char *text)
{
    for (const char *p = after_scheme(text); p; p = after_scheme(p)) {
        const char *comma = strstr(p, ",");
        const char *next = after_scheme(p);
        /* The end of this URL: a list goes on at the comma before the next "://". */
        while (comma && next && strchr(comma + 1, ',') && strchr(comma + 1, ',') < next)
            comma = strchr(comma + 1, ',');
        const char *end = next && comma && comma < next ? comma : p + strlen(p);
        const char *slash = memchr(p, '/', (size_t)(end - p));
        const char *authority = slash ? slash : end;
        const char *at = memchr(p, '@', (size_t)(authority - p));
        const char *query = memchr(at ? at : p, '?', (size_t)(end - (at ? at : p)));
        const char *limit = query ? query : end; /* an '@' in the query is nobody's password */
        const char *from = at ? at + 1 : authority;
        if (from < limit && memchr(from, '@', (size_t)(limit - from)))
            return true;
    }
    return false;
}

/* In user:password@host, before the first slash; or as a parameter of the query. */
static bool url_has_password(const char *p)
{
    const char *slash = strchr(p, '/');
    const char *at = slash ? memchr(p, '@', (size_t)(slash - p)) : strchr(p, '@');
    const char *colon = at ? memchr(p, ':', (size_t)(at - p)) : NULL;
    const char *query = strchr(p, '?');
    return (colon && colon + 1 < at) || (query && strcasestr(query, "password="));
}

/* password = value, as a word of its own. */
static bool pairs_have_password(const char *text)
{
    for (const char *p = text; (p = strcasestr(p, "password")); p++) {
        const char *value = p + strlen("password");
        value += strspn(value, " \t");
        if ((p == text || strchr(" \t\n'", p[-1])) && *value == '=')
            return true;
    }
    return false;
}

bool ob_address_has_password(const char *text)
{
    const char *p = after_scheme(text);
    if (!p)
        return pairs_have_password(text);
    for (; p; p = after_scheme(p))
        if (url_has_password(p) || ob_address_is_ambiguous(p - 3))
            return true;
    return false;
}
