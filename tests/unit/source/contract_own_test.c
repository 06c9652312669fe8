/* SPDX-License-Identifier: Apache-2.0 */
/* contract_own_test - one owner at a time, whatever the source: stand-bys, fencing of who comes
 * back, a changed number of shards. */
#include "world.h"

#include <stdio.h>
#include <unistd.h>

static const struct ob_beat running = {.state = "running", .in_flight = 5};

static void second_one_stands_by(void **state)
{
    struct bench b;
    struct ob_source *s, *t;
    struct ob_err err;

    (void)state;
    bench_init(&b);
    s = open_shard(&b, 0, 1, "host:1:aa");
    t = open_shard(&b, 0, 1, "host:2:bb");
    assert_int_equal(own(s, &err), OB_OK);
    assert_int_equal(own(s, &err), OB_OK); /* still */
    int64_t first = epoch(&b);
    assert_true(HAS_CURSOR ? first == 1 : first > 0); /* or it begins with the server's time */
    assert_int_equal(own(t, &err), OB_AGAIN);
    assert_non_null(strstr(err.text, "host:1:aa"));
    emit(&b, 3, 1);
    assert_int_equal(deliver_all(s), 3);
    SOURCE.disown(s);
    assert_int_equal(own(t, &err), OB_OK);
    assert_int_equal(epoch(&b), first + 1);
    claim(t, 10, OB_AGAIN); /* the position came along */
    claim(s, 10, OB_FENCED);
    SOURCE.close(s);
    SOURCE.close(t);
    bench_clear(&b);
}

/* Not even with its session alive can an owner of an old epoch write anything. */
static void the_epoch_fences(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch;
    struct ob_err err;
    bool paused;

    (void)state;
    bench_init(&b);
    emit(&b, 3, 1);
    s = open_own(&b);
    batch = claim(s, 10, OB_OK);
    settling_reset(&g);
    op_add(&g, OB_SETTLE_PARK, &batch->events[0], 1);
    op_add(&g, OB_SETTLE_DEAD, &batch->events[1], 2);
    pass(&batch->events[2], 1);
    g.s.moved = true;
    g.s.ref = 3;
    raise_epoch(&b);
    assert_int_equal(settle(s, &g), OB_FENCED);
    assert_int_equal(n_parked(&b), 0);
    assert_int_equal(n_dead(&b, NULL), 0);
    assert_int_equal(n_published(&b), 0);
    assert_int_equal(cursor_pos(&b), HAS_CURSOR ? 0 : -1);
    assert_int_equal(SOURCE.beat(s, &running, &paused, &err), OB_FENCED);
    ob_batch_unref(batch);
    SOURCE.close(s);

    grow_silent(&b); /* who raised it, and is not there */
    s = open_own(&b);
    raise_epoch(&b);
    assert_int_equal(SOURCE.beat(s, &running, &paused, &err), OB_FENCED);
    SOURCE.close(s);
    bench_clear(&b);
}

static void a_beating_owner_stays(void **state)
{
    struct bench b;
    struct ob_source *s, *t;
    struct ob_err err;
    bool paused;

    (void)state;
    bench_init(&b);
    s = open_own(&b);
    t = open_shard(&b, 0, 1, "second");
    for (int i = 0; i < 40; i++) { /* 80 s of our clock; it beats every 8 s */
        if (i % 4 == 0)
            assert_int_equal(SOURCE.beat(s, &running, &paused, &err), OB_OK);
        assert_int_equal(own(t, &err), OB_AGAIN);
        move_clock(&b, 2000000);
    }
    assert_int_equal(SOURCE.beat(s, &running, &paused, &err), OB_OK);
    SOURCE.close(s);
    SOURCE.close(t);
    bench_clear(&b);
}

