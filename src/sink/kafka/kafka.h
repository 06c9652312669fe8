/* SPDX-License-Identifier: Apache-2.0 */
/* kafka - inside of the Kafka sink; for its own files and tests only.
 *
 * Handles of librdkafka: the main lane sends, idempotent, many in flight, in order. It has two
 * producers and uses one at a time: one sends at once, the other, while there is a backlog, gathers
 * for KAFKA_BULK_MS. (Without that each page of the source becomes requests of a few hundred
 * events, which cost the broker as much as large ones, and the library's thread spins while five
 * are in flight: twice the CPU time on both sides. Much longer than the broker takes for a request
 * it must not be: a window of 8 MB does not fill the requests of a few partitions, then, and both
 * ends sleep for half of the time.) It changes over when it is empty, so that no order is lost
 * (kafka_mock_test: bulk_and_in_order). The side lane sends one
 * message at a time per partition: what failed together with others, and what will probably fail,
 * so that the main lane never breaks twice for one event. The scout, on a thread of its own, asks
 * the brokers for topics, leaders and limits.
 *
 * A message is handed to a lane only when its topic is known, its partition has a leader and enough
 * replicas, and its size is allowed: what cannot be taken now never gets in.
 * Thread: the shard's, except what scout.c says. */
#ifndef OB_SINK_KAFKA_KAFKA_H
#define OB_SINK_KAFKA_KAFKA_H

#include "core/buf.h"
#include "sink/sink.h"

#include <librdkafka/rdkafka.h>
#include <stdatomic.h>

#define KAFKA_CAP 16384u                   /* accepted and without verdict */
#define KAFKA_TOPICS_MAX 16384u            /* each costs memory in the library for good */
#define KAFKA_BATCH_BYTES 1000000          /* of a request, unless a topic takes less */
#define KAFKA_HARD_MAX ((size_t)100 << 20) /* a broker cuts the connection beyond */
#define KAFKA_NIL UINT32_MAX
#define KAFKA_BULK_MS "5"

enum kafka_sasl { KAFKA_SASL_NONE, KAFKA_SASL_PLAIN, KAFKA_SASL_SCRAM256, KAFKA_SASL_SCRAM512 };

struct kafka_conf {
    const char *brokers;
    struct ob_opt_map properties;
    int sasl; /* enum kafka_sasl */
    const char *username, *password;
    bool tls;
    const char *ca_file, *cert_file, *key_file, *key_password;
    bool create_topics;
    int64_t create_topics_max; /* 0: no limit */
    /* By all shards of the pipeline since the start: the only field that changes. */
    _Atomic int64_t topics_created;
    int64_t partitions, replicas; /* of topics that are made; 0: as the broker likes */
    int64_t max_message;          /* 0: what the broker takes */
    const char *id_header, *content_type_header; /* "none": none */
};

/* ---- conf.c ---- */

extern const struct ob_opt ob__kafka_opts[];

enum kafka_role { KAFKA_MAIN, KAFKA_SIDE, KAFKA_BULK, KAFKA_SCOUT, KAFKA_PROBE };

enum ob_status ob__kafka_validate(const void *conf, const struct ob_node *map, struct ob_err *err);
/* A handle for a role. batch: bytes of a request at most. */
enum ob_status ob__kafka_handle(const struct kafka_conf *c, enum kafka_role role, bool strict,
                                int64_t batch, rd_kafka_t **out, struct ob_err *err);
/* A property as the user set it, or NULL. */
const char *ob__kafka_property(const struct kafka_conf *c, const char *name);

/* ---- wire.c ---- */

/* Brokers and TLS options that cannot be read or contradict each other. */
enum ob_status ob__kafka_validate_wire(const struct kafka_conf *c, const struct ob_node *map,
                                       struct ob_err *err);
void ob__kafka_wire(const void *conf, struct ob_wire *out);
/* Appends "host:port,host:port" and its NUL; *protocol: of all connections. */
enum ob_status ob__kafka_addresses(const struct kafka_conf *c, struct ob_buf *out,
                                   const char **protocol, struct ob_err *err);

