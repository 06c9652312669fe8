/* SPDX-License-Identifier: Apache-2.0 */
/* read - from the source into the flow: claim, route, drain. */
#include "relay/shard.h"

#include <stdlib.h>
#include <string.h>

#define PER_KEY 64
#define PAGES_LEAST 8
#define NO_MEMORY_MAX 2 /* failures in a row, after which an event that does not fit is dead */

static void page_unref(struct shard *s, struct page *p)
{
    if (--p->live > 0)
        return;
    s->pinned -= p->bytes;
    ob_batch_unref(p->batch);
    free(p);
}

/* Forgets what the flow is done with. Slots are used again only after this. */
void ob__shard_collect(struct shard *s)
{
    size_t n;
    while ((n = ob_flow_freed(s->flow, s->tokens, s->window)) > 0) {
        for (size_t i = 0; i < n; i++) {
            struct entry *e = entry_of(s, s->tokens[i]);
            free(e->reason);
            page_unref(s, e->page);
            *e = (struct entry){0};
        }
    }
}

/* Routes one event. OB_REJECT: it can never be delivered, and err has the reason. OB_RETRY: no
 * memory now. */
static enum ob_status route_one(struct shard *s, struct page *p, size_t i, int64_t now_us,
                                struct ob_err *err)
{
    struct ob_msg *m = &p->msgs[i];
    struct ob_event *ev = &p->batch->events[i];
    if (!ob_limits_check(&s->conf->limits, ev, p->batch->arena))
        return ob_err_set(err, OB_RETRY, "no memory for a page of events");
    enum ob_status st = ob_route_event(s->routes, ev, now_us, p->batch->arena, &s->scratch, m, err);
    m->event = ev;
    if (ev->fault.n > 0 && (st == OB_OK || st == OB_REJECT))
        return ob_err_set(err, OB_REJECT, "%.*s", OB_STR_ARG(ev->fault));
    if (st == OB_OK && !ob_pipeline_allows(s->conf, m->topic, false))
        st = ob_err_set(err, OB_REJECT,
                        "topic '%.*s' is not allowed: none of the globs in sink.topics matches",
                        m->topic.n < 200 ? (int)m->topic.n : 200, m->topic.p);
    if (st == OB_OK && s->conf->sink->aim)
        m->dest_hash = s->conf->sink->aim(s->sink, m);
    size_t max = s->sink_caps.max_bytes;
    if (st == OB_OK && max > 0 && m->value.n > max)
        st = ob_err_set(err, OB_REJECT, "too large: %zu bytes, the sink takes at most %zu",
                        m->value.n, max);
    return st;
}

static bool other_shard(const struct shard *s, const struct ob_event *ev, uint64_t hash)
{
    const struct ob_source_driver *d = s->conf->source;
    bool already = ev->park_n == 0 && d->already && d->already(s->source, ev->ref, hash);
    return already ||
           (s->conf->shards > 1 && ob_shard_of(hash, (unsigned)s->conf->shards) != s->no);
}

/* What an event costs in memory: its payload, and its share of all else that the page holds. */
static void size_up(struct shard *s, const struct page *p)
{
    size_t n = p->batch->n, all = ob_arena_used(p->batch->arena), values = 0;
    for (size_t i = 0; i < n; i++)
        values += p->msgs[i].value.n;
    size_t share = (all > values ? all - values : 0) / n;
    for (size_t i = 0; i < n; i++) {
        size_t bytes = p->msgs[i].value.n + share;
        s->claimed[i].bytes = bytes > UINT32_MAX ? UINT32_MAX : (uint32_t)bytes;
    }
}

/* How long a drained row has been waiting for its destination; 0: it does not, or for another one.
 */
static int64_t blocked_for(const struct ob_event *ev, uint64_t dest, int64_t now_us)
{
    if (ev->park_dest == 0 || ev->park_dest != dest)
        return 0;
    int64_t ms = now_us / 1000 - ev->park_due_ms;
    return ms > 0 ? ms : 1;
}

