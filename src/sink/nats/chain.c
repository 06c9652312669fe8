/* SPDX-License-Identifier: Apache-2.0 */
/* chain - many in flight in strict order on a stream that only we write to. */
#include "sink/nats/chain.h"

#include "sink/nats/nats.h"

#include <stdio.h>
#include <stdlib.h>

/* The other streams stand still while one is asked. */
#define API_WAIT_MS 1000
/* A broken chain waits so long for answers that never come. */
#define ANSWER_WAIT_MS 5000
#define ALONE_MS 60000
#define CALM_MS 20
#define CALM_LOOKS 10
#define WRONG_LAST_ID 10070
#define WRONG_LAST_SEQUENCE 10071
#define WRONG_LAST_SEQUENCE_NEW 10164
#define BEHIND "stands behind one that was not taken"

bool ob_nats_chains_init(struct nats_chains *c, size_t window)
{
    c->places = calloc(window, sizeof(*c->places));
    if (!c->places)
        return false;
    pthread_mutex_init(&c->lock, NULL);
    c->window = window;
    return true;
}

void ob_nats_chains_clear(struct nats_chains *c)
{
    if (c->window == 0)
        return;
    for (size_t i = 0; i < c->n; i++) {
        free(c->list[i]->links);
        free(c->list[i]);
    }
    free(c->places);
    pthread_mutex_destroy(&c->lock);
    *c = (struct nats_chains){.window = 0};
}

void ob_nats_chains_reset(struct nats_chains *c)
{
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < c->n; i++) {
        struct nats_chain *x = c->list[i];
        x->tail = x->head; /* the links stay: ids of ours that may still arrive */
        x->sent = x->barrier = 0;
        x->anchored = x->broken = x->waits = x->calm = false;
    }
    pthread_mutex_unlock(&c->lock);
}

/* With the lock held. c->n: none such, or too many streams, or no memory. */
static size_t find(struct nats_chains *c, struct ob_str stream)
{
    for (size_t i = 0; i < c->n; i++)
        if (ob_str_eqc(stream, c->list[i]->stream))
            return i;
    if (c->n == NATS_CHAINS || stream.n == 0 || stream.n >= sizeof(c->list[0]->stream))
        return c->n;
    struct nats_chain *x = calloc(1, sizeof(*x));
    struct nats_link *links = x ? calloc(c->window, sizeof(*links)) : NULL;
    if (!links) {
        free(x);
        return c->n;
    }
    memcpy(x->stream, stream.p, stream.n);
    x->links = links;
    c->list[c->n] = x;
    return c->n++;
}

static struct nats_link *link_at(const struct nats_chains *c, struct nats_chain *x, uint64_t i)
{
    return &x->links[c->window > 0 ? i % c->window : 0]; /* it is; the analyser cannot know */
}

static void break_it(struct nats_chain *x)
{
    if (!x->broken)
        x->broken_ms = ob_pump_now_ms();
    x->broken = true;
}

/* ---- asking the server, without the lock ---- */

struct last {
    bool asked, some; /* whether it answered; whether there is a message */
    uint64_t seq, id; /* id: hash of its id, 0: it has none */
};

static struct last read_last(natsConnection *nc, const char *stream)
{
    struct last l = {.asked = false};
    jsCtx *js = NULL;
    jsStreamInfo *info = NULL;
    natsMsg *last = NULL;
    jsErrCode code = 0;
    jsOptions o;
    const char *value = NULL;
    jsOptions_Init(&o);
    o.Wait = API_WAIT_MS;
    if (natsConnection_JetStream(&js, nc, &o) == NATS_OK &&
        js_GetStreamInfo(&info, js, stream, &o, &code) == NATS_OK) {
        l.asked = true;
        l.seq = info->State.LastSeq;
        l.some = info->State.Msgs > 0 && js_GetMsg(&last, js, stream, l.seq, &o, &code) == NATS_OK;
        if (l.some && natsMsgHeader_Get(last, "Nats-Msg-Id", &value) == NATS_OK)
            l.id = ob_hash64(value, strlen(value));
    }
    natsMsg_Destroy(last);
    jsStreamInfo_Destroy(info);
    jsCtx_Destroy(js);
    return l;
}

/* Gives back what was not acknowledged: in the pump's order, after all that has a verdict. Whether
 * the server has it already is told by its own list of ids. */
