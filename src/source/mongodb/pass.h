/* SPDX-License-Identifier: Apache-2.0 */
/* pass - what a look for work (pass.c), its pages (pass_page.c) and its claim (claim.c) share. */
#ifndef OB_SOURCE_MONGODB_PASS_H
#define OB_SOURCE_MONGODB_PASS_H

#include "source/mongodb/mongo.h"

struct mongo_candidate {
    bson_value_t id, entity; /* entity: of pages only */
    uint64_t id_hash[2], entity_hash[2];
    size_t size;
    uint32_t group, place; /* its entity's place in the page; its own among all */
    bool ready, dead, mine, parked, pending;
    bool was_dead; /* has a row among the dead: somebody has made it pending again */
};

struct mongo_list {
    struct mongo_candidate *at;
    size_t n, cap;
    size_t bytes; /* of ids and entities, where it is counted */
};

struct mongo_look {
    struct mongo_pass *p;
    struct ob_source *s;
    const struct mongo_model *m;
    mongoc_collection_t *events, *parked;
    mongoc_client_session_t *session;
    struct mongo_list page, docs, take;
    struct mongo_list stray; /* have our name on them and are not ours */
    struct mongo_set seen, groups;
    bson_value_t at, page_at; /* `first` of the last document read; of the last before the page */
    size_t scanned;           /* documents read for pages */
    bool page_over;
    bool enough;  /* the slice is over */
    bool crowded; /* the last slice has more documents than memory shall hold */
    size_t bytes; /* of what is taken */
    bool full;    /* enough is taken */
    bool plain;   /* all that is taken is pending */
};

/* A document without an entity is one of its own. */
static inline bool ob_mongo_has_entity(const struct mongo_candidate *c)
{
    return c->entity.value_type != BSON_TYPE_EOD && c->entity.value_type != BSON_TYPE_NULL &&
           !(c->entity.value_type == BSON_TYPE_UTF8 && c->entity.value.v_utf8.len == 0);
}

/* NULL: no memory. */
struct mongo_candidate *ob_mongo_list_new(struct mongo_list *l);
void ob_mongo_list_clear(struct mongo_list *l);
/* What a copy of the value takes. */
size_t ob_mongo_value_bytes(const bson_value_t *v);

/* ---- pass_page.c ---- */

/* On the events, in the look's snapshot; without a session: what a majority has now. max_time_ms 0:
 * as long as it takes. */
mongoc_cursor_t *ob_mongo_look_find(const struct mongo_look *k, const bson_t *filter,
                                    const bson_t *sort, const bson_t *projection,
                                    int64_t max_time_ms);
bool ob_mongo_page_placed(const struct mongo_look *k);
/* Is k->at another value than the one the look began at? */
bool ob_mongo_page_moved(const struct mongo_look *k);
/* *to becomes a copy of *from. */
void ob_mongo_value_move(bson_value_t *to, const bson_value_t *from);
mongoc_cursor_t *ob_mongo_page_open(struct mongo_look *k);
/* The next documents whose entity was not seen in this look; none with k->page_over or k->enough.
 */
enum ob_status ob_mongo_page_next(struct mongo_look *k, mongoc_cursor_t *cursor,
                                  struct ob_err *err) OB_MUST_CHECK;
/* The entities that are named, in place of a page. */
enum ob_status ob_mongo_page_named(struct mongo_look *k, struct ob_err *err) OB_MUST_CHECK;
/* After the look: where the next one begins. */
void ob_mongo_page_keep(struct mongo_look *k);

/* Locks what was chosen (k->take). OB_OK: *out has what is ours; OB_AGAIN: nothing is. claim.c */
enum ob_status ob_mongo_claim(struct mongo_look *k, struct mongo_page **out,
                              struct ob_err *err) OB_MUST_CHECK;
/* Gives the stray ones back, for a later look. */
enum ob_status ob_mongo_strays(struct mongo_look *k, struct ob_err *err) OB_MUST_CHECK;

#endif