/* Fills s->claimed from a page; poison reasons go to `reasons` (malloc'd, taken by attach()). */
static enum ob_status route_page(struct shard *s, struct page *p, char **reasons,
                                 struct ob_err *err)
{
    int64_t now_us = ob_clock_wall_us(s->clock);
    for (size_t i = 0; i < p->batch->n; i++) {
        const struct ob_event *ev = &p->batch->events[i];
        if (ev->settled) {
            p->msgs[i] = (struct ob_msg){0};
            s->claimed[i] = (struct ob_claimed){.ref = ev->ref, .flags = OB_CLAIM_PASSED};
            s->hashes[i] = 0;
            continue;
        }
        enum ob_status st = route_one(s, p, i, now_us, err);
        if (st == OB_RETRY && s->no_memory >= NO_MEMORY_MAX)
            st = ob_err_set(err, OB_REJECT, "no memory for the message of this event: %zu bytes",
                            ob_event_bytes(ev));
        if (st != OB_OK && st != OB_REJECT)
            return st;
        bool fine = st == OB_OK;
        const struct ob_msg *m = &p->msgs[i];
        unsigned flags = fine ? 0 : OB_CLAIM_POISON;
        if (other_shard(s, ev, m->key_hash))
            flags = OB_CLAIM_SKIP;
        else if (!fine)
            reasons[i] = strdup(err->text);
        s->claimed[i] = (struct ob_claimed){
            .ref = ev->ref,
            .hash = m->key_hash,
            .dest = m->dest_hash ? m->dest_hash : 1,
            .attempts = ev->attempts,
            .max_attempts = ev->max_attempts,
            .park_n = ev->park_n,
            .blocked_ms = blocked_for(ev, m->dest_hash, now_us),
            .flags = flags,
        };
        s->hashes[i] = m->key_hash;
    }
    size_up(s, p);
    return OB_OK;
}

static struct page *page_new(struct ob_batch *batch)
{
    struct page *p = calloc(1, sizeof(*p));
    struct ob_msg *msgs = p ? ob_arena_alloc(batch->arena, batch->n * sizeof(*msgs)) : NULL;
    if (!msgs) {
        free(p);
        return NULL;
    }
    *p = (struct page){.batch = batch, .msgs = msgs, .live = 1};
    return p;
}

/* Gives each taken event its entry; the rest of the page is let go. */
static void attach(struct shard *s, struct page *p, char **reasons)
{
    p->bytes = ob_arena_used(p->batch->arena);
    s->pinned += p->bytes;
    for (size_t i = 0; i < p->batch->n; i++) {
        if (s->tokens[i] == 0) {
            free(reasons[i]);
            continue;
        }
        p->live++;
        *entry_of(s, s->tokens[i]) =
            (struct entry){.page = p, .msg = &p->msgs[i], .reason = reasons[i]};
    }
    page_unref(s, p);
}

/* Looks the page's hashes up where the flow's cache is not complete. */
static enum ob_status look_up(struct shard *s, size_t n, struct ob_err *err)
{
    if (!ob_flow_needs_lookup(s->flow))
        return OB_OK;
    memset(s->held, 0, n * sizeof(bool));
    enum ob_status st = s->conf->source->held(s->source, s->hashes, n, s->held, err);
    for (size_t i = 0; st == OB_OK && i < n; i++)
        if (s->held[i] && !(s->claimed[i].flags & (OB_CLAIM_SKIP | OB_CLAIM_PASSED)))
            s->claimed[i].flags |= OB_CLAIM_HELD;
    return st;
}

static void free_reasons(char **reasons, size_t n)
{
    for (size_t i = 0; reasons && i < n; i++)
        free(reasons[i]);
    free(reasons);
}

/* Takes a claimed or drained batch into the flow. On failure the batch is still the caller's. */
static enum ob_status take(struct shard *s, struct ob_batch *batch, bool drained,
                           struct ob_err *err)
{
    struct page *p = page_new(batch);
    char **reasons = calloc(batch->n, sizeof(*reasons));
    enum ob_status st = OB_OK;
    struct ob_flow_stats before;
    ob_flow_stats(s->flow, &before);
    if (!p || !reasons) {
        st = ob_err_set(err, OB_DOWN, "no memory for a page of events");
        goto failed;
    }
    st = route_page(s, p, reasons, err);
    s->no_memory = st == OB_RETRY ? s->no_memory + 1 : 0;
    if (st != OB_OK)
        goto failed;
    if (drained) {
        ob_flow_drained(s->flow, s->now, s->claimed, batch->n, batch->drained, batch->n_drained,
                        s->tokens);
    } else {
        st = look_up(s, batch->n, err);
        if (st != OB_OK)
            goto failed;
        ob_flow_claim(s->flow, s->now, s->claimed, batch->n, s->tokens);
    }
    attach(s, p, reasons);
    free(reasons);
    if (before.in_window == 0) /* there is work again; more of it is no progress */
        s->progress_ms = s->now;
    return OB_OK;
failed:
    free_reasons(reasons, batch->n);
    free(p);
    return st;
}

static bool pinned_too_much(const struct shard *s)
{
    return s->pinned > 2 * (size_t)s->conf->window_bytes && s->pinned > 0;
}

/* Whole pages, where the window has room for several: a source reads them best, and a window that
 * is nine tenths full is as good as a full one. */
