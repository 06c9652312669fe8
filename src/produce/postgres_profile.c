/* SPDX-License-Identifier: Apache-2.0 */
/* postgres_profile - the tables of existing systems, as a producer sees them: which column takes
 * which field of an event, and how a new row starts. docs/profiles/ has the tables. */
#include "produce/postgres.h"

static const struct ob_pg_stream microdao_streams[] = {
    {"agent.run", "STREAM_AGENT_RUN"},
    {"embassy", "STREAM_EMBASSY"},
    {"rwa.inventory", "STREAM_RWA"},
    {"payout", "STREAM_PAYOUT"},
};

const char ob_produce_pg_profile_names[] = "polyshop, orion, microdao, farmwise, debezium";

static const struct {
    const char *name;
    struct ob_pg_table_conf conf;
} profiles[] = {
    {"polyshop",
     {.table = "outbox_events",
      .column = {[OB_PG_ID] = "id",
                 [OB_PG_TYPE] = "event_type",
                 [OB_PG_AGGREGATE_ID] = "aggregate_id",
                 [OB_PG_SCHEMA_VERSION] = "version",
                 [OB_PG_PAYLOAD] = "payload",
                 [OB_PG_METADATA] = "metadata?",
                 [OB_PG_CREATED] = "created_at",
                 [OB_PG_DONE] = "processed"},
      .payload_json = true,
      .context_in_payload = true}},
    {"orion",
     {.table = "outbox",
      .column = {[OB_PG_ID] = "id",
                 [OB_PG_TENANT] = "tenant_id",
                 [OB_PG_AGGREGATE_TYPE] = "aggregate_type",
                 [OB_PG_AGGREGATE_ID] = "aggregate_id",
                 [OB_PG_TYPE] = "event_type",
                 [OB_PG_PAYLOAD] = "payload",
                 [OB_PG_METADATA] = "metadata",
                 [OB_PG_CREATED] = "created_at",
                 [OB_PG_ATTEMPTS] = "retry_count"},
      .payload_json = true}},
    {"microdao",
     {.table = "outbox_events",
      .column = {[OB_PG_ID] = "id",
                 [OB_PG_STREAM] = "stream",
                 [OB_PG_TOPIC] = "topic",
                 [OB_PG_PAYLOAD] = "payload",
                 [OB_PG_METADATA] = "metadata?",
                 [OB_PG_CREATED] = "created_at",
                 [OB_PG_DONE] = "processed"},
      .streams = microdao_streams,
      .n_streams = sizeof(microdao_streams) / sizeof(microdao_streams[0]),
      .payload_json = true,
      .context_in_payload = true}},
    {"farmwise",
     {.table = "OutboxMessage",
      .column = {[OB_PG_ID] = "Id",
                 [OB_PG_TYPE] = "EventType",
                 [OB_PG_PAYLOAD] = "Payload",
                 [OB_PG_STATUS] = "Status",
                 [OB_PG_CREATED] = "CreatedAt",
                 [OB_PG_ATTEMPTS] = "RetryCount"},
      .pending = "Pending",
      .pending_number = "0",
      .payload_json = true}},
    {"debezium",
     {.table = "outbox",
      .column = {[OB_PG_ID] = "id",
                 [OB_PG_AGGREGATE_TYPE] = "aggregatetype",
                 [OB_PG_AGGREGATE_ID] = "aggregateid",
                 [OB_PG_TYPE] = "type",
                 [OB_PG_PAYLOAD] = "payload"}}},
};

const struct ob_pg_table_conf *ob_produce_pg_profile(const char *name)
{
    for (size_t i = 0; i < sizeof(profiles) / sizeof(profiles[0]); i++)
        if (strcmp(profiles[i].name, name) == 0)
            return &profiles[i].conf;
    return NULL;
}
