/* SPDX-License-Identifier: Apache-2.0 */
/* nats - the parts of the NATS JetStream sink: what is configured, a connection, a publish, what an
 * answer means, streams. */
#ifndef OB_SINK_NATS_NATS_H
#define OB_SINK_NATS_NATS_H

#include "core/buf.h"
#include "sink/nats/chain.h"
#include "sink/pump.h"

#include <nats/nats.h>
#include <pthread.h>
#include <stdatomic.h>

#define NATS_GATHER 128
#define NATS_SPENT_BYTES (256 << 10) /* of messages that wait to be freed */
#define NATS_INBOX_PREFIX 40         /* bytes of inbox_prefix */
#define NATS_ONCE 'x'                /* ends the inbox of a message that is never sent again */
#define NATS_LEFT_OUT 32             /* names of headers that are told about */

enum { OB_NATS_DECLARE_OFF, OB_NATS_DECLARE_CHECK, OB_NATS_DECLARE_CREATE };
enum { OB_NATS_CT_AUTO, OB_NATS_CT_ALWAYS, OB_NATS_CT_NEVER };

struct ob_sink_nats_conf {
    const char *url, *name, *user, *password, *token, *credentials, *nkey, *nkey_seed;
    bool tls, verify, single_writer;
    const char *ca, *cert, *key, *tls_name;
    const char *inbox_prefix;
    int declare, content_type_header;
    const struct ob_node *streams;
    struct ob_opt_list stream_files, allow_subjects;
    struct ob_opt_map stream_prefixes;
    int64_t window, max_payload, connect_timeout_ms, ping_interval_ms, outage_ms;
};

/* One stream as it is declared; texts belong to the arena of the list. */
struct nats_stream {
    const char *name, **subjects, *discard;
    size_t n_subjects;
    int64_t replicas, duplicates_ms, max_bytes, max_msgs, max_age_ms;
    bool memory;
};

struct nats_streams {
    struct ob_arena *arena;
    struct nats_stream *list;
    size_t n;
    size_t next; /* where declaring begins: behind one that did not answer in time */
};

enum ob_status ob_nats_streams_load(const struct ob_sink_nats_conf *c, struct nats_streams *out,
                                    struct ob_err *err);
void ob_nats_streams_clear(struct nats_streams *s);
/* What is wrong with a declared stream: it is not there, it is there and not as declared, or it
 * could not be looked at. */
enum nats_stream_is { NATS_STREAM_MISSING, NATS_STREAM_OTHER, NATS_STREAM_UNKNOWN };
typedef void nats_told(void *user, const struct nats_stream *d, enum nats_stream_is is,
                       const char *what);
struct nats_declaring {
    int64_t wait_ms; /* for all of them together */
    bool change;     /* missing ones may be made, which is logged */
    nats_told *told;
    void *user;
};
/* Makes or checks the declared streams, and tells each problem of each of them. OB_AGAIN: one did
 * not answer in time, which was told, and the rest was not looked at. OB_DOWN: none could be. */
enum ob_status ob_nats_streams_declare(struct nats_streams *s, natsConnection *nc,
                                       const struct ob_log *log, const struct nats_declaring *how,
                                       struct ob_err *err);

/* Messages that are over. The library frees them in a thread of its own and wakes that for each one
 * that finds it asleep: given to it together they cost one change of threads and not one each. */
struct nats_spent {
    natsMsg *msgs[NATS_GATHER];
    size_t n, bytes;
};

void ob_nats_spent_add(struct nats_spent *t, natsMsg *msg, size_t bytes);
void ob_nats_spent_free(struct nats_spent *t);

/* One connection. Callbacks of the library may come after it was given up: it lives until the last
 * of them is over, and speaks to nobody once it is detached. */
struct nats_session {
    atomic_int refs;
    pthread_mutex_t lock;
    struct ob_sink *sink; /* under the lock; NULL: detached */
    natsConnection *nc;
    natsSubscription *sub;
    char inbox[96]; /* with the dot behind it */
    size_t inbox_n;
    int64_t max_payload;
    uint64_t taken[NATS_GATHER]; /* delivered and not told yet; the thread of the answers only */
    size_t n_taken;
    struct nats_spent answers; /* likewise */
    bool chained;              /* single_writer */
    atomic_bool lost, refused; /* refused: some answer was "no responders" */
};

