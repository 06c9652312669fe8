# SPDX-License-Identifier: Apache-2.0
"""verdict - compares what the writers committed with what the sink got: nothing missing, nothing phantom, first deliveries of a key in order, every
repeat explained. Knows neither source nor sink: ledgers in, deliveries in, and what the operator and the faults did."""

import collections
import math

SEEN_S = 1.0  # a delivery is seen at most this much later than it was made

# A disturbance. reach: a delivery up to that many seconds before `at` may be repeated. clean: an operator's action after which
# nothing needs to be repeated (a clean stop, a reload, a hand-over).
Fault = collections.namedtuple("Fault", "at until name reach clean", defaults=(False,))
# lane: within it the order of the list is the order of delivery; across lanes the times decide.
Delivery = collections.namedtuple("Delivery", "at key tag lane topic", defaults=("", ""))


class Ledger:
    """Lines `sign key n tag [time]` of all writers."""

    def __init__(self, paths):
        self.sure, self.maybe, self.undone, self.times = {}, {}, set(), {}
        for path in paths:
            for line in path.read_text().splitlines():
                sign, key, n, tag, *at = line.split()
                if sign == "-":
                    self.undone.add(tag)
                    continue
                into = self.sure if sign == "+" else self.maybe
                into[tag] = (key, int(n))
                if at:
                    self.times[tag] = float(at[0])

    def total(self):
        return len(self.sure)


class Operator:
    """What the operator did to events. dead: tag → state at the end, of every event that was ever dead. discards: time and choice of
    each discard command, the choice as a function of (tag, key). key_changes: (begin, end) of each change of the routes' key expression."""

    def __init__(self, dead=None, discards=(), discarded=0, parks=False, key_changes=()):
        self.dead, self.discards, self.discarded, self.parks, self.key_changes = dead or {}, discards, discarded, parks, key_changes

    def may_miss(self, tag, key):
        return self.discarded_at(tag, key) is not None

    def discarded_at(self, tag, key):
        """When the command that named it had ended; None: it is not discarded, or no command named it."""
        times = [at for at, chosen in self.discards if chosen(tag, key)]
        return max(times) if times and self.dead.get(tag) == "discarded" else None

    def unordered(self, ledger, tag, delivered_at):
        """No order is promised for an event that died while its key went on, nor for one that was committed under one key expression and
        delivered under another: that is another key."""
        if tag in self.dead and not self.parks:
            return True
        committed_at = ledger.times.get(tag, -math.inf)
        return any(committed_at - SEEN_S <= end and begin <= delivered_at + SEEN_S for begin, end in self.key_changes)


def missing(ledger, got, operator=None):
    return [tag for tag, (key, _) in ledger.sure.items() if tag not in got and not (operator and operator.may_miss(tag, key))]


def judge(ledger, deliveries, faults, operator=None, slack=0.0, strict=False):
    """Problems as text, and a dict of what was counted."""
    operator = operator or Operator()
    problems = []
    first, last, repeats = {}, {}, []
    for d in deliveries:
        if d.tag in first:
            repeats.append((last[d.tag], d))
        first.setdefault(d.tag, d)
        last[d.tag] = d
    problems += judge_missing(ledger, first, operator)
    phantom = [t for t in first if t not in ledger.sure and t not in ledger.maybe]
    if phantom:
        rolled = sum(t in ledger.undone for t in phantom)
        problems.append(f"{len(phantom)} phantoms ({rolled} of them were rolled back): {sorted(phantom)[:10]}")
    problems += order(ledger, deliveries, first, operator, slack)
    why, clean = collections.Counter(), collections.Counter()
    unexplained = []
    for before, again in repeats:
        fault = explain(before, again, faults)
        if fault is None:
            unexplained.append(f"{again.tag}: delivered at {before.at:.2f} and again at {again.at:.2f}, and nothing in between explains it")
        else:
            (clean if fault.clean else why)[fault.name] += 1
    problems += unexplained
    if strict and clean:
        problems.append(f"{sum(clean.values())} repeats that only a clean action explains: {dict(clean)}")
    counted = {
        "committed": ledger.total(), "unknown": len(ledger.maybe), "unknown_delivered": sum(t in first for t in ledger.maybe),
        "rolled_back": len(ledger.undone), "delivered": len(first), "repeats": len(repeats), "repeats_by": dict(why), "clean": dict(clean),
        "died": len(operator.dead), "discarded": operator.discarded, "wait": longest_wait(ledger, first, operator),
    }
    return problems, counted


