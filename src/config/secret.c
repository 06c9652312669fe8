/* SPDX-License-Identifier: Apache-2.0 */
/* secret - a value kept in a file of its own. */
#include "config/secret.h"

#include "config/address.h"
#include "config/file.h"

#include <stdlib.h>
#include <sys/stat.h>

static enum ob_status take(struct ob_arena *arena, const char *file, struct ob_str text,
                           const char **out, struct ob_err *err)
{
    if (text.n > 0 && text.p[text.n - 1] == '\n')
        text.n--;
    if (text.n > 0 && text.p[text.n - 1] == '\r')
        text.n--;
    if (text.n == 0)
        return ob_err_set(err, OB_FATAL, "%s is empty", file);
    if (memchr(text.p, '\0', text.n))
        return ob_err_set(err, OB_FATAL, "%s holds a NUL character", file);
    struct ob_str copy = ob_arena_copy(arena, text);
    if (!copy.p)
        return ob_err_set(err, OB_FATAL, "no memory for %s", file);
    *out = copy.p;
    return OB_OK;
}

enum ob_status ob_secret_read(struct ob_arena *arena, const char *file, const char **out,
                              struct ob_err *err)
{
    char *p = NULL;
    size_t n = 0;
    enum ob_status st = ob_file_read(file, OB_SECRET_MAX, &p, &n, err);
    if (st == OB_OK && n > OB_SECRET_MAX)
        st = ob_err_set(err, OB_FATAL, "%s: larger than 64 KiB; this cannot be a secret", file);
    else if (st == OB_OK)
        st = take(arena, file, (struct ob_str){p, n}, out, err);
    if (p)
        explicit_bzero(p, n);
    free(p);
    return st;
}

void ob_secret_note(struct ob_secret_places *places, const char *file, const char *option)
{
    if (!places || !file || places->n == OB_SECRET_PLACES_MAX)
        return;
    for (size_t i = 0; i < places->n; i++)
        if (strcmp(places->file[i], file) == 0)
            return;
    places->file[places->n] = file;
    places->option[places->n++] = option;
}

bool ob_secret_is_plain(const char *option, const char *text)
{
    static const char *const strings[] = {"dsn", "url", "uri"};
    for (size_t i = 0; i < sizeof(strings) / sizeof(strings[0]); i++)
        if (strcmp(option, strings[i]) == 0)
            return ob_address_has_password(text);
    return *text != '\0';
}

bool ob_secret_is_exposed(const char *file)
{
    struct stat st;
    return stat(file, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & S_IROTH);
}
