/* SPDX-License-Identifier: Apache-2.0 */
/* answer - what the server's answer to a publish means for the event. */
#include "core/jscan.h"
#include "sink/nats/nats.h"

#include <stdio.h>
#include <stdlib.h>

/* Server codes (err_code of the error object). What a person or time can change is blocked and
 * costs the event nothing; only what lies in the message itself rejects it. */
static const struct {
    int code;
    enum ob_verdict verdict;
} codes[] = {
    {10002, OB_V_BLOCKED}, /* account's resources exceeded */
    {10003, OB_V_BLOCKED}, /* bad request of the cluster: no leader yet */
    {10008, OB_V_BLOCKED}, /* cluster not available */
    {10009, OB_V_BLOCKED}, /* the stream's cluster has no peers */
    {10023, OB_V_BLOCKED}, /* insufficient resources */
    {10028, OB_V_BLOCKED}, /* memory resources exceeded */
    {10035, OB_V_BLOCKED}, /* not enabled for this account */
    {10039, OB_V_BLOCKED}, /* not enabled for the account */
    {10047, OB_V_BLOCKED}, /* storage resources exceeded */
    {10053, OB_V_BLOCKED}, /* limits of the stream exceeded */
    {10054, OB_V_REJECT},  /* larger than the stream's max_msg_size */
    {10059, OB_V_BLOCKED}, /* stream not found */
    {10060, OB_V_BLOCKED}, /* the subject belongs to another stream than expected */
    {10070, OB_V_RETRY},   /* wrong last message id; in a chain it is no verdict (chain.c) */
    {10071, OB_V_RETRY},   /* wrong last sequence: likewise */
    {10074, OB_V_BLOCKED}, /* replicas not possible now */
    {10076, OB_V_BLOCKED}, /* JetStream not enabled */
    {10077, OB_V_BLOCKED}, /* not stored: maximum of messages or bytes, or the disk */
    {10097, OB_V_REJECT},  /* the headers are larger than 64 KiB */
    {10109, OB_V_BLOCKED}, /* sealed */
    {10158, OB_V_BLOCKED}, /* a message with this id is being stored */
    {10164, OB_V_RETRY},   /* wrong last sequence, of newer servers */
    {10167, OB_V_BLOCKED}, /* too many requests */
};

enum ob_verdict ob_nats_code_verdict(int err_code, int http_code)
{
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
        if (codes[i].code == err_code)
            return codes[i].verdict;
    return http_code == 503 || http_code == 429 ? OB_V_BLOCKED : OB_V_RETRY;
}

static int number_at(struct ob_str json, struct ob_str pointer)
{
    struct ob_str raw;
    enum ob_jtype type;
    struct ob_err err;
    char text[16];
    if (ob_json_pointer(json, pointer, &raw, &type, &err) != OB_OK || type != OB_J_NUMBER ||
        raw.n >= sizeof(text))
        return 0;
    memcpy(text, raw.p, raw.n);
    text[raw.n] = '\0';
    return (int)strtol(text, NULL, 10);
}

static bool has(struct ob_str json, struct ob_str pointer, enum ob_jtype want)
{
    struct ob_str raw;
    enum ob_jtype type;
    struct ob_err err;
    return ob_json_pointer(json, pointer, &raw, &type, &err) == OB_OK && type == want;
}

/* {"stream":"NAME","seq":N as every server writes it; anything else is read with care. */
static bool plain_ack(const char *data, size_t n)
{
    static const char head[] = "{\"stream\":\"", mid[] = "\"seq\":";
    const char *end = data + n, *p = data + sizeof(head) - 1;
    if (n < sizeof(head) || data[n - 1] != '}' || memcmp(data, head, sizeof(head) - 1) != 0)
        return false;
    while (p < end && *p != '"' && *p != '\\')
        p++;
    if (p == end || *p++ != '"' || p == end || *p++ != ',')
        return false;
    while (p < end && *p == ' ')
        p++;
    return (size_t)(end - p) > sizeof(mid) && memcmp(p, mid, sizeof(mid) - 1) == 0 &&
           strchr(" 123456789", p[sizeof(mid) - 1]) && !memchr(p, '{', (size_t)(end - p));
}

enum ob_verdict ob_nats_answer(const char *data, size_t n, bool no_responders, int *code,
                               char why[256])
{
    struct ob_str json = {data, n}, raw;
    enum ob_jtype type;
    struct ob_err err;
    *code = 0;
    why[0] = '\0';
    if (no_responders) {
        snprintf(why, 256, "no responders: no stream takes this subject");
        return OB_V_BLOCKED;
    }
    if (plain_ack(data, n))
        return OB_V_DELIVERED;
    if (ob_json_pointer(json, OB_STR("/error"), &raw, &type, &err) == OB_OK &&
        type == OB_J_OBJECT) {
        struct ob_str error = raw, text = OB_STR("\"\"");
        *code = number_at(error, OB_STR("/err_code"));
        if (ob_json_pointer(error, OB_STR("/description"), &raw, &type, &err) == OB_OK)
            text = raw;
        snprintf(why, 256, "NATS %d: %.*s", *code, (int)(text.n < 200 ? text.n : 200), text.p);
        return ob_nats_code_verdict(*code, number_at(error, OB_STR("/code")));
    }
    /* duplicate: true is there too, and is success. */
    if (has(json, OB_STR("/stream"), OB_J_STRING) && has(json, OB_STR("/seq"), OB_J_NUMBER))
        return OB_V_DELIVERED;
    snprintf(
        why, 256,
        "the answer is not of a stream: another program answers on this subject, and no stream "
        "takes it");
    return OB_V_BLOCKED;
}