def judge_missing(ledger, first, operator):
    problems = []
    lost = missing(ledger, first, operator)
    if lost:
        problems.append(f"{len(lost)} missing of {ledger.total()}: {sorted(lost)[:10]}")
    gone = [t for t, state in operator.dead.items() if state == "discarded"]
    if len(gone) != operator.discarded:
        problems.append(f"{len(gone)} events are discarded, but the commands reported {operator.discarded}")
    keys = {t: kn[0] for t, kn in (*ledger.sure.items(), *ledger.maybe.items())}
    back = []  # one that was delivered, came again after a crash and died then, may be discarded
    for tag in gone:
        at = operator.discarded_at(tag, keys.get(tag, ""))
        if tag in first and at is not None and first[tag].at > at + SEEN_S:
            back.append(tag)
    if back:
        problems.append(f"{len(back)} events were first delivered after they were discarded: {sorted(back)[:10]}")
    left = [t for t, state in operator.dead.items() if state == "dead"]
    if left:
        problems.append(f"{len(left)} events are dead at the end, although all were retried: {sorted(left)[:10]}")
    return problems


def order(ledger, deliveries, first, operator, slack):
    """The counter of a key is raised under its lock: committed values are 1, 2, 3 … without a gap, and that is the order."""
    problems, numbers = [], collections.defaultdict(dict)
    for tag, (key, n) in list(ledger.sure.items()) + [(t, kn) for t, kn in ledger.maybe.items() if t in first]:
        if n in numbers[key]:
            problems.append(f"{key}: number {n} belongs to {numbers[key][n]} and to {tag}: one of them was not committed and is a phantom")
        numbers[key][n] = tag
    place = {}
    for i, d in enumerate(deliveries):
        place.setdefault(d.tag, i)
    for key, tags in sorted(numbers.items()):
        gaps = [n for n in range(1, max(tags) + 1) if n not in tags]
        if gaps:
            problems.append(f"{key}: number {gaps[0]} and {len(gaps) - 1} others were committed and never delivered")
        have = [t for n, t in sorted(tags.items()) if t in first and not operator.unordered(ledger, t, first[t].at)]
        wrong = overtaken(have, first, place, slack)
        if wrong:
            problems.append(f"{key}: {len(wrong)} of {len(tags)} out of order: {wrong[:5]}")
    return problems


def overtaken(tags, first, place, slack):
    """Those that were delivered before an earlier one of their key, each with it."""
    wrong, latest = [], {}  # lane → the tag that was delivered last in it
    for tag in tags:
        d = first[tag]
        for lane, other in latest.items():
            if place[other] > place[tag] and (lane == d.lane or first[other].at > d.at + slack):
                wrong.append(f"{tag} ({d.topic}) before {other} ({first[other].topic})")
                break
        if d.lane not in latest or place[tag] > place[latest[d.lane]]:
            latest[d.lane] = tag
    return wrong


def explain(before, again, faults):
    """The latest fault between the two deliveries before which the first of them may not have been settled; without one, the latest clean
    action."""
    action = None
    for f in reversed(faults):
        if f.at <= again.at and f.at - f.reach <= before.at <= f.until + SEEN_S:
            if not f.clean:
                return f
            action = action or f
    return action


def longest_wait(ledger, first, operator):
    """(seconds, tag) of the event that waited longest between its commit and its first delivery; dead events aside."""
    waits = [(first[t].at - at, t) for t, at in ledger.times.items() if t in first and t not in operator.dead]
    return max(waits, default=(0.0, ""))
