/* SPDX-License-Identifier: Apache-2.0 */
/* kafka_place - a broker for the unit tests of the Kafka sink: a real one that lives as long as the
 * program, or librdkafka's mock cluster, and a consumer that is not ours. */
#ifndef OB_TEST_SINK_KAFKA_PLACE_H
#define OB_TEST_SINK_KAFKA_PLACE_H

#include "harness.h"
#include "sink/kafka/kafka.h"

#include <librdkafka/rdkafka_mock.h>

#define KAFKA_PARTS 3

extern const struct ob_sink_driver ob_sink_kafka;

struct kafka_place {
    char brokers[256], through[32], elsewhere[32];
    struct proxy *proxy; /* of a real broker: the program's one, where `through` leads to */
    bool real;
    rd_kafka_t *rk; /* of the mock cluster, or for topics and readers */
    rd_kafka_mock_cluster_t *mock;
    int64_t from[KAFKA_PARTS]; /* where the topic "orders" ended when the test began */
};

/* True, and says so as TAP, where nothing can be tested: librdkafka starts its threads with C11's
 * thrd_create(), which gcc's ThreadSanitizer does not know, and dies in them. */
bool kafka_place_skipped(void);
/* A real broker if one can be had and mock is false, started once; else a mock cluster. */
void kafka_place_open(struct kafka_place *k, bool mock);
void kafka_place_close(struct kafka_place *k);
/* As the option table would fill it. */
void kafka_place_conf(const struct kafka_place *k, struct kafka_conf *conf);
void kafka_place_topic(const struct kafka_place *k, const char *name, int parts, int64_t limit);
/* Everything of a topic from these offsets on, each id once. */
void kafka_place_read(const struct kafka_place *k, const char *topic, int parts,
                      const int64_t *from, struct readback *out);
void kafka_place_ends(const struct kafka_place *k, const char *topic, int parts, int64_t *ends);

#endif
