/* SPDX-License-Identifier: Apache-2.0 */
/* admin - what brokers are asked beside the traffic: the limits of topics, and to make one. All of
 * it blocks. */
#include "sink/kafka/kafka.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- limits ---- */

static void read_entries(const rd_kafka_ConfigResource_t *res, int64_t *limit, int *min_isr)
{
    size_t n = 0;
    const rd_kafka_ConfigEntry_t **e = rd_kafka_ConfigResource_configs(res, &n);
    for (size_t i = 0; i < n; i++) {
        const char *name = rd_kafka_ConfigEntry_name(e[i]);
        const char *value = rd_kafka_ConfigEntry_value(e[i]);
        if (!value)
            continue;
        if (strcmp(name, "max.message.bytes") == 0)
            *limit = atoll(value);
        else if (strcmp(name, "min.insync.replicas") == 0)
            *min_isr = atoi(value);
    }
}

static rd_kafka_resp_err_t read_configs(rd_kafka_event_t *ev, const char *const *names, size_t n,
                                        int64_t *limits, int *min_isrs)
{
    rd_kafka_resp_err_t err = rd_kafka_event_error(ev);
    const rd_kafka_DescribeConfigs_result_t *result = rd_kafka_event_DescribeConfigs_result(ev);
    size_t got = 0;
    const rd_kafka_ConfigResource_t **res =
        result ? rd_kafka_DescribeConfigs_result_resources(result, &got) : NULL;
    for (size_t i = 0; i < got; i++) {
        rd_kafka_resp_err_t one = rd_kafka_ConfigResource_error(res[i]);
        if (one != RD_KAFKA_RESP_ERR_NO_ERROR) {
            err = err != RD_KAFKA_RESP_ERR_NO_ERROR ? err : one;
            continue;
        }
        const char *name = rd_kafka_ConfigResource_name(res[i]);
        for (size_t k = 0; k < n; k++)
            if (strcmp(names[k], name) == 0)
                read_entries(res[i], &limits[k], &min_isrs[k]);
    }
    return err;
}

static rd_kafka_AdminOptions_t *options(rd_kafka_t *rk, rd_kafka_admin_op_t op, int timeout_ms)
{
    char text[128];
    rd_kafka_AdminOptions_t *o = rd_kafka_AdminOptions_new(rk, op);
    if (o)
        rd_kafka_AdminOptions_set_request_timeout(o, timeout_ms, text, sizeof(text));
    return o;
}

rd_kafka_resp_err_t ob__kafka_learn(rd_kafka_t *rk, const char *const *names, size_t n,
                                    int64_t *limits, int *min_isrs, int timeout_ms)
{
    rd_kafka_resp_err_t err = RD_KAFKA_RESP_ERR__TIMED_OUT;
    rd_kafka_ConfigResource_t **res = calloc(n + 1, sizeof(*res));
    rd_kafka_AdminOptions_t *o = options(rk, RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS, timeout_ms);
    rd_kafka_queue_t *q = rd_kafka_queue_new(rk);
    if (!res || !o || !q)
        goto done;
    for (size_t i = 0; i < n; i++)
        res[i] = rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC, names[i]);
    rd_kafka_DescribeConfigs(rk, res, n, o, q);
    rd_kafka_event_t *ev = rd_kafka_queue_poll(q, timeout_ms + 500);
    if (ev)
        err = read_configs(ev, names, n, limits, min_isrs);
    if (ev)
        rd_kafka_event_destroy(ev);
    rd_kafka_ConfigResource_destroy_array(res, n);
done:
    if (q)
        rd_kafka_queue_destroy(q);
    if (o)
        rd_kafka_AdminOptions_destroy(o);
    free(res);
    return err;
}

/* ---- new topics ---- */

static enum kafka_created read_created(rd_kafka_event_t *ev, char *why, size_t size)
{
    size_t n = 0;
    rd_kafka_resp_err_t code = rd_kafka_event_error(ev);
    const char *text = rd_kafka_event_error_string(ev);
    const rd_kafka_CreateTopics_result_t *result = rd_kafka_event_CreateTopics_result(ev);
    const rd_kafka_topic_result_t **topics =
        result ? rd_kafka_CreateTopics_result_topics(result, &n) : NULL;
    if (n > 0 && code == RD_KAFKA_RESP_ERR_NO_ERROR) {
        code = rd_kafka_topic_result_error(topics[0]);
        text = rd_kafka_topic_result_error_string(topics[0]);
    }
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR || code == RD_KAFKA_RESP_ERR_TOPIC_ALREADY_EXISTS)
        return code == RD_KAFKA_RESP_ERR_NO_ERROR ? KAFKA_CREATED : KAFKA_EXISTED;
    snprintf(why, size, "%s: %s", rd_kafka_err2name(code), text ? text : rd_kafka_err2str(code));
    return KAFKA_NOT_CREATED;
}

enum kafka_created ob__kafka_create(rd_kafka_t *rk, const struct kafka_conf *c, const char *name,
                                    bool only_ask, int timeout_ms, char *why, size_t size)
{
    enum kafka_created made = KAFKA_NOT_CREATED;
    char text[256] = "";
    rd_kafka_NewTopic_t *t =
        rd_kafka_NewTopic_new(name, c->partitions > 0 ? (int)c->partitions : -1,
                              c->replicas > 0 ? (int)c->replicas : -1, text, sizeof(text));
    rd_kafka_AdminOptions_t *o = options(rk, RD_KAFKA_ADMIN_OP_CREATETOPICS, timeout_ms);
    rd_kafka_queue_t *q = rd_kafka_queue_new(rk);
    snprintf(why, size, "%s", text[0] ? text : "no answer");
    if (o)
        rd_kafka_AdminOptions_set_validate_only(o, only_ask, text, sizeof(text));
    if (t && o && q) {
        rd_kafka_CreateTopics(rk, &t, 1, o, q);
        rd_kafka_event_t *ev = rd_kafka_queue_poll(q, timeout_ms + 500);
        if (ev) {
            made = read_created(ev, why, size);
            rd_kafka_event_destroy(ev);
        }
    }
    if (q)
        rd_kafka_queue_destroy(q);
    if (o)
        rd_kafka_AdminOptions_destroy(o);
    if (t)
        rd_kafka_NewTopic_destroy(t);
    return made;
}
