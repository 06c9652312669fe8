/* SPDX-License-Identifier: Apache-2.0 */
/* faults - the system calls of a file sink, made to fail. One sink at a time; thread-safe. */
#ifndef OB_TEST_SINK_FAULTS_H
#define OB_TEST_SINK_FAULTS_H

#include "sink/file/file.h"

extern const struct ob_store_sys faults_sys;

enum fault {
    FAULT_SHORT_WRITE, /* half of the bytes, cut anywhere */
    FAULT_WRITE_EIO,   /* nothing, EIO */
    FAULT_FSYNC,       /* EIO */
    FAULT_FSYNC_DIR,
    FAULT_TRUNCATE,
    FAULT_RENAME,
    FAULTS,
};

void faults_reset(void);
/* The next n calls fail. */
void faults_set(enum fault f, int n);
int faults_left(enum fault f);
/* fdatasync() waits while held. */
void faults_hold(bool hold);
void faults_wait_held(void);
unsigned faults_writes(void), faults_syncs(void), faults_dir_syncs(void);
/* How often a file was synced after a sync of it had failed. */
unsigned faults_repeated(void);

#endif
