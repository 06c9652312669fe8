/* SPDX-License-Identifier: Apache-2.0 */
/* nats - the parts of the NATS JetStream sink: what is configured, a connection, a publish, what an
 * answer means, streams. */
#ifndef OB_SINK_NATS_NATS_H
#define OB_SINK_NATS_NATS_H

#include "core/buf.h"
#include "sink/pump.h"

#include <nats/nats.h>
#include <pthread.h>
#include <stdatomic.h>

enum { OB_NATS_DECLARE_OFF, OB_NATS_DECLARE_CHECK, OB_NATS_DECLARE_CREATE };
enum { OB_NATS_CT_AUTO, OB_NATS_CT_ALWAYS, OB_NATS_CT_NEVER };

struct ob_sink_nats_conf {
    const char *url, *name, *user, *password, *token, *credentials, *nkey, *nkey_seed;
    bool tls, verify;
    const char *ca, *cert, *key, *tls_name;
    const char *inbox_prefix;
    int declare, content_type_header;
    const struct ob_node *streams;
    struct ob_opt_list stream_files;
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
};

enum ob_status ob_nats_streams_load(const struct ob_sink_nats_conf *c, struct nats_streams *out,
                                    struct ob_err *err);
void ob_nats_streams_clear(struct nats_streams *s);
/* Makes or checks every declared stream. Not OB_OK: err has the first problem; the others are done
 * all the same. change: missing ones may be made. */
enum ob_status ob_nats_streams_declare(const struct nats_streams *s, natsConnection *nc,
                                       bool change, const struct ob_log *log, struct ob_err *err);
/* Whether a subject is taken by a pattern with `*` and `>`. */
bool ob_nats_subject_match(const char *pattern, struct ob_str subject);

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
    atomic_bool lost, refused; /* refused: some answer was "no responders" */
};

struct ob_sink {
    struct ob_sink_env env;
    const struct ob_sink_nats_conf *conf;
    struct ob_pump *pump;
    struct nats_streams streams;
    struct nats_session *session; /* the pump's thread only */
    struct ob_buf text;           /* the subject and headers of the message that is sent */
    int64_t declared_ms;
};

enum ob_status ob_nats_options(const struct ob_sink_nats_conf *c, natsOptions **out,
                               struct ob_err *err);
enum ob_status ob_nats_connect(struct ob_sink *s, struct ob_err *err);
void ob_nats_disconnect(struct ob_sink *s);

enum ob_status ob_nats_send(struct ob_sink *s, uint64_t ticket, const struct ob_msg *m,
                            struct ob_err *err);
/* The stream that is to take it, or nothing. */
struct ob_str ob_nats_stream_of(const struct ob_sink_nats_conf *c, const struct ob_msg *m);

/* What an answer means. OB_V_DELIVERED: taken. *code: of the server, or 0. why: if not delivered.
 */
enum ob_verdict ob_nats_answer(const char *data, size_t n, bool no_responders, int *code,
                               char why[256]);
enum ob_verdict ob_nats_code_verdict(int err_code, int http_code);

enum ob_status ob_nats_check(const struct ob_sink_env *env, const void *conf, struct ob_err *err);

extern const struct ob_sink_driver ob_sink_nats;

#endif
