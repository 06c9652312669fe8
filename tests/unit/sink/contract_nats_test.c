/* SPDX-License-Identifier: Apache-2.0 */
/* contract_nats_test - the NATS sink keeps the contract on a real server. */
#include "contract.h"
#include "proxy.h"
#include "sink/nats/nats.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct {
    bool tried;
    char url[64], through[64], port[16], skipped[256];
    struct proxy *proxy;
} server;

static void run_reader(const char *what)
{
    size_t n;
    int code;
    char *argv[] = {"/usr/bin/python3", READERS "/read_nats.py", server.port, (char *)what, NULL};
    char *text = run_command(argv, &n, &code);
    if (code != 0)
        fail_msg("%s", text);
    free(text);
}

static void start_server(void)
{
    char pid[16];
    size_t n;
    int code;
    server.tried = true;
    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    char *argv[] = {"/usr/bin/python3", SERVICES "/nats",    "start", "--while", pid,
                    "--conf",           "max_payload: 64MB", NULL};
    char *text = run_command(argv, &n, &code);
    const char *port = strstr(text, "NATS_PORTS=");
    if (code == 77)
        snprintf(server.skipped, sizeof(server.skipped), "%.*s", (int)strcspn(text, "\n"), text);
    else if (code != 0 || !port)
        fail_msg("%s", text);
    else
        snprintf(server.port, sizeof(server.port), "%.*s", (int)strcspn(port + 11, "\n"),
                 port + 11);
    snprintf(server.url, sizeof(server.url), "nats://127.0.0.1:%s", server.port);
    free(text);
}

static void *nats_begin(void *conf, const char **skip)
{
    struct ob_sink_nats_conf *c = conf;
    if (!server.tried)
        start_server();
    if (server.skipped[0]) {
        *skip = server.skipped;
        return NULL;
    }
    run_reader("fresh");
    *c = (struct ob_sink_nats_conf){.url = server.url,
                                    .inbox_prefix = "_INBOX",
                                    .window = 1000,
                                    .max_payload = (int64_t)CONTRACT_MAX,
                                    .verify = true,
                                    .connect_timeout_ms = 10000,
                                    .ping_interval_ms = 30000};
    return &server;
}

/* Many in flight per key, in order by themselves; with a failure in mid-chain when one is oversize.
 */
static void *chain_begin(void *conf, const char **skip)
{
    struct ob_sink_nats_conf *c = conf;
    void *data = nats_begin(conf, skip);
    static const char *keys[] = {"orders", "elsewhere"}, *values[] = {"ORDERS", "ELSEWHERE"};
    c->single_writer = true;
    c->stream_prefixes = (struct ob_opt_map){.keys = keys, .values = values, .n = 2};
    return data;
}

static void nats_read(void *data, struct readback *out)
{
    (void)data;
    char *argv[] = {"/usr/bin/python3", READERS "/read_nats.py", server.port, "read", NULL};
    readback_command(out, argv);
    out->no_key = true;
}

static void nats_end(void *data)
{
    (void)data;
    proxy_free(server.proxy);
    server.proxy = NULL;
}

static struct proxy *nats_through(void *data, void *conf, const char **skip)
{
    struct ob_sink_nats_conf *c = conf;
    (void)data;
    (void)skip;
    server.proxy = proxy_new();
    proxy_aim(server.proxy, atoi(server.port));
    snprintf(server.through, sizeof(server.through), "nats://127.0.0.1:%d",
             proxy_port(server.proxy));
    c->url = server.through;
    return server.proxy;
}

static void nats_aim(void *data, struct message *m)
{
    (void)data;
    contract_put(&m->msg.topic, OB_STR("elsewhere"));
    contract_put(&m->msg.destination, OB_STR("elsewhere"));
    m->msg.dest_hash = 2;
}

static void nats_make(void *data)
{
    (void)data;
    run_reader("elsewhere");
}

#define NATS(name, begin)                                                                          \
    {                                                                                              \
        name, &ob_sink_nats, begin, nats_read, nats_end, nats_through, nats_aim, nats_make         \
    }
static const struct contract_sink nats_sink = NATS("nats", nats_begin);
static const struct contract_sink nats_chain = NATS("nats, single writer", chain_begin);

int main(void)
{
    static const struct contract_sink *const sinks[] = {&nats_sink, &nats_chain};
    return contract_run(sinks, 2);
}
