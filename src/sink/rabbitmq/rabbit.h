/* SPDX-License-Identifier: Apache-2.0 */
/* rabbit - the parts of the RabbitMQ sink: what is configured, a connection, a publish, confirms
 * and returns, exchanges and queues. Thread: all of it is the pump's, but for the driver. */
#ifndef OB_SINK_RABBITMQ_RABBIT_H
#define OB_SINK_RABBITMQ_RABBIT_H

#include "core/arena.h"
#include "sink/pump.h"

#include <amqp.h>

enum { OB_RABBIT_DECLARE_OFF, OB_RABBIT_DECLARE_CHECK, OB_RABBIT_DECLARE_CREATE };
enum { OB_RABBIT_REJECT, OB_RABBIT_RETRY, OB_RABBIT_DELIVER };

#define RABBIT_CHANNEL 1 /* publishes */
#define RABBIT_ASIDE 2   /* declares and asks; its failures disturb nobody */
#define RABBIT_HEADERS 256
#define RABBIT_REFUSED 64
#define RABBIT_SEEN 1024
#define RABBIT_GATHER 256
#define RABBIT_RETURNS 256
#define RABBIT_LEFT_OUT 32 /* names of headers that are warned about */

struct ob_sink_rabbit_conf {
    const char *url, *user, *password, *name;
    const char *ca, *cert, *key;
    bool verify, durable;
    const char *exchange, *exchange_type, *app_id, *priority_header, *correlation_header;
    int declare, unroutable;
    const struct ob_node *queues;
    int64_t window, max_message, connect_timeout_ms, heartbeat_ms;
};

struct rabbit_queue {
    const char *name, *exchange, *type;
    const char **keys;
    size_t n_keys;
    int64_t max_length;
};

/* One published message that is not confirmed. */
struct rabbit_sent {
    uint64_t tag, ticket, id_hash, dest, exchange;
    size_t size;
    bool live, returned, guilty; /* guilty: for it the channel was closed */
    bool cleared;                /* the channel outlived it: it closes none */
};

/* What the server says to a question on the channel aside. LOST: nothing, or the connection is of
 * no use any more. */
enum rabbit_answer { RABBIT_YES, RABBIT_NO, RABBIT_LOST };

/* An exchange, or one routing key of it, that the server refused: asked for again at `until_ms`. */
struct rabbit_refused {
    uint64_t exchange, key; /* hashes; key 0: all of them */
    int64_t until_ms;
    enum { RABBIT_LOOK, RABBIT_MAKE, RABBIT_WRITE, RABBIT_TRY } again; /* how it is asked for */
    char name[256], key_name[256], why[300];
};

/* A set of hashes, in order. */
struct rabbit_known {
    uint64_t *hashes;
    size_t n, cap;
};

struct ob_sink {
    struct ob_sink_env env;
    const struct ob_sink_rabbit_conf *conf;
    struct ob_pump *pump;
    struct ob_arena *arena; /* of the queues */
    struct rabbit_queue *queues;
    size_t n_queues;

    amqp_connection_state_t conn;
    unsigned host;      /* the next one to try */
    bool broken;        /* no polite goodbye */
    uint64_t alone;     /* so many more are sent one at a time: one of them closes channels */
    uint64_t asked;     /* questions behind them that are not answered */
    uint64_t asked_tag; /* the last publish before the last of these */
    int sndbuf;         /* bytes that the socket holds */
    size_t room; /* of them, at least so many were free when last asked, less what was sent */
    uint64_t taken[RABBIT_GATHER]; /* delivered and not told yet */
    size_t n_taken;
    bool full;           /* the last publish found no room */
    uint64_t low;        /* the first tag that may be live, but for those that are late */
    uint64_t next;       /* tag of the next publish */
    uint64_t server_max; /* as learned from a refusal; 0: unknown */
    struct rabbit_sent *sent;
    size_t n_sent;            /* a power of two; tag t is at t & (n_sent - 1) */
    struct rabbit_sent *late; /* live when the ring came round to their places; by tag */
    size_t n_late, max_late;
    struct rabbit_refused refused[RABBIT_REFUSED];
    size_t n_refused;
    struct rabbit_known known; /* exchanges that were there on this connection */
    struct {
        uint64_t dest, tag;
    } confirmed[RABBIT_SEEN];         /* by dest: its highest confirmed tag; overwritten freely */
    uint64_t unroutable[RABBIT_SEEN]; /* dests that were logged: a set, at most half full */
    size_t n_unroutable;
    uint64_t left_out[RABBIT_LEFT_OUT]; /* hashes of header names that were warned about */
    size_t n_left_out;
    /* A basic.return whose header and body are under way. */
    bool returning;
    uint64_t return_left;
    char return_text[200];
    struct { /* the last returns, by tag: one confirm may be for many */
        uint64_t tag;
        char text[200];
    } returns[RABBIT_RETURNS];
};

uint64_t ob_rabbit_hash(struct ob_str s);
amqp_bytes_t ob_rabbit_bytes(struct ob_str s);
/* The text of an error reply: of the server, or of the library. */
void ob_rabbit_reply(const amqp_rpc_reply_t *r, char *out, size_t n);