size_t ob__shard_claim_room(const struct shard *s, uint64_t *bytes)
{
    size_t room = ob_flow_room(s->flow, bytes), page = s->source_caps.page;
    if (s->now < s->pace.until || pinned_too_much(s) ||
        (room < page && s->window >= PAGES_LEAST * page))
        return 0;
    return room < page ? room : page;
}

void ob__shard_claim(struct shard *s)
{
    uint64_t bytes = 0;
    size_t room = ob__shard_claim_room(s, &bytes);
    if (!s->claim_ready || room == 0 || (s->kept && s->kept->n > room))
        return;
    struct ob_err err = {.text = ""};
    enum ob_status st = OB_OK;
    ob__shard_stage(s, "claim");
    /* A page that was read and could not be taken is kept: the source's position is behind it. */
    if (!s->kept)
        st = s->conf->source->claim(s->source, room, (size_t)bytes, &s->kept, &err);
    if (st == OB_OK) {
        size_t n = s->kept->n;
        st = take(s, s->kept, false, &err);
        if (st == OB_OK) {
            s->kept = NULL;
            ob_pace_note(&s->pace, s->now, n, s->source_caps.page);
        }
    } else if (st == OB_AGAIN) {
        s->claim_ready = false;
    }
    if (st == OB_FENCED)
        ob__shard_fenced(s, &err);
    else if (st != OB_OK && st != OB_AGAIN)
        ob__shard_source_failed(s, &err);
    else if (st == OB_OK ||
             !shard_looking(s)) /* a question that is not answered yet is no good news */
        ob__shard_source_fine(s);
}

static bool skip_hash(void *user, uint64_t hash)
{
    const struct shard *s = user;
    return ob_flow_drain_skip(s->flow, hash);
}

/* Rows that wait for `dest` (0: for time). False: stop draining in this round. */
static bool drain_one(struct shard *s, uint64_t dest, size_t max)
{
    struct ob_batch *batch = NULL;
    struct ob_err err = {.text = ""};
    int64_t next_due = INT64_MAX, wall_ms = ob_clock_wall_us(s->clock) / 1000;
    enum ob_status st = s->conf->source->drain(s->source, dest, wall_ms, max, PER_KEY, skip_hash, s,
                                               &batch, &next_due, &err);
    if (st == OB_OK || st == OB_AGAIN) {
        /* Hashes that are in the window are passed over: not before 10 ms again. */
        int64_t at = next_due == INT64_MAX ? INT64_MAX : s->now + (next_due - wall_ms);
        s->due_at = at < s->now + 10 ? s->now + 10 : at;
    }
    if (st == OB_OK) {
        st = take(s, batch, true, &err);
        if (st != OB_OK)
            ob_batch_unref(batch); /* its rows are still parked */
    } else if (st == OB_AGAIN && dest != 0)
        ob_flow_drain_none(s->flow, s->now, dest);
    if (st == OB_FENCED)
        ob__shard_fenced(s, &err);
    else if (st != OB_OK && st != OB_AGAIN)
        ob__shard_source_failed(s, &err);
    return st == OB_OK || st == OB_AGAIN;
}

void ob__shard_drain(struct shard *s)
{
    uint64_t dests[16];
    bool one[16];
    size_t room = ob_flow_drain_room(s->flow);
    if (room == 0 || pinned_too_much(s))
        return;
    ob__shard_stage(s, "drain");
    if (s->now >= s->due_at && !drain_one(s, 0, room))
        return;
    size_t n = ob_flow_drain_dests(s->flow, s->now, dests, one, 16);
    for (size_t i = 0; i < n; i++) {
        room = ob_flow_drain_room(s->flow);
        if (room == 0 || !drain_one(s, dests[i], one[i] ? 1 : room))
            return;
    }
}

void ob__shard_scan(struct shard *s)
{
    uint64_t dests[64], after = 0;
    size_t n = 0;
    struct ob_err err = {.text = ""};
    s->scan_at = s->now + 10000;
    ob__shard_stage(s, "scan");
    do {
        if (s->conf->source->blocked(s->source, after, dests, 64, &n, &err) != OB_OK)
            return;
        for (size_t i = 0; i < n; i++)
            if (!ob_flow_dest_parked(s->flow, s->now, dests[i]))
                return;
        if (n > 0)
            after = dests[n - 1];
    } while (n == 64);
    struct ob_source_status status;
    if (ob_flow_needs_lookup(s->flow) && !s->settle_open &&
        s->conf->source->status(s->source, &status, &err) == OB_OK && !status.held)
        ob_flow_parked_empty(s->flow);
}
