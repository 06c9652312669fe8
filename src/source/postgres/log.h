/* SPDX-License-Identifier: Apache-2.0 */
/* log - the state of mode log; see log.c and round.c. */
#ifndef OB_SOURCE_POSTGRES_LOG_H
#define OB_SOURCE_POSTGRES_LOG_H

#include "source/ahead.h"
#include "source/postgres/native.h"
#include "source/postgres/pg.h"
#include "source/postgres/snap.h"

#define PG_SHARDS_MAX 64

/* Where the shards of one generation stood when their number was changed. */
struct past {
    unsigned shards;
    int64_t base;
    struct place of[PG_SHARDS_MAX];
};

enum round_kind { ROUND_FIRST, ROUND_NEXT, ROUND_ADOPT, ROUND_PEEK };

struct log_state {
    struct pg_session rd;
    struct place durable; /* as stored */
    struct place at;      /* where the next round reads from */
    uint64_t durable_fence;
    int64_t base;

    /* the round under way */
    bool asked;
    bool aborted;      /* its transaction failed and is still open: the next round ends it first */
    int64_t answer_by; /* mono ms: the server is taken for gone if the answer is not there */
    char need_lsn[32]; /* require_flushed: what was read is on disk when WAL up to here is */
    bool unflushed;    /* that has not been seen yet, so nothing is handed out */
    enum round_kind kind;
    int step; /* its statements that are answered */
    PGresult *late, *main, *snap_res;
    enum ob_status failed;
    struct ob_err why;

    /* the page that is handed out */
    PGresult *page;
    int row;
    bool *skip;               /* of its rows: already parked or dead; NULL: none is */
    bool more;                /* the last round was full */
    int64_t limit;            /* rows that a round asks for: fewer while they are large */
    bool no_memory;           /* for the answer of the round under way */
    uint64_t rounds;          /* begun so far */
    uint64_t complete;        /* the last one that was taken if it found all there was, else 0 */
    struct place complete_at; /* where that one ended */
    unsigned peeks; /* in a row that saw something; so many rounds are whole ones after some */
    unsigned no_peek;
    uint64_t quiet; /* peeks that saw nothing, so far */
    int64_t poll_at, idle_ms;

    struct place_ring ring;
    uint64_t given;       /* ordinal of the last row that was handed out or passed over */
    uint64_t last_ref;    /* ordinal of the last one that was handed out */
    int64_t recorded_max; /* no event above this number has a parked or dead row */

    struct past *past;
    size_t n_past;
    char numbers[3][24]; /* texts of the cursor that is being written */
    struct pg_ahead ahead;
    bool at_own;    /* a round of ours has moved `at` since the last rewind */
    bool own_place; /* `durable` has a snapshot of ours and no pass over late rows is under way:
                       what it has passed is not claimed again */
};

/* round.c */
enum ob_status ob_pg_round_prepare(struct log_state *l, struct ob_err *err) OB_MUST_CHECK;
/* Asks for the next page. */
enum ob_status ob_pg_round_send(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
/* OB_OK: it is here, `at` has moved, late and main have its rows. OB_AGAIN: not yet. */
enum ob_status ob_pg_round_take(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
/* Waits for a round that is under way and throws it away. */
void ob_pg_round_cancel(struct ob_source *s);
/* The reader's session is gone: FENCED. */
enum ob_status ob_pg_round_lost(struct ob_source *s, const char *what, struct ob_err *err);

/* ahead.c: fills ahead.next for this settle. at: where the cursor will be; NULL: at a place of an
 * earlier owner, behind which late rows may come. False: no memory. */
bool ob_pg_log_ahead(struct log_state *l, const struct ob_settle *settle, const struct place *at);

/* past.c */
enum ob_status ob_pg_past_load(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
void ob_pg_past_clear(struct log_state *l);
bool ob_pg_past_settled(const struct log_state *l, int64_t seq, uint64_t xid, uint64_t hash);

#endif
