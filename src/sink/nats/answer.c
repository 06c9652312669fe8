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

static bool find_value(struct ob_str json, struct ob_str pointer, enum ob_jtype want,
                       struct ob_str *raw)
{
    enum ob_jtype type;
    struct ob_err err;
    return ob_json_pointer(json, pointer, raw, &type, &err) == OB_OK && type == want;
}

/* A sequence of a stream: digits, at least 1, within 64 bits. */
static bool is_sequence(struct ob_str t)
{
    for (size_t i = 0; i < t.n; i++)
        if (t.p[i] < '0' || t.p[i] > '9')
            return false;
    return t.n > 0 && t.n <= 20 && t.p[0] != '0';
}

/* {"stream":"NAME","seq":N} with or without "duplicate":true at its end, as every server writes it;
 * any other form is parsed in full. */
static bool is_plain_ack(struct ob_str t)
{
    static const char head[] = "{\"stream\":\"",
                      mid[] = "\"seq\":", twice[] = ",\"duplicate\":true";
    const char *end = t.p + t.n, *p = t.p + sizeof(head) - 1;
    if (t.n < sizeof(head) || end[-1] != '}' || memcmp(t.p, head, sizeof(head) - 1) != 0)
        return false;
    const char *name = p;
    while (p < end && *p != '"' && *p != '\\')
        p++;
    if (p == name || p == end || *p++ != '"' || p == end || *p++ != ',')
        return false;
    while (p < end && *p == ' ')
        p++;
    if ((size_t)(end - p) <= sizeof(mid) || memcmp(p, mid, sizeof(mid) - 1) != 0)
        return false;
    p += sizeof(mid) - 1;
    const char *seq = p;
    while (p < end && *p >= '0' && *p <= '9')
        p++;
    if (!is_sequence((struct ob_str){seq, (size_t)(p - seq)}))
        return false;
    if ((size_t)(end - p) == sizeof(twice) && memcmp(p, twice, sizeof(twice) - 1) == 0)
        p += sizeof(twice) - 1;
    return p + 1 == end; /* the closing brace */
}

static enum ob_verdict read_error(struct ob_str error, int *code, char why[256])
{
    struct ob_str text = OB_STR("\"\"");
    *code = number_at(error, OB_STR("/err_code"));
    (void)find_value(error, OB_STR("/description"), OB_J_STRING, &text);
    snprintf(why, 256, "NATS %d: %.*s", *code, (int)(text.n < 200 ? text.n : 200), text.p);
    return ob_nats_code_verdict(*code, number_at(error, OB_STR("/code")));
}

enum ob_verdict ob_nats_answer(struct ob_str data, bool no_responders, bool once, int *code,
                               char why[256])
{
    static const char api[] = "\"io.nats.";
    struct ob_str raw, stream, seq;
    *code = 0;
    why[0] = '\0';
    if (no_responders) {
        snprintf(why, 256, "no responders: no stream takes this subject");
        return OB_V_BLOCKED;
    }
    if (is_plain_ack(data))
        return OB_V_DELIVERED;
    bool typed = find_value(data, OB_STR("/type"), OB_J_STRING, &raw);
    if (typed && raw.n >= sizeof(api) - 1 && memcmp(raw.p, api, sizeof(api) - 1) == 0) {
        /* Blocked would send the request again, with each probe. */
        snprintf(why, 256,
                 "the topic is a request to the NATS API, which answered %.*s; it is not sent "
                 "again",
                 (int)(raw.n < 120 ? raw.n : 120), raw.p);
        return OB_V_REJECT;
    }
    if (!typed && find_value(data, OB_STR("/error"), OB_J_OBJECT, &raw))
        return read_error(raw, code, why);
    if (!typed && find_value(data, OB_STR("/stream"), OB_J_STRING, &stream) && stream.n > 2 &&
        find_value(data, OB_STR("/seq"), OB_J_NUMBER, &seq) && is_sequence(seq))
        return OB_V_DELIVERED; /* duplicate: true is success too */
    snprintf(why, 256,
             "the answer is not an acknowledgement of a stream: another program answers on this "
             "subject%s",
             once ? "; it is not sent again" : ", and no stream takes it");
    return once ? OB_V_REJECT : OB_V_BLOCKED;
}
