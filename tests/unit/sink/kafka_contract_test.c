/* SPDX-License-Identifier: Apache-2.0 */
/* kafka_contract_test - the Kafka sink keeps the contract: on a real broker, or, where none can be
 * had and in builds with sanitizers, on librdkafka's mock cluster. */
#include "contract.h"
#include "kafka_place.h"
#include "proxy.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *begin(void *conf, bool mock)
{
    struct kafka_place *k = calloc(1, sizeof(*k));
    assert_non_null(k);
    kafka_place_open(k, mock);
    kafka_place_conf(k, conf);
    ((struct kafka_conf *)conf)->max_message = (int64_t)CONTRACT_MAX;
    return k;
}

static void *kafka_begin(void *conf, const char **skip)
{
    (void)skip;
    return begin(conf, KAFKA_MOCK_ONLY);
}

static void kafka_read(void *data, struct readback *out)
{
    const struct kafka_place *k = data;
    kafka_place_read(k, "orders", KAFKA_PARTS, k->from, out);
    for (size_t i = 0; i < out->n; i++) /* the contract does not tell null from no value */
        if (ob_str_eqc(out->got[i].value, "null"))
            out->got[i].value = OB_STR("");
}

static void kafka_end(void *data)
{
    kafka_place_close(data);
    free(data);
}

static struct proxy *kafka_through(void *data, void *conf, const char **skip)
{
    struct kafka_place *k = data;
    if (!k->real || !k->proxy) {
        *skip = "the addresses that librdkafka's mock cluster names cannot lead through a proxy";
        return NULL;
    }
    proxy_open(k->proxy, true);
    proxy_delay(k->proxy, 0);
    snprintf(k->through, sizeof(k->through), "127.0.0.1:%d", proxy_port(k->proxy));
    ((struct kafka_conf *)conf)->brokers = k->through;
    return k->proxy;
}

static void kafka_aim(void *data, struct message *m)
{
    struct kafka_place *k = data;
    snprintf(k->elsewhere, sizeof(k->elsewhere), "elsewhere-%d", (int)getpid());
    contract_put(&m->msg.topic, ob_str_c(k->elsewhere));
    contract_put(&m->msg.destination, ob_str_c(k->elsewhere));
    m->msg.dest_hash = 2;
}

static void kafka_make(void *data)
{
    const struct kafka_place *k = data;
    kafka_place_topic(k, k->elsewhere, 1, 0);
}

static const struct contract_sink on_a_broker = {"kafka",    &ob_sink_kafka, kafka_begin,
                                                 kafka_read, kafka_end,      kafka_through,
                                                 kafka_aim,  kafka_make};
/* The mock cluster keeps too little to read it back. */
static const struct contract_sink on_the_mock = {
    "kafka", &ob_sink_kafka, kafka_begin, NULL, kafka_end, kafka_through, kafka_aim, kafka_make};

int main(void)
{
    if (kafka_place_skipped())
        return 0;
    struct kafka_place k;
    kafka_place_open(&k, KAFKA_MOCK_ONLY);
    const struct contract_sink *const sinks[] = {k.real ? &on_a_broker : &on_the_mock};
    kafka_place_close(&k);
    return contract_run(sinks, 1);
}
