/* SPDX-License-Identifier: Apache-2.0 */
/* contract_cases - what the files of the contract share. */
#ifndef OB_TEST_SINK_CONTRACT_CASES_H
#define OB_TEST_SINK_CONTRACT_CASES_H

#include "contract.h"

struct run {
    const struct contract_sink *sink;
    void *data, *conf;
    struct proxy *proxy; /* only for cases of outages */
    struct watched w;
    struct readback read;
};

struct contract_case {
    const char *name;
    void (*fn)(struct run *r);
};

void contract_open(struct run *r);
/* Ends the sink while the messages still live, and checks what a stranger reads. */
void contract_close_and_read(struct run *r);
void contract_all_delivered(const struct run *r);

/* contract_outage.c: on brokers, through a proxy; {0}-terminated. */
extern const struct contract_case contract_outages[];

#endif
