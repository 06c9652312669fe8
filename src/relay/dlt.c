/* SPDX-License-Identifier: Apache-2.0 */
/* dlt - dead events to the dead-letter topic, beside the flow.
 *
 * A death and that its letter is still to be sent are one transaction at the source (its triggers),
 * so that neither is without the other. The owner of shard 0 reads letters from there, a page at a
 * time, publishes them, and takes those that were acknowledged out again: a crash in between
 * repeats a letter and loses none (test_dlt: test_a_relay_that_dies_between). A letter that cannot
 * be sent is never given up; its destination is passed over for a while, so that it holds up no
 * other (test_dlt: test_letters_that_wait_hide_no_other). Behind a full page the next one is read,
 * whatever became of the first: there may be more such destinations than are remembered (test_dlt:
 * test_more_places_wait_than_are_remembered). */
#include "relay/shard.h"

#include "core/jscan.h"
#include "core/json.h"
#include "core/utf8.h"
#include "source/admin.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#define OWN_HEADERS 6
#define PLAIN_MAX ((size_t)200) /* RabbitMQ takes 255 bytes for an id and a type */
#define PASSED_MAX 64
#define PAUSE_MS 1000
#define PAUSE_MAX_MS 60000
#define BUSY_MS 50
#define LOOK_MS 10000       /* deaths wake it; this is for what died elsewhere */
#define LOOK_SHARDS_MS 1000 /* and this where other shards record deaths too */

enum letter_state { L_WAITS, L_OPEN, L_SENT, L_FAILED };

struct letter {
    int64_t n; /* of the dead row */
    enum letter_state state;
    struct ob_msg msg;
    struct ob_event event;
    struct ob_str origin;  /* the dead row's destination */
    struct ob_str without; /* the value without the event: when it is refused with it */
    bool small;            /* it is sent without the event */
    bool plain;            /* and without what some sink cannot carry */
};

/* A destination whose letters could not be sent. */
struct passed {
    char *name;
    int64_t until;
    int64_t pause_ms;
};

struct dlt {
    struct shard *shard;
    struct ob_admin *admin;
    struct ob_arena *arena; /* of the page */
    struct letter page[DLT_MAX];
    size_t n, open;
    bool full, cramped; /* there may be more; a letter found no memory */
    int64_t after;      /* letters up to this number had their turn in this walk over all of them */
    int64_t at, sent_ms;
    bool woken;
    struct passed passed[PASSED_MAX];
    size_t n_passed;
};

static bool on(const struct shard *s)
{
    const struct ob_source_admin *ops = s->conf->source->admin;
    return s->conf->dlt && s->no == 0 && ops && ops->dlt_done;
}

void ob__shard_dlt_wake(struct shard *s)
{
    if (s->dlt)
        s->dlt->woken = true;
}

int64_t ob__shard_dlt_at(const struct shard *s)
{
    const struct dlt *d = s->dlt;
    if (!d)
        return INT64_MAX;
    if (d->open > 0)
        return d->sent_ms + s->conf->publish_timeout_ms;
    return d->woken && d->n == 0 ? s->now : d->at;
}

bool ob__shard_dlt_quiet(const struct shard *s)
{
    return !s->dlt || s->dlt->n == 0;
}

bool ob__shard_dlt_idle(const struct shard *s)
{
    const struct dlt *d = s->dlt;
    return !on(s) || (d && d->n == 0 && !d->woken && d->at > s->now);
}

void ob__shard_dlt_forget(struct shard *s)
{
    struct dlt *d = s->dlt;
    if (!d)
        return;
    d->n = d->open = 0;
    d->after = 0;
    d->woken = true;
}

void ob__shard_dlt_close(struct shard *s)
{
    struct dlt *d = s->dlt;
    if (!d)
        return;
    if (d->admin)
        s->conf->source->admin->close(d->admin);
    for (size_t i = 0; i < d->n_passed; i++)
        free(d->passed[i].name);
    ob_arena_unref(d->arena);
    free(d);
    s->dlt = NULL;
}