static void mend(struct ob_sink *s, struct nats_chain *x)
{
    struct nats_chains *c = &s->chains;
    struct last last = read_last(s->session->nc, x->stream);
    bool ours = false;
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; last.id != 0 && i < c->window; i++)
        ours = ours || x->links[i].id == last.id;
    for (uint64_t i = x->tail; i < x->head; i++) {
        struct nats_link *l = link_at(c, x, i);
        if (l->state == LINK_OVER)
            continue;
        l->state = LINK_OVER;
        if (last.id != 0 && l->id == last.id)
            ob_pump_done(s->pump, l->ticket, OB_V_DELIVERED, NULL);
        else
            ob_pump_done(s->pump, l->ticket, OB_V_RETURNED, BEHIND);
    }
    x->tail = x->head;
    x->sent = 0;
    x->anchored = x->broken = x->waits = false;
    x->barrier = ob_pump_fence(s->pump, BEHIND);
    bool foreign = last.some && !ours;
    if (foreign)
        x->alone_until_ms = ob_pump_now_ms() + ALONE_MS;
    pthread_mutex_unlock(&c->lock);
    if (foreign)
        ob_log(s->env.log, OB_LOG_ERROR, "sink.nats.foreign", OB_KC("stream", x->stream),
               OB_KC("error", "somebody else writes to a stream that is declared single_writer"));
}

/* With the lock held. */
static bool mend_now(const struct nats_chain *x)
{
    return x->broken && (x->sent == 0 || ob_pump_now_ms() >= x->broken_ms + ANSWER_WAIT_MS ||
                         ob_pump_now_ms() >= x->sent_ms + ANSWER_WAIT_MS);
}

/* With the lock held: an answer that does not come must not hold up the other streams for ever. */
static void give_up(struct nats_chain *x, int64_t *until_ms)
{
    int64_t at = x->sent_ms + ANSWER_WAIT_MS;
    if (ob_pump_now_ms() >= at)
        break_it(x);
    else if (at < *until_ms)
        *until_ms = at;
}

void ob_nats_chains_mend(struct ob_sink *s, int64_t *until_ms)
{
    struct nats_chains *c = &s->chains;
    for (size_t i = 0; i < c->n; i++) { /* only this thread adds one */
        struct nats_chain *x = c->list[i];
        pthread_mutex_lock(&c->lock);
        if (x->waits && x->sent > 0)
            give_up(x, until_ms);
        bool now = mend_now(x);
        if (x->broken && !now && x->broken_ms + ANSWER_WAIT_MS < *until_ms)
            *until_ms = x->broken_ms + ANSWER_WAIT_MS;
        pthread_mutex_unlock(&c->lock);
        if (now)
            mend(s, x);
    }
}

/* ---- letters ---- */

enum takes { TAKES_NOT, TAKES_IT, TAKES_UNKNOWN };

static enum takes takes(jsCtx *js, jsOptions *o, const char *stream, struct ob_str subject)
{
    jsStreamInfo *info = NULL;
    jsErrCode code = 0;
    enum takes t = TAKES_NOT;
    natsStatus st = js_GetStreamInfo(&info, js, stream, o, &code);
    if (st != NATS_OK)
        return st == NATS_NOT_FOUND ? TAKES_NOT : TAKES_UNKNOWN;
    for (int i = 0; i < info->Config->SubjectsLen; i++)
        if (ob_nats_subject_match(info->Config->Subjects[i], subject))
            t = TAKES_IT;
    jsStreamInfo_Destroy(info);
    return t;
}

enum ob_status ob_nats_chain_of(struct ob_sink *s, struct ob_str subject, struct ob_str likely,
                                struct ob_str *out)
{
    struct nats_chains *c = &s->chains;
    enum takes t = TAKES_NOT;
    jsCtx *js = NULL;
    jsOptions o;
    jsOptions_Init(&o);
    o.Wait = API_WAIT_MS;
    *out = OB_STR("");
    if (natsConnection_JetStream(&js, s->session->nc, &o) != NATS_OK)
        return OB_RETRY;
    pthread_mutex_lock(&c->lock);
    (void)find(c, likely); /* it has a chain from now on, if there is place */
    pthread_mutex_unlock(&c->lock);
    for (size_t i = 0; i < c->n && t == TAKES_NOT; i++) { /* only this thread adds one */
        t = takes(js, &o, c->list[i]->stream, subject);
        if (t == TAKES_IT)
            *out = ob_str_c(c->list[i]->stream);
    }
    jsCtx_Destroy(js);
    return t == TAKES_UNKNOWN ? OB_RETRY : OB_OK;
}

/* ---- one message ---- */

/* Where there is no stream the answer says so. The first time on a connection the stream must stand
 * still: the server may have bytes of the last one that it has not read. */
static void anchor(struct ob_sink *s, struct nats_chain *x, struct nats_expect *out)
{
    struct last last = read_last(s->session->nc, x->stream);
    for (int i = 0; last.asked && !x->calm && i < CALM_LOOKS; i++) {
        uint64_t before = last.seq;
        poll(NULL, 0, CALM_MS);
        last = read_last(s->session->nc, x->stream);
        x->calm = last.asked && last.seq == before;
    }
    out->has_seq = last.asked;
    out->seq = last.seq;
}

