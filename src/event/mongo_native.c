/* SPDX-License-Identifier: Apache-2.0 */
/* mongo_native - the fields of Outbox's own documents in MongoDB. */
#include "event/mongo_native.h"

static const char *pending[] = {"pending"}, *claimed[] = {"processing"}, *done[] = {"published"},
                  *failed[] = {"failed"};

const struct ob_mapping ob_mongo_native = {
    .table = OB_MONGO_NATIVE,
    .col = {[OB_MAP_ID] = "_id",
            [OB_MAP_ORDER] = "seq",
            [OB_MAP_TYPE] = "type",
            [OB_MAP_AGGREGATE_TYPE] = "aggregate_type",
            [OB_MAP_AGGREGATE_ID] = "aggregate_id",
            [OB_MAP_KEY] = "key",
            [OB_MAP_TENANT] = "tenant",
            [OB_MAP_TOPIC] = "topic",
            [OB_MAP_PAYLOAD] = "payload",
            [OB_MAP_HEADERS] = "headers",
            [OB_MAP_METADATA] = "metadata",
            [OB_MAP_ENTITY_VERSION] = "entity_version",
            [OB_MAP_SCHEMA_VERSION] = "schema_version",
            [OB_MAP_CREATED] = "created_at",
            [OB_MAP_STATUS] = "status",
            [OB_MAP_DONE_AT] = "published_at",
            [OB_MAP_ATTEMPTS] = "attempts",
            [OB_MAP_MAX_ATTEMPTS] = "max_attempts",
            [OB_MAP_ERROR] = "last_error",
            [OB_MAP_ERROR_AT] = "last_error_at",
            [OB_MAP_CLAIMED_AT] = "claimed_at",
            [OB_MAP_LOCKED_BY] = "locked_by",
            [OB_MAP_LOCKED_UNTIL] = "locked_until"},
    .pending = {.values = pending, .n = 1},
    .claimed = {.values = claimed, .n = 1},
    .done = {.values = done, .n = 1},
    .failed = {.values = failed, .n = 1},
    .lease_ms = 60000,
    .claim_stuck_ms = 300000,
};
