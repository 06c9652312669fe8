/* SPDX-License-Identifier: Apache-2.0 */
/* public - outbox/relay.h: the relay as other programs see it. */
#include "outbox/relay.h"

#include "relay/relay.h"

#include <stdlib.h>

struct outbox_relay {
    char *file;                        /* NULL: the usual places */
    struct ob_config *config;          /* of the start: borrowed by the relay for life */
    struct ob_config *newest, *before; /* reloaded; a shard may still drain with the one before */
    struct ob_log log;
    struct ob_relay *relay;
};

static enum outbox_status give(enum ob_status status, const struct ob_err *from,
                               struct outbox_error *to)
{
    if (status != OB_OK && to) {
        to->status = (enum outbox_status)status;
        memcpy(to->text, from->text, sizeof(to->text));
        to->text[sizeof(to->text) - 1] = '\0';
    }
    return (enum outbox_status)status;
}

_Static_assert(sizeof(((struct ob_err *)0)->text) == sizeof(((struct outbox_error *)0)->text),
               "texts differ in size");

enum outbox_status outbox_relay_open(const char *config_file, const char *pipeline, unsigned flags,
                                     int log_fd, struct outbox_relay **out,
                                     struct outbox_error *error)
{
    struct ob_err err = {.status = OB_OK};
    enum ob_status st = OB_OK;
    struct outbox_relay *r = calloc(1, sizeof(*r));

    if (!r || (config_file && !(r->file = strdup(config_file)))) {
        st = ob_err_set(&err, OB_RETRY, "out of memory");
        goto done;
    }
    st = ob_config_load(r->file, &r->config, &err);
    if (st != OB_OK)
        goto done;
    r->log = (struct ob_log){.fd = log_fd,
                             .level = (enum ob_log_level)r->config->log_level,
                             .format = (enum ob_log_format)r->config->log_format,
                             .shard = -1};
    struct ob_relay_opts opts = {.once = (flags & OUTBOX_RELAY_ONCE) != 0,
                                 .only = pipeline,
                                 .log = log_fd >= 0 ? &r->log : NULL};
    st = ob_relay_new(r->config, &opts, &r->relay, &err);
done:
    if (st == OB_OK)
        *out = r;
    else
        outbox_relay_close(r);
    return give(st, &err, error);
}

enum outbox_status outbox_relay_run(struct outbox_relay *r, struct outbox_error *error)
{
    struct ob_err err = {.status = OB_OK};
    enum ob_status st = ob_relay_run(r->relay, &err);

    return give(st, &err, error);
}

void outbox_relay_stop(struct outbox_relay *r)
{
    ob_relay_stop(r->relay);
}

enum outbox_status outbox_relay_reload(struct outbox_relay *r, struct outbox_error *error)
{
    struct ob_err err = {.status = OB_OK};
    struct ob_config *config = NULL;
    enum ob_status st = ob_config_load(r->file, &config, &err);

    if (st == OB_OK)
        st = ob_relay_reload(r->relay, config, &err);
    if (st != OB_OK) {
        ob_config_free(config);
        return give(st, &err, error);
    }
    ob_config_free(r->before);
    r->before = r->newest;
    r->newest = config;
    return OUTBOX_OK;
}

void outbox_relay_close(struct outbox_relay *r)
{
    if (!r)
        return;
    ob_relay_free(r->relay);
    ob_config_free(r->config);
    ob_config_free(r->newest);
    ob_config_free(r->before);
    free(r->file);
    free(r);
}
