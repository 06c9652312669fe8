/* SPDX-License-Identifier: Apache-2.0 */
/* subject - which subjects and stream names an event may use.
 *
 * Subjects come from rows and templates, so a writer to the outbox chooses them. Subjects that the
 * server or a client library acts on are reserved: a publish to $JS.API.STREAM.DELETE.X deletes a
 * stream, one below the inbox prefix forges an acknowledgement (test_nats_subjects:
 * test_an_event_does_not_administer_the_server). */
#include "config/node.h"
#include "sink/nats/nats.h"

#define MAX_SUBJECT 4000 /* the server's protocol line has 4096 bytes */
#define MAX_STREAM 255

bool ob_nats_subject_fits(struct ob_str t)
{
    bool start = true;
    if (t.n == 0 || t.n > MAX_SUBJECT)
        return false;
    for (size_t i = 0; i < t.n; i++) {
        unsigned char c = (unsigned char)t.p[i];
        bool last = i + 1 == t.n || t.p[i + 1] == '.';
        if (c <= ' ' || c == 0x7f || (c == '.' && (start || i + 1 == t.n)) ||
            ((c == '*' || c == '>') && start && last))
            return false;
        start = c == '.';
    }
    return true;
}

bool ob_nats_stream_fits(struct ob_str t)
{
    for (size_t i = 0; i < t.n; i++)
        if ((unsigned char)t.p[i] <= ' ' || t.p[i] == 0x7f || strchr(".*>/\\", t.p[i]))
            return false;
    return t.n <= MAX_STREAM;
}

bool ob_nats_subject_match(const char *pattern, struct ob_str subject)
{
    const char *p = pattern, *s = subject.p, *end = s + subject.n;
    while (*p) {
        size_t pn = strcspn(p, ".");
        const char *dot = s < end ? memchr(s, '.', (size_t)(end - s)) : NULL;
        size_t sn = (size_t)((dot ? dot : end) - s);
        if (pn == 1 && *p == '>')
            return s < end;
        if (s >= end || !((pn == 1 && *p == '*') || (pn == sn && memcmp(p, s, sn) == 0)))
            return false;
        p += pn + (p[pn] == '.');
        s += sn + (dot != NULL);
    }
    return s >= end;
}

/* Whether subject is prefix, or prefix followed by more tokens. */
static bool is_below(struct ob_str subject, struct ob_str prefix)
{
    return subject.n >= prefix.n && memcmp(subject.p, prefix.p, prefix.n) == 0 &&
           (subject.n == prefix.n || subject.p[prefix.n] == '.');
}

bool ob_nats_subject_reserved(const struct ob_sink_nats_conf *c, struct ob_str subject)
{
    static const char inbox[] = "_INBOX"; /* also _INBOX_name, a usual custom prefix */
    if (subject.n == 0)
        return false;
    if (subject.p[0] == '$')
        return true;
    if (subject.p[0] == '_' &&
        ((subject.n >= sizeof(inbox) - 1 && memcmp(subject.p, inbox, sizeof(inbox) - 1) == 0) ||
         is_below(subject, OB_STR("_R_")) || is_below(subject, OB_STR("_GR_"))))
        return true; /* _R_ and _GR_: replies of other accounts and of gateways */
    return is_below(subject, ob_str_c(c->inbox_prefix));
}

bool ob_nats_subject_allowed(const struct ob_sink_nats_conf *c, struct ob_str subject)
{
    for (size_t i = 0; i < c->allow_subjects.n; i++)
        if (ob_nats_subject_match(c->allow_subjects.values[i], subject))
            return true;
    return false;
}

static enum ob_status check_pattern(const struct ob_opt_list *list, size_t i, struct ob_err *err)
{
    const char *pattern = list->values[i];
    char plain[MAX_SUBJECT + 1]; /* the pattern with its wildcards made ordinary tokens */
    size_t n = strlen(pattern);
    bool fits = n <= MAX_SUBJECT;
    for (size_t k = 0; fits && k < n; k++) {
        bool token = (k == 0 || pattern[k - 1] == '.') && (k + 1 == n || pattern[k + 1] == '.');
        plain[k] = token && (pattern[k] == '*' || pattern[k] == '>') ? 'x' : pattern[k];
        fits = !(token && pattern[k] == '>' && k + 1 < n);
    }
    if (fits && ob_nats_subject_fits((struct ob_str){plain, n}))
        return OB_OK;
    return ob_node_err(&list->pos[i], err,
                       "allow_subjects: '%s' is not a subject; * stands for one token, > for the "
                       "rest, for example $KV.prices.>",
                       pattern);
}

enum ob_status ob_nats_subject_validate(const struct ob_sink_nats_conf *c,
                                        const struct ob_node *map, struct ob_err *err)
{
    struct ob_str prefix = ob_str_c(c->inbox_prefix);
    if (prefix.n > NATS_INBOX_PREFIX || !ob_nats_subject_fits(prefix) || prefix.p[0] == '$')
        return ob_node_err(ob_wire_pos(map, "inbox_prefix"), err,
                           "inbox_prefix: '%s' is not usable: tokens between single dots, no "
                           "wildcards, no spaces, no leading $, at most %d characters",
                           c->inbox_prefix, NATS_INBOX_PREFIX);
    for (size_t i = 0; i < c->allow_subjects.n; i++)
        if (check_pattern(&c->allow_subjects, i, err) != OB_OK)
            return OB_FATAL;
    return OB_OK;
}