/* ---- a letter ---- */

/* The event as it would have been published; where that is no JSON, its payload as it can be. */
static void original(struct ob_json *j, const struct letter *l, const struct ob_msg *routed)
{
    enum ob_jtype type;
    struct ob_err err;
    struct ob_str payload = l->event.payload;
    if (l->event.payload_kind == OB_PAYLOAD_NULL)
        ob_json_null(j);
    else if (routed && ob_json_check(routed->value, &type, &err) == OB_OK)
        ob_json_raw(j, routed->value);
    else if (ob_json_check(payload, &type, &err) == OB_OK)
        ob_json_raw(j, payload);
    else
        ob_json_str(j, payload);
}

static struct ob_str body(struct shard *s, const struct letter *l, const struct ob_dead *dead,
                          const struct ob_msg *routed, bool small)
{
    struct ob_buf out;
    struct ob_json j;
    char at[OB_RFC3339_MAX], service[128];
    ob_rfc3339(dead->at_us, at);
    snprintf(service, sizeof(service), "outbox/%s", s->conf->name);
    ob_buf_init(&out, 0);
    ob_json_init(&j, &out);
    ob_json_open(&j, '{');
    ob_json_keyc(&j, "eventId");
    ob_json_str(&j, dead->id);
    ob_json_keyc(&j, "originalEvent");
    if (small)
        ob_json_null(&j);
    else
        original(&j, l, routed);
    ob_json_keyc(&j, "errorMessage");
    ob_json_str(&j, dead->error);
    ob_json_keyc(&j, "failedAt");
    ob_json_strc(&j, at);
    ob_json_keyc(&j, "consumerService");
    ob_json_strc(&j, service);
    ob_json_close(&j, '}');
    struct ob_str value = {NULL, 0};
    if (!out.failed)
        value = ob_arena_copy(s->dlt->arena, ob_buf_view(&out));
    ob_buf_clear(&out);
    return value;
}

/* Headers that the relay sets on a dead letter: an event's headers of these names are dropped, or a
 * reader could take theirs for ours (test_dlt: test_headers_of_an_event_cannot_shadow_ours). The
 * content type is dropped too: the dead letter is JSON whatever the event was. */
static bool is_own_header(struct ob_str name)
{
    static const char *const own[] = {
        "outbox-origin-topic", "outbox-origin-key", "outbox-event-type", "outbox-attempts",
        "outbox-error",        "outbox-failed-at",  "content-type",
    };
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        if (name.n == strlen(own[i]) && strncasecmp(name.p, own[i], name.n) == 0)
            return true;
    return false;
}

static void header(struct dlt *d, struct letter *l, struct ob_str name, struct ob_str value)
{
    l->msg.headers[l->msg.n_headers++] =
        (struct ob_header){ob_arena_copy(d->arena, name), ob_arena_copy(d->arena, value)};
}

/* A value from the dead row, which no route has checked: line breaks would forge headers in some
 * protocols, so control characters become spaces as in a route, and blanks around it are dropped
 * (test_hostile_headers: test_dead_letters_forge_nothing_and_are_sent). */
static void row_header(struct dlt *d, struct letter *l, struct ob_str name, struct ob_str value)
{
    char *p = ob_arena_alloc(d->arena, value.n + 1);
    size_t from = 0, n = value.n;
    if (!p)
        return;
    for (size_t i = 0; i < n; i++)
        p[i] = (unsigned char)value.p[i] < ' ' || value.p[i] == 0x7f ? ' ' : value.p[i];
    while (n > 0 && p[n - 1] == ' ')
        n--;
    while (from < n && p[from] == ' ')
        from++;
    header(d, l, name, (struct ob_str){p + from, n - from});
}

