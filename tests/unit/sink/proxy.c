/* SPDX-License-Identifier: Apache-2.0 */
/* proxy - see proxy.h. A thread accepts, and each connection has two that copy. */
#include "proxy.h"

#include "harness.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_OPEN 64

struct proxy {
    pthread_mutex_t lock;
    pthread_cond_t left; /* somebody who copied has ended */
    pthread_t thread;
    int listener, port, target;
    atomic_bool open;
    atomic_int delay_ms;
    int socks[MAX_OPEN]; /* under the lock; -1: free */
    unsigned copying;    /* likewise */
};

struct pair {
    struct proxy *p;
    int ends[2]; /* the sink, the broker */
    atomic_int refs;
};

struct way {
    struct pair *pair;
    int from;
};

static struct sockaddr_in address(int port)
{
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr = {htonl(INADDR_LOOPBACK)}};
}

static void cut_locked(struct proxy *p)
{
    for (size_t i = 0; i < MAX_OPEN; i++)
        if (p->socks[i] >= 0)
            shutdown(p->socks[i], SHUT_RDWR);
}

static void forget(struct proxy *p, int fd)
{
    for (size_t i = 0; i < MAX_OPEN; i++)
        if (p->socks[i] == fd)
            p->socks[i] = -1;
    close(fd);
}

static bool remember(struct proxy *p, int fd)
{
    for (size_t i = 0; i < MAX_OPEN; i++)
        if (p->socks[i] < 0) {
            p->socks[i] = fd;
            return true;
        }
    return false;
}

static bool put_all(int fd, const char *data, ssize_t n)
{
    while (n > 0) {
        ssize_t put = send(fd, data, (size_t)n, MSG_NOSIGNAL);
        if (put <= 0)
            return false;
        data += put;
        n -= put;
    }
    return true;
}

static void *copy(void *arg)
{
    struct way *w = arg;
    struct pair *pair = w->pair;
    struct proxy *p = pair->p;
    char data[65536];
    for (ssize_t n; (n = recv(pair->ends[w->from], data, sizeof(data), 0)) > 0;) {
        int ms = w->from == 1 ? atomic_load(&p->delay_ms) : 0;
        nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
        if (!put_all(pair->ends[!w->from], data, n))
            break;
    }
    pthread_mutex_lock(&p->lock);
    shutdown(pair->ends[0], SHUT_RDWR);
    shutdown(pair->ends[1], SHUT_RDWR);
    if (atomic_fetch_sub(&pair->refs, 1) == 1) {
        forget(p, pair->ends[0]);
        forget(p, pair->ends[1]);
        free(pair);
    }
    p->copying--;
    pthread_cond_signal(&p->left);
    pthread_mutex_unlock(&p->lock);
    free(w);
    return NULL;
}

static void start_copying(struct pair *pair, int from)
{
    pthread_t t;
    struct way *w = malloc(sizeof(*w));
    assert_non_null(w);
    *w = (struct way){pair, from};
    pair->p->copying++;
    assert_int_equal(pthread_create(&t, NULL, copy, w), 0);
    pthread_detach(t);
}

static void welcome(struct proxy *p, int client)
{
    int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in to = address(p->target);
    pthread_mutex_lock(&p->lock);
    if (!atomic_load(&p->open) || connect(server, (struct sockaddr *)&to, sizeof(to)) != 0) {
        close(client);
        close(server);
    } else {
        struct pair *pair = malloc(sizeof(*pair));
        assert_true(pair && remember(p, client) && remember(p, server));
        *pair = (struct pair){.p = p, .ends = {client, server}, .refs = 2};
        start_copying(pair, 0);
        start_copying(pair, 1);
    }
    pthread_mutex_unlock(&p->lock);
}

static void *serve(void *arg)
{
    struct proxy *p = arg;
    for (int fd; (fd = accept4(p->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0;)
        welcome(p, fd);
    return NULL;
}

struct proxy *proxy_new(void)
{
    struct proxy *p = calloc(1, sizeof(*p));
    assert_non_null(p);
    struct sockaddr_in at = address(0);
    socklen_t n = sizeof(at);
    memset(p->socks, 0xff, sizeof(p->socks));
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->left, NULL);
    atomic_store(&p->open, true);
    p->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(p->listener, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(p->listener, 64), 0);
    assert_int_equal(getsockname(p->listener, (struct sockaddr *)&at, &n), 0);
    p->port = ntohs(at.sin_port);
    assert_int_equal(pthread_create(&p->thread, NULL, serve, p), 0);
    return p;
}

int proxy_port(const struct proxy *p)
{
    return p->port;
}

void proxy_aim(struct proxy *p, int port)
{
    pthread_mutex_lock(&p->lock);
    p->target = port;
    pthread_mutex_unlock(&p->lock);
}

void proxy_open(struct proxy *p, bool open)
{
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->open, open);
    if (!open)
        cut_locked(p);
    pthread_mutex_unlock(&p->lock);
}

void proxy_cut(struct proxy *p)
{
    pthread_mutex_lock(&p->lock);
    cut_locked(p);
    pthread_mutex_unlock(&p->lock);
}

void proxy_delay(struct proxy *p, int ms)
{
    atomic_store(&p->delay_ms, ms);
}

void proxy_free(struct proxy *p)
{
    if (!p)
        return;
    shutdown(p->listener, SHUT_RDWR); /* ends accept() */
    pthread_join(p->thread, NULL);
    proxy_open(p, false);
    pthread_mutex_lock(&p->lock);
    while (p->copying > 0)
        pthread_cond_wait(&p->left, &p->lock);
    pthread_mutex_unlock(&p->lock);
    close(p->listener);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->left);
    free(p);
}
