/* SPDX-License-Identifier: Apache-2.0 */
/* orders - an order and its event in one transaction: both are committed, or neither.
 *
 *     cc orders.c $(pkg-config --cflags --libs outbox sqlite3) -o orders
 *     ./orders shop.db
 */
#include <outbox/produce.h>
#include <sqlite3.h>
#include <stdio.h>

static int fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    return 1;
}

/* Places an order of some pieces; nobody can order more than ten. */
static int place(sqlite3 *db, const struct outbox_ctx *ctx, int pieces)
{
    struct outbox_error err = {.text = ""};
    char order[32], payload[64], sql[128], id[OUTBOX_ID_SIZE];
    const int64_t version = 1;

    if (sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL) != SQLITE_OK)
        return fail("begin", sqlite3_errmsg(db));
    snprintf(sql, sizeof(sql), "INSERT INTO orders (pieces) VALUES (%d)", pieces);
    sqlite3_exec(db, sql, NULL, NULL, NULL);
    snprintf(order, sizeof(order), "%lld", (long long)sqlite3_last_insert_rowid(db));
    snprintf(payload, sizeof(payload), "{\"order\":%s,\"pieces\":%d}", order, pieces);

    const struct outbox_event placed = {
        .type = "order.placed",
        .aggregate_type = "order",
        .aggregate_id = order,
        .payload = payload,
        .entity_version = &version,
    };
    if (outbox_sqlite_emit(db, ctx, &placed, id, &err) != OUTBOX_OK) {
        sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
        return fail("emit", err.text);
    }
    if (pieces > 10) { /* the event goes with the order */
        sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
        printf("refused: %d pieces\n", pieces);
        return 0;
    }
    if (sqlite3_exec(db, "COMMIT", NULL, NULL, NULL) != SQLITE_OK)
        return fail("commit", sqlite3_errmsg(db));
    printf("placed: order %s, event %s\n", order, id);
    return 0;
}

int main(int argc, char **argv)
{
    struct outbox_error err = {.text = ""};
    struct outbox_ctx *ctx = outbox_ctx_new();
    sqlite3 *db = NULL;
    int failed = 1;

    if (argc < 2 || !ctx) {
        fprintf(stderr, "usage: %s DATABASE\n", argv[0]);
        outbox_ctx_free(ctx);
        return 2;
    }
    if (sqlite3_open(argv[1], &db) != SQLITE_OK) {
        fail(argv[1], sqlite3_errmsg(db));
        goto done;
    }
    sqlite3_busy_timeout(db, 5000);
    if (outbox_sqlite_schema(db, &err) != OUTBOX_OK) { /* or once, by hand: outbox schema --apply */
        fail("schema", err.text);
        goto done;
    }
    sqlite3_exec(db, "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, pieces INTEGER)",
                 NULL, NULL, NULL);
    /* Who and why, stamped into every event's metadata. */
    if (outbox_ctx_set(ctx, OUTBOX_CTX_USER, "anna") != OUTBOX_OK ||
        outbox_ctx_set(ctx, OUTBOX_CTX_SOURCE, "shop") != OUTBOX_OK)
        goto done;
    failed = place(db, ctx, 3) || place(db, ctx, 40) || place(db, ctx, 2);
done:
    outbox_ctx_free(ctx);
    sqlite3_close(db);
    return failed;
}
