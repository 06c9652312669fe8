/* SPDX-License-Identifier: Apache-2.0 */
/* address_test - secrets in connection strings. */
#include "../rows.h"
#include "config/address.h"

static const struct {
    const char *text;
    bool password, ambiguous;
} cases[] = {
    {"", false, false},
    {"app", false, false},
    {"dbname=app", false, false},
    {"host=h user=u dbname=app", false, false},
    {"host=h password=x", true, false},
    {"host=h PASSWORD = 'a b'", true, false},
    {"password=a@b host=h", true, false},
    {"dbname=password", false, false},
    {"passfile=/x sslpassword=1", false, false},
    {"postgres://h/db", false, false},
    {"postgres://u@h/db", false, false},
    {"postgres://u:@h/db", false, false},
    {"postgres://u:p@h/db", true, false},
    {"postgresql://u:p%40ss@h:5432,g:5433/db?sslmode=disable", true, false},
    {"postgres://u:p@ss@h/db", true, true},
    {"postgres://u:p/x@h/db", true, true},
    {"postgres://u:p/x@y@h/db", true, true},
    {"postgres://u:p?x@h/db", true, false},
    {"postgres://u:p?x@y@h/db", true, true},
    {"postgres://u@h/db?options=a@b", false, false},
    {"postgres://u@h?options=a@b", false, false},
    {"postgres://u@h/db?password=x", true, false},
    {"postgres:///db?host=/run/postgresql", false, false},
    {"user=u host=a://b", false, false},
    {"mongodb://u:p@h1,h2,h3/db?replicaSet=rs0", true, false},
    {"mongodb://h1,h2/?replicaSet=rs0", false, false},
    {"mongodb+srv://u:p@ss@h/db", true, true},
    {"amqp://u:p@h/", true, false},
    {"amqp://u:p@h1/,amqp://u:p@h2/", true, false},
    {"amqp://h1,amqp://u:p@h2", true, false},
    {"amqp://h1/,amqp://h2/", false, false},
    {"amqp://h1/,amqp://u:p@ss@h2/", true, true},
    {"nats://token@h:4222", false, false},
    {"127.0.0.1:9092,127.0.0.1:9093", false, false},
};

static void secrets_in_connection_strings(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        row_int(cases[i].text, "password", ob_address_has_password(cases[i].text),
                cases[i].password);
        row_int(cases[i].text, "ambiguous", ob_address_is_ambiguous(cases[i].text),
                cases[i].ambiguous);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(secrets_in_connection_strings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