/* The event's own headers, and where the letter comes from. */
static bool headers(struct dlt *d, struct letter *l, const struct ob_dead *dead,
                    const struct ob_msg *routed, struct ob_str topic)
{
    char number[24], at[OB_RFC3339_MAX];
    snprintf(number, sizeof(number), "%u", dead->attempts);
    ob_rfc3339(dead->at_us, at);
    l->msg.headers =
        ob_arena_alloc(d->arena, (routed->n_headers + OWN_HEADERS) * sizeof(*l->msg.headers));
    if (!l->msg.headers)
        return false;
    for (size_t i = 0; i < routed->n_headers; i++)
        if (!is_own_header(routed->headers[i].name))
            header(d, l, routed->headers[i].name, routed->headers[i].value);
    row_header(d, l, OB_STR("outbox-origin-topic"), topic);
    row_header(d, l, OB_STR("outbox-origin-key"), l->msg.key);
    row_header(d, l, OB_STR("outbox-event-type"), dead->type);
    header(d, l, OB_STR("outbox-attempts"), ob_str_c(number));
    row_header(d, l, OB_STR("outbox-error"), dead->error);
    header(d, l, OB_STR("outbox-failed-at"), ob_str_c(at));
    return true;
}

/* Routed as the event would be now; what no route takes goes by as much as the routes could make,
 * or by the destination that it had. */
static bool address(struct shard *s, struct letter *l, const struct ob_dead *dead,
                    const struct ob_msg *routed)
{
    struct dlt *d = s->dlt;
    struct ob_str topic = routed->topic.n > 0 ? routed->topic : dead->destination;
    if (topic.n == 0)
        topic = OB_STR("outbox");
    const char *t = ob_arena_printf(d->arena, "%.*s.dlt", OB_STR_ARG(topic));
    char *id = ob_arena_printf(d->arena, "%.*s.dlt", OB_STR_ARG(dead->id));
    if (!t || !id)
        return false;
    for (char *p = id; *p; p++) /* an event whose id has one is rejected, and its letter is not */
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            *p = '_';
    l->msg = (struct ob_msg){
        .event = &l->event,
        .id = ob_str_c(id),
        .destination = ob_str_c(t),
        .topic = ob_str_c(t),
        .stream = ob_arena_copy(d->arena, routed->stream),
        .key = ob_arena_copy(d->arena, routed->key.n > 0 ? routed->key : dead->key),
        .content_type = OB_STR("application/json"),
        .letter = true,
    };
    l->msg.key_hash = ob_hash64(l->msg.key.p, l->msg.key.n);
    l->msg.dest_hash = ob_hash64(t, strlen(t)) | 1;
    l->origin = ob_arena_copy(d->arena, dead->destination);
    return headers(d, l, dead, routed, topic);
}

static bool write_letter(struct shard *s, struct letter *l, const struct ob_dead *dead)
{
    struct dlt *d = s->dlt;
    struct ob_msg routed = {.event = NULL};
    struct ob_err err;
    bool fine = false;
    *l = (struct letter){.n = dead->n};
    l->event.payload_kind = OB_PAYLOAD_NULL;
    l->event.created_us = dead->at_us;
    if (dead->event) {
        l->event = *dead->event;
        if (!ob_event_own(&l->event, d->arena))
            return false;
        fine = ob_route_event(s->routes, &l->event, ob_clock_wall_us(s->clock), d->arena,
                              &s->scratch, &routed, &err) == OB_OK;
    }
    if (!address(s, l, dead, &routed))
        return false;
    l->msg.value = body(s, l, dead, fine ? &routed : NULL, false);
    l->without = body(s, l, dead, NULL, true);
    return l->msg.value.p && l->without.p;
}

/* Without control characters, without space at its ends, at most PLAIN_MAX bytes. Without memory
 * for it, empty. */
