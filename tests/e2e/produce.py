# SPDX-License-Identifier: Apache-2.0
"""produce - liboutbox as another language would call it: events with a context into PostgreSQL."""

import ctypes
import os
import pathlib

import pytest

from helpers import BIN, SLOW

CONTEXT = ["tenant", "user", "correlation_id", "traceparent", "source"]  # enum outbox_ctx_field


class Event(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_char_p), ("aggregate_type", ctypes.c_char_p), ("aggregate_id", ctypes.c_char_p),
        ("payload", ctypes.c_char_p), ("payload_size", ctypes.c_size_t), ("payload_kind", ctypes.c_int), ("id", ctypes.c_char_p),
        ("key", ctypes.c_char_p), ("tenant", ctypes.c_char_p), ("topic", ctypes.c_char_p), ("headers", ctypes.c_char_p),
        ("metadata", ctypes.c_char_p), ("entity_version", ctypes.c_void_p), ("schema_version", ctypes.c_void_p),
        ("max_attempts", ctypes.c_uint), ("reserved", ctypes.c_void_p * 4),
    ]


class Options(ctypes.Structure):
    _fields_ = [
        ("profile", ctypes.c_char_p), ("schema", ctypes.c_char_p), ("table", ctypes.c_char_p), ("columns", ctypes.c_void_p),
        ("n_columns", ctypes.c_size_t), ("streams", ctypes.c_void_p), ("n_streams", ctypes.c_size_t), ("pending", ctypes.c_char_p),
        ("flags", ctypes.c_uint), ("reserved", ctypes.c_void_p * 8),
    ]


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("text", ctypes.c_char * 504)]


def library():
    if SLOW > 1:
        pytest.skip("skipped: a library with a sanitizer cannot be loaded here")
    path = pathlib.Path(os.environ.get("OUTBOX_LIB") or pathlib.Path(BIN).resolve().parent / "src" / "liboutbox.so")
    if not path.exists():
        pytest.skip(f"skipped: there is no {path}")
    return ctypes.CDLL(str(path))


def emit(dsn, profile, context, **event):
    """One event in a transaction of its own; its id."""
    lib, pq = library(), ctypes.CDLL("libpq.so.5")
    for f in (lib.outbox_ctx_new, pq.PQconnectdb, pq.PQexec):
        f.restype = ctypes.c_void_p
    conn, ctx = ctypes.c_void_p(pq.PQconnectdb(dsn.encode())), ctypes.c_void_p(lib.outbox_ctx_new())
    target, err, made = ctypes.c_void_p(), Error(), ctypes.create_string_buffer(64)
    ok = lambda status: status == 0 or pytest.fail(f"{status}: {err.text.decode()}")
    sql = lambda text: pq.PQclear(ctypes.c_void_p(pq.PQexec(conn, text)))
    try:
        for name, value in context.items():
            ok(lib.outbox_ctx_set(ctx, CONTEXT.index(name), value.encode()))
        ok(lib.outbox_pg_target_open(conn, ctypes.byref(Options(profile=profile.encode())), ctypes.byref(target), ctypes.byref(err)))
        sql(b"begin")
        e = Event(**{k: v.encode() for k, v in event.items()})
        ok(lib.outbox_pg_emit(conn, target, ctx, ctypes.byref(e), made, ctypes.byref(err)))
        sql(b"commit")
    finally:
        lib.outbox_pg_target_close(target)
        lib.outbox_ctx_free(ctx)
        pq.PQfinish(conn)
    return made.value.decode()
