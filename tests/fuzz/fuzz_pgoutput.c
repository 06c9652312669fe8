/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_pgoutput - frames and messages of a replication connection: what is decoded lies inside what
 * was given, and a frame's message too.
 *
 * Input: a frame, or a message by itself. */
#include "fuzz.h"
#include "source/postgres/pgoutput.h"

static struct pgo_room room;

static void inside(struct ob_str part, struct ob_str whole)
{
    FUZZ_CHECK(part.n == 0 || (part.p >= whole.p && part.p + part.n <= whole.p + whole.n));
}

static void check_message(struct ob_str bytes)
{
    struct pgo_msg m;
    struct ob_err err = {.text = ""};
    enum ob_status st = ob_pgo_decode(bytes, &room, &m, &err);
    FUZZ_CHECK(st == OB_OK || (st == OB_REJECT && strstr(err.text, "byte ")));
    if (st != OB_OK)
        return;
    inside(m.space, bytes);
    inside(m.name, bytes);
    inside(m.content, bytes);
    FUZZ_CHECK(m.n <= PGO_COLUMNS_MAX);
    bool row = m.kind == PGO_INSERT || m.kind == PGO_UPDATE || m.kind == PGO_DELETE;
    for (size_t i = 0; row && i < m.n; i++)
        inside(m.values[i].v, bytes);
    for (size_t i = 0; m.kind == PGO_RELATION && i < m.n; i++)
        inside(m.columns[i].name, bytes);
    uint32_t sum = 0;
    for (uint32_t i = 0; m.kind == PGO_TRUNCATE && i < m.n_relations; i++)
        sum ^= ob_pgo_truncated(&m, i);
    FUZZ_CHECK(sum == 0 || m.n_relations > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct ob_str bytes = {(const char *)data, n};
    struct pgo_frame f;
    struct ob_err err = {.text = ""};
    check_message(bytes);
    if (ob_pgo_frame(bytes, &f, &err) != OB_OK)
        return 0;
    inside(f.data, bytes);
    if (!f.keepalive)
        check_message(f.data);
    return 0;
}
