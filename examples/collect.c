/* SPDX-License-Identifier: Apache-2.0 */
/* collect - objects raise events while they work, before there is any transaction; one helper
 * writes everything and the events, or nothing.
 *
 *     cc collect.c $(pkg-config --cflags --libs outbox sqlite3) -o collect
 *     ./collect shop.db
 */
#include <outbox/produce.h>
#include <sqlite3.h>
#include <stdio.h>

/* Knows nothing of databases. */
struct account {
    const char *id;
    long cents;
    struct outbox_collector *events;
};

static enum outbox_status move(struct account *a, long cents, struct outbox_error *err)
{
    char payload[64];
    struct outbox_event e = {.type = cents < 0 ? "account.debited" : "account.credited",
                             .aggregate_type = "account",
                             .aggregate_id = a->id,
                             .payload = payload};

    snprintf(payload, sizeof(payload), "{\"cents\":%ld}", cents < 0 ? -cents : cents);
    a->cents += cents;
    return outbox_collector_raise(a->events, &e, NULL, err); /* copied */
}

struct transfer {
    struct account *of[2];
};

/* Runs inside the transaction. */
static enum outbox_status save(struct sqlite3 *db, void *user, struct outbox_error *err)
{
    const struct transfer *t = user;

    for (int i = 0; i < 2; i++) {
        char sql[128];
        if (t->of[i]->cents < 0) {
            snprintf(err->text, sizeof(err->text), "account %s is overdrawn", t->of[i]->id);
            return OUTBOX_REJECT; /* rolls back */
        }
        snprintf(sql, sizeof(sql), "INSERT OR REPLACE INTO account (id, cents) VALUES ('%s', %ld)",
                 t->of[i]->id, t->of[i]->cents);
        if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK) {
            snprintf(err->text, sizeof(err->text), "%s", sqlite3_errmsg(db));
            return OUTBOX_RETRY;
        }
    }
    return OUTBOX_OK;
}

static enum outbox_status transfer(sqlite3 *db, struct account *from, struct account *to,
                                   long cents, struct outbox_collector *events)
{
    struct transfer t = {{from, to}};
    struct outbox_error err = {.text = ""};
    enum outbox_status st = move(from, -cents, &err);

    if (st == OUTBOX_OK)
        st = move(to, cents, &err);
    if (st == OUTBOX_OK)
        st = outbox_sqlite_transaction(db, NULL, events, save, &t, &err);
    if (st == OUTBOX_OK) {
        printf("moved %ld\n", cents);
        return st;
    }
    printf("not moved: %s; %zu events are still collected\n", err.text,
           outbox_collector_count(events));
    from->cents += cents;
    to->cents -= cents;
    outbox_collector_clear(events); /* given up: they tell of what never was */
    return st;
}

int main(int argc, char **argv)
{
    struct outbox_collector *events = outbox_collector_new();
    struct outbox_error err = {.text = ""};
    struct account a = {.id = "a", .cents = 1000, .events = events};
    struct account b = {.id = "b", .cents = 0, .events = events};
    sqlite3 *db = NULL;
    int failed = 1;

    if (argc < 2 || !events)
        goto done;
    if (sqlite3_open(argv[1], &db) != SQLITE_OK || outbox_sqlite_schema(db, &err) != OUTBOX_OK) {
        fprintf(stderr, "%s: %s\n", argv[1], err.text[0] ? err.text : sqlite3_errmsg(db));
        goto done;
    }
    sqlite3_exec(db, "CREATE TABLE IF NOT EXISTS account (id TEXT PRIMARY KEY, cents INTEGER)",
                 NULL, NULL, NULL);
    failed = transfer(db, &a, &b, 700, events) != OUTBOX_OK;
    if (!failed)
        failed = transfer(db, &a, &b, 700, events) != OUTBOX_REJECT; /* there are 300 left */
    if (!failed)
        failed = transfer(db, &b, &a, 100, events) != OUTBOX_OK;
done:
    outbox_collector_free(events);
    sqlite3_close(db);
    return failed;
}
