/* SPDX-License-Identifier: Apache-2.0 */
/* harness - what tests of sinks share. */
#include "harness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- a folder of its own ---- */

void place_make(struct place *p)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(p->dir, sizeof(p->dir), "%s/ob-sink-XXXXXX", tmp && strlen(tmp) < 40 ? tmp : "/tmp");
    assert_non_null(mkdtemp(p->dir));
    snprintf(p->path, sizeof(p->path), "%s/events.jsonl", p->dir);
}

void place_remove(struct place *p)
{
    chmod(p->dir, 0700);
    DIR *d = opendir(p->dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] != '.')
            assert_int_equal(unlinkat(dirfd(d), e->d_name, 0), 0);
    }
    closedir(d);
    assert_int_equal(rmdir(p->dir), 0);
}

size_t place_count(const struct place *p, const char *text)
{
    size_t n = 0;
    DIR *d = opendir(p->dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.' && strstr(e->d_name, text);
    closedir(d);
    return n;
}

char *slurp(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    long size = ftell(f);
    rewind(f);
    char *text = malloc((size_t)size + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)size, f), size);
    fclose(f);
    text[size] = '\0';
    *n = (size_t)size;
    return text;
}

void spit(const char *path, const char *text, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* ---- messages ---- */

static struct ob_str copy(struct ob_str s)
{
    char *p = malloc(s.n ? s.n : 1);
    assert_non_null(p);
    if (s.n)
        memcpy(p, s.p, s.n);
    return (struct ob_str){p, s.n};
}

struct message *message_new(uint64_t number, struct ob_str key, const struct ob_str *value)
{
    struct message *m = calloc(1, sizeof(*m));
    assert_non_null(m);
    snprintf(m->id, sizeof(m->id), "id-%010llu", (unsigned long long)number);
    char json[64];
    int n = snprintf(json, sizeof(json), "{\"number\":%llu}", (unsigned long long)number);
    m->event.created_us = 1770091506789000 + (int64_t)number * 1000;
    m->header[0] = (struct ob_header){copy(OB_STR("ce-type")), copy(OB_STR("order.placed"))};
    m->msg = (struct ob_msg){
        .event = &m->event,
        .id = copy(ob_str_c(m->id)),
        .destination = copy(OB_STR("orders")),
        .topic = copy(OB_STR("orders")),
        .key = copy(key),
        .value = copy(value ? *value : (struct ob_str){json, (size_t)n}),
        .content_type = copy(OB_STR("application/json")),
        .headers = m->header,
        .n_headers = 1,
        .key_hash = ob_hash64(key.p, key.n),
        .dest_hash = 1,
    };
    return m;
}

static void drop(struct ob_str s)
{
    free((void *)s.p);
}

void message_free(struct message *m)
{
    if (!m)
        return;
    drop(m->msg.id);
    drop(m->msg.destination);
    drop(m->msg.topic);
    drop(m->msg.key);
    drop(m->msg.value);
    drop(m->msg.content_type);
    for (size_t i = 0; i < m->msg.n_headers; i++) {
        drop(m->header[i].name);
        drop(m->header[i].value);
    }
    free(m);
}

/* ---- a sink that is watched ---- */

static void on_done(void *user, uint64_t token, enum ob_verdict verdict, const struct ob_err *why)
{
    struct watched *w = user;
    assert_true(w->in_poll); /* accepted is not delivered; nothing is said outside poll() */
    assert_true(token >= 1 && token <= w->n_tokens);
    struct token_state *t = &w->tokens[token - 1];
    assert_true(t->accepted);
    assert_int_equal(t->verdicts, 0); /* one verdict for each accepted message */
    t->verdicts++;
    t->verdict = verdict;
    t->accepted = false;
    w->in_flight--;
    w->count[verdict]++;
    if (verdict == OB_V_DELIVERED) {
        w->to_nobody += why != NULL;
        w->order[w->n_order++] = token;
        return;
    }
    assert_non_null(why);
    assert_true(why->text[0] != '\0');
    snprintf(w->reason, sizeof(w->reason), "%s", why->text);
}

static void on_state(void *user, enum ob_sink_state state, uint64_t dest, const struct ob_err *why)
{
    struct watched *w = user;
    assert_true(w->in_poll);
    if (dest != 0)
        return;
    w->state = state == OB_SINK_UP ? 1 : -1;
    w->ups += state == OB_SINK_UP;
    w->downs += state == OB_SINK_DOWN;
    if (state == OB_SINK_DOWN) {
        assert_non_null(why);
        snprintf(w->why, sizeof(w->why), "%s", why->text);
    }
}

static const struct ob_sink_events events = {on_done, on_state};

void watched_open(struct watched *w, const struct ob_sink_driver *driver, const void *conf)
{
    *w = (struct watched){.driver = driver};
    struct ob_sink_env env = {.pipeline = "test",
                              .shards = 1,
                              .strict = true,
                              .clock = &ob_clock_system,
                              .events = &events,
                              .user = w};
    struct ob_err err = {0};
    enum ob_status st = driver->open(&env, conf, &w->sink, &w->caps, &err);
    if (st != OB_OK)
        fail_msg("open: %s", err.text);
    assert_true(w->caps.max_in_flight > 0);
}

void watched_close(struct watched *w, int grace_ms)
{
    w->driver->close(w->sink, grace_ms);
    for (size_t i = 0; i < w->n_tokens; i++)
        message_free(w->tokens[i].m);
    free(w->tokens);
    free(w->order);
    *w = (struct watched){0};
}

uint64_t watched_add(struct watched *w, struct message *m)
{
    if (w->n_tokens % 1024 == 0) {
        size_t cap = w->n_tokens + 1024;
        w->tokens = realloc(w->tokens, cap * sizeof(*w->tokens));
        w->order = realloc(w->order, cap * sizeof(*w->order));
        assert_true(w->tokens && w->order);
    }
    w->tokens[w->n_tokens++] = (struct token_state){.m = m};
    return w->n_tokens;
}

uint64_t watched_add_many(struct watched *w, size_t n, unsigned keys)
{
    uint64_t first = w->n_tokens + 1;
    for (size_t i = 0; i < n; i++) {
        char key[16];
        int len = snprintf(key, sizeof(key), "k%zu", i % keys);
        watched_add(w, message_new(w->base + w->n_tokens, (struct ob_str){key, (size_t)len}, NULL));
    }
    return first;
}

size_t watched_submit(struct watched *w, uint64_t first, size_t n, enum ob_status *st)
{
    const struct ob_msg *msgs[512];
    uint64_t tokens[512];
    size_t total = 0;
    enum ob_status got = OB_OK;
    while (total < n && got == OB_OK) {
        size_t want = n - total < 512 ? n - total : 512;
        for (size_t i = 0; i < want; i++) {
            tokens[i] = first + total + i;
            msgs[i] = &w->tokens[tokens[i] - 1].m->msg;
        }
        size_t taken = want;
        struct ob_err err = {0};
        got = w->driver->submit(w->sink, msgs, tokens, &taken, &err);
        assert_true(taken <= want);
        if (got != OB_OK)
            assert_int_equal(taken, 0);
        for (size_t i = 0; i < taken; i++) {
            struct token_state *t = &w->tokens[tokens[i] - 1];
            t->accepted = true;
            t->verdicts = 0;
        }
        w->in_flight += taken;
        assert_true(w->in_flight <= w->caps.max_in_flight);
        total += taken;
        if (taken < want)
            break;
    }
    if (st)
        *st = got;
    return total;
}

static void do_poll(struct watched *w)
{
    w->in_poll = true;
    w->driver->poll(w->sink);
    w->in_poll = false;
}

bool watched_wait(struct watched *w, int timeout_ms)
{
    int64_t now = ob_clock_mono_ms(&ob_clock_system), at = w->driver->wake_at(w->sink);
    int64_t ms = timeout_ms;
    if (at != INT64_MAX && at - now < ms)
        ms = at > now ? at - now : 0;
    struct pollfd p = {.fd = w->driver->wait_fd(w->sink), .events = POLLIN};
    int rc = poll(&p, p.fd >= 0, (int)ms);
    assert_true(rc >= 0 || errno == EINTR);
    bool due = at != INT64_MAX && ob_clock_mono_ms(&ob_clock_system) >= at;
    if (rc <= 0 && !due)
        return false;
    do_poll(w);
    return true;
}

static bool late(int64_t since)
{
    return ob_clock_mono_ms(&ob_clock_system) - since > WAIT_MS;
}

bool watched_until_idle(struct watched *w)
{
    int64_t since = ob_clock_mono_ms(&ob_clock_system);
    while (w->in_flight > 0 && !late(since))
        watched_wait(w, 1000);
    return w->in_flight == 0;
}

bool watched_until_state(struct watched *w, int state)
{
    int64_t since = ob_clock_mono_ms(&ob_clock_system);
    while (w->state != state && !late(since))
        watched_wait(w, 1000);
    return w->state == state;
}

/* The next token of the range that was not submitted, or was given back. */
static uint64_t next_open(const struct watched *w, uint64_t first, size_t n)
{
    for (uint64_t t = first; t < first + n; t++) {
        const struct token_state *s = &w->tokens[t - 1];
        if (!s->accepted && (s->verdicts == 0 || s->verdict == OB_V_RETURNED))
            return t;
    }
    return 0;
}

bool watched_deliver(struct watched *w, uint64_t first, size_t n)
{
    int64_t since = ob_clock_mono_ms(&ob_clock_system);
    while (!late(since)) {
        /* In order: only from the first open one on, and none behind it may be under way. */
        uint64_t from = next_open(w, first, n);
        if (from == 0 && w->in_flight == 0)
            return true;
        size_t run = 0;
        while (from != 0 && from + run < first + n && !w->tokens[from + run - 1].accepted &&
               (w->tokens[from + run - 1].verdicts == 0 ||
                w->tokens[from + run - 1].verdict == OB_V_RETURNED))
            run++;
        enum ob_status st;
        if (run == 0 || watched_submit(w, from, run, &st) == 0)
            watched_wait(w, 100);
        else
            watched_wait(w, 0);
    }
    return false;
}

/* ---- what a stranger reads ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static unsigned nibble(char c)
{
    return (unsigned)(c <= '9' ? c - '0' : c - 'a' + 10);
}

/* Takes one word of the line and leaves *p behind it. Hexadecimal words are decoded in place. */
static struct ob_str next_word(char **p)
{
    char *from = *p, *end = from;
    while (*end && *end != ' ' && *end != '\n')
        end++;
    *p = *end ? end + 1 : end;
    struct ob_str s = {from, (size_t)(end - from)};
    if (*from != 'x')
        return s;
    size_t n = 0;
    for (char *c = from + 1; c < end; c += 2)
        from[n++] = (char)(nibble(c[0]) << 4 | nibble(c[1]));
    s.n = n;
    return s;
}

static void parse(struct readback *r, size_t n)
{
    size_t lines = 0;
    for (size_t i = 0; i < n; i++)
        lines += r->text[i] == '\n';
    r->got = calloc(lines ? lines : 1, sizeof(*r->got));
    assert_non_null(r->got);
    for (char *p = r->text; *p && r->n < lines; r->n++) {
        struct got *g = &r->got[r->n];
        g->id = next_word(&p);
        g->topic = next_word(&p);
        g->stream = next_word(&p);
        g->key = next_word(&p);
        struct ob_str kind = next_word(&p);
        snprintf(g->kind, sizeof(g->kind), "%.*s", (int)kind.n, kind.p);
        g->value = next_word(&p);
        g->n_headers = (size_t)strtoul(next_word(&p).p, NULL, 10);
        assert_true(g->n_headers <= 4);
        for (size_t i = 0; i < g->n_headers; i++) {
            g->header[i].name = next_word(&p);
            g->header[i].value = next_word(&p);
        }
    }
}

/* Starts a command; *pid is to be waited for. Returns where it writes. */
static int start_reader(char *const *argv, pid_t *pid)
{
    int ends[2];
    assert_true(pipe2(ends, O_CLOEXEC) == 0);
    *pid = fork();
    assert_true(*pid >= 0);
    if (*pid == 0) {
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        execv(argv[0], argv);
        _exit(127);
    }
    close(ends[1]);
    return ends[0];
}

char *run_command(char *const *argv, size_t *size, int *code)
{
    pid_t pid;
    char *text = NULL;
    int fd = start_reader(argv, &pid), status;
    size_t n = 0, cap = 0;
    for (ssize_t got = 1; got > 0; n += (size_t)got) {
        if (cap - n < 65536) {
            cap = cap * 2 + 131072;
            text = realloc(text, cap);
            assert_non_null(text);
        }
        got = read(fd, text + n, cap - n - 1);
        assert_true(got >= 0);
    }
    close(fd);
    text[n] = '\0';
    assert_int_equal(waitpid(pid, &status, 0), pid);
    *size = n;
    *code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return text;
}

void readback_command(struct readback *r, char *const *argv)
{
    *r = (struct readback){0};
    size_t n;
    int code;
    r->text = run_command(argv, &n, &code);
    if (code != 0) {
        const char *tail = n > 400 ? r->text + n - 400 : r->text;
        snprintf(r->why, sizeof(r->why), "%s", n ? tail : "the reader did not run");
        return;
    }
    parse(r, n);
}

static void readback_run(struct readback *r, char **files, size_t n)
{
    char **argv = calloc(n + 3, sizeof(*argv));
    assert_non_null(argv);
    argv[0] = "/usr/bin/python3";
    argv[1] = READ_LINES;
    for (size_t i = 0; i < n; i++)
        argv[i + 2] = files[i];
    readback_command(r, argv);
    free(argv);
}

void readback_file(struct readback *r, const char *path)
{
    char *file = strdup(path);
    readback_run(r, &file, 1);
    free(file);
}

void readback_place(struct readback *r, const struct place *p)
{
    char *names[1024];
    size_t n = 0;
    DIR *d = opendir(p->dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char full[512];
        if (e->d_name[0] == '.')
            continue;
        snprintf(full, sizeof(full), "%s/%s", p->dir, e->d_name);
        if (strcmp(full, p->path) == 0)
            continue;
        assert_true(n < 1023);
        names[n++] = strdup(full);
    }
    closedir(d);
    qsort(names, n, sizeof(*names), by_name);
    if (access(p->path, F_OK) == 0)
        names[n++] = strdup(p->path);
    readback_run(r, names, n);
    for (size_t i = 0; i < n; i++)
        free(names[i]);
}

void readback_free(struct readback *r)
{
    free(r->text);
    ob_arena_unref(r->arena);
    free(r->got);
    *r = (struct readback){0};
}

ptrdiff_t readback_find(const struct readback *r, const char *id, size_t from)
{
    for (size_t i = from; i < r->n; i++) {
        if (ob_str_eqc(r->got[i].id, id))
            return (ptrdiff_t)i;
    }
    return -1;
}

static uint32_t crc32(struct ob_str s)
{
    uint32_t table[256], crc = UINT32_MAX;
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int k = 0; k < 8; k++)
            table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xedb88320u : 0);
    }
    for (size_t i = 0; i < s.n; i++)
        crc = crc >> 8 ^ table[(crc ^ (unsigned char)s.p[i]) & 255];
    return ~crc;
}

