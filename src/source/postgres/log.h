/* SPDX-License-Identifier: Apache-2.0 */
/* log - the state of mode log; see log.c. */
#ifndef OB_SOURCE_POSTGRES_LOG_H
#define OB_SOURCE_POSTGRES_LOG_H

#include "source/postgres/pg.h"

/* A snapshot as text, shared by many places. */
struct snap {
    unsigned refs;
    char text[];
};

/* A cursor. late_snap NULL: no pass over late rows is under way. */
struct place {
    int64_t pos, late_pos;
    struct snap *snap, *late_snap;
};

struct log_state {
    struct pg_conn rd;
    struct place durable; /* as stored */
    struct place at;      /* where the next round reads from */
    int64_t base;
    uint64_t fence_seen, fence_asked;

    bool asked, asked_pass; /* a round is under way */
    int step;               /* its statements that are answered */
    PGresult *late, *main, *snap_res;
    enum ob_status failed;
    struct ob_err why;

    PGresult *page; /* being handed out */
    int row;
    bool more; /* the last round was full */
    int64_t poll_at, idle_ms;

    struct place *entries; /* a ring: the cursor behind each claimed event, from head to tail */
    size_t cap;
    uint64_t head, tail; /* ordinals: head is the last settled, tail the last read */
    uint64_t given;      /* the last handed out */
    char pos_text[24], late_text[24];
};

#endif
