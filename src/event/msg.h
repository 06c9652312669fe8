/* SPDX-License-Identifier: Apache-2.0 */
/* msg - what a sink is given: an event after routing. Slices live as long as the event's batch. */
#ifndef OB_EVENT_MSG_H
#define OB_EVENT_MSG_H

#include "event/event.h"

struct ob_header {
    struct ob_str name, value;
};

/* Where messages go. stream: NULL where the sink's own is meant. */
struct ob_place {
    const char *topic, *stream;
};

struct ob_msg {
    const struct ob_event *event;
    struct ob_str id;          /* the broker's duplicate detection id: the event's id */
    struct ob_str destination; /* what can be blocked by itself; shown to people */
    struct ob_str topic;       /* Kafka topic, NATS subject, RabbitMQ routing key, file: a field */
    struct ob_str stream;      /* NATS stream, RabbitMQ exchange; may be empty */
    struct ob_str key;
    struct ob_str value;
    bool value_null;
    struct ob_str content_type; /* may be empty */
    struct ob_header *headers;
    size_t n_headers;
    bool letter;        /* of a dead event: wherever its topic is taken, it is right there */
    uint64_t key_hash;  /* order is kept by it */
    uint64_t dest_hash; /* of destination, never 0 */
};

#endif
