/* SPDX-License-Identifier: Apache-2.0 */
/* embed - the relay inside your own program, in a thread of its own.
 *
 *     cc embed.c $(pkg-config --cflags --libs outbox) -pthread -o embed
 *     ./embed outbox.yaml            until SIGTERM or SIGINT
 *     ./embed outbox.yaml --once     relays what is there
 */
#include <outbox/relay.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct job {
    struct outbox_relay *relay;
    enum outbox_status status;
    struct outbox_error err;
};

static void *relay_main(void *arg)
{
    struct job *job = arg;

    job->status = outbox_relay_run(job->relay, &job->err);
    kill(getpid(), SIGUSR1); /* wakes main() when the relay ends by itself */
    return NULL;
}

int main(int argc, char **argv)
{
    struct job job = {.status = OUTBOX_OK};
    sigset_t signals;
    pthread_t thread;
    int sig = 0;

    if (argc < 2) {
        fprintf(stderr, "usage: %s CONFIG [--once]\n", argv[0]);
        return 2;
    }
    unsigned flags = argc > 2 && strcmp(argv[2], "--once") == 0 ? OUTBOX_RELAY_ONCE : 0;

    /* Blocked before any thread exists: all of them inherit it, and sigwait() below takes them. */
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    sigaddset(&signals, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);

    if (outbox_relay_open(argv[1], NULL, flags, STDERR_FILENO, &job.relay, &job.err) != OUTBOX_OK) {
        fprintf(stderr, "%s\n", job.err.text);
        return 1;
    }
    if (pthread_create(&thread, NULL, relay_main, &job) != 0) {
        outbox_relay_close(job.relay);
        return 1;
    }

    /* Your program does its own work here. */
    while (sigwait(&signals, &sig) == 0 && sig != SIGUSR1) {
        struct outbox_error err;
        if (sig != SIGHUP)
            outbox_relay_stop(job.relay);
        else if (outbox_relay_reload(job.relay, &err) != OUTBOX_OK)
            fprintf(stderr, "%s\n", err.text); /* what was running goes on */
    }

    pthread_join(thread, NULL);
    outbox_relay_close(job.relay);
    printf("relay ended: %s\n", outbox_status_name(job.status));
    if (job.status != OUTBOX_OK)
        fprintf(stderr, "%s\n", job.err.text);
    return job.status == OUTBOX_OK ? 0 : 1;
}