static struct ob_str plain(struct dlt *d, struct ob_str s)
{
    s = ob_arena_copy(d->arena,
                      (struct ob_str){s.p, s.n > PLAIN_MAX ? ob_utf8_cut(s.p, PLAIN_MAX) : s.n});
    char *p = (char *)s.p;
    if (!p)
        return OB_STR("");
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)p[i] < ' ' || p[i] == 0x7f)
            p[i] = ' ';
    while (s.n > 0 && s.p[s.n - 1] == ' ')
        s.n--;
    while (s.n > 0 && *s.p == ' ') {
        s.p++;
        s.n--;
    }
    return s;
}

/* What the sink refused in the event it would refuse in the dead letter too, every time, and the
 * dead letters behind it would wait (test_dlt: test_an_event_that_no_message_can_carry_…). So the
 * event goes, then its headers and what our own headers cannot carry. */
static void reduce(struct dlt *d, struct letter *l)
{
    struct ob_msg *m = &l->msg;
    l->state = L_WAITS;
    if (!l->small) {
        l->small = true;
        m->value = l->without;
        return;
    }
    struct ob_str id = plain(d, m->id);
    const char *own = NULL; /* an id that was changed stays different from others */
    if (!ob_str_eq(id, m->id))
        own = ob_arena_printf(d->arena, "%.*s-%016" PRIx64 ".dlt", OB_STR_ARG(id),
                              ob_hash64(m->id.p, m->id.n));
    l->plain = true;
    l->event.type = plain(d, l->event.type);
    m->id = own ? ob_str_c(own) : id;
    if (m->n_headers > OWN_HEADERS) { /* ours are the last */
        m->headers += m->n_headers - OWN_HEADERS;
        m->n_headers = OWN_HEADERS;
    }
    for (size_t i = 0; i < m->n_headers; i++)
        m->headers[i].value = plain(d, m->headers[i].value);
}

static bool read_one(void *user, const struct ob_dead *dead)
{
    struct dlt *d = user;
    if (!write_letter(d->shard, &d->page[d->n], dead)) {
        d->cramped = true;
        return false;
    }
    d->n++;
    d->full = d->n == DLT_MAX || ob_arena_used(d->arena) > (size_t)d->shard->conf->window_bytes / 4;
    return !d->full;
}

/* ---- destinations that are passed over ---- */

static void pass_over(struct shard *s, const struct letter *l, const char *why)
{
    struct dlt *d = s->dlt;
    struct passed *p = NULL;
    for (size_t i = 0; i < d->n_passed && !p; i++)
        if (ob_str_eqc(l->origin, d->passed[i].name))
            p = &d->passed[i];
    if (p && p->until > s->now)
        return; /* another of this page said so */
    ob_log(&s->log, p ? OB_LOG_DEBUG : OB_LOG_WARN, "dlt.waits", OB_KS("event", l->msg.id),
           OB_KS("destination", l->msg.destination), OB_KC("error", why));
    char *name = p ? NULL : strndup(l->origin.p ? l->origin.p : "", l->origin.n);
    if (!p && !name)
        return;
    if (!p) {
        p = &d->passed[d->n_passed < PASSED_MAX ? d->n_passed++ : (size_t)l->n % PASSED_MAX];
        free(p->name);
        *p = (struct passed){.name = name, .pause_ms = PAUSE_MS / 2};
    }
    p->pause_ms = p->pause_ms * 2 > PAUSE_MAX_MS ? PAUSE_MAX_MS : p->pause_ms * 2;
    p->until = s->now + p->pause_ms;
}

static void forgive(struct dlt *d, struct ob_str origin)
{
    for (size_t i = 0; i < d->n_passed; i++) {
        if (!ob_str_eqc(origin, d->passed[i].name))
            continue;
        free(d->passed[i].name);
        d->passed[i] = d->passed[--d->n_passed];
        d->passed[d->n_passed] = (struct passed){.name = NULL};
        return;
    }
}