static void pause_is_read_with_the_beat(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_admin *a;
    struct ob_err err;
    bool paused = true;

    (void)state;
    bench_init(&b);
    s = open_own(&b);
    a = open_admin(&b);
    assert_int_equal(SOURCE.beat(s, &running, &paused, &err), OB_OK);
    assert_false(paused);
    assert_int_equal(ADMIN.pause(a, true, &err), OB_OK);
    assert_int_equal(SOURCE.beat(s, &running, &paused, &err), OB_OK);
    assert_true(paused);
    assert_int_equal(ADMIN.pause(a, false, &err), OB_OK);
    assert_int_equal(SOURCE.beat(s, &running, &paused, &err), OB_OK);
    assert_false(paused);
    assert_int_equal(in_flight(&b), 5);
    ADMIN.close(a);
    SOURCE.close(s);
    bench_clear(&b);
}

/* ---- shards ---- */

/* What the relay does: claims all, keeps what is this shard's and not settled before. */
static size_t deliver_shard(struct ob_source *s, unsigned shard, unsigned shards, uint8_t *seen,
                            uint64_t upto)
{
    size_t n = 0;
    for (bool more = true; more;) {
        struct ob_batch *batch = NULL;
        struct ob_err err = {.text = ""};
        struct ob_settle one = {.moved = true};
        struct ob_settled out = {0};
        enum ob_status st = SOURCE.claim(s, 50, (size_t)1 << 20, &batch, &err);
        if (st == OB_AGAIN && is_idle(s))
            break;
        if (st == OB_AGAIN) {
            usleep(200);
            continue;
        }
        assert_int_equal(st, OB_OK);
        for (size_t i = 0; i < batch->n; i++) {
            const struct ob_event *ev = &batch->events[i];
            uint64_t hash = ob_hash64(ev->aggregate_id.p, ev->aggregate_id.n);
            if (number_of(ev) > upto) {
                more = false;
                break;
            }
            if (ob_shard_of(hash, shards) == shard && !SOURCE.already(s, ev->ref, hash)) {
                seen[number_of(ev)]++;
                n++;
            }
            one.ref = ev->ref;
        }
        if (one.ref && SOURCE.settle(s, &one, &out, &err) != OB_OK)
            fail_msg("%s", err.text);
        ob_batch_unref(batch);
    }
    return n;
}

/* 1 shard, then 3, then 2, with cursors at different places: every event exactly once. */
static void changed_number_of_shards(void **state)
{
    static const struct {
        unsigned shards;
        uint64_t upto[3];
    } stages[] = {{1, {100, 0, 0}}, {3, {150, 400, 220}}, {2, {300, 250, 0}}, {3, {600, 600, 600}}};
    struct bench b;
    uint8_t seen[601] = {0};

    (void)state;
    bench_init(&b);
    emit(&b, 600, 37);
    for (size_t i = 0; i < ROWS(stages); i++) {
        struct ob_source *s[3];
        struct ob_err err;
        for (unsigned k = 0; k < stages[i].shards; k++) {
            s[k] = open_shard(&b, k, stages[i].shards, "me");
            assert_int_equal(own(s[k], &err), OB_OK);
        }
        for (unsigned k = 0; k < stages[i].shards; k++)
            deliver_shard(s[k], k, stages[i].shards, seen, stages[i].upto[k]);
        for (unsigned k = 0; k < stages[i].shards; k++)
            SOURCE.close(s[k]);
        assert_int_equal(n_cursors(&b, 0), stages[i].shards);
    }
    for (size_t i = 1; i <= 600; i++)
        if (seen[i] != 1)
            fail_msg("event %zu was delivered %u times", i, seen[i]);
    { /* Old positions are forgotten once all have passed them. */
        struct ob_source *s = open_shard(&b, 0, 3, "me");
        struct ob_err err;
        assert_int_equal(own(s, &err), OB_OK);
        assert_int_equal(n_past(&b), 0);
        SOURCE.close(s);
    }
    bench_clear(&b);
}

