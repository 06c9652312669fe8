/* SPDX-License-Identifier: Apache-2.0 */
/* mongo_native - the fields of Outbox's own documents in MongoDB, as a mapping like any other. Who
 * writes them (produce) and who reads them (source) agree here. */
#ifndef OB_EVENT_MONGO_NATIVE_H
#define OB_EVENT_MONGO_NATIVE_H

#include "event/mapping.h"

#define OB_MONGO_NATIVE "outbox_events" /* the collection's name unless configured */

/* `key` is always written: the key, or the aggregate's id. Documents of a key are in the order of
 * `seq`, which the server gives. A further field `payload_kind` says json, text or bytes. */
extern const struct ob_mapping ob_mongo_native;

#endif
