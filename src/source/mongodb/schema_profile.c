/* SPDX-License-Identifier: Apache-2.0 */
/* schema_profile - the collections of profiles, for users who have none. A collection that is there
 * is only looked at: it is its owner's. */
#include "source/mongodb/admin.h"

/* schema/profiles/NAME.js, made into C by the build. */
extern const char *const ob_mongo_profile_texts[];
extern const char *const ob_mongo_profile_text_names[];
extern const unsigned ob_mongo_profile_n_texts;

static const char *profile_text(const char *name)
{
    for (unsigned i = 0; i < ob_mongo_profile_n_texts; i++)
        if (strcmp(ob_mongo_profile_text_names[i], name) == 0)
            return ob_mongo_profile_texts[i];
    return NULL;
}

enum ob_status ob_mongo_profile_print(const char *name, struct ob_buf *out, struct ob_err *err)
{
    const char *text = profile_text(name);
    if (!text)
        return ob_err_set(err, OB_REJECT, "there is no collection of a profile '%.64s'", name);
    ob_buf_c(out, text);
    return OB_OK;
}

/* A collection that was there before is only looked at: it is its owner's. */
static enum ob_status look(struct ob_admin *a, const struct mongo_schema *s, const char *coll,
                           struct ob_buf *out, struct ob_err *err)
{
    unsigned missing = 0;
    enum ob_status st = OB_OK;
    struct ob_buf text;
    ob_buf_init(&text, 65536);
    for (size_t i = 0; st == OB_OK && i < s->n; i++) {
        bool there = true;
        if (strcmp(s->at[i].on, coll) == 0)
            st = ob_mongo_schema_has(a->client, a->conf->database, &s->at[i], &there, err);
        if (st != OB_OK || there)
            continue;
        missing++;
        ob_buf_c(&text, "  ");
        ob_mongo_schema_text(&s->at[i], &text);
        ob_buf_char(&text, '\n');
    }
    if (st == OB_OK && missing == 0)
        ob_buf_printf(out, "%s is there, and has its indexes\n", coll);
    else if (st == OB_OK)
        ob_buf_printf(out, "%s is there, and is left as it is; it lacks\n%s", coll,
                      ob_buf_z(&text));
    ob_buf_clear(&text);
    return st;
}

enum ob_status ob_mongo_profile_apply(struct ob_admin *a, const char *name, bool dry,
                                      struct ob_buf *out, unsigned *changed, struct ob_err *err)
{
    const char *text = profile_text(name), *coll = NULL;
    struct mongo_schema s;
    bool mine = false;
    *changed = 0;
    if (!text || a->model->native)
        return ob_err_set(err, OB_REJECT, "there is no collection of a profile '%.64s'", name);
    enum ob_status st = ob_mongo_admin_need(a, err);
    if (st == OB_OK)
        st = ob_mongo_schema_read(text, "outbox", a->model->events, &s, err);
    if (st != OB_OK)
        return st;
    for (size_t i = 0; st == OB_OK && i < s.n; i++) {
        bool there = false, fits = false;
        if (!s.at[i].index) {
            coll = s.at[i].on;
            st = ob_mongo_schema_collection(a->client, a->conf->database, &s.at[i], &there, &fits,
                                            err);
            mine = !there;
            if (st == OB_OK && there)
                st = look(a, &s, coll, out, err);
        }
        if (st == OB_OK && mine)
            st = ob_mongo_schema_one(a->client, a->conf->database, &s.at[i], a->conf->timeout_ms,
                                     dry, out, changed, err);
    }
    ob_mongo_schema_clear(&s);
    return st;
}
