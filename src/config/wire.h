/* SPDX-License-Identifier: Apache-2.0 */
/* wire - how a driver reaches its servers: the servers that an option names, whether TLS is used,
 * and whether credentials would cross a network without it. The same rules for every driver. */
#ifndef OB_CONFIG_WIRE_H
#define OB_CONFIG_WIRE_H

#include "config/node.h"

#define OB_URLS_MAX 32
#define OB_HOST_MAX 256

/* Schemes that an option accepts; {NULL} ends the list. */
struct ob_url_scheme {
    const char *name; /* in lower case, without :// */
    bool tls;
};

struct ob_url {
    const char *text; /* trimmed, with its scheme in lower case */
    const char *rest; /* behind the scheme */
    char host[OB_HOST_MAX];
    bool tls, userinfo;
};

struct ob_urls {
    char *copy; /* what the entries point into */
    struct ob_url list[OB_URLS_MAX];
    size_t n;
    bool tls;      /* all entries have a scheme with TLS */
    bool userinfo; /* some entry has a user or a password */
};

/* Splits text at commas and blanks. Schemes are compared without regard to case. bare: entries
 * without a scheme are accepted, as if they had the first scheme of the list. OB_FATAL: an unknown
 * scheme, no entry, too many, or entries with and without TLS; err quotes no part of text, which
 * may hold a password. ob_urls_clear() in any case. */
enum ob_status ob_urls_parse(struct ob_urls *out, const char *text,
                             const struct ob_url_scheme *schemes, bool bare,
                             struct ob_err *err) OB_MUST_CHECK;
void ob_urls_clear(struct ob_urls *urls);

/* localhost, 127.0.0.0/8, ::1, a path or abstract socket, or empty. */
bool ob_host_is_local(const char *host);

/* What a driver does on the network with a given configuration. */
struct ob_wire {
    bool network;             /* false: no network, the rest has no meaning */
    bool tls;                 /* every connection uses TLS */
    bool credentials;         /* connections log in */
    char remote[OB_HOST_MAX]; /* the first host that is not this machine; empty: none */
};

/* Fills network, tls, credentials and remote from the entries. */
void ob_wire_set(struct ob_wire *wire, const struct ob_urls *urls, bool tls, bool credentials);
/* Whether credentials cross a network without TLS. what: the finding, if so. */
bool ob_wire_exposed(const struct ob_wire *wire, char *what, size_t size);

/* The position of the value of an option (or of its _file form) in its map, else of the map, else
 * NULL. */
const struct ob_opt_pos *ob_wire_pos(const struct ob_node *map, const char *option);
/* OB_FATAL: the map has `tls: false`, and reason (NULL: nothing) asks for TLS. */
enum ob_status ob_wire_agree(const struct ob_node *map, const char *reason,
                             struct ob_err *err) OB_MUST_CHECK;

#endif