/* With the lock held. *ask: with the sequence as it is read now. */
static enum nats_link_to decide(struct ob_sink *s, struct nats_chain *x, uint64_t ticket,
                                struct nats_expect *out, bool *ask)
{
    bool alone = ob_pump_now_ms() < x->alone_until_ms;
    if (ticket <= x->barrier) {
        ob_pump_done(s->pump, ticket, OB_V_RETURNED, BEHIND);
        return NATS_LINK_OVER;
    }
    if (!alone && x->anchored) {
        out->has_seq = true;
        out->seq = x->last_seq;
        snprintf(out->id, sizeof(out->id), "%s", x->last_id);
        return NATS_LINK_SEND;
    }
    x->waits = x->sent > 0; /* the first link is set when nothing is under way */
    if (x->waits)
        return NATS_LINK_WAIT;
    *ask = !alone;
    return NATS_LINK_SEND;
}

enum nats_link_to ob_nats_chain_next(struct ob_sink *s, uint64_t ticket, struct ob_str stream,
                                     struct nats_expect *out)
{
    struct nats_chains *c = &s->chains;
    bool ask = false;
    out->has_seq = false;
    out->id[0] = '\0';
    pthread_mutex_lock(&c->lock);
    size_t at = find(c, stream);
    struct nats_chain *x = at < c->n ? c->list[at] : NULL;
    if (x && x->head - x->tail == c->window)
        break_it(x); /* the oldest was given up and never answered */
    bool broken = x && x->broken, now = x && mend_now(x);
    pthread_mutex_unlock(&c->lock);
    if (!x) {
        ob_pump_done(s->pump, ticket, OB_V_BLOCKED,
                     "single_writer needs the name of its stream (of at most 32 streams)");
        return NATS_LINK_OVER;
    }
    if (broken && !now)
        return NATS_LINK_WAIT;
    if (now)
        mend(s, x);
    pthread_mutex_lock(&c->lock);
    enum nats_link_to to = decide(s, x, ticket, out, &ask);
    pthread_mutex_unlock(&c->lock);
    if (ask)
        anchor(s, x, out);
    return to;
}

void ob_nats_chain_sent(struct ob_sink *s, uint64_t ticket, const struct ob_msg *m,
                        struct ob_str stream, const struct nats_expect *expect)
{
    struct nats_chains *c = &s->chains;
    bool fits = m->id.n < sizeof(c->list[0]->last_id);
    pthread_mutex_lock(&c->lock);
    size_t at = find(c, stream);
    if (at < c->n) {
        struct nats_chain *x = c->list[at];
        c->places[ticket % c->window] = (struct nats_place){(uint32_t)at, x->head};
        *link_at(c, x, x->head++) =
            (struct nats_link){ticket, ob_hash64(m->id.p, m->id.n), LINK_SENT};
        x->sent++;
        x->sent_ms = ob_pump_now_ms();
        x->anchored = fits && expect->has_seq;
        x->last_seq = expect->seq + 1;
        snprintf(x->last_id, sizeof(x->last_id), "%.*s", (int)(fits ? m->id.n : 0), m->id.p);
    }
    pthread_mutex_unlock(&c->lock);
}

void ob_nats_chain_answer(struct ob_sink *s, uint64_t ticket, enum ob_verdict v, int code,
                          const char *why)
{
    struct nats_chains *c = &s->chains;
    bool unsure =
        code == WRONG_LAST_ID || code == WRONG_LAST_SEQUENCE || code == WRONG_LAST_SEQUENCE_NEW;
    bool wake = false;
    pthread_mutex_lock(&c->lock);
    struct nats_place place = c->places[ticket % c->window];
    struct nats_chain *x = place.chain < c->n ? c->list[place.chain] : NULL;
    struct nats_link *l =
        x && place.at >= x->tail && place.at < x->head ? link_at(c, x, place.at) : NULL;
    if (l && l->ticket == ticket && l->state == LINK_SENT) {
        l->state = unsure ? LINK_UNSURE : LINK_OVER;
        x->sent--;
        if (v != OB_V_DELIVERED)
            break_it(x);
        wake = x->sent == 0 || x->broken;
        while (x->tail < x->head && link_at(c, x, x->tail)->state == LINK_OVER)
            x->tail++;
    } else {
        unsure = false;
    }
    /* Under the lock: what is given back behind it must not be heard of first. */
    if (!unsure)
        ob_pump_done(s->pump, ticket, v, v == OB_V_DELIVERED ? NULL : why);
    pthread_mutex_unlock(&c->lock);
    if (wake)
        ob_pump_wake(s->pump);
}
