/* SPDX-License-Identifier: Apache-2.0 */
/* profile - a file in the shape of one pipeline whose values stand under the user's. */
#ifndef OB_RELAY_PROFILE_H
#define OB_RELAY_PROFILE_H

#include "config/load.h"

/* 1 to 64 of A-Z a-z 0-9 _ . - : names of pipelines and profiles. */
bool ob_name_valid(const char *name);
/* The profile's own tree, as ob_profile_merge() finds it. OB_REJECT: there is none of that name, or
 * it cannot be read. */
enum ob_status ob_profile_load(struct ob_arena *arena, const char *name, const struct ob_node **out,
                               struct ob_err *err) OB_MUST_CHECK;
/* Merges the profile that `user` (a map) names under it. *out: the merged pipeline, or `user`
 * itself when it names none; *file: the profile's file or NULL. false: l->problems says why. */
bool ob_profile_merge(struct ob_loader *l, const char *path, const struct ob_node *user,
                      const struct ob_node **out, const char **file);

#endif
