/* SPDX-License-Identifier: Apache-2.0 */
/* check - whether the cluster could take events now: brokers, login, topics, leaders, limits,
 * rights. Nothing is stored and nothing is made. */
#include "sink/kafka/kafka.h"

#include <stdio.h>

#define WAIT_MS 5000

static void tell(const struct ob_sink_env *env, bool ok, const char *what, const char *fix)
{
    if (env->found)
        env->found(env->found_user, ok, what, fix);
}

/* The last thing that went wrong with a connection; it says more than "timed out". */
static void last_error(rd_kafka_t *rk, char *why, size_t size)
{
    rd_kafka_queue_t *q = rd_kafka_queue_get_main(rk);
    rd_kafka_event_t *ev;
    while ((ev = rd_kafka_queue_poll(q, 0)) != NULL) {
        const char *text = rd_kafka_event_error_string(ev);
        if (rd_kafka_event_type(ev) == RD_KAFKA_EVENT_ERROR && text &&
            rd_kafka_event_error(ev) != RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN)
            snprintf(why, size, "%.300s", text);
        rd_kafka_event_destroy(ev);
    }
    rd_kafka_queue_destroy(q);
}

static void check_parts(const struct ob_sink_env *env, const struct rd_kafka_metadata_topic *t,
                        int64_t limit, int min_isr)
{
    char what[300], fix[200];
    int headless = 0, few = 0;
    for (int p = 0; p < t->partition_cnt; p++) {
        headless += t->partitions[p].leader < 0;
        few += t->partitions[p].leader >= 0 && t->partitions[p].isr_cnt < min_isr;
    }
    if (headless > 0 || few > 0) {
        snprintf(what, sizeof(what),
                 "topic %.100s: of %d partitions %d have no leader, %d too few replicas in sync",
                 t->topic, t->partition_cnt, headless, few);
        tell(env, false, what, "start the brokers that have them; their events wait meanwhile");
        return;
    }
    if (min_isr == 1 && t->partition_cnt > 0 && t->partitions[0].replica_cnt > 1) {
        snprintf(what, sizeof(what),
                 "topic %.100s: one replica in sync is enough for a broker to "
                 "acknowledge: its loss loses events",
                 t->topic);
        snprintf(fix, sizeof(fix), "set min.insync.replicas of %.80s to 2", t->topic);
        tell(env, false, what, fix);
        return;
    }
    if (limit > 0)
        snprintf(what, sizeof(what), "topic %.100s: %d partitions, messages up to %lld bytes",
                 t->topic, t->partition_cnt, (long long)limit);
    else
        snprintf(what, sizeof(what), "topic %.100s: %d partitions; its limits are not shown to us",
                 t->topic, t->partition_cnt);
    tell(env, true, what, NULL);
}

static void check_limit(const struct ob_sink_env *env, const struct kafka_conf *c, const char *name,
                        int64_t limit)
{
    char what[300], fix[200];
    if (limit <= 0 || c->max_message <= limit)
        return;
    snprintf(what, sizeof(what), "max_message is %lld, topic %.100s takes %lld bytes",
             (long long)c->max_message, name, (long long)limit);
    snprintf(fix, sizeof(fix), "raise max.message.bytes of %.80s, or lower max_message", name);
    tell(env, false, what, fix);
}

static void check_right(const struct ob_sink_env *env, const struct kafka_conf *c, const char *name,
                        int64_t limit)
{
    char why[200], what[400], fix[300];
    switch (ob__kafka_may_write(c, name, limit, why)) {
    case KAFKA_RIGHT_YES:
        snprintf(what, sizeof(what), "topic %.100s: this user may write to it", name);
        tell(env, true, what, NULL);
        return;
    case KAFKA_RIGHT_NO:
        snprintf(what, sizeof(what), "topic %.100s: this user may not write to it: %s", name, why);
        snprintf(fix, sizeof(fix), "grant Write on topic %.80s to this user; its events would wait",
                 name);
        tell(env, false, what, fix);
        return;
    case KAFKA_RIGHT_NONE:
        snprintf(what, sizeof(what), "topic %.100s: this user may write nothing: %s", name, why);
        snprintf(fix, sizeof(fix),
                 "grant Write on topic %.80s to this user, and IdempotentWrite on the cluster if "
                 "the brokers are older than 2.8",
                 name);
        tell(env, false, what, fix);
        return;
    case KAFKA_RIGHT_STORED:
        snprintf(what, sizeof(what),
                 "topic %.100s: its limit was raised meanwhile: it has a record with the key "
                 "outbox-check now",
                 name);
        tell(env, false, what, "see that consumers ignore it");
        return;
    default:
        snprintf(what, sizeof(what), "topic %.100s: whether it may be written is not known: %s",
                 name, why);
        tell(env, true, what, NULL);
    }
}

