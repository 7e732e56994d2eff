"""What a session does with the comparisons of its tests: its mode, which is chosen once, when the session starts.

The modes here gate, save, make one comparison again in a fresh process, or time one side of an upgrade check.
`session.calibrating` has the mode of --perf-calibrate.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from perfsuite.gate.limits import Compared, Limits
from perfsuite.gate.verdict import Gate, Rerun
from perfsuite.measure import progress
from perfsuite.measure.estimate import Estimate
from perfsuite.measure.stats.error_rates import DECIDING_ERROR
from perfsuite.measure.timing.comparison import Comparison, pooled
from perfsuite.processes import rerun
from perfsuite.processes.handover import Request, write_samples
from perfsuite.processes.rerun import ProcessFailed
from perfsuite.session.mode import Mode, Pair
from perfsuite.session.session import PerfSession

MOST_PROCESSES = 50
"""Where more than these would be needed, more samples are not what settles a comparison."""


class SessionMode(Mode):
    """A mode that knows its session."""

    def __init__(self, session: PerfSession):
        self.session = session


class Gating(SessionMode):
    """Sample until the limits are decided, in further processes where --perf-processes allows it."""

    def compare(self, pair: Pair, limits: Limits) -> Compared:
        settled = limits.settled if limits else None
        return self._further(pair, pair.compare(settled=settled, error=DECIDING_ERROR), limits)

    def _further(self, pair: Pair, first: Comparison, limits: Limits) -> Compared:
        """The comparison, with the samples of further processes where its own leave `limits` undecided.

        A further process samples for all of its time, whatever it sees: stopping where its own samples happen to look
        decided would pull the pooled metric that way. What all the samples together say may be wrong with the same
        chance as what `first` says alone, on top of that.
        """
        most = self.session.options.processes
        if most == 1 or not limits or limits.decided(first):
            return Compared(first)
        now, parts, failure = first, [first], ""
        while len(parts) < most and not limits.decided(now) and not limits.contradiction(parts):
            try:
                with progress.waiting(f"comparing {pair.name} in process {len(parts) + 1} of {most} at most"):
                    parts.append(self._again(pair, first))
            except ProcessFailed as error:
                failure = str(error)
                break
            now = pooled(parts)
        left_open = now.processes > 1 and now.bounded and not limits.decided(now)
        to_settle = what_settles(now, parts, limits, seconds=pair.seconds) if left_open else ""
        return Compared(now, Rerun(now.pairs, len(parts), failure), to_settle)

    def _again(self, pair: Pair, first: Comparison) -> Comparison:
        """`first` as a further process makes it. Raises `ProcessFailed`, also where that compares other calls."""
        cache = self.session.cache
        argument = rerun.argument_of(pair.item)
        request = Request(pair.item.nodeid, argument, pair.metric, None if cache is None else str(cache))
        part = rerun.compare_again(pair.item.config, request)
        of, asked = ((each.candidate, each.reference, each.until) for each in (part, first))
        if of != asked:
            raise ProcessFailed(f"it compared {' with '.join(of[:2])} and not {' with '.join(asked[:2])}")
        return part


class Saving(Gating):
    """As gating, but sample for all of the time: a metric that becomes a baseline is worth knowing well."""

    def compare(self, pair: Pair, limits: Limits) -> Compared:
        return self._further(pair, pair.compare(error=DECIDING_ERROR), limits)

    def fails(self, gate: Gate) -> bool:
        return gate.failed and gate.source == "budget"


class Rerunning(Gating):
    """In a fresh process: make the one comparison that was asked for, hand it over, and end the test there."""

    def __init__(self, session: PerfSession, folder: Path, request: Request):
        super().__init__(session)
        self.folder = folder
        self.request = request

    def compare(self, pair: Pair, limits: Limits) -> Compared:
        if self.request.comparison != pair.metric:
            return super().compare(pair, limits)
        write_samples(self.folder, pair.compare(settled=_never, error=DECIDING_ERROR))
        pytest.skip("the comparison was handed over")


class TimingOneSide(SessionMode):
    """One side of an upgrade check: time each comparison for `seconds`, and note its times: test, name, value, unit.

    Nothing is gated.
    """

    gates = False

    def __init__(self, session: PerfSession, note: Callable[[str, str, float, str], None], seconds: float):
        super().__init__(session)
        self._note = note
        self._seconds = seconds
        self._names: Counter[tuple[str, str]] = Counter()

    def seconds(self, asked: float) -> float:
        return self._seconds

    def compare(self, pair: Pair, limits: Limits) -> Compared:
        comparison = pair.compare(error=DECIDING_ERROR)
        test = pair.item.nodeid
        # Under the name that the gate gives the metric.
        self._note(test, pair.metric, comparison.ratio.value, "x")
        self._names[test, pair.name] += 1
        number = self._names[test, pair.name]
        name = pair.name if number == 1 else f"{pair.name} #{number}"
        sides = ("candidate", comparison.candidate_us), ("reference", comparison.reference_us)
        for side, samples in sides:
            for moment, us in zip(("return", "ready"), np.median(samples, axis=0), strict=True):
                self._note(test, f"{name} {side} to {moment}", float(us), "us")
        return Compared(comparison)


def what_settles(comparison: Comparison, parts: Sequence[Comparison], limits: Limits, *, seconds: float) -> str:
    """What would decide a comparison that its parts, sampled for `seconds` each, left open, in words.

    An interval narrows with the square root of the number of samples, so that follows from how much narrower it must
    be to lie on one side of the limit.
    """
    if seen := limits.contradiction(parts):
        values = ", ".join(f"{value:.4g}" for value in seen)
        return f"the processes contradict each other ({values}), and more processes do not settle that: move the limit"
    processes = len(parts)
    compared = limits.compared(comparison.ratio, comparison.overhead_us)
    needed = processes * max(_narrower(estimate, limit) for estimate, limit in compared) ** 2
    if needed > MOST_PROCESSES:
        return f"more than {MOST_PROCESSES} processes: move the limit, or take a quieter machine"
    more = max(math.ceil(needed), processes + 1)
    longer = round(seconds * more / processes, 2)
    return f"about {more} processes (--perf-processes={more}), or --perf-seconds={longer:g}"


def _narrower(estimate: Estimate, limit: float) -> float:
    """How many times narrower the interval must be to lie on that side of the limit where its estimate is."""
    interval = estimate.interval
    if interval.low > limit or interval.high <= limit:
        return 1.0
    side = interval.high - estimate.value if estimate.value <= limit else estimate.value - interval.low
    distance = abs(estimate.value - limit)
    return side / distance if distance else math.inf


def _never(ratio: Estimate, overhead: Estimate) -> bool:
    return False
