/* SPDX-License-Identifier: Apache-2.0 */
/* postgres - an order and its events in one PostgreSQL transaction, tried again when another
 * transaction was in the way.
 *
 *     cc postgres.c $(pkg-config --cflags --libs outbox libpq) -o postgres
 *     outbox schema --apply                              # once
 *     ./postgres "dbname=shop"
 *
 * With a second argument the events go into the table of an existing system:
 *
 *     ./postgres "dbname=shop" polyshop
 */
#include <libpq-fe.h>
#include <outbox/postgres.h>
#include <stdio.h>

struct order {
    const char *id;
    int pieces;
    struct outbox_collector *events;
};

/* Runs inside the transaction; anything but OUTBOX_OK takes back the order and its events. */
static enum outbox_status save(PGconn *conn, void *user, struct outbox_error *err)
{
    struct order *o = user;
    char pieces[16], payload[64];
    const char *const values[] = {o->id, pieces};
    struct outbox_event placed = {
        .type = "order.placed", .aggregate_id = o->id, .payload = payload};
    enum outbox_status st;
    PGresult *res;

    snprintf(pieces, sizeof(pieces), "%d", o->pieces);
    snprintf(payload, sizeof(payload), "{\"order\":\"%s\",\"pieces\":%d}", o->id, o->pieces);
    res = PQexecParams(conn, "insert into orders (id, pieces) values ($1, $2)", 2, NULL, values,
                       NULL, NULL, 0);
    st = outbox_pg_result(conn, res, err); /* what to do: retry, reject, … */
    PQclear(res);
    if (st == OUTBOX_OK)
        st = outbox_collector_raise(o->events, &placed, NULL, err);
    return st;
}

static int place(PGconn *conn, const struct outbox_pg_target *target, const struct outbox_ctx *ctx,
                 struct order *o)
{
    static const struct outbox_pg_begin begin = {.isolation = OUTBOX_PG_SERIALIZABLE, .retries = 5};
    struct outbox_error err = {.text = ""};

    switch (outbox_pg_transaction(conn, target, ctx, o->events, &begin, save, o, &err)) {
    case OUTBOX_OK:
        printf("placed: %s\n", o->id);
        return 0;
    case OUTBOX_REJECT: /* a constraint: neither the order nor its event is there */
        printf("refused: %s\n", o->id);
        return 0;
    default:
        fprintf(stderr, "%s: %s\n", o->id, err.text);
        return 1;
    }
}

int main(int argc, char **argv)
{
    struct outbox_error err = {.text = ""};
    struct outbox_ctx *ctx = outbox_ctx_new();
    struct outbox_collector *events = outbox_collector_new();
    struct outbox_pg_target *target = NULL; /* the native outbox */
    const struct outbox_pg_options options = {.profile = argc > 2 ? argv[2] : NULL};
    PGconn *conn = PQconnectdb(argc > 1 ? argv[1] : "");
    int failed = 1;

    if (!ctx || !events || PQstatus(conn) != CONNECTION_OK) {
        fprintf(stderr, "%s", PQerrorMessage(conn));
        goto done;
    }
    PQclear(PQexec(conn, "create table if not exists orders (id text primary key, pieces int check "
                         "(pieces <= 10))"));
    if (options.profile && outbox_pg_target_open(conn, &options, &target, &err) != OUTBOX_OK) {
        fprintf(stderr, "%s\n", err.text);
        goto done;
    }
    if (outbox_ctx_set(ctx, OUTBOX_CTX_USER, "anna") != OUTBOX_OK)
        goto done;
    failed = place(conn, target, ctx, &(struct order){"o-1", 3, events}) ||
             place(conn, target, ctx, &(struct order){"o-2", 40, events}) ||
             place(conn, target, ctx, &(struct order){"o-3", 2, events});
done:
    outbox_pg_target_close(target);
    outbox_collector_free(events);
    outbox_ctx_free(ctx);
    PQfinish(conn);
    return failed;
}
