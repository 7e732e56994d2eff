"""What a session does with the comparisons of its tests: its mode, which is chosen once, when the session starts.

The modes here gate, measure one test again in a fresh process, or run or time one side of `perfsuite against`.
`session.saving` has the mode of --perf-save, `session.calibrating` that of --perf-calibrate.
"""

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfsuite.gate.calibration_file import builds_differ
from perfsuite.gate.limits import Compared, Limits
from perfsuite.measure import peers, progress
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.estimate import Estimate
from perfsuite.measure.metric import Interval, Metric
from perfsuite.measure.serialise import plain
from perfsuite.measure.timing.comparison import Comparison
from perfsuite.processes import elsewhere, rerun
from perfsuite.processes.handover import Request, Values, write_metrics, write_values
from perfsuite.processes.rerun import ProcessFailed
from perfsuite.session.mode import Elsewhere, Mode, Pair
from perfsuite.session.session import PerfSession

MOST_TO_CONFIRM = 2
"""Processes that must break a limit, where --perf-processes does not say how many."""

MOMENT = 0.01
"""Seconds for each metric that a fresh process measures on the way to the comparison that is asked for."""

LOOK = 0.1
"""Seconds for a comparison of which only the order of magnitude is asked: enough for an interval of short calls."""


class SessionMode(Mode):
    """A mode that knows its session."""

    def __init__(self, session: PerfSession):
        self.session = session

    def measure_again(self, item: pytest.Item, **asked: Any) -> list[Metric]:
        """What a fresh process measures of a test: `asked` are fields of `Request`. Raises `ProcessFailed`."""
        group = self.session.group
        if group is not None:
            raise ProcessFailed(f"{group.count} processes measure together here")
        return rerun.measure_again(item.config, self.request_for(item, **asked))[item.nodeid]

    def request_for(self, item: pytest.Item, **asked: Any) -> Request:
        """What asks for a test: `asked` are fields of `Request`."""
        cache = None if self.session.cache is None else str(self.session.cache)
        return Request(item.nodeid, rerun.argument_of(item), cache=cache, **asked)


class Gating(SessionMode):
    """Sample until the limits are decided. A broken one counts where fresh processes break it too."""

    @property
    def fingerprints(self) -> bool:
        return self.session.options.changed

    def compare(self, pair: Pair, limits: Limits) -> Compared:
        return self.confirmed(pair, pair.compare(settled=limits.end), limits)

    def confirmed(self, pair: Pair, first: Comparison, limits: Limits) -> Compared:
        """The comparison; where it breaks a limit, made again in fresh processes, until one does not break it."""
        most = self.session.options.processes or MOST_TO_CONFIRM
        compared = Compared(first, builds_differ=0.0 if pair.make else self._builds_differ)
        while len(compared.again) + 1 < most and (broken := compared.broken(limits)):
            try:
                with progress.waiting(f"{pair.name} is over its limit: comparing again in a fresh process"):
                    compared = self._again(pair, broken, compared)
            except ProcessFailed as error:
                return dataclasses.replace(compared, failure=str(error))
        return compared

    def seen_elsewhere(self, asked: Elsewhere) -> list[Any] | None:
        seen: list[Values] = []
        for number in range(asked.processes):
            which = f"fresh process {number + 1} of {asked.processes}"
            packages = elsewhere.in_another_order(seen[0].packages, number) if seen else []
            request = self.request_for(
                asked.item, metric=asked.metric, values=True, given=dict(asked.given), packages=packages
            )
            try:
                with progress.waiting(f"{asked.item.name}: {which} for {asked.metric}"):
                    seen.append(rerun.values_of(asked.item.config, request, number))
            except ProcessFailed as error:
                # Not inside the handler: it has all that there is to say.
                failure = f"perf.{asked.metric}: {which} handed nothing over: {error}"
                break
        else:
            return [each.of_instrument for each in seen]
        raise MeasurementError(failure)

    @functools.cached_property
    def _builds_differ(self) -> float:
        # Of several processes that measure together only the first needs the files.
        return peers.agreed(builds_differ(self.session.options.baselines, self.session.device))

    def _again(self, pair: Pair, limits: Limits, compared: Compared) -> Compared:
        budget = dict(limits.budget)
        ratio, overhead = self.measure_again(pair.item, metric=pair.metric, budget=budget, baseline=limits.baseline)
        return compared.with_again(_estimate(ratio), _estimate(overhead), ratio.slowed)


class Rerunning(SessionMode):
    """In a fresh process: make the one comparison that is asked for, hand it over, and end the test there.

    What comes before it is sampled for a moment only. Where all metrics are asked for, sample as a save does.
    """

    gates = False

    def __init__(self, session: PerfSession, folder: Path, request: Request):
        super().__init__(session)
        self.folder = folder
        self.request = request
        self._seconds = 0.0

    @property
    def fingerprints(self) -> bool:
        return self.request.metric is None  # of a save

    def seconds(self, asked: float) -> float:
        self._seconds = asked
        return asked if self.request.metric is None else MOMENT

    def compare(self, pair: Pair, limits: Limits) -> Compared:
        if self.request.metric is None:
            return Compared(pair.compare())
        if self.request.metric != pair.metric:
            return Compared(pair.glance())
        asked = Limits(self.request.budget, self.request.baseline)
        comparison = pair.compare(seconds=self._seconds, settled=asked.end)
        write_metrics(self.folder, {self.request.test: comparison.metrics(pair.name)})
        pytest.skip("the comparison was handed over")

    def seen_elsewhere(self, asked: Elsewhere) -> list[Any] | None:
        if not self.request.values or self.request.metric != asked.metric:
            return None
        other = self.folder / "elsewhere"
        other.mkdir()
        with elsewhere.in_other_folders(other):
            values = asked.here(self.request.given)
        write_values(self.folder, Values(plain(values), elsewhere.installed_packages()))
        pytest.skip("the values were handed over")


class Exact(SessionMode):
    """The first process on one side of `perfsuite against`: what is exact. Nothing is gated.

    What is sampled is left to the processes that take times. With `looks` it takes one look at each.
    """

    gates = False
    fingerprints = True

    def __init__(self, session: PerfSession, *, looks: bool = False):
        super().__init__(session)
        self._looks = looks

    @property
    def leaves_times(self) -> bool:
        return not self._looks

    def seconds(self, asked: float) -> float:
        return MOMENT

    def seconds_to_know(self, asked: float) -> float:
        return asked

    def compare(self, pair: Pair, limits: Limits) -> Compared:
        return Compared(pair.compare(seconds=LOOK))


class TimingOneSide(SessionMode):
    """One side of `perfsuite against`: time each comparison for `seconds`, and note its times: test, name, value, unit.

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

    @property
    def known_to(self) -> float:
        return 0.0  # what is known within this process may be another thing a second later

    def compare(self, pair: Pair, limits: Limits) -> Compared:
        comparison = pair.compare(settled=lambda ratio, overhead: False)
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


def _estimate(metric: Metric) -> Estimate:
    return Estimate(metric.value, metric.interval or Interval(-math.inf, math.inf))