/* When to look again: a destination is due, or something died where we do not hear of it. */
static int64_t next_look(const struct shard *s)
{
    const struct dlt *d = s->dlt;
    int64_t at = s->now + (s->conf->shards > 1 ? LOOK_SHARDS_MS : LOOK_MS);
    for (size_t i = 0; i < d->n_passed; i++)
        if (d->passed[i].until > s->now && d->passed[i].until < at)
            at = d->passed[i].until;
    return at;
}

/* All had their turn. What came due behind the walk is looked for soon. */
static void end_walk(struct shard *s)
{
    struct dlt *d = s->dlt;
    d->at = next_look(s);
    if (d->after > 0 && d->at > s->now + PAUSE_MS)
        d->at = s->now + PAUSE_MS;
    d->after = 0;
}

/* ---- sending ---- */

static void later(struct shard *s, const struct ob_err *err)
{
    struct dlt *d = s->dlt;
    ob_log(&s->log, OB_LOG_DEBUG, "dlt.waits", OB_KC("error", err->text));
    if (d->admin)
        s->conf->source->admin->close(d->admin);
    d->admin = NULL;
    d->at = s->now + PAUSE_MS;
}

static enum ob_status need_admin(struct shard *s, struct ob_err *err)
{
    struct dlt *d = s->dlt;
    if (d->admin)
        return OB_OK;
    return s->conf->source->admin->open(s->conf->name, s->conf->source_conf, s->clock, &d->admin,
                                        err);
}

static enum ob_status read_page(struct shard *s, struct ob_err *err)
{
    struct dlt *d = s->dlt;
    const char *not_to[PASSED_MAX];
    struct ob_filter f = {.limits = &s->conf->limits,
                          .dlt = true,
                          .limit = DLT_MAX,
                          .not_to = not_to,
                          .after = (uint64_t)d->after};
    for (size_t i = 0; i < d->n_passed; i++)
        if (d->passed[i].until > s->now)
            not_to[f.n_not_to++] = d->passed[i].name;
    d->n = d->open = 0;
    d->full = d->cramped = false;
    d->arena = ob_arena_new(64 << 10, (size_t)512 << 20);
    enum ob_status st = d->arena ? need_admin(s, err) : ob_err_set(err, OB_DOWN, "no memory");
    if (st == OB_OK)
        st = s->conf->source->admin->dead_list(d->admin, &f, true, read_one, d, err);
    if (st == OB_OK && d->cramped && d->n == 0)
        st = ob_err_set(err, OB_DOWN, "no memory for a letter");
    return st;
}

static void drop_page(struct dlt *d)
{
    d->n = d->open = 0;
    ob_arena_unref(d->arena);
    d->arena = NULL;
}

/* A dead letter is sent where its event would have been allowed to go. */
static bool bar_letter(struct shard *s, struct letter *l)
{
    if (ob_pipeline_allows(s->conf, l->msg.topic, true))
        return false;
    l->state = L_FAILED;
    pass_over(s, l, "the topic is not allowed: none of the globs in sink.topics matches");
    return true;
}

/* Those of the page that wait. What the sink does not take now is taken later. */
static void submit(struct shard *s)
{
    struct dlt *d = s->dlt;
    const struct ob_msg *msgs[DLT_MAX];
    uint64_t tokens[DLT_MAX];
    size_t n = 0, taken;
    struct ob_err err = {.text = ""};
    for (size_t i = 0; i < d->n; i++) {
        if (d->page[i].state != L_WAITS || bar_letter(s, &d->page[i]))
            continue;
        msgs[n] = &d->page[i].msg;
        tokens[n++] = DLT_TOKEN | i;
    }
    taken = n;
    if (n == 0 || s->conf->sink->submit(s->sink, msgs, tokens, &taken, &err) != OB_OK)
        taken = 0;
    for (size_t i = 0; i < taken; i++)
        d->page[tokens[i] & ~DLT_TOKEN].state = L_OPEN;
    d->open += taken;
    d->sent_ms = s->now;
    d->at = taken > 0 ? s->now : s->now + BUSY_MS;
}

