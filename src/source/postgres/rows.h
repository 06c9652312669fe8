/* SPDX-License-Identifier: Apache-2.0 */
/* rows - the state of mode rows; see rows.c. */
#ifndef OB_SOURCE_POSTGRES_ROWS_H
#define OB_SOURCE_POSTGRES_ROWS_H

#include "source/postgres/mapping.h"
#include "source/postgres/pg.h"
#include "source/postgres/taken.h"

#define ROWS_IDS 50000 /* ids of one page */

/* Ids that were read and are not handed out yet, one after the other in `text`. */
struct id_list {
    struct ob_buf text;
    uint32_t *ends;
    size_t n, cap, next;
};

enum rows_asked { ASKED_NOTHING, ASKED_IDS, ASKED_EVENTS };

struct rows_state {
    struct pg_session rd;
    struct pg_map *map;
    enum rows_asked asked;
    enum ob_status failed; /* of what is under way */
    struct ob_err why;
    bool outdated; /* rows were marked since it was asked for */
    PGresult *answer;
    int64_t limit;     /* events that are asked for at a time: fewer while they are large */
    int64_t ids_limit; /* likewise ids */

    /* A pass. deep: inside one REPEATABLE READ transaction, because its first page had nothing. */
    bool deep, full;
    bool side; /* something may be parked or dead: pages leave that out */
    uint32_t pass;
    char *last_id; /* of the last page; of a deep pass */
    struct id_list list;
    char **released; /* ids of dead rows whose columns say that they wait again */
    size_t n_released, cap_released;

    PGresult *page; /* events that are handed out */
    int row;
    struct ob_buf ids; /* parameter of the fetch under way */
    int64_t poll_at, idle_ms;
    uint64_t given;

    struct taken_set taken;
    uint64_t (*last)[2]; /* hashes of the last batch, from ref last_ref on */
    uint64_t last_ref;
    size_t n_last, cap_last;
    bool shown_back;  /* claims were taken back: the sink is down, or we are paused */
    bool lazy_claims; /* some were handed out and are not claimed yet */
    int64_t renew_at, side_at;
    bool careful;           /* a mark was refused: one by one, until all are taken again */
    uint64_t (*refused)[2]; /* of the settle under way */
    size_t n_refused, cap_refused;
    size_t refusals; /* in a row */
    bool stuck_said;
};

/* rows_read.c */
enum ob_status ob_pg_rows_prepare(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
enum ob_status ob_pg_rows_ask_ids(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
enum ob_status ob_pg_rows_ask_events(struct ob_source *s, size_t max,
                                     struct ob_err *err) OB_MUST_CHECK;
/* OB_OK: it is here: the list, or the page. OB_AGAIN: not yet. */
enum ob_status ob_pg_rows_take(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
void ob_pg_rows_cancel(struct ob_source *s);
enum ob_status ob_pg_rows_lost(struct ob_source *s, const char *what, struct ob_err *err);
void ob_pg_rows_list_clear(struct rows_state *r);
/* Remembers one for ob_pg_rows_release(). False: no memory. */
bool ob_pg_rows_note_released(struct rows_state *r, struct ob_str id) OB_MUST_CHECK;

/* rows_mark.c */
enum ob_status ob_pg_rows_mark(struct ob_source *s, const struct ob_settle *settle,
                               struct ob_err *err);
void ob_pg_rows_settled(struct ob_source *s, const struct ob_settle *settle);
void ob_pg_rows_beat(struct ob_source *s, const struct ob_beat *beat);
/* Claims of what is in the window: shown, or taken back. */
enum ob_status ob_pg_rows_claims(struct ob_source *s, bool shown, struct ob_err *err);
/* Dead rows whose columns say that they wait again: their dead row is closed, and they go among the
 * parked at their old place. */
enum ob_status ob_pg_rows_release(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
/* Does anything of this pipeline stand aside? */
enum ob_status ob_pg_rows_look_aside(struct ob_source *s, struct ob_err *err) OB_MUST_CHECK;
/* Parked rows whose row in the table is settled by other hands. */
enum ob_status ob_pg_rows_close(struct ob_source *s, const char *refs, struct ob_err *err);

#endif
