/* SPDX-License-Identifier: Apache-2.0 */
/* bench - what every bench for a source can do. */
#include "world.h"

#include <unistd.h>

struct settling g;

void left_out(void **state)
{
    (void)state;
}

enum ob_status own(struct ob_source *s, struct ob_err *err)
{
    err->text[0] = '\0';
    return SOURCE.own(s, err);
}

struct ob_source *open_shard(struct bench *b, unsigned shard, unsigned shards, const char *owner)
{
    struct ob_source *s = NULL;
    struct ob_err err;
    if (try_shard(b, shard, shards, owner, &s, &err) != OB_OK)
        fail_msg("%s", err.text);
    return s;
}

struct ob_source *open_own(struct bench *b)
{
    struct ob_source *s = open_shard(b, 0, 1, "me");
    struct ob_err err;
    if (own(s, &err) != OB_OK)
        fail_msg("%s", err.text);
    return s;
}

void beat(struct ob_source *s)
{
    static const struct ob_beat running = {.state = "running", .in_flight = 5};
    struct ob_err err = {.text = ""};
    bool paused;
    if (SOURCE.beat(s, &running, &paused, &err) != OB_OK)
        fail_msg("%s", err.text);
}

/* Leaves out what only the cursor passes. False: nothing is left. */
static bool leave_settled_out(struct ob_batch **batch)
{
    size_t n = 0;
    for (size_t i = 0; i < (*batch)->n; i++)
        if (!(*batch)->events[i].settled)
            (*batch)->events[n++] = (*batch)->events[i];
    (*batch)->n = n;
    if (n > 0)
        return true;
    ob_batch_unref(*batch);
    *batch = NULL;
    return false;
}

struct ob_batch *claim(struct ob_source *s, size_t max, enum ob_status want)
{
    struct ob_batch *batch = NULL;
    struct ob_err err = {.text = ""};
    look_now(s);
    for (int i = 0; i < 5000; i++) {
        enum ob_status st = SOURCE.claim(s, max, (size_t)8 << 20, &batch, &err);
        if (st == OB_AGAIN && SOURCE.looking && SOURCE.looking(s)) {
            usleep(1000);
            continue;
        }
        if (st == OB_OK && !leave_settled_out(&batch))
            continue;
        if (st != want)
            fail_msg("claim: %s, not %s: %s", ob_status_name(st), ob_status_name(want), err.text);
        return batch;
    }
    fail_msg("a claim that never ends");
    return NULL;
}

size_t deliver_all(struct ob_source *s)
{
    static struct settling all;
    struct ob_err err = {.text = ""};
    size_t n = 0;
    for (int i = 0; i < 20000; i++) {
        struct ob_batch *batch = NULL;
        enum ob_status st = SOURCE.claim(s, 100, (size_t)8 << 20, &batch, &err);
        if (st == OB_AGAIN) {
            if (is_idle(s))
                return n;
            usleep(200);
            continue;
        }
        assert_int_equal(st, OB_OK);
        settling_reset(&all);
        all.s.moved = true;
        all.s.ref = batch->events[batch->n - 1].ref;
        all.s.delivered = batch->n;
        for (size_t k = 0; k < batch->n && !HAS_CURSOR; k++)
            op_add(&all, OB_SETTLE_PUBLISHED, &batch->events[k], 0);
        n += batch->n;
        if (settle(s, &all) != OB_OK)
            fail_msg("%s", all.err.text);
        ob_batch_unref(batch);
    }
    fail_msg("never idle");
    return n;
}

/* ---- settling ---- */

void settling_reset(struct settling *one)
{
    one->s = (struct ob_settle){.ops = one->ops};
    one->out = (struct ob_settled){.released = one->released};
}

struct ob_settle_op *op_add(struct settling *one, enum ob_settle_kind kind,
                            const struct ob_event *ev, uint64_t hash)
{
    struct ob_settle_op *op = &one->ops[one->s.n++];
    *op = (struct ob_settle_op){.kind = kind,
                                .event = ev,
                                .hash = hash,
                                .park_n = ev ? ev->park_n : 0,
                                .reason = "it failed",
                                .destination = OB_STR("topic")};
    return op;
}

enum ob_status settle(struct ob_source *s, struct settling *one)
{
    one->err.text[0] = '\0';
    return SOURCE.settle(s, &one->s, &one->out, &one->err);
}

bool released(const struct settling *one, uint64_t hash)
{
    for (size_t i = 0; i < one->out.n_released; i++)
        if (one->released[i] == hash)
            return true;
    return false;
}

struct ob_batch *claimed(struct bench *b, struct ob_source *s, size_t n, size_t keys)
{
    emit(b, n, keys);
    settling_reset(&g);
    return claim(s, n, OB_OK);
}

struct ob_settle_op *park(const struct ob_event *ev, uint64_t hash, uint64_t dest, int64_t due)
{
    struct ob_settle_op *op = op_add(&g, OB_SETTLE_PARK, ev, hash);

    op->blocked_dest = dest;
    op->due_ms = due;
    return op;
}

void pass(const struct ob_event *ev, uint64_t hash)
{
    g.s.delivered++;
    if (!HAS_CURSOR)
        op_add(&g, OB_SETTLE_PUBLISHED, ev, hash);
}

void ok(struct ob_source *s)
{
    if (settle(s, &g) != OB_OK)
        fail_msg("%s", g.err.text);
}

static bool passed_over(void *user, uint64_t hash)
{
    const struct skips *k = user;

    for (size_t i = 0; i < k->n; i++)
        if (k->hash[i] == hash)
            return true;
    return false;
}

struct ob_batch *drain(struct ob_source *s, uint64_t dest, int64_t now, size_t max, size_t per_key,
                       const struct skips *k, int64_t *next, enum ob_status want)
{
    static const struct skips none;
    struct ob_batch *batch = NULL;
    struct ob_err err = {.text = ""};
    enum ob_status st = SOURCE.drain(s, dest, now, max, per_key, passed_over,
                                     (void *)(uintptr_t)(k ? k : &none), &batch, next, &err);

    if (st != want)
        fail_msg("drain: %s: %s", ob_status_name(st), err.text);
    return batch;
}

bool is_held(struct ob_source *s, uint64_t hash)
{
    struct ob_err err;
    bool held = false;

    assert_int_equal(SOURCE.held(s, &hash, 1, &held, &err), OB_OK);
    return held;
}
