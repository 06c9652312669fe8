/* SPDX-License-Identifier: Apache-2.0 */
/* file - what the config file says of a file sink. */
#ifndef OB_SINK_FILE_FILE_H
#define OB_SINK_FILE_FILE_H

#include "sink/file/store.h"

enum { OB_FILE_FSYNC_DATA, OB_FILE_FSYNC_NONE };

struct ob_sink_file_conf {
    const char *path;
    int64_t rotate_bytes;
    int fsync;
    const char *mode;
    int64_t max_line;
    const struct ob_store_sys *sys; /* NULL: the real one; not an option, for tests */
};

#endif