static void same(const char *what, struct ob_str got, struct ob_str want)
{
    char sum[48];
    if (want.n > 65536 && got.n != want.n) { /* the reader gives only the sum of a long text */
        snprintf(sum, sizeof(sum), "c%zu:%u", want.n, crc32(want));
        want = ob_str_c(sum);
    }
    if (!ob_str_eq(got, want))
        fail_msg("%s: %zu bytes read, %zu bytes written", what, got.n, want.n);
}

void readback_holds(const struct readback *r, const struct watched *w)
{
    if (r->why[0])
        fail_msg("%s", r->why);
    /* Lines are nearly in order of the tokens: look on from the last find, then from the start. */
    size_t at = 0;
    ptrdiff_t *line = calloc(w->n_tokens + 1, sizeof(*line));
    assert_non_null(line);
    for (size_t i = 0; i < w->n_tokens; i++) {
        const struct token_state *t = &w->tokens[i];
        line[i] = -1;
        if (t->verdicts == 0 || t->verdict != OB_V_DELIVERED)
            continue;
        ptrdiff_t found = readback_find(r, t->m->id, at);
        if (found < 0)
            found = readback_find(r, t->m->id, 0);
        if (found < 0)
            fail_msg("%s was delivered and is not there", t->m->id);
        at = (size_t)found;
        line[i] = found;
        const struct got *g = &r->got[found];
        same("topic", g->topic, t->m->msg.topic);
        if (!r->no_key)
            same("key", g->key, t->m->msg.key);
        same("value", g->value, t->m->msg.value_null ? OB_STR("") : t->m->msg.value);
    }
    for (size_t i = 0; i < w->n_tokens; i++) {
        /* The next one of the same key; few keys, so it is near. */
        for (size_t j = i + 1; line[i] >= 0 && j < w->n_tokens && j < i + 64; j++) {
            if (line[j] >= 0 && w->tokens[i].m->msg.key_hash == w->tokens[j].m->msg.key_hash &&
                line[j] <= line[i])
                fail_msg("%s stands before %s of the same key", w->tokens[j].m->id,
                         w->tokens[i].m->id);
        }
    }
    free(line);
}
