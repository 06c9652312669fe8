/* SPDX-License-Identifier: Apache-2.0 */
/* bench_sql - what is recorded, asked of the tables that the SQL databases share but for a name. */
#include "world.h"

int64_t epoch(struct bench *b)
{
    return num(b, "SELECT max(epoch) FROM " TABLE(cursor) " WHERE pipeline = '" PIPE "'");
}

void raise_epoch(struct bench *b)
{
    sql(b, "UPDATE " TABLE(cursor) " SET epoch = epoch + 1");
}

int64_t cursor_pos(struct bench *b)
{
    return num(b, "SELECT pos FROM " TABLE(cursor));
}

int64_t n_published(struct bench *b)
{
    return num(b, "SELECT published FROM " TABLE(cursor));
}

int64_t n_failed(struct bench *b)
{
    return num(b, "SELECT failed FROM " TABLE(cursor));
}

int64_t in_flight(struct bench *b)
{
    return num(b, "SELECT in_flight FROM " TABLE(cursor));
}

int64_t n_events(struct bench *b)
{
    return num(b, "SELECT count(*) FROM " TABLE(event));
}

int64_t n_parked(struct bench *b)
{
    return num(b, "SELECT count(*) FROM " TABLE(parked));
}

int64_t n_held(struct bench *b)
{
    return num(b, "SELECT count(*) FROM " TABLE(parked_key));
}

int64_t n_dead(struct bench *b, const char *state)
{
    return state ? num(b, "SELECT count(*) FROM " TABLE(dead) " WHERE state = '%s'", state)
                 : num(b, "SELECT count(*) FROM " TABLE(dead));
}

int64_t n_cursors(struct bench *b, unsigned shards)
{
    return shards ? num(b, "SELECT count(*) FROM " TABLE(cursor) " WHERE shards = %u", shards)
                  : num(b, "SELECT count(*) FROM " TABLE(cursor));
}

int64_t n_past(struct bench *b)
{
    return num(b, "SELECT count(*) FROM " TABLE(past));
}

int64_t dead_number(struct bench *b, int64_t attempts, const char *error)
{
    return num(b, "SELECT n FROM " TABLE(dead) " WHERE attempts = %lld AND error = '%s'",
               (long long)attempts, error);
}

int64_t history_size(struct bench *b)
{
    return num(b, "SELECT length(cast(history AS text)) FROM " TABLE(parked));
}

int64_t last_attempt(struct bench *b)
{
    return num(b, "SELECT " LAST_ATTEMPT " FROM " TABLE(parked));
}

uint64_t ref_of(struct bench *b, uint64_t number)
{
    (void)b;
    return number;
}

struct stored stored_event(struct bench *b, const char *id)
{
    struct stored s = {.entity_version = OB_NO_VERSION};

    s.there = num(b, "SELECT count(*) FROM " TABLE(event) " WHERE id = '%s'", id) == 1;
    s.text =
        num(b,
            "SELECT count(*) FROM " TABLE(event) " WHERE id = '%s' AND payload_kind = '" KIND_TEXT
                                                 "'",
            id) == 1;
    if (num(b,
            "SELECT count(*) FROM " TABLE(event) " WHERE id = '%s' AND entity_version IS NOT NULL",
            id) == 1)
        s.entity_version =
            num(b, "SELECT entity_version FROM " TABLE(event) " WHERE id = '%s'", id);
    return s;
}

void had_attempts(struct bench *b, const struct ob_event *ev, uint32_t n)
{
    (void)b; /* the relay tells them with every settle */
    (void)ev;
    (void)n;
}
