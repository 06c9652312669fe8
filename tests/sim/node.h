/* SPDX-License-Identifier: Apache-2.0 */
/* node - the steps of an owner's round, shared by the files that make them up. */
#ifndef OB_SIM_NODE_H
#define OB_SIM_NODE_H

#include "sim.h"

/* Every call of flow that may change it: it must not take memory meanwhile. */
#define FLOW(call) (sim_in_flow = true, (call), sim_in_flow = false, (void)0)

/* A place where the process may die. True: it did, or the schedule has failed. */
bool sim_point(struct sim *w, struct sim_node *n);

/* read.c. They return false when this instance is over. */
bool sim_node_claim(struct sim *w, struct sim_node *n, bool *more);
bool sim_node_drains(struct sim *w, struct sim_node *n);

/* send.c */
bool sim_node_submit(struct sim *w, struct sim_node *n, size_t *sent);
void sim_node_ask_sink(struct sim *w, struct sim_node *n);
void sim_node_collect(struct sim *w, struct sim_node *n);

#endif