/* An acknowledgement that does not come stops no other letter for good. */
static void overdue(struct shard *s)
{
    struct dlt *d = s->dlt;
    if (s->now - d->sent_ms < s->conf->publish_timeout_ms)
        return;
    d->sent_ms = s->now;
    for (size_t i = 0; i < d->n && s->conf->sink->cancel; i++)
        if (d->page[i].state == L_OPEN)
            s->conf->sink->cancel(s->sink, DLT_TOKEN | i);
}

/* The page has its verdicts: what was sent is no longer to be sent. What waits for a connection is
 * read again. */
static void finish_page(struct shard *s)
{
    struct dlt *d = s->dlt;
    int64_t ns[DLT_MAX];
    size_t n = 0;
    struct ob_err err = {.text = ""};
    bool wait = false;
    for (size_t i = 0; i < d->n; i++) {
        if (d->page[i].state == L_SENT)
            ns[n++] = d->page[i].n;
        wait = wait || d->page[i].state == L_WAITS;
    }
    if (n > 0 && (need_admin(s, &err) != OB_OK ||
                  s->conf->source->admin->dlt_done(d->admin, ns, n, &err) != OB_OK)) {
        later(s, &err); /* and then once more: the page stays */
        return;
    }
    bool more = d->full || d->cramped;
    d->woken = d->woken || wait;
    if (!more) {
        end_walk(s);
    } else {
        d->at = n > 0 ? s->now : s->now + BUSY_MS;
        if (!wait) /* or they are read again */
            d->after = d->page[d->n - 1].n;
    }
    drop_page(d);
}

static bool waits(const struct dlt *d)
{
    for (size_t i = 0; i < d->n; i++)
        if (d->page[i].state == L_WAITS)
            return true;
    return false;
}

void ob__shard_dlt(struct shard *s, bool more)
{
    struct dlt *d = s->dlt;
    struct ob_err err = {.text = ""};
    if (!on(s) || s->source_down || (!d && !(d = s->dlt = calloc(1, sizeof(*d)))))
        return;
    d->shard = s;
    more = more && !s->sink_down;
    if (d->open > 0)
        overdue(s);
    else if (d->n > 0 && s->now >= d->at && more && waits(d))
        submit(s);
    else if (d->n > 0 && s->now >= d->at)
        finish_page(s);
    if (d->n > 0 || !more || (s->now < d->at && !d->woken))
        return;
    ob__shard_stage(s, "dlt");
    d->woken = false;
    if (read_page(s, &err) != OB_OK) {
        drop_page(d);
        later(s, &err);
    } else if (d->n > 0) {
        submit(s);
    } else {
        drop_page(d);
        end_walk(s);
    }
}

void ob__shard_dlt_done(struct shard *s, uint64_t token, enum ob_verdict verdict,
                        const struct ob_err *why)
{
    struct dlt *d = s->dlt;
    size_t i = (size_t)(token & ~DLT_TOKEN);
    if (!d || i >= d->n || d->page[i].state != L_OPEN)
        return;
    struct letter *l = &d->page[i];
    d->open--;
    l->state = L_FAILED;
    if (verdict == OB_V_DELIVERED && !why) { /* with a reason: nobody took it */
        l->state = L_SENT;
        forgive(d, l->origin);
        ob_log(&s->log, OB_LOG_INFO, "dlt.sent", OB_KS("event", l->msg.id),
               OB_KS("destination", l->msg.destination));
    } else if (verdict == OB_V_REJECT && !l->plain) {
        reduce(d, l);
    } else if (verdict == OB_V_RETURNED) {
        l->state = L_WAITS; /* the connection was lost */
    } else {
        pass_over(s, l, why ? why->text : "");
    }
}
