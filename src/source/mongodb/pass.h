/* SPDX-License-Identifier: Apache-2.0 */
/* pass - what a look for work (pass.c) and its claim (claim.c) share. */
#ifndef OB_SOURCE_MONGODB_PASS_H
#define OB_SOURCE_MONGODB_PASS_H

#include "source/mongodb/mongo.h"

struct mongo_candidate {
    bson_value_t id, entity;
    uint64_t id_hash[2], entity_hash[2];
    size_t size;
    uint32_t group, place; /* its entity's place in the page; its own among all */
    bool ready, dead, mine, parked, pending;
    bool was_dead; /* has a row among the dead: somebody has made it pending again */
};

struct mongo_list {
    struct mongo_candidate *at;
    size_t n, cap;
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
    bool page_over;
    bool crowded; /* the last slice has more documents than memory shall hold */
    size_t bytes; /* of what is taken */
    bool full;    /* enough is taken */
    bool plain;   /* all that is taken is pending */
};

/* Locks what was chosen (k->take). OB_OK: *out has what is ours; OB_AGAIN: nothing is. claim.c */
enum ob_status ob_mongo_claim(struct mongo_look *k, struct mongo_page **out,
                              struct ob_err *err) OB_MUST_CHECK;
/* Gives the stray ones back, for a later look. */
enum ob_status ob_mongo_strays(struct mongo_look *k, struct ob_err *err) OB_MUST_CHECK;

#endif
