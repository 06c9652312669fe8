/* SPDX-License-Identifier: Apache-2.0 */
/* wire - how a driver reaches its servers: entries of a url option, TLS, credentials. */
#include "config/wire.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool ob_host_is_local(const char *host)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (host[0] == '\0' || host[0] == '/' || host[0] == '@' || strcasecmp(host, "localhost") == 0 ||
        strcasecmp(host, "localhost.") == 0)
        return true;
    if (inet_pton(AF_INET, host, &v4) == 1)
        return (ntohl(v4.s_addr) >> 24) == 127;
    if (inet_pton(AF_INET6, host, &v6) != 1)
        return false; /* a name, also one like 127.0.0.1.example */
    return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

/* ---- entries ---- */

static size_t scheme_length(const char *entry)
{
    const char *end = strstr(entry, "://");
    return end ? (size_t)(end - entry) : 0;
}

/* The scheme in lower case, in place. NULL: none of the list. */
static const struct ob_url_scheme *find_scheme(char *entry, size_t n,
                                               const struct ob_url_scheme *schemes)
{
    for (; schemes->name; schemes++) {
        if (strlen(schemes->name) != n || strncasecmp(entry, schemes->name, n) != 0)
            continue;
        memcpy(entry, schemes->name, n);
        return schemes;
    }
    return NULL;
}

/* The host between userinfo and port. False: the url is ambiguous, or the host too long. */
static bool read_host(struct ob_url *url)
{
    size_t n = strcspn(url->rest, "/?#");
    const char *at = memrchr(url->rest, '@', n), *from = at ? at + 1 : url->rest;
    url->userinfo = at != NULL;
    if (strchr(url->rest + n, '@') || (at && memchr(url->rest, '@', (size_t)(at - url->rest))))
        return false; /* the client library may take a part of the password for the host */
    n -= (size_t)(from - url->rest);
    if (n > 0 && from[0] == '[') {
        const char *close = memchr(from, ']', n);
        if (!close)
            return false;
        from++;
        n = (size_t)(close - from);
    } else {
        const char *colon = memchr(from, ':', n);
        if (colon && !memchr(colon + 1, ':', n - (size_t)(colon + 1 - from)))
            n = (size_t)(colon - from);
    }
    if (n >= sizeof(url->host))
        return false;
    memcpy(url->host, from, n);
    url->host[n] = '\0';
    return true;
}

static enum ob_status add_entry(struct ob_urls *out, char *entry,
                                const struct ob_url_scheme *schemes, bool bare, struct ob_err *err)
{
    struct ob_url *url = &out->list[out->n];
    size_t n = scheme_length(entry);
    const struct ob_url_scheme *scheme = n > 0 ? find_scheme(entry, n, schemes) : NULL;
    if (out->n == OB_URLS_MAX)
        return ob_err_set(err, OB_FATAL, "more than %d entries", OB_URLS_MAX);
    bool plain = n == 0 && bare && !strstr(entry, "://");
    out->n++;
    if (!scheme && !plain) {
        char list[120] = "";
        for (size_t at = 0; schemes->name && at < sizeof(list); schemes++)
            at += (size_t)snprintf(list + at, sizeof(list) - at, "%s%s://", at ? " or " : "",
                                   schemes->name);
        return ob_err_set(err, OB_FATAL, "entry %zu must begin with %s", out->n, list);
    }
    url->text = entry;
    url->rest = n > 0 ? entry + n + 3 : entry;
    url->tls = scheme ? scheme->tls : schemes[0].tls;
    if (!read_host(url))
        return ob_err_set(err, OB_FATAL,
                          "entry %zu is not scheme://user:password@host:port, or the user or "
                          "password has an '@' or '/' that is not escaped; write %%40 or %%2F",
                          out->n);
    return OB_OK;
}

enum ob_status ob_urls_parse(struct ob_urls *out, const char *text,
                             const struct ob_url_scheme *schemes, bool bare, struct ob_err *err)
{
    enum ob_status st = OB_OK;
    *out = (struct ob_urls){.copy = strdup(text)};
    if (!out->copy)
        return ob_err_set(err, OB_FATAL, "no memory");
    for (char *save = NULL, *p = strtok_r(out->copy, ", \t\r\n", &save); p && st == OB_OK;
         p = strtok_r(NULL, ", \t\r\n", &save))
        st = add_entry(out, p, schemes, bare, err);
    if (st == OB_OK && out->n == 0)
        st = ob_err_set(err, OB_FATAL, "at least one server is needed");
    for (size_t i = 0; st == OB_OK && i < out->n; i++) {
        out->userinfo = out->userinfo || out->list[i].userinfo;
        if (out->list[i].tls != out->list[0].tls)
            st = ob_err_set(err, OB_FATAL,
                            "entry %zu uses TLS and entry %zu does not: use the same for all",
                            out->list[i].tls ? i + 1 : 1, out->list[i].tls ? 1 : i + 1);
    }
    out->tls = st == OB_OK && out->list[0].tls;
    return st;
}

void ob_urls_clear(struct ob_urls *urls)
{
    free(urls->copy);
    *urls = (struct ob_urls){.n = 0};
}

/* ---- findings ---- */

void ob_wire_set(struct ob_wire *wire, const struct ob_urls *urls, bool tls, bool credentials)
{
    *wire = (struct ob_wire){.network = true, .tls = tls, .credentials = credentials};
    for (size_t i = 0; i < urls->n && !wire->remote[0]; i++)
        if (!ob_host_is_local(urls->list[i].host))
            memcpy(wire->remote, urls->list[i].host, sizeof(wire->remote));
}

bool ob_wire_exposed(const struct ob_wire *wire, char *what, size_t size)
{
    if (!wire->network || wire->tls || !wire->credentials || !wire->remote[0])
        return false;
    snprintf(what, size, "credentials are sent to %.200s without TLS", wire->remote);
    return true;
}

const struct ob_opt_pos *ob_wire_pos(const struct ob_node *map, const char *option)
{
    char file[80];
    snprintf(file, sizeof(file), "%s_file", option);
    const struct ob_node *value = ob_node_get(map, option);
    if (!value)
        value = ob_node_get(map, file);
    return value ? &value->pos : map ? &map->pos : NULL;
}

enum ob_status ob_wire_agree(const struct ob_node *map, const char *reason, struct ob_err *err)
{
    const struct ob_node *tls = ob_node_get(map, "tls");
    bool denied = tls && tls->kind == OB_NODE_SCALAR &&
                  (strcasecmp(tls->text, "false") == 0 || strcasecmp(tls->text, "no") == 0 ||
                   strcasecmp(tls->text, "off") == 0);
    if (!denied || !reason)
        return OB_OK;
    return ob_node_err(&tls->pos, err, "tls: false contradicts %s: remove one of them", reason);
}
