/* SPDX-License-Identifier: Apache-2.0 */
/* proxy - what stands between a sink and its broker and spoils the connection. Every call is for
 * any thread and takes effect at once. */
#ifndef OB_TEST_SINK_PROXY_H
#define OB_TEST_SINK_PROXY_H

#include <stdbool.h>

struct proxy;

/* Listens on a free port of 127.0.0.1, open. */
struct proxy *proxy_new(void);
int proxy_port(const struct proxy *p);
/* Where it passes to, before anybody connects. */
void proxy_aim(struct proxy *p, int port);
/* false: what is connected is cut, what connects is closed at once. */
void proxy_open(struct proxy *p, bool open);
/* All connections end now; new ones are welcome. */
void proxy_cut(struct proxy *p);
/* Each piece of what the broker says comes so much later. */
void proxy_delay(struct proxy *p, int ms);
void proxy_free(struct proxy *p);

#endif
