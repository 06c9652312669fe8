#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""read_rabbitmq - a fresh exchange with a queue, or what is in it, in the words of read_lines.py.

    read_rabbitmq.py PORT fresh     an exchange `orders.ex` with an empty queue for all of it
    read_rabbitmq.py PORT elsewhere an exchange `elsewhere.ex` with a queue
    read_rabbitmq.py PORT read      one line per message of the queue
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import pika  # noqa: E402
from read_lines import word  # noqa: E402


def line(method, p, body):
    headers = list((p.headers or {}).items())
    value = b"" if body == b"null" else body
    out = [word(p.message_id), word(method.routing_key), word(""), word(""), "raw", word(value), str(len(headers))]
    for name, text in headers:
        out += [word(name), word(text)]
    return " ".join(out)


def main():
    c = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", int(sys.argv[1])))
    ch = c.channel()
    if sys.argv[2] == "fresh":
        ch.exchange_declare("orders.ex", "topic", durable=True)
        ch.queue_delete("orders.q")
        ch.queue_declare("orders.q", durable=True)
        ch.queue_bind("orders.q", "orders.ex", "#")
        ch.exchange_delete("elsewhere.ex")
    elif sys.argv[2] == "elsewhere":
        ch.exchange_declare("elsewhere.ex", "topic", durable=True)
        ch.queue_declare("elsewhere.q", durable=True)
        ch.queue_bind("elsewhere.q", "elsewhere.ex", "#")
    else:
        left = ch.queue_declare("orders.q", passive=True).method.message_count
        for method, properties, body in ch.consume("orders.q", auto_ack=True) if left else ():
            print(line(method, properties, body))
            left -= 1
            if not left:
                break
    c.close()


if __name__ == "__main__":
    main()
