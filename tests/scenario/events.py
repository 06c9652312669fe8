# SPDX-License-Identifier: Apache-2.0
"""events - what writers, worlds and the verdict agree on: the id and the type of an event follow from its tag."""

import uuid
import zlib

KEYS = 12
NAMESPACE = uuid.UUID("6f0e7c1a-2f4b-4c7e-9b53-0d3c5a1e7b11")


def event_id(tag):
    return str(uuid.uuid5(NAMESPACE, tag))


def event_type(tag):
    """One event in ten is `special`: it has a route, and so a topic, of its own."""
    return "special" if zlib.crc32(tag.encode()) % 10 == 0 else "counted"
