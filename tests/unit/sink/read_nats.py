#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""read_nats - a fresh stream, or what is in it, in the words of read_lines.py.

    read_nats.py PORT fresh     deletes all streams and makes one that takes `orders`
    read_nats.py PORT elsewhere makes one that takes `elsewhere`
    read_nats.py PORT read      one line per message of it
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "e2e")]
import natsraw  # noqa: E402
from read_lines import word  # noqa: E402


def main():
    with natsraw.Client(int(sys.argv[1])) as c:
        if sys.argv[2] == "fresh":
            for name in c.request("$JS.API.STREAM.NAMES").get("streams") or []:
                c.delete(name)
            c.stream("ORDERS", "orders")
            return
        if sys.argv[2] == "elsewhere":
            c.stream("ELSEWHERE", "elsewhere")
            return
        for m in c.read("ORDERS"):
            headers = [(k, v) for k, v in m.headers if not k.startswith("Nats-") and k != "Content-Type"]
            value = b"" if m.data == b"null" else m.data
            out = [word(m.id), word(m.subject), word(""), word(""), "raw", word(value), str(len(headers))]
            for name, text in headers:
                out += [word(name), word(text)]
            print(" ".join(out))


if __name__ == "__main__":
    main()
