/* SPDX-License-Identifier: Apache-2.0 */
/* states - the states of an event as one table. The flow moves by this table, and prints it. */
#include "flow/internal.h"

#include "core/buf.h"

#include <assert.h>
#include <string.h>

static const char *const state_names[N_STATES] = {
    [S_FREE] = "free",       [S_WAITING] = "waiting", [S_READY] = "ready",
    [S_SENT] = "sent",       [S_OVERDUE] = "overdue", [S_DELIVERED] = "delivered",
    [S_PARKING] = "parking", [S_DYING] = "dying",     [S_OVER] = "over",
};

static const char *const on_names[N_ON] = {
    [ON_CLAIM] = "claimed",
    [ON_SKIP] = "not ours",
    [ON_TURN] = "its turn",
    [ON_BACK] = "an earlier one came back",
    [ON_ACCEPT] = "accepted",
    [ON_DELIVERED] = "verdict delivered",
    [ON_RETRY] = "verdict retry",
    [ON_EXHAUSTED] = "verdict retry, last attempt",
    [ON_REJECT] = "verdict reject or poison",
    [ON_BLOCKED] = "verdict blocked",
    [ON_BLOCKED_TOO_LONG] = "verdict blocked, for longer than blocked_max",
    [ON_RETURNED] = "given back",
    [ON_RETURNED_OFTEN] = "given back max_attempts times in a row while the sink is up",
    [ON_OVERDUE] = "no verdict while later ones came",
    [ON_HOLD] = "its key is held, or its destination blocked for long",
    [ON_DROP] = "its key is held and it has a row",
    [ON_RECORDED] = "settle committed",
    [ON_COLLECTED] = "forgotten",
};

static const struct {
    uint8_t from, on, to;
    const char *what;
} table[] = {
    {S_FREE, ON_CLAIM, S_WAITING, "takes a slot of the window"},
    {S_FREE, ON_SKIP, S_OVER, "only the cursor passes it"},
    {S_WAITING, ON_TURN, S_READY, "nothing earlier of its key waits, or goes elsewhere"},
    {S_WAITING, ON_REJECT, S_DYING, "poison whose turn came; its key waits until it is recorded"},
    {S_WAITING, ON_HOLD, S_PARKING, "a parked row, numbered in claim order"},
    {S_WAITING, ON_DROP, S_OVER, "its row stays and is drained again"},
    {S_READY, ON_ACCEPT, S_SENT, "the sink has it; that is not delivered"},
    {S_READY, ON_BACK, S_WAITING, "order first"},
    {S_READY, ON_HOLD, S_PARKING, "a parked row, numbered in claim order"},
    {S_READY, ON_DROP, S_OVER, "its row stays and is drained again"},
    {S_SENT, ON_DELIVERED, S_DELIVERED, "the next of its key may go"},
    {S_SENT, ON_RETRY, S_PARKING, "an attempt is spent; back-off; its key is held"},
    {S_SENT, ON_EXHAUSTED, S_DYING, "no attempt is left"},
    {S_SENT, ON_REJECT, S_DYING, "dead at once, with the reason"},
    {S_SENT, ON_BLOCKED, S_WAITING, "no attempt is spent; the destination is probed"},
    {S_SENT, ON_BLOCKED_TOO_LONG, S_DYING,
     "no attempt is spent; its key waits until it is recorded"},
    {S_SENT, ON_RETURNED, S_WAITING, "no attempt is spent; goes again in order"},
    {S_SENT, ON_RETURNED_OFTEN, S_PARKING, "no attempt is spent; back-off; its key is held"},
    {S_SENT, ON_OVERDUE, S_OVERDUE, "gets a parked row, so that the cursor can pass"},
    {S_OVERDUE, ON_DELIVERED, S_DELIVERED, "late, but delivered"},
    {S_OVERDUE, ON_RETRY, S_PARKING, "an attempt is spent"},
    {S_OVERDUE, ON_EXHAUSTED, S_DYING, "no attempt is left"},
    {S_OVERDUE, ON_REJECT, S_DYING, "dead at once, with the reason"},
    {S_OVERDUE, ON_BLOCKED, S_PARKING, "no attempt is spent"},
    {S_OVERDUE, ON_BLOCKED_TOO_LONG, S_DYING, "no attempt is spent"},
    {S_OVERDUE, ON_RETURNED, S_PARKING, "no attempt is spent"},
    {S_OVERDUE, ON_RETURNED_OFTEN, S_PARKING, "no attempt is spent; back-off"},
    {S_OVERDUE, ON_RECORDED, S_SENT, "still in flight, now with a row"},
    {S_DELIVERED, ON_RECORDED, S_OVER, "settled"},
    {S_PARKING, ON_RECORDED, S_OVER, "parked: comes back by a drain"},
    {S_DYING, ON_RECORDED, S_OVER, "dead, until a person says otherwise"},
    {S_OVER, ON_COLLECTED, S_FREE, "its bytes were freed"},
};

void ob__states_init(struct ob_flow *f)
{
    memset(f->to, N_STATES, sizeof(f->to));
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        f->to[table[i].from][table[i].on] = table[i].to;
}

void ob__move(struct ob_flow *f, struct slot *s, enum on on)
{
    uint8_t to = f->to[s->state][on];
    assert(to < N_STATES); /* a move that the table does not have is a bug of the flow */
    s->state = to;
}

void ob_flow_print_states(struct ob_buf *out)
{
    ob_buf_c(out, "| state | on | next | what it means |\n|---|---|---|---|\n");
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        ob_buf_printf(out, "| %s | %s | %s | %s |\n", state_names[table[i].from],
                      on_names[table[i].on], state_names[table[i].to], table[i].what);
}
