# SPDX-License-Identifier: Apache-2.0
"""verdict - compares what the writers committed with what the sink got: nothing missing, nothing phantom, first deliveries of a key in order, every
repeat explained. Knows neither source nor sink: ledgers in, deliveries in."""

import collections

SEEN_S = 1.0  # a line is seen so much later than it was written, at most

Fault = collections.namedtuple("Fault", "at until name reach")  # reach: a delivery so many seconds before `at` may come again
Delivery = collections.namedtuple("Delivery", "at key tag")


class Ledger:
    """Lines `sign key n tag` of all writers."""

    def __init__(self, paths):
        self.sure, self.maybe, self.undone = {}, {}, set()
        for path in paths:
            for line in path.read_text().splitlines():
                sign, key, n, tag = line.split()
                if sign == "-":
                    self.undone.add(tag)
                    continue
                into = self.sure if sign == "+" else self.maybe
                into[tag] = (key, int(n))

    def total(self):
        return len(self.sure)


def missing(ledger, got):
    return [tag for tag in ledger.sure if tag not in got]


def judge(ledger, deliveries, faults):
    """Problems as text, and a dict of what was counted."""
    problems = []
    first, last, repeats = {}, {}, []
    for d in deliveries:
        if d.tag in first:
            repeats.append((last[d.tag], d))
        first.setdefault(d.tag, d)
        last[d.tag] = d
    lost = missing(ledger, first)
    if lost:
        problems.append(f"{len(lost)} missing of {ledger.total()}: {sorted(lost)[:10]}")
    phantom = [t for t in first if t not in ledger.sure and t not in ledger.maybe]
    if phantom:
        rolled = sum(t in ledger.undone for t in phantom)
        problems.append(f"{len(phantom)} phantoms ({rolled} of them were rolled back): {sorted(phantom)[:10]}")
    problems += order(ledger, first)
    why = collections.Counter()
    for before, again in repeats:
        fault = explain(before, again, faults)
        if fault is None:
            problems.append(f"{again.tag}: delivered at {before.at:.2f} and again at {again.at:.2f}, and nothing in between explains it")
        else:
            why[fault.name] += 1
    counted = {
        "committed": ledger.total(), "unknown": len(ledger.maybe), "unknown_delivered": sum(t in first for t in ledger.maybe),
        "rolled_back": len(ledger.undone), "delivered": len(first), "repeats": len(repeats), "repeats_by": dict(why),
    }
    return problems, counted


def order(ledger, first):
    """The counter of a key is raised under its lock: committed values are 1, 2, 3 … without a gap, and that is the order."""
    problems, numbers = [], collections.defaultdict(dict)
    for tag, (key, n) in list(ledger.sure.items()) + [(t, kn) for t, kn in ledger.maybe.items() if t in first]:
        if n in numbers[key]:
            problems.append(f"{key}: number {n} belongs to {numbers[key][n]} and to {tag}: one of them was not committed and is a phantom")
        numbers[key][n] = tag
    place = {tag: i for i, tag in enumerate(first)}
    for key, tags in sorted(numbers.items()):
        want = [tags[n] for n in sorted(tags)]
        gaps = [n for n in range(1, max(tags) + 1) if n not in tags]
        if gaps:
            problems.append(f"{key}: number {gaps[0]} and {len(gaps) - 1} others were committed by somebody and never delivered")
        have = [t for t in want if t in place]
        wrong = [b for a, b in zip(have, have[1:]) if place[a] > place[b]]
        if wrong:
            problems.append(f"{key}: {len(wrong)} of {len(want)} out of order: {wrong[:5]}")
    return problems


def explain(before, again, faults):
    """The latest disturbance between the two deliveries before which the first of them may not have been settled."""
    for f in reversed(faults):
        if f.at <= again.at and f.at - f.reach <= before.at <= f.until + SEEN_S:
            return f
    return None