static void shards_change_only_when_all_have_stopped(void **state)
{
    struct bench b;
    struct ob_source *a0, *a1, *n0;
    struct ob_err err;

    (void)state;
    bench_init(&b);
    emit(&b, 10, 3);
    a0 = open_shard(&b, 0, 2, "old0");
    a1 = open_shard(&b, 1, 2, "old1");
    n0 = open_shard(&b, 0, 3, "new0");
    assert_int_equal(own(a0, &err), OB_OK);
    assert_int_equal(own(a1, &err), OB_OK);
    assert_int_equal(own(n0, &err), OB_AGAIN);
    assert_non_null(strstr(err.text, "from 2 to 3"));
    SOURCE.disown(a0);
    assert_int_equal(own(n0, &err), OB_AGAIN);
    assert_non_null(strstr(err.text, "old1"));
    assert_int_equal(own(a0, &err), OB_OK); /* the refused one let go of what it had locked */
    SOURCE.disown(a0);
    SOURCE.disown(a1);
    assert_int_equal(own(n0, &err), OB_OK);
    assert_int_equal(n_cursors(&b, 3), 3);
    assert_int_equal(own(a1, &err), OB_AGAIN);
    SOURCE.close(a0);
    SOURCE.close(a1);
    SOURCE.close(n0);
    bench_clear(&b);
}

/* A source that cannot be shared says so, and does not begin. */
static void more_shards_are_refused(void **state)
{
    struct bench b;
    struct ob_source *s = NULL;
    struct ob_err err;

    (void)state;
    bench_init(&b);
    assert_int_equal(try_shard(&b, 0, 2, "me", &s, &err), OB_FATAL);
    assert_non_null(strstr(err.text, "shards"));
    assert_null(s);
    bench_clear(&b);
}

/* Parked rows belong to the shard of their hash, whatever the number of shards is. */
static void parked_rows_follow_their_hash(void **state)
{
    const unsigned shards = HAS_SHARDS ? 3 : 1;
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch, *got;
    struct ob_err err;
    uint64_t dests[8];
    size_t n, seen = 0;
    int64_t next;

    (void)state;
    bench_init(&b);
    emit(&b, 8, 8);
    s = open_own(&b);
    batch = claim(s, 10, OB_OK);
    settling_reset(&g);
    for (size_t i = 0; i < 8; i++) {
        struct ob_settle_op *op =
            op_add(&g, OB_SETTLE_PARK, &batch->events[i], i < 4 ? i : UINT64_MAX - i);
        op->blocked_dest = i % 2 ? 100 + i : 0;
    }
    g.s.moved = true;
    g.s.ref = 8;
    assert_int_equal(settle(s, &g), OB_OK);
    ob_batch_unref(batch);
    SOURCE.close(s);
    for (unsigned k = 0; k < shards; k++) {
        struct ob_source_status status;
        size_t mine = 0;
        s = open_shard(&b, k, shards, "me");
        assert_int_equal(own(s, &err), OB_OK);
        if (SOURCE.drain(s, 0, INT64_MAX, 100, 10, NULL, NULL, &got, &next, &err) == OB_OK) {
            for (size_t i = 0; i < got->n; i++)
                assert_int_equal(ob_shard_of(got->events[i].park_hash, shards), k);
            mine += got->n;
            ob_batch_unref(got);
        }
        assert_int_equal(SOURCE.blocked(s, 0, dests, 8, &n, &err), OB_OK);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(SOURCE.drain(s, dests[i], 0, 100, 10, NULL, NULL, &got, &next, &err),
                             OB_OK);
            for (size_t j = 0; j < got->n; j++)
                assert_int_equal(ob_shard_of(got->events[j].park_hash, shards), k);
            mine += got->n;
            ob_batch_unref(got);
        }
        assert_int_equal(SOURCE.status(s, &status, &err), OB_OK);
        assert_int_equal(status.parked, mine);
        seen += mine;
        SOURCE.close(s);
    }
    assert_int_equal(seen, 8);
    bench_clear(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(second_one_stands_by),
        cmocka_unit_test(the_epoch_fences),
        cmocka_unit_test(a_beating_owner_stays),
        cmocka_unit_test(pause_is_read_with_the_beat),
        CASE_IF(HAS_SHARDS, changed_number_of_shards, "one worker has all"),
        CASE_IF(HAS_SHARDS, shards_change_only_when_all_have_stopped, "one worker has all"),
        CASE_IF(!HAS_SHARDS, more_shards_are_refused, "there may be more"),
        cmocka_unit_test(parked_rows_follow_their_hash),
    };

    if (server_missing())
        return 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
