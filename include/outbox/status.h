/* SPDX-License-Identifier: Apache-2.0 */
/* status - what every call of liboutbox answers: what to do next, and the text of what happened. */
#ifndef OUTBOX_STATUS_H
#define OUTBOX_STATUS_H

#if defined(__GNUC__)
#define OUTBOX_API __attribute__((visibility("default")))
#else
#define OUTBOX_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers are part of the ABI and never change. */
enum outbox_status {
    OUTBOX_OK = 0,
    OUTBOX_AGAIN = 1,  /* nothing now; ask again later */
    OUTBOX_RETRY = 2,  /* this call failed and may succeed later */
    OUTBOX_REJECT = 3, /* the input is at fault: it never will be taken */
    OUTBOX_DOWN = 4,   /* the other end is not there */
    OUTBOX_FENCED = 5, /* another owner took over */
    OUTBOX_FATAL = 6,  /* cannot go on without a person: configuration, schema, a bug */
};

/* Caller-owned; text is always NUL-terminated. */
struct outbox_error {
    enum outbox_status status;
    char text[504];
};

/* "0.1.0": of the library that is linked, not of this header. */
OUTBOX_API const char *outbox_version(void);
/* "ok", "again", "retry", … Never NULL. */
OUTBOX_API const char *outbox_status_name(enum outbox_status status);

#ifdef __cplusplus
}
#endif

#endif
