# SPDX-License-Identifier: Apache-2.0
"""file_sink - the file as sink of the scenario. All relays write one file per shard, whose lines are the order of delivery; a file that a
hung process holds is set aside by the next owner. Another sink is another class with these methods."""

import json
import os
import re
import time

from verdict import Delivery

NAME = re.compile(r"events\.jsonl(?P<shard>\.\d{1,2})?(?P<rest>\.\d{8}T.*)?")


class FileSink:
    kill = hang = None
    slack = 0.3  # seconds by which the times of two lanes may be off
    max_shards = 4

    def __init__(self, folder):
        self.dir, self.away = folder / "out", folder / "away"
        self.dir.mkdir()
        self.marks = []  # (time, bytes of all files by then)

    def config(self):
        return f"{{type: file, path: {self.dir / 'events.jsonl'}}}"

    def files(self):
        """(lane, path) in the order in which the files of a lane were begun: set aside first, by their time."""
        try:
            names = os.listdir(self.dir)
        except OSError:
            return []
        found = []
        for name in names:
            m = NAME.fullmatch(name)
            if m:
                found.append((m["shard"] or "", m["rest"] is None, name))
        return [(lane, self.dir / name) for lane, _, name in sorted(found)]

    def mark(self):
        """Notes when which byte was there; called every few milliseconds."""
        sizes = {}
        for _, p in self.files():
            try:
                st = p.stat()
                sizes[st.st_ino] = st.st_size
            except OSError:
                continue
        if sizes and (not self.marks or self.marks[-1][1] != sizes):
            self.marks.append((time.monotonic(), sizes))

    def outage(self, begin):
        if begin:
            os.rename(self.dir, self.away)
            self.dir.write_text("not a folder")
        else:
            self.dir.unlink()
            os.rename(self.away, self.dir)

    def deliveries(self):
        """With the time of each line, as far as the marks show it."""
        out, latest = [], {}
        for lane, p in self.files():
            ino, at, k = p.stat().st_ino, 0, 0
            for line in p.read_bytes().split(b"\n")[:-1]:
                at += len(line) + 1
                while k < len(self.marks) - 1 and self.marks[k][1].get(ino, 0) < at:
                    k += 1
                message = json.loads(line)
                value = message["value"]
                latest[lane] = max(latest.get(lane, 0), self.marks[k][0])
                out.append(Delivery(latest[lane], value["key"], value["tag"], lane, message["topic"]))
        return sorted(out, key=lambda d: d.at)

    def tags(self):
        return {d.tag for d in self.deliveries()}

    def count(self):
        lines = 0
        for _, p in self.files():
            try:
                lines += p.read_bytes().count(b"\n")
            except OSError:
                pass
        return lines

    # ---- topics: a file has none ----

    def add_topic(self, topic):
        pass

    def remove_topic(self, topic):
        pass

    removes = False

    def close(self):
        pass
