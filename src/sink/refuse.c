/* SPDX-License-Identifier: Apache-2.0 */
/* refuse - which messages are answered how. */
#include "sink/refuse.h"

#include "config/file.h"

#include <stdlib.h>

#define FILE_MAX (1u << 20)

void ob_refuse_clear(struct ob_refuse *r)
{
    free(r->text);
    *r = (struct ob_refuse){0};
}

void ob_refuse_read(struct ob_refuse *r, const char *path)
{
    struct ob_err ignored;
    ob_refuse_clear(r);
    if (ob_file_read(path, FILE_MAX, &r->text, &r->n, &ignored) != OB_OK)
        *r = (struct ob_refuse){0};
}

static struct ob_str word(struct ob_str *line)
{
    size_t from = 0, to;
    while (from < line->n && (line->p[from] == ' ' || line->p[from] == '\t'))
        from++;
    for (to = from; to < line->n && line->p[to] != ' ' && line->p[to] != '\t'; to++)
        ;
    struct ob_str w = {line->p + from, to - from};
    line->p += to;
    line->n -= to;
    return w;
}

static bool matches(struct ob_str glob, const struct ob_msg *m)
{
    return glob.n > 0 && (ob_glob(glob, m->topic) || ob_glob(glob, m->key) || ob_glob(glob, m->id));
}

enum ob_verdict ob_refuse_verdict(const struct ob_refuse *r, const struct ob_msg *m)
{
    static const enum ob_verdict verdicts[] = {OB_V_RETRY, OB_V_REJECT, OB_V_BLOCKED, OB_V_RETURNED,
                                               OB_V_DELIVERED};
    for (size_t at = 0; at < r->n;) {
        const char *end = memchr(r->text + at, '\n', r->n - at);
        size_t n = end ? (size_t)(end - (r->text + at)) : r->n - at;
        struct ob_str line = {r->text + at, n};
        at += n + 1;
        struct ob_str verdict = word(&line), glob = word(&line);
        if (verdict.n == 0 || verdict.p[0] == '#' || !matches(glob, m))
            continue;
        for (size_t i = 0; i < sizeof(verdicts) / sizeof(verdicts[0]); i++)
            if (ob_str_eqc(verdict, ob_verdict_name(verdicts[i])))
                return verdicts[i];
    }
    return OB_V_DELIVERED;
}
