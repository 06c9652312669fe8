/* SPDX-License-Identifier: Apache-2.0 */
/* contract - what sink.h promises, tested alike for every sink. A new sink adds one struct
 * contract_sink and its line in contract_test.c. */
#ifndef OB_TEST_SINK_CONTRACT_H
#define OB_TEST_SINK_CONTRACT_H

#include "harness.h"

struct proxy;

/* Values up to this size must pass, larger than CONTRACT_MAX need not. */
#define CONTRACT_VALUE ((size_t)16 << 20)
#define CONTRACT_MAX ((size_t)24 << 20)

struct contract_sink {
    const char *name;
    const struct ob_sink_driver *driver;
    /* A fresh, empty destination; fills conf (driver->conf_size bytes, zeroed). Returns what read()
     * and end() get. *skip: why this sink cannot be tested here (then NULL is returned). */
    void *(*begin)(void *conf, const char **skip);
    /* After the sink was closed: what arrived, by a reader that is not ours. NULL: unknowable. */
    void (*read)(void *data, struct readback *out);
    void (*end)(void *data);
    /* A sink that has a broker: changes conf to reach it through a proxy, which lives until end().
     * NULL: there is nothing that could be away. *skip: why it cannot be done here. */
    struct proxy *(*through)(void *data, void *conf, const char **skip);
    /* Sends a message where there is nothing; makes that place. */
    void (*aim_elsewhere)(void *data, struct message *m);
    void (*make_elsewhere)(void *data);
};

/* Changes a text of a message. */
void contract_put(struct ob_str *at, struct ob_str s);

/* Runs every case for every sink. Returns what main() returns. */
int contract_run(const struct contract_sink *const *sinks, size_t n);

#endif
