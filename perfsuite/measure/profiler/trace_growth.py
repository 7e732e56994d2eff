"""Which operations take longer than before, from traces of a call then and now; for the message of a failed gate.

A trace of ten runs differs from the next by whatever else the machine did meanwhile. So a profile has several traces,
with those of two calls taken in turns. An operation that runs as often as before counts as grown only if its times in
all traces lie above all times before.
"""

import dataclasses
import re
import statistics
from collections import defaultdict

from perfsuite.measure.profiler.traces import LONGEST, Trace

LEAST_GROWTH = 0.01
"""An operation that grew by less, as a share of the time of all operations, explains nothing."""

SHRUNK_NAMED = 3


@dataclasses.dataclass(frozen=True)
class TimeSpent:
    """What the operations of one kind take in a run, over several traces: microseconds, and how many they are.

    `kind` is an operation's name without its number: the compiler renumbers when a program changes.
    """

    module: str
    kind: str
    low: float
    us: float
    high: float
    times: float

    def __str__(self) -> str:
        return f"{self.module}: {self.kind}" if self.module else self.kind


@dataclasses.dataclass(frozen=True)
class Profile:
    """What one run of a call takes, in microseconds: medians over several traces."""

    host_us: float
    device_us: float
    idle_share: float
    operations: tuple[TimeSpent, ...]

    @property
    def run_us(self) -> float:
        """From the beginning of a run to the end of its last operation, about."""
        return self.device_us / (1 - self.idle_share) if self.idle_share < 1 else self.host_us


def profile_of(*traces: Trace) -> Profile:
    """One profile of several traces of the same call."""
    spent = [_by_kind(trace) for trace in traces]
    operations = []
    for key in dict.fromkeys(key for of_trace in spent for key in of_trace):
        us, times = zip(*(of_trace.get(key, (0.0, 0.0)) for of_trace in spent), strict=True)
        operations.append(TimeSpent(*key, min(us), statistics.median(us), max(us), statistics.median(times)))
    return Profile(
        host_us=statistics.median(trace.host_us / trace.runs for trace in traces),
        device_us=statistics.median(trace.device_us / trace.runs for trace in traces),
        idle_share=statistics.median(trace.idle_share for trace in traces),
        operations=tuple(operations),
    )


def grew(before: Profile, after: Profile) -> list[str]:
    """One line for each operation that takes longer in a run of `after`, the most grown first.

    Operations are compared by module and kind. The modules that only one side has are compared as one, because two
    functions have names of their own. Leaves out what grew by less than 1 % of the time of all operations of `before`.
    """
    lines = []
    for then, now in _grown(before, after):
        often = _times(now.times) if now.times == then.times else f"{then.times:g} -> {_times(now.times)}"
        lines.append(f"{now}: {then.us:.4g} -> {now.us:.4g} us a run (+{now.us - then.us:.4g}), {often}")
    return lines


def growth_us(before: Profile, after: Profile) -> float:
    """By how many microseconds a run the operations grew that `grew` names: a sum over devices and threads."""
    return sum(now.us - then.us for then, now in _grown(before, after))


def where_time_went(before: Profile | None, after: Profile, of: str = "") -> str:
    """What grew between two profiles, or the longest operations of one. `of` names what is compared."""
    head = f"traced, a run ({of})" if of else "traced, a run"
    if before is None:
        sums = f"host {after.host_us:.4g} us, device {after.device_us:.4g} us, idle share {after.idle_share:.3f}"
        longest = sorted(after.operations, key=lambda spent: (-spent.us, spent.module, spent.kind))[:LONGEST]
        lines = [f"{spent}: {spent.us:.4g} us, {_times(spent.times)}" for spent in longest]
        return "\n  ".join([f"{head}: {sums}; the longest operations:", *lines])
    lines = [f"grew: {line}" for line in grew(before, after)[:LONGEST]]
    if not lines:
        lines = ["no operation on the device grew"]
    elif less := [f"{then} (-{then.us - now.us:.4g})" for now, then in _grown(after, before)]:
        lines.append(f"less: {', '.join(less[:SHRUNK_NAMED])}")
    sums = (
        f"host {before.host_us:.4g} -> {after.host_us:.4g} us, "
        f"device {before.device_us:.4g} -> {after.device_us:.4g} us, "
        f"idle share {before.idle_share:.3f} -> {after.idle_share:.3f}"
    )
    return "\n  ".join([f"{head}: {sums}", *lines])


def _grown(before: Profile, after: Profile) -> list[tuple[TimeSpent, TimeSpent]]:
    """Before and after of the operations that take longer in `after`, the most grown first."""
    common = {spent.module for spent in before.operations} & {spent.module for spent in after.operations}
    then, now = _matched(before, common), _matched(after, common)
    least = LEAST_GROWTH * sum(spent.us for spent in before.operations)
    pairs = []
    for key, spent in now.items():
        was = then.get(key, TimeSpent(spent.module, spent.kind, 0.0, 0.0, 0.0, 0.0))
        if spent.us - was.us > least and (spent.low > was.high or spent.times > was.times):
            pairs.append((was, spent))
    return sorted(pairs, key=lambda pair: (pair[0].us - pair[1].us, str(pair[1])))


def _matched(profile: Profile, common: set[str]) -> dict[tuple[str | None, str], TimeSpent]:
    """The sums over all modules that the other side lacks, under the name of the one that takes most."""
    groups: dict[tuple[str | None, str], list[TimeSpent]] = defaultdict(list)
    for spent in profile.operations:
        groups[spent.module if spent.module in common else None, spent.kind].append(spent)
    return {
        key: dataclasses.replace(
            max(group, key=lambda spent: spent.us),
            **{field: sum(getattr(spent, field) for spent in group) for field in ("low", "us", "high", "times")},
        )
        for key, group in groups.items()
    }


def _by_kind(trace: Trace) -> dict[tuple[str, str], tuple[float, float]]:
    """Microseconds and times a run, by module and unnumbered name."""
    kinds: dict[tuple[str, str], tuple[float, float]] = {}
    for operation in trace.operations:
        key = operation.module, re.sub(r"(\.\d+)+$", "", operation.name)
        us, count = kinds.get(key, (0.0, 0.0))
        kinds[key] = (us + operation.us / trace.runs, count + operation.count / trace.runs)
    return kinds


def _times(count: float) -> str:
    return f"{count:g} time" if count == 1 else f"{count:g} times"
