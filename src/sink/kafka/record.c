/* SPDX-License-Identifier: Apache-2.0 */
/* record - a message as Kafka stores it: its partition as Java clients choose it, its headers, its
 * weight in bytes. */
#include "sink/kafka/kafka.h"

#define BATCH_HEAD 61 /* bytes of a record batch before its first record */

/* MurmurHash2 with the seed of Kafka's Java client. */
uint32_t ob__kafka_murmur2(const void *p, size_t n)
{
    const uint32_t m = 0x5bd1e995;
    const unsigned char *b = p;
    uint32_t h = 0x9747b28cu ^ (uint32_t)n;
    for (; n >= 4; n -= 4, b += 4) {
        uint32_t k =
            (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
        k *= m;
        k ^= k >> 24;
        k *= m;
        h = h * m ^ k;
    }
    if (n >= 3)
        h ^= (uint32_t)b[2] << 16;
    if (n >= 2)
        h ^= (uint32_t)b[1] << 8;
    if (n >= 1) {
        h ^= b[0];
        h *= m;
    }
    h ^= h >> 13;
    h *= m;
    return h ^ h >> 15;
}

/* Bytes of a signed varint (zigzag). */
static size_t varint(int64_t v)
{
    uint64_t z = (uint64_t)v << 1 ^ (v < 0 ? UINT64_MAX : 0);
    size_t n = 1;
    while (z >= 0x80) {
        z >>= 7;
        n++;
    }
    return n;
}

static size_t bytes(size_t n)
{
    return varint((int64_t)n) + n;
}

/* Whether the route says it already: under this name, or (the id) under another. */
static bool has_header(const struct ob_msg *m, const char *name, const struct ob_str *value)
{
    for (size_t i = 0; i < m->n_headers; i++)
        if (ob_str_eqc(m->headers[i].name, name) ||
            (value && ob_str_eq(m->headers[i].value, *value)))
            return true;
    return false;
}

/* The headers that a message gets from us, unless the route gave them. */
static const char *own_header(const struct ob_msg *m, const struct kafka_conf *c, unsigned i,
                              struct ob_str *value)
{
    const char *name = i == 0 ? c->id_header : c->content_type_header;
    *value = i == 0 ? m->id : m->content_type;
    return name && strcmp(name, "none") != 0 && value->n > 0 &&
                   !has_header(m, name, i == 0 ? value : NULL)
               ? name
               : NULL;
}

size_t ob__kafka_weight(const struct ob_msg *m, const struct kafka_conf *c)
{
    struct ob_str value;
    size_t n = 3; /* attributes, no time and no offset before it */
    int64_t headers = (int64_t)m->n_headers;
    n += m->key.n > 0 ? bytes(m->key.n) : varint(-1);
    n += m->value_null ? varint(-1) : bytes(m->value.n);
    for (size_t i = 0; i < m->n_headers; i++)
        n += bytes(m->headers[i].name.n) + bytes(m->headers[i].value.n);
    for (unsigned i = 0; i < 2; i++) {
        const char *name = own_header(m, c, i, &value);
        if (name) {
            n += bytes(strlen(name)) + bytes(value.n);
            headers++;
        }
    }
    n += varint(headers);
    return BATCH_HEAD + bytes(n);
}

bool ob__kafka_topic_valid(struct ob_str name)
{
    if (name.n == 0 || name.n > 249 || ob_str_eqc(name, ".") || ob_str_eqc(name, ".."))
        return false;
    for (size_t i = 0; i < name.n; i++) {
        char c = name.p[i];
        bool fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    c == '.' || c == '_' || c == '-';
        if (!fine)
            return false;
    }
    return true;
}

static bool add(rd_kafka_headers_t *h, struct ob_str name, struct ob_str value)
{
    return rd_kafka_header_add(h, name.p ? name.p : "", (ssize_t)name.n, value.p ? value.p : "",
                               (ssize_t)value.n) == RD_KAFKA_RESP_ERR_NO_ERROR;
}

rd_kafka_headers_t *ob__kafka_headers(const struct ob_msg *m, const struct kafka_conf *c, bool *ok)
{
    struct ob_str value[2];
    const char *own[2] = {own_header(m, c, 0, &value[0]), own_header(m, c, 1, &value[1])};
    *ok = true;
    if (m->n_headers == 0 && !own[0] && !own[1])
        return NULL;
    rd_kafka_headers_t *h = rd_kafka_headers_new(m->n_headers + 2);
    *ok = h != NULL;
    for (unsigned i = 0; i < 2 && *ok; i++)
        *ok = !own[i] || add(h, ob_str_c(own[i]), value[i]);
    for (size_t i = 0; i < m->n_headers && *ok; i++)
        *ok = add(h, m->headers[i].name, m->headers[i].value);
    if (*ok)
        return h;
    if (h)
        rd_kafka_headers_destroy(h);
    return NULL;
}
