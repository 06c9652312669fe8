/* SPDX-License-Identifier: Apache-2.0 */
/* arena - memory that is freed all at once. Chunks, a reference count, a ceiling.
 * Thread: the count is atomic; allocating is for one thread at a time. */
#ifndef OB_CORE_ARENA_H
#define OB_CORE_ARENA_H

#include "core/str.h"

#include <stddef.h>

struct ob_arena;

/* chunk: usual chunk size; ceiling: total bytes that may be taken (0 = none). One reference. NULL:
 * no memory. */
struct ob_arena *ob_arena_new(size_t chunk, size_t ceiling);
struct ob_arena *ob_arena_ref(struct ob_arena *arena);
/* Frees at the last reference. NULL is fine. */
void ob_arena_unref(struct ob_arena *arena);
/* 16-byte aligned, not zeroed. NULL when the ceiling or memory is reached. */
void *ob_arena_alloc(struct ob_arena *arena, size_t n);
void *ob_arena_zalloc(struct ob_arena *arena, size_t n);
/* Copies and appends a NUL that is not counted. out.p is NULL on failure. */
struct ob_str ob_arena_copy(struct ob_arena *arena, struct ob_str s);
char *ob_arena_printf(struct ob_arena *arena, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Gives all memory but the first chunk back; only with one reference. */
void ob_arena_reset(struct ob_arena *arena);
/* drop(arg) is called when the arena goes or is reset; bytes count as used. False: no memory, arg
 * is still the caller's. */
bool ob_arena_keep(struct ob_arena *arena, void (*drop)(void *arg), void *arg, size_t bytes);
size_t ob_arena_used(const struct ob_arena *arena);

#endif
