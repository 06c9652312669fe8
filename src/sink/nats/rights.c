/* SPDX-License-Identifier: Apache-2.0 */
/* rights - whether this user may publish to a subject and hear the answer. Asked with an empty
 * message that expects a stream which cannot be: every stream refuses it, so that nothing is stored
 * (test_nats: check_sees_who_may_not_publish). The server tells a violation before it answers the
 * ping that follows it. */
#include "core/uuid.h"
#include "sink/nats/nats.h"

#include <stdio.h>

#define NO_STREAM "outbox.check" /* the name of a stream has no dot */
#define ANSWER_MS 2000
#define WRONG_STREAM 10060

bool ob_nats_violated(natsConnection *nc, const char *subject, char why[300])
{
    const char *text = NULL;
    if (natsConnection_Flush(nc) != NATS_OK ||
        natsConnection_GetLastError(nc, &text) != NATS_NOT_PERMITTED || !text ||
        !strstr(text, subject))
        return false;
    snprintf(why, 300, "%.250s", text);
    return true;
}

enum nats_right ob_nats_may_hear(natsConnection *nc, const struct ob_sink_nats_conf *c,
                                 char inbox[96], natsSubscription **out, char why[300])
{
    char id[OB_UUID_TEXT];
    ob_uuid7_text(id);
    snprintf(inbox, 96, "%s.%s", c->inbox_prefix, id);
    natsStatus st = natsConnection_SubscribeSync(out, nc, inbox);
    if (st != NATS_OK) {
        snprintf(why, 300, "%s", natsStatus_GetText(st));
        return NATS_RIGHT_UNKNOWN;
    }
    return ob_nats_violated(nc, inbox, why) ? NATS_RIGHT_NO : NATS_RIGHT_YES;
}

static enum nats_right answered(natsSubscription *answers, char why[300])
{
    natsMsg *msg = NULL;
    char text[256];
    int code = 0;
    natsStatus st = natsSubscription_NextMsg(&msg, answers, ANSWER_MS);
    if (st != NATS_OK && st != NATS_NO_RESPONDERS) {
        snprintf(why, 300, "no answer: %s", natsStatus_GetText(st));
        return NATS_RIGHT_UNKNOWN; /* a stream without acknowledgements */
    }
    bool none = st == NATS_NO_RESPONDERS || natsMsg_IsNoResponders(msg);
    enum ob_verdict v = OB_V_BLOCKED;
    if (!none)
        v = ob_nats_answer(
            (struct ob_str){natsMsg_GetData(msg), (size_t)natsMsg_GetDataLength(msg)}, false, false,
            &code, text);
    natsMsg_Destroy(msg);
    if (none || code == WRONG_STREAM)
        return none ? NATS_RIGHT_UNHEARD : NATS_RIGHT_YES;
    snprintf(why, 300, "%s", v == OB_V_DELIVERED ? "it stored what it should have refused" : text);
    return v == OB_V_DELIVERED ? NATS_RIGHT_STORED : NATS_RIGHT_UNKNOWN;
}

enum nats_right ob_nats_may_publish(natsConnection *nc, natsSubscription *answers,
                                    const char *inbox, const char *subject, char why[300])
{
    natsMsg *out = NULL;
    natsStatus st = natsMsg_Create(&out, subject, inbox, NULL, 0);
    if (st == NATS_OK)
        st = natsMsgHeader_Set(out, "Nats-Expected-Stream", NO_STREAM);
    if (st == NATS_OK)
        st = natsMsgHeader_Set(out, "Outbox-Check", "publish");
    if (st == NATS_OK)
        st = natsConnection_PublishMsg(nc, out);
    natsMsg_Destroy(out);
    if (st != NATS_OK) {
        snprintf(why, 300, "%s", natsStatus_GetText(st));
        return NATS_RIGHT_UNKNOWN;
    }
    return ob_nats_violated(nc, subject, why) ? NATS_RIGHT_NO : answered(answers, why);
}