/* ---- rights.c ---- */

#define KAFKA_PROBE_MAX ((int64_t)4 << 20) /* a larger limit is not passed to ask */

/* NONE: nothing may be written at all. STORED: the limit was no limit. UNKNOWN: why says why. */
enum kafka_right {
    KAFKA_RIGHT_YES,
    KAFKA_RIGHT_NO,
    KAFKA_RIGHT_NONE,
    KAFKA_RIGHT_UNKNOWN,
    KAFKA_RIGHT_STORED
};
/* limit: max.message.bytes as the broker has just said; blocks. */
enum kafka_right ob__kafka_may_write(const struct kafka_conf *c, const char *topic, int64_t limit,
                                     char why[200]);

/* ---- codes.c: what a code means, as data ---- */

enum kafka_class {
    KAFKA_C_EVENT,  /* the event's own fault: rejected, if it was alone in its request */
    KAFKA_C_DEST,   /* its destination cannot take it now: blocked */
    KAFKA_C_AWAY,   /* no broker, or no answer: given back, nobody is to blame */
    KAFKA_C_BROKEN, /* the producer is of no use any more: given back, a new one is made */
    KAFKA_C_ODD,    /* none of these: retried, if it was alone in its request */
};

struct kafka_code {
    rd_kafka_resp_err_t code;
    enum kafka_class class;
};

extern const struct kafka_code ob__kafka_codes[];
extern const size_t ob__kafka_n_codes;
enum kafka_class ob__kafka_class(rd_kafka_resp_err_t code);
/* The verdict on a message that failed. alone: nothing else was in its request. */
enum ob_verdict ob__kafka_verdict(rd_kafka_resp_err_t code, rd_kafka_msg_status_t status,
                                  bool alone);

/* ---- record.c: what Java clients do, and what a record weighs ---- */

uint32_t ob__kafka_murmur2(const void *p, size_t n);
/* Bytes of a batch that has this record alone, uncompressed, headers included. */
size_t ob__kafka_weight(const struct ob_msg *m, const struct kafka_conf *c);
#define KAFKA_TOPIC_RULE "1 to 249 of A-Z a-z 0-9 . _ -"
bool ob__kafka_topic_valid(struct ob_str name);
/* NULL: there are none, or (*ok false) no memory. */
rd_kafka_headers_t *ob__kafka_headers(const struct ob_msg *m, const struct kafka_conf *c, bool *ok);

/* ---- admin.c: for check and the scout; blocks ---- */

#define KAFKA_REFUSED 240 /* of what a broker says to a topic that it does not make */

/* Limits of topics by name. limit and min_isr stay where the broker does not say. */
rd_kafka_resp_err_t ob__kafka_learn(rd_kafka_t *rk, const char *const *names, size_t n,
                                    int64_t *limits, int *min_isrs, int timeout_ms);
enum kafka_created { KAFKA_NOT_CREATED, KAFKA_CREATED, KAFKA_EXISTED };
/* Creates a topic as the options say, or only asks whether it could. KAFKA_NOT_CREATED: why has the
 * reason. */
enum kafka_created ob__kafka_create(rd_kafka_t *rk, const struct kafka_conf *c, const char *name,
                                    bool only_ask, int timeout_ms, char *why, size_t size);

/* ---- scout.c ---- */

/* What the brokers said of one topic. */
struct kafka_view {
    uint32_t topic; /* index, as asked */
    rd_kafka_resp_err_t err;
    bool learned;       /* limit and min_isr were asked for; 0 where the broker would not say */
    int64_t learned_ms; /* and when */
    int64_t limit;
    int min_isr;
    char *refused; /* why it could not be made; NULL: it was not tried, or it is there */
    int n_parts;
    struct kafka_view_part {
        int32_t leader; /* -1: none */
        int isr;
    } * parts;
};

