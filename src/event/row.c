/* SPDX-License-Identifier: Apache-2.0 */
/* row - what is at fault in an event whatever table it is for. */
#include "event/row.h"

#include "core/jscan.h"
#include "event/bson.h"
#include "event/limits.h"

static enum ob_status object_check(const char *name, struct ob_str text, struct ob_err *err)
{
    enum ob_jtype type;
    enum ob_status st;

    if (text.n == 0)
        return OB_OK;
    st = ob_json_check(text, &type, err);
    if (st != OB_OK)
        ob_err_prefix(err, "%s is not JSON", name);
    else if (type != OB_J_OBJECT)
        st = ob_err_set(err, OB_REJECT, "%s must be a JSON object", name);
    return st;
}

enum ob_status ob_row_check(const struct ob_row *row, struct ob_err *err)
{
    if (row->bson)
        return ob_err_set(err, OB_REJECT, "a payload of BSON is for MongoDB alone");
    return ob_row_check_bson(row, err);
}

enum ob_status ob_row_check_bson(const struct ob_row *row, struct ob_err *err)
{
    enum ob_status st = OB_OK;
    enum ob_jtype type;

    if (row->type.n == 0)
        return ob_err_set(err, OB_REJECT, "an event needs a type");
    if (row->id.n >= 64)
        return ob_err_set(err, OB_REJECT, "an event's id has at most 63 bytes");
    /* What the relay would reject must not be committed. */
    st = ob_limits_check_row(&ob_limits_default, row, err);
    if (st != OB_OK)
        return st;
    if (row->payload_kind == OB_PAYLOAD_JSON) {
        st = ob_json_check(row->payload, &type, err);
        if (st != OB_OK)
            ob_err_prefix(err, "payload is not JSON");
    }
    if (row->bson) {
        st = ob_bson_check(row->payload, err);
        if (st != OB_OK)
            ob_err_prefix(err, "payload is not BSON");
    }
    if (st == OB_OK)
        st = object_check("headers", row->headers, err);
    if (st == OB_OK)
        st = object_check("metadata", row->metadata, err);
    return st;
}
