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
#define RABBIT_HOSTS 16
#define RABBIT_HEADERS 256
#define RABBIT_REFUSED 64
#define RABBIT_SEEN 1024

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
    bool live, returned;
};

/* An exchange that the server refused: not tried again before `until_ms`. */
struct rabbit_refused {
    uint64_t exchange;
    int64_t until_ms;
    bool missing; /* it is asked for beside the traffic before it is tried again */
    char name[128], why[200];
};

struct ob_sink {
    struct ob_sink_env env;
    const struct ob_sink_rabbit_conf *conf;
    struct ob_pump *pump;
    struct ob_arena *arena; /* of the queues */
    struct rabbit_queue *queues;
    size_t n_queues;

    amqp_connection_state_t conn;
    unsigned host;       /* the next one to try */
    bool broken;         /* no polite goodbye */
    uint64_t alone;      /* so many more are sent one at a time: one of them closes channels */
    int sndbuf;          /* bytes that the socket holds */
    bool full;           /* the last publish found no room */
    uint64_t low;        /* the first tag that may be live */
    uint64_t next;       /* tag of the next publish */
    uint64_t server_max; /* as learned from a refusal; 0: unknown */
    struct rabbit_sent *sent;
    size_t n_sent; /* a power of two; tag t is at t & (n_sent - 1) */
    struct rabbit_refused refused[RABBIT_REFUSED];
    size_t n_refused;
    uint64_t known[RABBIT_REFUSED]; /* exchanges that were there on this connection, by hash */
    struct {
        uint64_t dest, tag;
    } confirmed[RABBIT_SEEN];         /* by dest: its highest confirmed tag; overwritten freely */
    uint64_t unroutable[RABBIT_SEEN]; /* dests that were logged */
    /* A basic.return whose header and body are under way. */
    bool returning;
    uint64_t return_left;
    char return_text[200];
};

uint64_t ob_rabbit_hash(struct ob_str s);
amqp_bytes_t ob_rabbit_bytes(struct ob_str s);
/* The text of an error reply: of the server, or of the library. */
void ob_rabbit_reply(const amqp_rpc_reply_t *r, char *out, size_t n);

enum ob_status ob_rabbit_validate(const void *conf, struct ob_err *err);
/* One host of the list; *n: how many there are. Connected and logged in, without channels. */
enum ob_status ob_rabbit_dial(const struct ob_sink_rabbit_conf *c, unsigned host, unsigned *n,
                              amqp_connection_state_t *out, struct ob_err *err);
enum ob_status ob_rabbit_connect(struct ob_sink *s, struct ob_err *err);
void ob_rabbit_disconnect(struct ob_sink *s);
/* Channel 1 in confirm mode; tags begin anew. */
enum ob_status ob_rabbit_channel(struct ob_sink *s, struct ob_err *err);

enum ob_status ob_rabbit_queues_load(const struct ob_sink_rabbit_conf *c, struct ob_sink *s,
                                     struct ob_err *err);
/* Exchange and queues: made, or looked for. Each is told, with the reason if it is not fine. */
void ob_rabbit_declare(struct ob_sink *s, amqp_connection_state_t conn, bool create,
                       void (*told)(void *user, bool ok, const char *what), void *user);
/* Whether an exchange is there, asked on the channel aside. */
bool ob_rabbit_exchange_is(amqp_connection_state_t conn, const char *name, char why[300]);

/* Its messages are blocked until it was looked at again. */
void ob_rabbit_refuse(struct ob_sink *s, struct ob_str exchange, bool missing, const char *why);
enum ob_status ob_rabbit_send(struct ob_sink *s, uint64_t ticket, const struct ob_msg *m,
                              struct ob_err *err);
/* An ack (ok) or nack of one tag, or of all up to it. */
void ob_rabbit_confirm(struct ob_sink *s, uint64_t tag, bool multiple, bool ok);
enum ob_status ob_rabbit_turn(struct ob_sink *s, struct ob_err *err);

enum ob_status ob_rabbit_check(const struct ob_sink_env *env, const void *conf, struct ob_err *err);

extern const struct ob_sink_driver ob_sink_rabbitmq;

#endif
