/* SPDX-License-Identifier: Apache-2.0 */
/* chain - many in flight in strict order on a stream that only we write to (`single_writer`).
 *
 * Each message names the one before it and the place where that must stand
 * (Nats-Expected-Last-Msg-Id and -Last-Sequence), the first one only the place, as just read. When
 * one is not taken, none behind it is: the server answers 10070 or 10071. That is no verdict: what
 * has no acknowledgement is given back, and nothing that was accepted before that is sent
 * (test_nats: test_a_failure_in_mid_chain).
 *
 * Neither the id nor the place would do alone. What an earlier connection or owner left on its way
 * can be stored late, in the middle of ours, and its order may be another: with the id alone the
 * event behind one that it brought would be taken although those before it were not (test_nats:
 * test_a_chain_is_not_fooled_by_what_was_sent_before). For the same reason nothing is concluded
 * from the last message but that itself is there.
 * Thread: next, sent and mend are the pump's; answers come from the library's. */
#ifndef OB_SINK_NATS_CHAIN_H
#define OB_SINK_NATS_CHAIN_H

#include "event/msg.h"
#include "event/settle.h"

#include <pthread.h>

#define NATS_CHAINS 32

struct ob_sink;

struct nats_link {
    uint64_t ticket, id; /* id: its hash */
    enum { LINK_OVER, LINK_SENT, LINK_UNSURE } state;
};

struct nats_chain {
    char stream[256];
    struct nats_link *links; /* a ring of `window`; what is over still tells which ids are ours */
    uint64_t head, tail;     /* tail: the oldest that is not over */
    uint64_t sent;           /* how many of them have no answer */
    uint64_t barrier;        /* tickets up to it are given back, not sent */
    uint64_t last_seq;       /* with anchored: the place of the last one that was sent */
    bool anchored, broken, waits; /* waits: the next one, for the answers of those before it */
    bool calm;                    /* the stream was seen to stand still since we are connected */
    int64_t broken_ms, sent_ms;   /* since when; of the last one */
    int64_t alone_until_ms;       /* somebody else writes: one at a time, without the chain */
    char last_id[256];
};

struct nats_chains {
    pthread_mutex_t lock;
    struct nats_chain *list[NATS_CHAINS];
    size_t n, window;
    struct nats_place {
        uint32_t chain;
        uint64_t at;
    } * places; /* by ticket % window, as the pump gives them: where its link is */
};

/* False: no memory. */
bool ob_nats_chains_init(struct nats_chains *c, size_t window);
void ob_nats_chains_clear(struct nats_chains *c);
/* The connection is gone, and with it all that was in flight. */
void ob_nats_chains_reset(struct nats_chains *c);

/* What broke and has all its answers, or waited for them long enough, is looked at. *until_ms: when
 * it is to be called again if nothing wakes it. */
void ob_nats_chains_mend(struct ob_sink *s, int64_t *until_ms);

/* How the stream must end for a message to be taken; empty: anyhow. */
struct nats_expect {
    bool has_seq;
    uint64_t seq;
    char id[256];
};

/* The stream with a chain that takes a subject, or nothing; likely: which it may be. The name is
 * the chain's own. OB_RETRY: some stream could not be asked. */
enum ob_status ob_nats_chain_of(struct ob_sink *s, struct ob_str subject, struct ob_str likely,
                                struct ob_str *out);

enum nats_link_to { NATS_LINK_SEND, NATS_LINK_WAIT, NATS_LINK_OVER };
/* What to do with the next message of a stream. OVER: it has its verdict. */
enum nats_link_to ob_nats_chain_next(struct ob_sink *s, uint64_t ticket, struct ob_str stream,
                                     struct nats_expect *out);
/* It is about to be sent. */
void ob_nats_chain_sent(struct ob_sink *s, uint64_t ticket, const struct ob_msg *m,
                        struct ob_str stream, const struct nats_expect *expect);
/* An answer: gives the verdict to the pump, unless the stream must be asked first. */
void ob_nats_chain_answer(struct ob_sink *s, uint64_t ticket, enum ob_verdict v, int code,
                          const char *why);

#endif
