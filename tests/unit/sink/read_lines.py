#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""read_lines - reads files of JSON lines strictly and prints them as words of hexadecimal digits.

    read_lines.py FILE...

One line out per line in: id topic stream key kind value n_headers [name value]...
Each word is x + hexadecimal UTF-8 (or the bytes of a base64 field); of more than 64 KiB only
c + length + : + CRC-32. kind: raw, text, base64, null.
Anything that is not as docs/sinks/file.md says ends it with exit code 1 and a reason.
"""

import base64
import datetime
import json
import sys
import zlib

FIELDS = ["id", "topic", "stream", "key", "key_base64", "headers", "content_type", "time",
          "value", "value_text", "value_base64"]


def word(data):
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    if len(data) > 65536:
        return f"c{len(data)}:{zlib.crc32(data)}"
    return "x" + data.hex()


def raw_value(line, value):
    """The bytes of the last field as they stand in the line."""
    mark = b',"value":'
    at = line.find(mark)
    while at >= 0:
        try:
            json.loads(line[:at] + b"}")
            if json.loads(line[at + len(mark):-1]) == value:
                return line[at + len(mark):-1]
        except ValueError:
            pass
        at = line.find(mark, at + 1)
    raise ValueError("no raw value found")


def read(line):
    pairs = json.loads(line.decode("utf-8"), object_pairs_hook=lambda p: p)
    names = [k for k, _ in pairs]
    if names != [f for f in FIELDS if f in names]:
        raise ValueError(f"fields {names}")
    obj = json.loads(line)
    time = obj["time"]
    if time is not None:
        datetime.datetime.strptime(time, "%Y-%m-%dT%H:%M:%S.%fZ")
    if len([f for f in names if f.startswith("value")]) != 1:
        raise ValueError("not exactly one value")
    if "value_text" in obj:
        kind, value = "text", obj["value_text"]
    elif "value_base64" in obj:
        kind, value = "base64", base64.b64decode(obj["value_base64"], validate=True)
    elif obj["value"] is None:
        kind, value = "null", b""
    else:
        kind, value = "raw", raw_value(line, obj["value"])
    key = base64.b64decode(obj["key_base64"]) if "key_base64" in obj else obj["key"]
    headers = dict(pairs)["headers"]
    out = [word(obj["id"]), word(obj["topic"]), word(obj.get("stream", "")), word(key), kind,
           word(value), str(len(headers))]
    for name, text in headers:
        out += [word(name), word(text)]
    return " ".join(out)


def main():
    for path in sys.argv[1:]:
        with open(path, "rb") as f:
            text = f.read()
        if text and not text.endswith(b"\n"):
            sys.exit(f"{path}: the last line is torn")
        for i, line in enumerate(text.split(b"\n")[:-1]):
            try:
                print(read(line))
            except (ValueError, KeyError, TypeError) as e:
                sys.exit(f"{path}:{i + 1}: {e}: {line[:200]!r}")


if __name__ == "__main__":
    main()
