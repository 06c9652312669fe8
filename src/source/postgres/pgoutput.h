/* SPDX-License-Identifier: Apache-2.0 */
/* pgoutput - the messages of logical replication, plugin pgoutput, protocol 1. Pure: bytes in,
 * slices of the same bytes out. Nothing is copied, nothing is allocated, no byte behind the end is
 * looked at. */
#ifndef OB_SOURCE_POSTGRES_PGOUTPUT_H
#define OB_SOURCE_POSTGRES_PGOUTPUT_H

#include "core/err.h"
#include "core/str.h"

#define PGO_COLUMNS_MAX 1600 /* the server's own limit of a table */

enum pgo_kind {
    PGO_BEGIN = 'B',
    PGO_COMMIT = 'C',
    PGO_ORIGIN = 'O',
    PGO_RELATION = 'R',
    PGO_TYPE = 'Y',
    PGO_INSERT = 'I',
    PGO_UPDATE = 'U',
    PGO_DELETE = 'D',
    PGO_TRUNCATE = 'T',
    PGO_MESSAGE = 'M',
};

enum pgo_form { PGO_NULL = 'n', PGO_UNCHANGED = 'u', PGO_TEXT = 't', PGO_BINARY = 'b' };

/* A value of a tuple. UNCHANGED: a large one that an update left as it was, and did not send. */
struct pgo_value {
    enum pgo_form form;
    struct ob_str v;
};

struct pgo_column {
    struct ob_str name;
    uint32_t type;
    int32_t typmod;
    bool key;
};

/* Where the columns of one message go; large, so its owner keeps one. */
struct pgo_room {
    struct pgo_value values[PGO_COLUMNS_MAX];
    struct pgo_column columns[PGO_COLUMNS_MAX];
};

struct pgo_msg {
    enum pgo_kind kind;
    uint64_t lsn;          /* BEGIN, COMMIT, ORIGIN: of the commit record; MESSAGE: its own */
    uint64_t end_lsn;      /* COMMIT: behind the commit record */
    int64_t time_us;       /* BEGIN, COMMIT: Unix time */
    uint32_t xid;          /* BEGIN */
    uint32_t relation;     /* RELATION, INSERT, UPDATE, DELETE; TYPE: its oid */
    struct ob_str space;   /* RELATION, TYPE: schema, "" is pg_catalog */
    struct ob_str name;    /* RELATION, TYPE, ORIGIN; MESSAGE: prefix */
    struct ob_str content; /* MESSAGE; TRUNCATE: oids, 4 bytes each */
    bool transactional;    /* MESSAGE */
    uint32_t n_relations;  /* TRUNCATE */
    /* In the room. INSERT, UPDATE: the new row; DELETE: what is left of the old one. */
    const struct pgo_value *values;
    const struct pgo_column *columns; /* RELATION */
    size_t n;                         /* of either */
};

/* OB_REJECT: the bytes are no such message; err says at which byte. *out is then undefined. */
enum ob_status ob_pgo_decode(struct ob_str bytes, struct pgo_room *room, struct pgo_msg *out,
                             struct ob_err *err) OB_MUST_CHECK;
/* Relation i of a TRUNCATE. */
uint32_t ob_pgo_truncated(const struct pgo_msg *msg, uint32_t i);

/* What a replication connection carries: a part of the WAL, or a sign of life. */
struct pgo_frame {
    bool keepalive;
    bool reply;         /* KEEPALIVE: the server wants a status now */
    uint64_t start;     /* data: where it stands in the WAL */
    uint64_t end;       /* how far the server has come */
    struct ob_str data; /* a message */
};
enum ob_status ob_pgo_frame(struct ob_str bytes, struct pgo_frame *out,
                            struct ob_err *err) OB_MUST_CHECK;

/* A status update: everything below `flushed` may be forgotten by the server. */
#define PGO_STATUS_SIZE 34
void ob_pgo_status(uint64_t written, uint64_t flushed, int64_t now_us, bool reply,
                   char out[PGO_STATUS_SIZE]);

/* "16/B374D848". */
#define PGO_LSN_TEXT 18
void ob_pgo_lsn_format(uint64_t lsn, char out[PGO_LSN_TEXT]);
bool ob_pgo_lsn_parse(const char *text, uint64_t *out) OB_MUST_CHECK;
/* A transaction id with its epoch: the one of 2^32 apart that is nearest to `near`. */
uint64_t ob_pgo_xid(uint32_t xid, uint64_t near);

#endif