struct ob_sink {
    struct ob_sink_env env;
    const struct ob_sink_nats_conf *conf;
    struct ob_pump *pump;
    struct nats_streams streams;
    struct nats_session *session;     /* the pump's thread only */
    struct ob_buf text;               /* the subject and headers of the message that is sent */
    size_t header_bytes;              /* of it, as they go over the wire */
    struct nats_spent sent;           /* the pump's thread only; empty after each turn */
    uint64_t left_out[NATS_LEFT_OUT]; /* hashes of names that were told about */
    size_t n_left_out;
    struct nats_chains chains;
    int64_t mend_ms;       /* when a broken chain is looked at although nothing wakes us */
    int64_t declare_ms;    /* when missing streams may be made again */
    int64_t declare_every; /* longer while some stream does not answer */
};

/* conn.c: the servers of `url`. As ob_urls_parse(). */
enum ob_status ob_nats_urls(const struct ob_sink_nats_conf *c, struct ob_urls *out,
                            struct ob_err *err) OB_MUST_CHECK;
/* The option that asks for TLS; NULL: none. */
const char *ob_nats_tls(const struct ob_sink_nats_conf *c, const struct ob_urls *urls);
enum ob_status ob_nats_options(const struct ob_sink_nats_conf *c, natsOptions **out,
                               struct ob_err *err);
/* Why there is no connection. Of a url that cannot be read the library tells a part, which may be
 * the password: not we. OB_FATAL: it is the url. */
enum ob_status ob_nats_no_connection(natsStatus st, struct ob_err *err);
enum ob_status ob_nats_connect(struct ob_sink *s, struct ob_err *err);
void ob_nats_disconnect(struct ob_sink *s);

enum ob_status ob_nats_send(struct ob_sink *s, uint64_t ticket, const struct ob_msg *m,
                            struct ob_err *err);
/* Tokens between dots, none empty, no wildcard, no space or control character. */
bool ob_nats_subject_fits(struct ob_str t);
/* Whether it may be the name of a stream; empty: yes, no stream is named. */
bool ob_nats_stream_fits(struct ob_str t);
/* Whether a subject matches a pattern with `*` and `>`. */
bool ob_nats_subject_match(const char *pattern, struct ob_str subject);
/* Whether the server or a client acts on a publish to it: $…, _INBOX…, below inbox_prefix. */
bool ob_nats_subject_reserved(const struct ob_sink_nats_conf *c, struct ob_str subject);
/* Whether allow_subjects covers it. */
bool ob_nats_subject_allowed(const struct ob_sink_nats_conf *c, struct ob_str subject);
/* Checks inbox_prefix and allow_subjects when the config file is read. */
enum ob_status ob_nats_subject_validate(const struct ob_sink_nats_conf *c,
                                        const struct ob_node *map, struct ob_err *err);
/* The stream that is to take it, or nothing; of a letter: its event. */
struct ob_str ob_nats_stream_of(const struct ob_sink_nats_conf *c, const struct ob_msg *m);

/* What an answer means. OB_V_DELIVERED: the stream acknowledged it, which only an object with
 * stream, seq and no `type` does. once: the request must not be repeated; whatever answered it
 * without being a stream rejects it. *code: of the server, or 0. why: if not delivered. */
enum ob_verdict ob_nats_answer(struct ob_str data, bool no_responders, bool once, int *code,
                               char why[256]);
enum ob_verdict ob_nats_code_verdict(int err_code, int http_code);

/* What this user may do, asked without storing anything. UNHEARD: it may, and no stream is there.
 * UNKNOWN: why says why. STORED: the server does not know what it is asked for. */
enum nats_right {
    NATS_RIGHT_YES,
    NATS_RIGHT_UNHEARD,
    NATS_RIGHT_NO,
    NATS_RIGHT_UNKNOWN,
    NATS_RIGHT_STORED
};
/* What the server said last of a right that is missing, if it is about this subject. */
bool ob_nats_violated(natsConnection *nc, const char *subject, char why[300]);
/* Subscribes below inbox_prefix. *out is the caller's, if it is set. */
enum nats_right ob_nats_may_hear(natsConnection *nc, const struct ob_sink_nats_conf *c,
                                 char inbox[96], natsSubscription **out, char why[300]);
/* answers, inbox: of ob_nats_may_hear(). */
enum nats_right ob_nats_may_publish(natsConnection *nc, natsSubscription *answers,
                                    const char *inbox, const char *subject, char why[300]);

enum ob_status ob_nats_check(const struct ob_sink_env *env, const void *conf, struct ob_err *err);

extern const struct ob_sink_driver ob_sink_nats;

#endif