void ob_rabbit_wire(const void *conf, struct ob_wire *out);
enum ob_status ob_rabbit_validate(const void *conf, const struct ob_node *map, struct ob_err *err);
/* One host of the list; *n: how many there are. Connected and logged in, without channels. */
enum ob_status ob_rabbit_dial(const struct ob_sink_rabbit_conf *c, unsigned host, unsigned *n,
                              amqp_connection_state_t *out, struct ob_err *err);
enum ob_status ob_rabbit_connect(struct ob_sink *s, struct ob_err *err);
void ob_rabbit_disconnect(struct ob_sink *s);
/* Channel 1 in confirm mode; tags begin anew. */
enum ob_status ob_rabbit_channel(struct ob_sink *s, struct ob_err *err);

enum ob_status ob_rabbit_queues_load(const struct ob_sink_rabbit_conf *c, struct ob_sink *s,
                                     struct ob_err *err);
/* The same, and nothing of them is kept. */
enum ob_status ob_rabbit_queues_valid(const struct ob_sink_rabbit_conf *c, struct ob_err *err);
/* The configured exchange: made, or looked for. */
enum rabbit_answer ob_rabbit_make_exchange(struct ob_sink *s, amqp_connection_state_t conn,
                                           bool create, char why[300]);
/* The queues: made and bound, or looked for. Each is told, with the reason if it is not fine. One
 * that is there with other properties is bound all the same: what no queue is bound for is dead. */
void ob_rabbit_declare_queues(struct ob_sink *s, amqp_connection_state_t conn, bool create,
                              void (*told)(void *user, bool ok, const char *what), void *user);
/* One of them, without its bindings. */
enum rabbit_answer ob_rabbit_make_queue(amqp_connection_state_t conn, const struct rabbit_queue *q,
                                        bool create, char why[300]);
/* Whether an exchange is there, asked on the channel aside. */
enum rabbit_answer ob_rabbit_exchange_is(amqp_connection_state_t conn, const char *name,
                                         char why[300]);
/* Whether we may write to an exchange that is there, as far as that can be asked without a
 * publish: a server with an alarm answers nothing after one. */
enum rabbit_answer ob_rabbit_may_write(amqp_connection_state_t conn, const char *name,
                                       char why[300]);
/* Whether we may publish with this routing key: tried in a transaction that is undone, so that
 * nothing is routed. */
enum rabbit_answer ob_rabbit_may_publish(amqp_connection_state_t conn, const char *name,
                                         const char *key, char why[300]);

/* Messages of an exchange (or of one routing key of it) are blocked until it was asked for. tried:
 * the routing key of a publish that was refused; what can be asked without one has said yes then
 * (an internal exchange), so only another publish tells. why: begins with the server's code. */
void ob_rabbit_refuse(struct ob_sink *s, struct ob_str exchange, const struct ob_str *key,
                      const struct ob_str *tried, const char *why);
bool ob_rabbit_is_refused(const struct ob_sink *s, const char *exchange);
bool ob_rabbit_knows(const struct rabbit_known *k, uint64_t hash);
void ob_rabbit_learn(struct rabbit_known *k, uint64_t hash);
void ob_rabbit_forget(struct rabbit_known *k, uint64_t hash);
/* Whether a message may go to its exchange (hash: of its name), as far as is known; asked for where
 * it is not. */
enum rabbit_answer ob_rabbit_may_send(struct ob_sink *s, const struct ob_msg *m,
                                      struct ob_str exchange, uint64_t hash, char why[300]);

enum ob_status ob_rabbit_sent_init(struct ob_sink *s, size_t window,
                                   struct ob_err *err) OB_MUST_CHECK;
void ob_rabbit_sent_clear(struct ob_sink *s);
/* Nothing is live, and tags begin anew. */
void ob_rabbit_sent_reset(struct ob_sink *s);
/* One that was published, with the next tag. */
void ob_rabbit_sent_add(struct ob_sink *s, const struct rabbit_sent *one);
/* The live one with this tag, or NULL. */
struct rabbit_sent *ob_rabbit_sent_at(struct ob_sink *s, uint64_t tag);
/* The next live one in the order of tags, from *at = 0 on; NULL: there are no more. */
struct rabbit_sent *ob_rabbit_sent_next(struct ob_sink *s, uint64_t *at);
/* To be called after some are no longer live, and not between two calls of the one above. */
void ob_rabbit_sent_pass(struct ob_sink *s);

enum ob_status ob_rabbit_send(struct ob_sink *s, uint64_t ticket, const struct ob_msg *m,
                              struct ob_err *err);
/* The server has come to one of the questions. With the last of them it is behind all that was sent
 * before that, which closed nothing. */
void ob_rabbit_outlived(struct ob_sink *s);
/* Those that are delivered are told together, before any other verdict and at the end of a turn. */
void ob_rabbit_tell(struct ob_sink *s);
/* A return of the message with this id; it comes before the confirm. return_text: what is wrong. */
void ob_rabbit_returned(struct ob_sink *s, amqp_bytes_t id);
/* An ack (ok) or nack of one tag, or of all up to it. */
void ob_rabbit_confirm(struct ob_sink *s, uint64_t tag, bool multiple, bool ok);
enum ob_status ob_rabbit_turn(struct ob_sink *s, struct ob_err *err);

enum ob_status ob_rabbit_check(const struct ob_sink_env *env, const void *conf, struct ob_err *err);

extern const struct ob_sink_driver ob_sink_rabbitmq;

#endif
