/* SPDX-License-Identifier: Apache-2.0 */
/* codes - what an error code of Kafka or librdkafka means for an event: a table. A code that is not
 * in it is odd: retried with an attempt spent, never rejected at once. */
#include "sink/kafka/kafka.h"

#define E(name) RD_KAFKA_RESP_ERR_##name

const struct kafka_code ob__kafka_codes[] = {
    /* The bytes of an event, or of another in the same request. */
    {E(MSG_SIZE_TOO_LARGE), KAFKA_C_EVENT},
    {E(INVALID_MSG), KAFKA_C_EVENT},
    {E(INVALID_MSG_SIZE), KAFKA_C_EVENT},
    {E(RECORD_LIST_TOO_LARGE), KAFKA_C_EVENT},
    {E(INVALID_RECORD), KAFKA_C_EVENT},
    {E(INVALID_TIMESTAMP), KAFKA_C_EVENT},
    {E(UNSUPPORTED_FOR_MESSAGE_FORMAT), KAFKA_C_EVENT},
    {E(UNSUPPORTED_COMPRESSION_TYPE), KAFKA_C_EVENT},
    {E(_INVALID_ARG), KAFKA_C_EVENT},
    {E(_BAD_MSG), KAFKA_C_EVENT},
    {E(_BAD_COMPRESSION), KAFKA_C_EVENT},

    /* A topic or a partition of it. */
    {E(UNKNOWN_TOPIC_OR_PART), KAFKA_C_DEST},
    {E(_UNKNOWN_TOPIC), KAFKA_C_DEST},
    {E(_UNKNOWN_PARTITION), KAFKA_C_DEST},
    {E(TOPIC_EXCEPTION), KAFKA_C_DEST},
    {E(TOPIC_AUTHORIZATION_FAILED), KAFKA_C_DEST},
    {E(LEADER_NOT_AVAILABLE), KAFKA_C_DEST},
    {E(NOT_LEADER_FOR_PARTITION), KAFKA_C_DEST},
    {E(REPLICA_NOT_AVAILABLE), KAFKA_C_DEST},
    {E(NOT_ENOUGH_REPLICAS), KAFKA_C_DEST},
    {E(NOT_ENOUGH_REPLICAS_AFTER_APPEND), KAFKA_C_DEST},
    {E(KAFKA_STORAGE_ERROR), KAFKA_C_DEST},
    {E(FENCED_LEADER_EPOCH), KAFKA_C_DEST},
    {E(UNKNOWN_LEADER_EPOCH), KAFKA_C_DEST},
    {E(POLICY_VIOLATION), KAFKA_C_DEST},
    {E(THROTTLING_QUOTA_EXCEEDED), KAFKA_C_DEST},

    /* Nobody there, or no answer. */
    {E(_TRANSPORT), KAFKA_C_AWAY},
    {E(_ALL_BROKERS_DOWN), KAFKA_C_AWAY},
    {E(_RESOLVE), KAFKA_C_AWAY},
    {E(_TIMED_OUT), KAFKA_C_AWAY},
    {E(_MSG_TIMED_OUT), KAFKA_C_AWAY},
    {E(_TIMED_OUT_QUEUE), KAFKA_C_AWAY},
    {E(_WAIT_COORD), KAFKA_C_AWAY},
    {E(_SSL), KAFKA_C_AWAY},
    {E(_AUTHENTICATION), KAFKA_C_AWAY},
    {E(REQUEST_TIMED_OUT), KAFKA_C_AWAY},
    {E(BROKER_NOT_AVAILABLE), KAFKA_C_AWAY},
    {E(NETWORK_EXCEPTION), KAFKA_C_AWAY},
    {E(COORDINATOR_LOAD_IN_PROGRESS), KAFKA_C_AWAY},
    {E(COORDINATOR_NOT_AVAILABLE), KAFKA_C_AWAY},
    {E(NOT_COORDINATOR), KAFKA_C_AWAY},
    {E(CLUSTER_AUTHORIZATION_FAILED), KAFKA_C_AWAY},
    {E(SASL_AUTHENTICATION_FAILED), KAFKA_C_AWAY},
    {E(UNSUPPORTED_SASL_MECHANISM), KAFKA_C_AWAY},

    /* The producer's own numbers. */
    {E(_FATAL), KAFKA_C_BROKEN},
    {E(_GAPLESS_GUARANTEE), KAFKA_C_BROKEN},
    {E(_INCONSISTENT), KAFKA_C_BROKEN},
    {E(_PURGE_QUEUE), KAFKA_C_BROKEN},
    {E(_PURGE_INFLIGHT), KAFKA_C_BROKEN},
    {E(_DESTROY), KAFKA_C_BROKEN},
    {E(_STATE), KAFKA_C_BROKEN},
    {E(_FENCED), KAFKA_C_BROKEN},
    {E(OUT_OF_ORDER_SEQUENCE_NUMBER), KAFKA_C_BROKEN},
    {E(DUPLICATE_SEQUENCE_NUMBER), KAFKA_C_BROKEN},
    {E(INVALID_PRODUCER_EPOCH), KAFKA_C_BROKEN},
    {E(INVALID_PRODUCER_ID_MAPPING), KAFKA_C_BROKEN},
    {E(UNKNOWN_PRODUCER_ID), KAFKA_C_BROKEN},
    {E(PRODUCER_FENCED), KAFKA_C_BROKEN},
};
const size_t ob__kafka_n_codes = sizeof(ob__kafka_codes) / sizeof(ob__kafka_codes[0]);

enum kafka_class ob__kafka_class(rd_kafka_resp_err_t code)
{
    for (size_t i = 0; i < ob__kafka_n_codes; i++)
        if (ob__kafka_codes[i].code == code)
            return ob__kafka_codes[i].class;
    return KAFKA_C_ODD;
}

/* "Possibly persisted" is neither delivered nor failed: nothing is spent on it, and it is sent
 * again with the same id (kafka_codes_test: possibly persisted). */
enum ob_verdict ob__kafka_verdict(rd_kafka_resp_err_t code, rd_kafka_msg_status_t status,
                                  bool alone)
{
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR || status == RD_KAFKA_MSG_STATUS_PERSISTED)
        return OB_V_DELIVERED;
    bool unsure = status == RD_KAFKA_MSG_STATUS_POSSIBLY_PERSISTED;
    switch (ob__kafka_class(code)) {
    case KAFKA_C_EVENT:
        return alone && !unsure ? OB_V_REJECT : OB_V_RETURNED;
    case KAFKA_C_DEST:
        return OB_V_BLOCKED;
    case KAFKA_C_ODD:
        return alone && !unsure ? OB_V_RETRY : OB_V_RETURNED;
    case KAFKA_C_AWAY:
    case KAFKA_C_BROKEN:
        break;
    }
    return OB_V_RETURNED;
}
