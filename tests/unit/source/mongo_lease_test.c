/* SPDX-License-Identifier: Apache-2.0 */
/* mongo_lease_test - lease and locks of the MongoDB source under clocks that are not the server's.
 * What needs processes is in tests/e2e/test_mongodb_owner.py. */
#include "../produce/mongo_harness.h"

#include "source/mongodb/mongo.h"

#include <stdio.h>
#include <time.h>

#define EVENTS "outbox_events"

/* How far a relay's clocks are from this machine's, in us. */
struct off {
    _Atomic int64_t mono, wall;
};

static int64_t mono(void *user)
{
    return ob_clock_system.mono_us(ob_clock_system.user) + atomic_load(&((struct off *)user)->mono);
}

static int64_t wall(void *user)
{
    return ob_clock_wall_us(&ob_clock_system) + atomic_load(&((struct off *)user)->wall);
}

struct relay {
    struct off off;
    struct ob_clock clock;
    struct ob_log log;
    struct mongo_conf conf;
    char uri[512];
    struct ob_source *source;
};

static void relay_open(struct relay *r, struct bench *b, int64_t wall_off_us)
{
    struct ob_source_caps caps;
    struct ob_err err = {.text = ""};
    memset(r, 0, sizeof(*r));
    atomic_store(&r->off.wall, wall_off_us);
    r->clock = (struct ob_clock){mono, wall, &r->off};
    r->log = (struct ob_log){.fd = 2, .level = OB_LOG_ERROR, .clock = &r->clock, .shard = -1};
    server_uri(b->name, r->uri, sizeof(r->uri));
    r->conf = (struct mongo_conf){.uri = r->uri,
                                  .database = b->name,
                                  .collection = EVENTS,
                                  .poll_max_ms = 50,
                                  .timeout_ms = 10000,
                                  .lease_ms = 5000,
                                  .page = 100};
    const struct ob_source_env env = {
        .pipeline = "p", .shards = 1, .owner = "me", .clock = &r->clock, .log = &r->log};
    if (ob_source_mongodb.open(&env, &r->conf, &r->source, &caps, &err) != OB_OK)
        fail_msg("%s", err.text);
}

static void put_event(struct bench *b, const char *id)
{
    char json[300];
    bson_error_t e;
    snprintf(json, sizeof(json),
             "{\"_id\":\"%s\",\"seq\":{\"$timestamp\":{\"t\":0,\"i\":0}},\"type\":\"t\",\"key\":"
             "\"k\",\"status\":\"pending\",\"created_at\":{\"$date\":\"2026-02-03T04:05:06Z\"}}",
             id);
    assert_true(put(b, EVENTS, json, &e, NULL));
}

static struct ob_batch *claim(struct relay *r)
{
    struct ob_batch *batch = NULL;
    struct ob_err err = {.text = ""};
    for (int i = 0; i < 3000; i++) {
        enum ob_status st = ob_source_mongodb.claim(r->source, 10, 1 << 20, &batch, &err);
        if (st == OB_OK)
            return batch;
        if (st != OB_AGAIN)
            fail_msg("%s", err.text);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    fail_msg("nothing is claimed");
    return NULL;
}

static enum ob_status settle(struct relay *r, const struct ob_batch *batch)
{
    uint64_t released[1];
    struct ob_err err;
    struct ob_settle_op op = {.kind = OB_SETTLE_PUBLISHED, .event = &batch->events[0]};
    struct ob_settle s = {.ops = &op, .n = 1, .delivered = 1};
    struct ob_settled out = {.released = released};
    return ob_source_mongodb.settle(r->source, &s, &out, &err);
}

/* While the sink was down the document was shown as waiting; the lease ran out; then the sink's
 * answer comes. Somebody else may have it by now: it is neither locked nor marked. */
static void a_settle_that_comes_too_late(void **state)
{
    struct bench b;
    struct relay r;
    struct ob_err err;
    bool paused = false;
    (void)state;
    for (int late = 0; late < 2; late++) {
        bench_init(&b);
        relay_open(&r, &b, 0);
        assert_int_equal(ob_source_mongodb.own(r.source, &err), OB_OK);
        put_event(&b, "e");
        struct ob_batch *batch = claim(&r);
        assert_int_equal(
            ob_source_mongodb.beat(r.source, &(struct ob_beat){.state = "down"}, &paused, &err),
            OB_OK);
        assert_int_equal(count(&b, EVENTS, "{\"status\":\"pending\",\"locked_by\":null}"), 1);
        atomic_store(&r.off.mono, late ? 6000000 : 0);
        assert_int_equal(settle(&r, batch), late ? OB_FENCED : OB_OK);
        assert_int_equal(count(&b, EVENTS, "{\"status\":\"published\"}"), !late);
        assert_int_equal(count(&b, EVENTS, "{\"status\":\"processing\"}"), 0);
        ob_batch_unref(batch);
        ob_source_mongodb.close(r.source);
        bench_clear(&b);
    }
}

/* Nobody's wall clock but the server's tells how long a lease and a lock last. */
static void wall_clocks_do_not_matter(void **state)
{
    static const int64_t hours[] = {-1, 0, 1};
    (void)state;
    for (size_t i = 0; i < ROWS(hours); i++) {
        struct bench b;
        struct relay r, other;
        struct ob_err err;
        bench_init(&b);
        relay_open(&r, &b, hours[i] * 3600000000);
        relay_open(&other, &b, -hours[i] * 3600000000);
        assert_int_equal(ob_source_mongodb.own(r.source, &err), OB_OK);
        put_event(&b, "e");
        struct ob_batch *batch = claim(&r);
        assert_int_equal(count(&b, EVENTS "_lease",
                               "{\"$expr\":{\"$and\":[{\"$gt\":[\"$until\",\"$$NOW\"]},{\"$lte\":["
                               "\"$until\",{\"$add\":[\"$$NOW\",5000]}]}]}}"),
                         1);
        assert_int_equal(count(&b, EVENTS,
                               "{\"$expr\":{\"$and\":[{\"$gt\":[\"$locked_until\",{\"$add\":["
                               "\"$$NOW\",50000]}]},{\"$lte\":[\"$locked_until\",{\"$add\":["
                               "\"$$NOW\",60000]}]}]}}"),
                         1);
        assert_int_equal(ob_source_mongodb.own(other.source, &err), OB_AGAIN);
        assert_int_equal(settle(&r, batch), OB_OK);
        assert_int_equal(
            count(&b, EVENTS,
                  "{\"$expr\":{\"$lt\":[{\"$abs\":{\"$subtract\":[\"$published_at\",\"$$NOW\"]}},"
                  "60000]}}"),
            1);
        ob_batch_unref(batch);
        ob_source_mongodb.close(r.source);
        ob_source_mongodb.close(other.source);
        bench_clear(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_settle_that_comes_too_late),
        cmocka_unit_test(wall_clocks_do_not_matter),
    };

    server_start("");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
