"""The modes of a process that another session started: to measure a test again, or one side of `perfsuite against`."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfsuite.gate.limits import Compared, Limits
from perfsuite.measure.call import Call
from perfsuite.measure.runtime.what_runs import host_calls_hash, programs_hash
from perfsuite.processes import elsewhere
from perfsuite.processes.handover import Request, write_metrics, write_values
from perfsuite.session.mode import Elsewhere, Pair
from perfsuite.session.modes import SessionMode
from perfsuite.session.session import PerfSession

MOMENT = 0.01
"""Seconds for each metric that a fresh process measures on the way to the comparison that is asked for."""

LOOK = 0.1
"""Seconds for a comparison of which only the order of magnitude is asked: enough for an interval of short calls."""


class Rerunning(SessionMode):
    """In a fresh process: make the one comparison that is asked for, hand it over, and end the test there.

    What comes before it is sampled for a moment only. Where all metrics are asked for, so are comparisons that are not
    in doubt.
    """

    gates = False

    def __init__(self, session: PerfSession, folder: Path, request: Request):
        super().__init__(session)
        self.folder = folder
        self.request = request
        self._seconds = 0.0

    def seconds(self, asked: float) -> float:
        self._seconds = asked
        return asked if self.request.metric is None else MOMENT

    def compare(self, pair: Pair, limits: Limits) -> Compared:
        if self.request.metric is None:
            if pair.metric in self.request.doubtful:  # from another day, and only all of the time breaks its limit
                return Compared(pair.compare(settled=lambda ratio, overhead: False))
            return Compared(pair.glance())
        if self.request.metric != pair.metric:
            return Compared(pair.glance())
        comparison = pair.compare(seconds=self._seconds, settled=Limits(self.request.budget).end)
        write_metrics(self.folder, comparison.metrics(pair.name))
        pytest.skip("the comparison was handed over")

    def seen_elsewhere(self, asked: Elsewhere) -> list[Any] | None:
        if self.request.process is None or self.request.metric != asked.metric:
            return None
        other = self.folder / "elsewhere"
        other.mkdir()
        with elsewhere.as_process(self.request.process, other):
            values = asked.here(self.request.given)
        write_values(self.folder, values)
        pytest.skip("the values were handed over")


class Exact(SessionMode):
    """The first process on one side of `perfsuite against`: what is exact. Nothing is gated.

    It takes one look at what is sampled, which other processes time, and notes what that runs: test, titles of the
    metrics, and the hashes of programs and host calls.
    """

    gates = False

    def __init__(self, session: PerfSession, note: Callable[[str, Sequence[str], str | None, str | None], None]):
        super().__init__(session)
        self._note = note

    def about_to_time(self, item: pytest.Item, titles: Sequence[str], calls: Sequence[Call]) -> None:
        self._note(item.nodeid, titles, programs_hash(calls), host_calls_hash(calls))

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
