"""`grew`: which operations take longer than they did, from traces of a call then and now; for a gate's message.

One trace of ten runs differs from the next by whatever else the machine did meanwhile. So a profile is made of several
traces, those of two calls taken in turns, and an operation that runs as often as before is said to have grown only
where its times of all traces lie above all times that it took before.
"""

import dataclasses
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from perfsuite.measure.profiler.traces import LONGEST, Trace

LEAST_GROWTH = 0.01
"""An operation that grew by less, as a share of all operations' time, explains nothing."""

SHRUNK_NAMED = 3


class Spent(NamedTuple):
    """Microseconds a run, over several traces, and how often a run does it."""

    low: float
    us: float
    high: float
    times: float


@dataclasses.dataclass(frozen=True)
class Profile:
    """What one run of a call takes, in microseconds: medians over the traces that it was made of.

    `operations` are by module and by name without its number, because the compiler numbers anew whenever a program
    changes.
    """

    host_us: float
    device_us: float
    idle_share: float
    operations: Mapping[tuple[str, str], Spent]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, to be kept as JSON."""
        return {
            "host_us": self.host_us,
            "device_us": self.device_us,
            "idle_share": self.idle_share,
            "operations": [[*key, *spent] for key, spent in self.operations.items()],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Profile":
        """The inverse of `to_dict`. Raises `KeyError`, `TypeError` or `ValueError` for anything else."""
        times = [float(values[name]) for name in ("host_us", "device_us", "idle_share")]
        operations = {(str(row[0]), str(row[1])): Spent(*map(float, row[2:])) for row in values["operations"]}
        return cls(times[0], times[1], times[2], operations)


def profile_of(*traces: Trace) -> Profile:
    """One profile of several traces of the same call."""
    kinds = [_by_kind(trace) for trace in traces]
    operations = {}
    for key in dict.fromkeys(key for kind in kinds for key in kind):
        us = [kind.get(key, (0.0, 0.0))[0] for kind in kinds]
        count = statistics.median(kind.get(key, (0.0, 0.0))[1] for kind in kinds)
        operations[key] = Spent(min(us), statistics.median(us), max(us), count)
    return Profile(
        host_us=statistics.median(trace.host_us / trace.runs for trace in traces),
        device_us=statistics.median(trace.device_us / trace.runs for trace in traces),
        idle_share=statistics.median(trace.idle_share for trace in traces),
        operations=operations,
    )


def grew(before: Profile, after: Profile) -> list[str]:
    """The operations that take longer in `after`, a run, the most grown first, one line each.

    Operations are held against each other by module and name. Modules that only one side has are held against each
    other as one, because two functions that are compared have names of their own. Left out is what grew by less than
    1 % of the time of all operations of `before`.
    """
    lines = []
    for name, then, now in _changed(before, after):
        often = f"{now.times:g} times" if now.times == then.times else f"{then.times:g} -> {now.times:g} times"
        lines.append(f"{name}: {then.us:.4g} -> {now.us:.4g} us a run (+{now.us - then.us:.4g}), {often}")
    return lines


def shrank(before: Profile, after: Profile) -> list[str]:
    """The operations that take less time in `after`, the most shrunk first: "jit_step: dot (-120)"."""
    return [f"{name} (-{then.us - now.us:.4g})" for name, now, then in _changed(after, before)]


def in_words(before: Profile | None, after: Profile, of: str = "") -> str:
    """What grew between two profiles; of one alone its longest operations. `of` says what is held against what."""
    head = f"traced, a run ({of})" if of else "traced, a run"
    if before is None:
        return "\n".join([f"{head}: {_times(after)}; the longest operations:", *_indented(longest(after))])
    lines = grew(before, after)
    text = [f"{head}: {_change(before, after)}"]
    text += _indented([f"grew: {line}" for line in lines[:LONGEST]])
    if not lines:
        text += _indented(["no operation on the device grew"])
    elif less := shrank(before, after):
        text += _indented([f"less: {', '.join(less[:SHRUNK_NAMED])}"])
    return "\n".join(text)


def longest(profile: Profile) -> list[str]:
    """The ten kinds of operation that take most."""
    most = sorted(profile.operations.items(), key=lambda entry: (-entry[1].us, entry[0]))[:LONGEST]
    return [f"{_name(*key)}: {spent.us:.4g} us, {spent.times:g} times" for key, spent in most]


def _changed(before: Profile, after: Profile) -> list[tuple[str, Spent, Spent]]:
    """Name, before and after of the operations that take longer in `after`, the most grown first."""
    common = {module for module, _ in before.operations} & {module for module, _ in after.operations}
    then, now = _matched(before, common), _matched(after, common)
    least = LEAST_GROWTH * sum(spent.us for spent in before.operations.values())
    none = Spent(0.0, 0.0, 0.0, 0.0)
    found = []
    for key, (module, spent) in now.items():
        was = then[key][1] if key in then else none
        beyond = spent.low > was.high or spent.times > was.times
        if spent.us - was.us > least and beyond:
            found.append((_name(module, key[1]), was, spent))
    return sorted(found, key=lambda entry: (entry[1].us - entry[2].us, entry[0]))


def _matched(profile: Profile, common: set[str]) -> dict[tuple[str | None, str], tuple[str, Spent]]:
    """By what the other side has: the module that takes most of it, and all together."""
    groups: dict[tuple[str | None, str], list[tuple[str, Spent]]] = defaultdict(list)
    for (module, kind), spent in profile.operations.items():
        groups[module if module in common else None, kind].append((module, spent))
    return {key: (max(group, key=lambda entry: entry[1].us)[0], _sum(group)) for key, group in groups.items()}


def _sum(group: Iterable[tuple[str, Spent]]) -> Spent:
    return Spent(*(sum(parts) for parts in zip(*(spent for _, spent in group), strict=True)))


def _by_kind(trace: Trace) -> dict[tuple[str, str], tuple[float, float]]:
    """Microseconds and times a run, by module and unnumbered name."""
    kinds: dict[tuple[str, str], tuple[float, float]] = {}
    for operation in trace.operations:
        key = operation.module, re.sub(r"(\.\d+)+$", "", operation.name)
        us, count = kinds.get(key, (0.0, 0.0))
        kinds[key] = (us + operation.us / trace.runs, count + operation.count / trace.runs)
    return kinds


def _name(module: str, kind: str) -> str:
    return f"{module}: {kind}" if module else kind


def _change(before: Profile, after: Profile) -> str:
    return (
        f"host {before.host_us:.4g} -> {after.host_us:.4g} us, "
        f"device {before.device_us:.4g} -> {after.device_us:.4g} us, "
        f"idle share {before.idle_share:.3f} -> {after.idle_share:.3f}"
    )


def _times(profile: Profile) -> str:
    return f"host {profile.host_us:.4g} us, device {profile.device_us:.4g} us, idle share {profile.idle_share:.3f}"


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]