/* It is not there and shall be made: the broker is asked whether it could be. */
static void check_new(const struct ob_sink_env *env, const struct kafka_conf *c, rd_kafka_t *rk,
                      const char *name)
{
    char why[KAFKA_REFUSED], what[400], fix[300];
    if (ob__kafka_create(rk, c, name, true, WAIT_MS, why, sizeof(why)) != KAFKA_NOT_CREATED) {
        snprintf(what, sizeof(what), "topic %.100s is not there yet and will be made", name);
        tell(env, true, what, NULL);
        return;
    }
    snprintf(what, sizeof(what), "topic %.100s is not there and cannot be made: %s", name, why);
    snprintf(
        fix, sizeof(fix),
        "make topic %.80s, or see to partitions, replicas and this user's right to Create; its "
        "events would wait",
        name);
    tell(env, false, what, fix);
}

static void check_topic(const struct ob_sink_env *env, const struct kafka_conf *c, rd_kafka_t *rk,
                        const char *name)
{
    const struct rd_kafka_metadata *md = NULL;
    rd_kafka_topic_t *rkt = rd_kafka_topic_new(rk, name, NULL);
    rd_kafka_resp_err_t err =
        rkt ? rd_kafka_metadata(rk, 0, rkt, &md, WAIT_MS) : rd_kafka_last_error();
    const struct rd_kafka_metadata_topic *t =
        err == RD_KAFKA_RESP_ERR_NO_ERROR && md && md->topic_cnt > 0 ? &md->topics[0] : NULL;
    char what[300], fix[200];
    if (t)
        err = t->err;
    snprintf(what, sizeof(what), "topic %.100s: %s", name, rd_kafka_err2str(err));
    snprintf(fix, sizeof(fix), "see that the brokers answer");
    if (err == RD_KAFKA_RESP_ERR_NO_ERROR && t) {
        int64_t limit = 0;
        int min_isr = 0;
        ob__kafka_learn(rk, &name, 1, &limit, &min_isr, WAIT_MS);
        check_parts(env, t, limit, min_isr);
        check_limit(env, c, name, limit);
        if (t->partition_cnt > 0 && t->partitions[0].leader >= 0)
            check_right(env, c, name, limit);
    } else if (err == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART && c->create_topics) {
        check_new(env, c, rk, name);
    } else {
        if (err == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART)
            snprintf(fix, sizeof(fix), "make topic %.80s, or set create_topics: on", name);
        else if (err == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED)
            snprintf(fix, sizeof(fix), "grant Describe and Write on topic %.80s to this user",
                     name);
        tell(env, false, what, fix);
    }
    if (md)
        rd_kafka_metadata_destroy(md);
    if (rkt)
        rd_kafka_topic_destroy(rkt);
}

static void check_name(const struct ob_sink_env *env, const char *name)
{
    char what[300];
    snprintf(what, sizeof(what), "'%.100s' is no name for a topic: " KAFKA_TOPIC_RULE, name);
    tell(env, false, what, "correct the route that names it; its events would be dead at once");
}

enum ob_status ob__kafka_check(const struct ob_sink_env *env, const void *conf, struct ob_err *err)
{
    const struct kafka_conf *c = conf;
    const struct rd_kafka_metadata *md = NULL;
    rd_kafka_t *rk = NULL;
    enum ob_status st = ob__kafka_validate(c, NULL, err);
    if (st == OB_OK)
        st = ob__kafka_handle(c, KAFKA_SCOUT, false, KAFKA_BATCH_BYTES, &rk, err);
    if (st != OB_OK)
        return st;
    rd_kafka_resp_err_t code = rd_kafka_metadata(rk, 0, NULL, &md, WAIT_MS);
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR) {
        char why[320];
        snprintf(why, sizeof(why), "%s", rd_kafka_err2str(code));
        last_error(rk, why, sizeof(why));
        st = ob_err_set(err, OB_DOWN, "kafka at %s: %s", c->brokers, why);
    } else {
        char what[200];
        snprintf(what, sizeof(what), "kafka: %d broker%s answer at %.100s", md->broker_cnt,
                 md->broker_cnt == 1 ? "" : "s", c->brokers);
        tell(env, true, what, NULL);
        rd_kafka_metadata_destroy(md);
    }
    for (size_t i = 0; i < env->n_topics && st == OB_OK; i++) {
        if (ob__kafka_topic_valid(ob_str_c(env->topics[i])))
            check_topic(env, c, rk, env->topics[i]);
        else
            check_name(env, env->topics[i]);
    }
    if (st == OB_OK && env->more_topics)
        tell(env, true, OB_SINK_MORE_TOPICS, NULL);
    rd_kafka_destroy(rk);
    return st;
}
