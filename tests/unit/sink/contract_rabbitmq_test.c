/* SPDX-License-Identifier: Apache-2.0 */
/* contract_rabbitmq_test - the RabbitMQ sink keeps the contract on a real server. */
#include "contract.h"
#include "proxy.h"
#include "sink/rabbitmq/rabbit.h"

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
    char *argv[] = {"/usr/bin/python3", READERS "/read_rabbitmq.py", server.port, (char *)what,
                    NULL};
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
    char *argv[] = {"/usr/bin/python3", SERVICES "/rabbitmq", "start", "--while", pid, NULL};
    char *text = run_command(argv, &n, &code);
    const char *port = strstr(text, "RABBITMQ_PORT=");
    if (code == 77)
        snprintf(server.skipped, sizeof(server.skipped), "%.*s", (int)strcspn(text, "\n"), text);
    else if (code != 0 || !port)
        fail_msg("%s", text);
    else
        snprintf(server.port, sizeof(server.port), "%.*s", (int)strcspn(port + 14, "\n"),
                 port + 14);
    snprintf(server.url, sizeof(server.url), "amqp://guest:guest@127.0.0.1:%s/", server.port);
    free(text);
}

static void *rabbit_begin(void *conf, const char **skip)
{
    struct ob_sink_rabbit_conf *c = conf;
    if (!server.tried)
        start_server();
    if (server.skipped[0]) {
        *skip = server.skipped;
        return NULL;
    }
    run_reader("fresh");
    *c = (struct ob_sink_rabbit_conf){.url = server.url,
                                      .exchange = "orders.ex",
                                      .exchange_type = "topic",
                                      .durable = true,
                                      .window = 1000,
                                      .max_message = (int64_t)CONTRACT_MAX,
                                      .verify = true,
                                      .connect_timeout_ms = 10000,
                                      .heartbeat_ms = 60000};
    return &server;
}

static void rabbit_read(void *data, struct readback *out)
{
    (void)data;
    char *argv[] = {"/usr/bin/python3", READERS "/read_rabbitmq.py", server.port, "read", NULL};
    readback_command(out, argv);
    out->no_key = true;
}

static void rabbit_end(void *data)
{
    (void)data;
    proxy_free(server.proxy);
    server.proxy = NULL;
}

static struct proxy *rabbit_through(void *data, void *conf, const char **skip)
{
    struct ob_sink_rabbit_conf *c = conf;
    (void)data;
    (void)skip;
    server.proxy = proxy_new();
    proxy_aim(server.proxy, atoi(server.port));
    snprintf(server.through, sizeof(server.through), "amqp://guest:guest@127.0.0.1:%d/",
             proxy_port(server.proxy));
    c->url = server.through;
    return server.proxy;
}

static void rabbit_aim(void *data, struct message *m)
{
    (void)data;
    m->msg.stream = OB_STR("elsewhere.ex");
    contract_put(&m->msg.destination, OB_STR("elsewhere.ex/orders"));
    m->msg.dest_hash = 2;
}

static void rabbit_make(void *data)
{
    (void)data;
    run_reader("elsewhere");
}

static const struct contract_sink rabbit_sink = {"rabbitmq",  &ob_sink_rabbitmq, rabbit_begin,
                                                 rabbit_read, rabbit_end,        rabbit_through,
                                                 rabbit_aim,  rabbit_make};

int main(void)
{
    static const struct contract_sink *const sinks[] = {&rabbit_sink};
    return contract_run(sinks, 1);
}
