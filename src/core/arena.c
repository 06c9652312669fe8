/* SPDX-License-Identifier: Apache-2.0 */
/* arena - memory that is freed all at once. Chunks, a reference count, a ceiling.
 *
 * The arena itself stands at the start of its first chunk. A request that is large beside the
 * usual chunk gets a chunk of its own and the current one stays in use, so at most a quarter of a
 * chunk is left unused at each change. */
#include "core/arena.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__)
#define ARENA_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ARENA_ASAN 1
#endif
#endif
#ifdef ARENA_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

#define ALIGN 16u
#define CHUNK_LEAST 256u

struct chunk {
    _Alignas(ALIGN) struct chunk *next;
};

/* Something from outside that goes with the arena; itself stands in it. */
struct kept {
    struct kept *next;
    void (*drop)(void *arg);
    void *arg;
};

struct ob_arena {
    _Alignas(ALIGN) char *p; /* free part of the current chunk */
    char *end;
    size_t used, ceiling, chunk;
    struct chunk *chunks; /* all but the first; any order */
    struct kept *kept;
    char *first_end;
    atomic_uint refs;
};

struct ob_arena *ob_arena_new(size_t chunk, size_t ceiling)
{
    struct ob_arena *a;

    if (ceiling && chunk > ceiling)
        chunk = ceiling;
    if (chunk < CHUNK_LEAST)
        chunk = CHUNK_LEAST;
    if (chunk > SIZE_MAX / 2)
        return NULL;
    chunk = (chunk + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    a = malloc(sizeof(*a) + chunk);
    if (!a)
        return NULL;
    *a = (struct ob_arena){.ceiling = ceiling ? ceiling : SIZE_MAX, .chunk = chunk};
    a->p = (char *)(a + 1);
    a->end = a->first_end = a->p + chunk;
    atomic_init(&a->refs, 1);
    ASAN_POISON_MEMORY_REGION(a->p, chunk);
    return a;
}

struct ob_arena *ob_arena_ref(struct ob_arena *arena)
{
    atomic_fetch_add_explicit(&arena->refs, 1, memory_order_relaxed);
    return arena;
}

static void drop_kept(struct ob_arena *arena)
{
    for (struct kept *k = arena->kept; k; k = k->next)
        k->drop(k->arg);
    arena->kept = NULL;
}

static void free_chunks(struct ob_arena *arena)
{
    drop_kept(arena);
    for (struct chunk *c = arena->chunks, *next; c; c = next) {
        ASAN_UNPOISON_MEMORY_REGION(c, sizeof(*c));
        next = c->next;
        free(c);
    }
    arena->chunks = NULL;
}

void ob_arena_unref(struct ob_arena *arena)
{
    /* acq_rel: what other threads wrote before they let go is done before memory is given back. */
    if (!arena || atomic_fetch_sub_explicit(&arena->refs, 1, memory_order_acq_rel) != 1)
        return;
    free_chunks(arena);
    free(arena);
}

static void *alloc_slow(struct ob_arena *arena, size_t n)
{
    bool own = n > arena->chunk / 4;
    size_t size = own ? n : arena->chunk;
    struct chunk *c = size < SIZE_MAX / 2 ? malloc(sizeof(*c) + size) : NULL;
    char *p;

    if (!c)
        return NULL;
    c->next = arena->chunks;
    arena->chunks = c;
    arena->used += n;
    p = (char *)(c + 1); /* aligned for everything */
    if (!own) {
        arena->p = p + n;
        arena->end = p + size;
        ASAN_POISON_MEMORY_REGION(arena->p, size - n);
    }
    return p;
}

static inline void *take(struct ob_arena *arena, size_t n, size_t align)
{
    size_t pad = -(uintptr_t)arena->p & (align - 1);
    size_t left = (size_t)(arena->end - arena->p);
    char *p;

    if (n > arena->ceiling - arena->used)
        return NULL;
    if (pad > left || n > left - pad)
        return alloc_slow(arena, n);
    p = arena->p + pad;
    arena->used += n;
    arena->p = p + n;
    ASAN_UNPOISON_MEMORY_REGION(p, n);
    return p;
}

void *ob_arena_alloc(struct ob_arena *arena, size_t n)
{
    return take(arena, n ? n : 1, ALIGN);
}

void *ob_arena_zalloc(struct ob_arena *arena, size_t n)
{
    void *p = ob_arena_alloc(arena, n);

    if (p)
        memset(p, 0, n);
    return p;
}

struct ob_str ob_arena_copy(struct ob_arena *arena, struct ob_str s)
{
    char *p = s.n < SIZE_MAX ? take(arena, s.n + 1, 1) : NULL;

    if (!p)
        return (struct ob_str){NULL, 0};
    if (s.n)
        memcpy(p, s.p, s.n);
    p[s.n] = '\0';
    return (struct ob_str){p, s.n};
}

char *ob_arena_printf(struct ob_arena *arena, const char *fmt, ...)
{
    va_list ap;
    char *p = NULL;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n >= 0)
        p = take(arena, (size_t)n + 1, 1);
    if (!p)
        return NULL;
    va_start(ap, fmt);
    vsnprintf(p, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return p;
}

void ob_arena_reset(struct ob_arena *arena)
{
    free_chunks(arena);
    arena->p = (char *)(arena + 1);
    arena->end = arena->first_end;
    arena->used = 0;
    ASAN_POISON_MEMORY_REGION(arena->p, (size_t)(arena->end - arena->p));
}

bool ob_arena_keep(struct ob_arena *arena, void (*drop)(void *arg), void *arg, size_t bytes)
{
    struct kept *k = ob_arena_alloc(arena, sizeof(*k));

    if (!k)
        return false;
    *k = (struct kept){.next = arena->kept, .drop = drop, .arg = arg};
    arena->kept = k;
    arena->used = bytes < SIZE_MAX - arena->used ? arena->used + bytes : SIZE_MAX;
    if (arena->used > arena->ceiling)
        arena->used = arena->ceiling;
    return true;
}

size_t ob_arena_used(const struct ob_arena *arena)
{
    return arena->used;
}