/* One look at the cluster. */
struct kafka_report {
    struct kafka_report *next;
    bool ok, told; /* told: a broker, or the way to it, gave the reason */
    char why[256];
    size_t n;
    struct kafka_view *views;
};

struct kafka_scout;

enum ob_status ob__kafka_scout_start(const struct kafka_conf *c, int event_fd,
                                     struct kafka_scout **out, struct ob_err *err);
/* name must live as long as the scout. Looked up at once, and with every later look. */
bool ob__kafka_scout_ask(struct kafka_scout *s, uint32_t topic, const char *name);
void ob__kafka_scout_pace(struct kafka_scout *s, int every_ms, bool now, bool learn);
/* Reports in order, the caller's; NULL: none. */
struct kafka_report *ob__kafka_scout_take(struct kafka_scout *s);
void ob__kafka_report_free(struct kafka_report *r);
/* Destroys a handle, which may take a while, on the scout's thread. */
void ob__kafka_scout_bury(struct kafka_scout *s, rd_kafka_t *rk);
/* Ends the thread; at most a second or two. NULL is fine. */
void ob__kafka_scout_stop(struct kafka_scout *s);

/* ---- topic.c ---- */

struct kafka_fifo {
    uint32_t head, tail; /* slots */
};

struct kafka_part {
    bool blocked;        /* no leader, or too few replicas */
    bool few;            /* the latter, as far as we know */
    uint32_t n_main;     /* in the main lane */
    uint32_t solo;       /* so many more go alone, through the side lane */
    bool side_busy;      /* one of it is there */
    struct kafka_fifo q; /* waiting for that */
    int64_t moved_ms;    /* when something of it was last acknowledged, or first sent */
    char why[200];
};

enum kafka_topic_state { KAFKA_T_ASKED, KAFKA_T_FINE, KAFKA_T_MISSING };

struct kafka_topic {
    char *name;
    uint64_t hash;
    uint32_t no, chain;
    enum kafka_topic_state state;
    rd_kafka_topic_t *rkt[3]; /* in main, side and spare; made when needed */
    struct kafka_fifo wait;   /* until the topic is known */
    struct kafka_part *parts;
    int n_parts, n_alloc;
    struct kafka_part any; /* where the library chooses the partition */
    int sticky;
    unsigned sticky_left;
    int64_t limit;                /* 0: unknown */
    int64_t asked_ms;             /* when we last wanted to know it anew */
    int64_t learned_ms, limit_ms; /* when the scout asked for it; when that was told */
    unsigned strikes;
    uint32_t n_flight;
    char why[400];
};

struct kafka_slot {
    uint64_t token;
    const struct ob_msg *msg; /* NULL: free */
    struct kafka_topic *topic;
    int32_t part; /* -1: topic->any */
    uint32_t next;
    enum { KAFKA_S_WAIT, KAFKA_S_QUEUED, KAFKA_S_MAIN, KAFKA_S_SIDE, KAFKA_S_ANSWER } where;
    enum ob_verdict verdict; /* ANSWER */
    char *why;               /* ANSWER; malloc'd */
};

enum kafka_lane_state {
    KAFKA_L_RUN,
    KAFKA_L_DRAIN, /* takes nothing; a new one is made when all have verdicts */
    KAFKA_L_PURGE, /* likewise, and what is in it is taken back */
    KAFKA_L_REST,  /* there is none; the next is made at revive_ms */
};

struct kafka_lane {
    enum kafka_role role;
    enum kafka_lane_state state;
    rd_kafka_t *rk;
    rd_kafka_queue_t *queue;
    uint32_t n; /* messages in it */
    unsigned fails;
    int64_t purge_ms, revive_ms, idle_ms;
    bool bulk;     /* main: now the one that gathers */
    bool all_down; /* it lost all brokers since the scout last reached one */
    char why[256];
};

