/* SPDX-License-Identifier: Apache-2.0 */
/* ours - ids of the documents that we have claimed and that are not settled. Our name in a document
 * does not tell: a claim of which only the answer came late, or another process with our name, may
 * have written it, and what stands behind such a document must not overtake it
 * (tests/e2e/test_mongodb_owner.py::test_a_lock_that_nobody_knows_of_is_given_back). */
#include "source/mongodb/mongo.h"

void ob_mongo_ours_init(struct mongo_ours *o)
{
    pthread_mutex_init(&o->lock, NULL);
}

void ob_mongo_ours_clear(struct mongo_ours *o)
{
    ob_mongo_set_clear(&o->ids);
    ob_mongo_set_clear(&o->left);
    pthread_mutex_destroy(&o->lock);
}

bool ob_mongo_ours_add(struct mongo_ours *o, const bson_value_t *id)
{
    uint64_t h[2];
    if (!o)
        return true;
    ob_mongo_hash(id, h);
    pthread_mutex_lock(&o->lock);
    bool ok = ob_mongo_set_add(&o->ids, h, 0) >= 0;
    pthread_mutex_unlock(&o->lock);
    return ok;
}

void ob_mongo_ours_remove(struct mongo_ours *o, const bson_value_t *id)
{
    uint64_t h[2];
    if (!o || id->value_type == BSON_TYPE_EOD)
        return;
    ob_mongo_hash(id, h);
    pthread_mutex_lock(&o->lock);
    if (o->looking && ob_mongo_set_add(&o->left, h, 0) < 0)
        o->looking = false; /* no memory: the look may stop before it; the next does not */
    ob_mongo_set_remove(&o->ids, h);
    pthread_mutex_unlock(&o->lock);
}

bool ob_mongo_ours_has(struct mongo_ours *o, const uint64_t h[2])
{
    pthread_mutex_lock(&o->lock);
    bool has = ob_mongo_set_has(&o->ids, h, NULL) || ob_mongo_set_has(&o->left, h, NULL);
    pthread_mutex_unlock(&o->lock);
    return has;
}

void ob_mongo_ours_look(struct mongo_ours *o, bool begins)
{
    pthread_mutex_lock(&o->lock);
    ob_mongo_set_clear(&o->left);
    o->looking = begins;
    pthread_mutex_unlock(&o->lock);
}
