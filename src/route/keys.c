/* SPDX-License-Identifier: Apache-2.0 */
/* keys - a fingerprint of what decides the key of an event: the key expressions and the matches
 * that choose between them. Two sets of routes with the same fingerprint assign every event to the
 * same shard. */
#include "route/rule.h"

static uint64_t mix(uint64_t so_far, uint64_t more)
{
    const uint64_t both[] = {so_far, more};
    return ob_hash64(both, sizeof(both));
}

static uint64_t mix_text(uint64_t so_far, struct ob_str text)
{
    return mix(so_far, ob_hash64(text.p, text.n));
}

static uint64_t mix_match(uint64_t so_far, const struct ob_rule *rule)
{
    for (size_t f = 0; f < OB_MATCH_N; f++) {
        so_far = mix(so_far, rule->match[f].n);
        for (size_t i = 0; i < rule->match[f].n; i++) {
            so_far = mix(so_far, (uint64_t)rule->match[f].any_of[i].kind);
            so_far = mix_text(so_far, rule->match[f].any_of[i].text);
        }
    }
    return so_far;
}

uint64_t ob_routes_key_rules(const struct ob_routes *r)
{
    bool own = false;
    uint64_t print = mix_text(1, r->service); /* a key may be made of ${service} */
    for (size_t i = 0; i < r->n; i++) {
        const struct ob_rule *rule = &r->rules[i];
        own = own || rule->own_key;
        print = mix_match(print, rule);
        print = mix(print, rule->own_key ? 2 + (uint64_t)rule->missing : 1);
        print = mix_text(print, rule->key_text);
    }
    if (!own) /* every event has the key of its row, whichever route takes it */
        return 1;
    return print == 0 ? 1 : print;
}