struct ob_sink {
    struct ob_sink_env env;
    const struct kafka_conf *conf;
    int event_fd;
    struct kafka_scout *scout;
    struct kafka_lane main, side;
    struct { /* the producer that main does not use now; nothing is in it */
        rd_kafka_t *rk;
        rd_kafka_queue_t *queue;
        int64_t since_ms;
    } spare;
    bool own_linger;         /* the user said how long to gather: there is one producer */
    int64_t dry_ms, stay_ms; /* main runs dry until then to change over; does not before that */
    int64_t batch;           /* bytes of a request */
    bool ours;               /* we choose the partition */
    bool empty_hashed;       /* `partitioner: murmur2`: no key is an empty key */
    bool compressed;

    struct kafka_topic **topics;
    uint32_t n_topics, topics_cap, topic_bucket[1024];
    struct kafka_topic *last;

    struct kafka_slot slots[KAFKA_CAP];
    uint32_t free, n_busy;
    struct kafka_fifo answers;

    int up; /* -1: not said yet; 0, 1: said */
    bool reached;
    unsigned misses;
    char why[256];
    int64_t now_ms, scan_ms;
    int every_ms;
    bool fresh;   /* a report came */
    bool closing; /* no callbacks any more */
};

/* Frees the slot and tells its verdict; only inside poll(). */
void ob__kafka_done(struct ob_sink *s, uint32_t i, enum ob_verdict v, const char *why);

/* Finds or makes. NULL: no memory, or too many. */
struct kafka_topic *ob__kafka_topic(struct ob_sink *s, struct ob_str name);
void ob__kafka_topics_free(struct ob_sink *s);
uint64_t ob__kafka_dest(const struct kafka_topic *t, int32_t part);
struct kafka_part *ob__kafka_part(struct kafka_topic *t, int32_t part);
/* -1: nobody can tell now, or the library chooses. */
int32_t ob__kafka_choose(const struct ob_sink *s, struct kafka_topic *t, struct ob_str key,
                         bool take);
/* Takes what the scout saw; tells flow which destinations are blocked or free. */
void ob__kafka_topic_view(struct ob_sink *s, const struct kafka_view *v);

/* ---- slots and sending: send.c ---- */

void ob__kafka_fifo_put(struct ob_sink *s, struct kafka_fifo *f, uint32_t i);
uint32_t ob__kafka_fifo_get(struct ob_sink *s, struct kafka_fifo *f);
void ob__kafka_answer(struct ob_sink *s, uint32_t i, enum ob_verdict v, const char *why);
/* False: the lane is full, the slot is where it was. */
bool ob__kafka_send(struct ob_sink *s, uint32_t i);
/* Sends on what waited for a topic that is known by now, and what stands for the side lane. */
void ob__kafka_release(struct ob_sink *s, struct kafka_topic *t);
void ob__kafka_pump(struct ob_sink *s, struct kafka_topic *t, int32_t part);
/* What waits in these queues goes back. */
void ob__kafka_give_back(struct ob_sink *s, struct kafka_fifo *f, const char *why);

/* ---- lane.c ---- */

enum ob_status ob__kafka_lane_open(struct ob_sink *s, struct kafka_lane *l, struct ob_err *err);
/* Takes back all that is in it, then makes a new one. */
void ob__kafka_lane_break(struct ob_sink *s, struct kafka_lane *l, const char *why);
void ob__kafka_lane_renew(struct ob_sink *s, struct kafka_lane *l); /* the same, when empty */
/* Chooses how main sends, by how many there are. True: it runs dry first, nothing may get in. */
bool ob__kafka_lane_turn(struct ob_sink *s, size_t offered);
void ob__kafka_lane_poll(struct ob_sink *s, struct kafka_lane *l);
void ob__kafka_lane_step(struct ob_sink *s, struct kafka_lane *l, int64_t now);
void ob__kafka_lane_close(struct ob_sink *s, struct kafka_lane *l);

enum ob_status ob__kafka_check(const struct ob_sink_env *env, const void *conf, struct ob_err *err);

static inline int64_t ob__kafka_now(const struct ob_sink *s)
{
    return ob_clock_mono_ms(s->env.clock);
}

#endif
