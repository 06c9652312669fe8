/* SPDX-License-Identifier: Apache-2.0 */
/* wire - brokers, TLS and login: what librdkafka is told, and what contradicts itself. TLS is on as
 * soon as any option or property asks for it, so that no certificate is configured in vain. */
#include "core/buf.h"
#include "sink/kafka/kafka.h"

#include <stdio.h>
#include <strings.h>

static enum ob_status parse_brokers(const struct kafka_conf *c, struct ob_urls *out,
                                    struct ob_err *err)
{
    static const struct ob_url_scheme schemes[] = {{"plaintext", false},
                                                   {"ssl", true},
                                                   {"sasl_plaintext", false},
                                                   {"sasl_ssl", true},
                                                   {NULL, false}};
    return ob_urls_parse(out, c->brokers, schemes, true, err);
}

static bool ends_with_ssl(const char *protocol)
{
    size_t n = protocol ? strlen(protocol) : 0;
    return n >= 3 && strcasecmp(protocol + n - 3, "ssl") == 0;
}

/* The option or property that asks for TLS; NULL: none. */
static const char *tls_reason(const struct kafka_conf *c, const struct ob_urls *brokers)
{
    for (size_t i = 0; i < c->properties.n; i++)
        if (strncmp(c->properties.keys[i], "ssl.", 4) == 0)
            return c->properties.keys[i];
    return brokers->tls                                                ? "an ssl:// broker"
           : c->ca_file                                                ? "ca_file"
           : c->cert_file                                              ? "cert_file"
           : c->key_file                                               ? "key_file"
           : c->key_password                                           ? "key_password"
           : c->tls                                                    ? "tls"
           : ends_with_ssl(ob__kafka_property(c, "security.protocol")) ? "security.protocol"
                                                                       : NULL;
}

static bool uses_sasl(const struct kafka_conf *c)
{
    const char *protocol = ob__kafka_property(c, "security.protocol");
    return c->sasl != KAFKA_SASL_NONE || (protocol && strncasecmp(protocol, "sasl", 4) == 0);
}

enum ob_status ob__kafka_validate_wire(const struct kafka_conf *c, const struct ob_node *map,
                                       struct ob_err *err)
{
    struct ob_urls brokers;
    struct ob_err why;
    enum ob_status st = parse_brokers(c, &brokers, &why);
    const char *reason = st == OB_OK ? tls_reason(c, &brokers) : NULL;
    if (st != OB_OK)
        st = ob_node_err(ob_wire_pos(map, "brokers"), err, "brokers: %s", why.text);
    else
        st = ob_wire_agree(map, reason, err);
    for (size_t i = 0; st == OB_OK && reason && i < c->properties.n; i++)
        if (strcmp(c->properties.keys[i], "security.protocol") == 0 &&
            !ends_with_ssl(c->properties.values[i]))
            st = ob_node_err(c->properties.pos ? &c->properties.pos[i] : NULL, err,
                             "properties.security.protocol: %s has no TLS and contradicts %s: "
                             "remove one of them",
                             c->properties.values[i], reason);
    ob_urls_clear(&brokers);
    return st;
}

void ob__kafka_wire(const void *conf, struct ob_wire *out)
{
    const struct kafka_conf *c = conf;
    struct ob_urls brokers;
    struct ob_err ignored;
    if (parse_brokers(c, &brokers, &ignored) == OB_OK)
        ob_wire_set(out, &brokers, tls_reason(c, &brokers) != NULL,
                    uses_sasl(c) || c->username || c->password);
    ob_urls_clear(&brokers);
}

enum ob_status ob__kafka_addresses(const struct kafka_conf *c, struct ob_buf *out,
                                   const char **protocol, struct ob_err *err)
{
    struct ob_urls brokers;
    enum ob_status st = parse_brokers(c, &brokers, err);
    for (size_t i = 0; st == OB_OK && i < brokers.n; i++) {
        if (i > 0)
            ob_buf_char(out, ',');
        ob_buf_c(out, brokers.list[i].rest);
    }
    ob_buf_char(out, '\0');
    bool tls = st == OB_OK && tls_reason(c, &brokers), sasl = uses_sasl(c);
    *protocol = tls && sasl ? "sasl_ssl" : tls ? "ssl" : sasl ? "sasl_plaintext" : "plaintext";
    ob_urls_clear(&brokers);
    return st == OB_OK && out->failed ? ob_err_set(err, OB_FATAL, "no memory") : st;
}
