"""`perf.time`: how long one call takes, in the steady state."""

import copy

import pytest

from perfsuite.gate.budget import Budget
from perfsuite.gate.verdict import Evidence
from perfsuite.instruments.base import NO_BUDGET, Instrument, declare
from perfsuite.measure.call import Call, checked
from perfsuite.measure.timing.timing import LEAST_FOR_TAIL, LEAST_SAMPLES, Timing, time_call

TIME = declare("perf.time", budget=("p99_us",), needs=("quiet",))

TAIL_TOLERANCE = 9.0
"""A 99th percentile fails at ten times its baseline, where a step in a hundred stalls. With two busy neighbours on two
cores that of a 9 ms step rose by a factor of 2.2 to 5.6 without any change of code."""


class TimeInstrument(Instrument):
    def time(
        self, call: Call, *, budget: Budget = NO_BUDGET, name: str | None = None, tolerance: float | None = None
    ) -> Timing:
        """Time one call in the steady state: `.to_return` and `.to_ready`, each with median, interval and p99.

        The metrics are of kind `time`, so they are compared only with a baseline of the same machine. They also appear
        in pytest-benchmark's table and its --benchmark-json. `Budget(p99_us=)` limits the tail.
        """
        __tracebackhide__ = True
        limits = self._begin(TIME, budget)
        call = checked(call, "perf.time")
        timing = time_call(call, seconds=self._seconds, least_samples=LEAST_FOR_TAIL if limits else LEAST_SAMPLES)
        name = self._recorder.unique(name or timing.label, *timing.suffixes)
        *times, tail = timing.metrics(name)
        tolerances = [(each, tolerance) for each in times]
        tolerances.append((tail, TAIL_TOLERANCE if tolerance is None else tolerance))
        add_to_table(self._item, name, timing)
        us = timing.to_ready.median_us
        self._tracing.keep_trace(call, name, us=us)
        self._tracing.remember(call, us, *times, tail)
        # One that fails is explained: the others fail for the same reason.
        failing = next((metric for metric, allowed in tolerances if self._recorder.fails(metric, allowed)), None)
        for metric, allowed in tolerances:
            cause = self._tracing.since_baseline(call, us, metric) if metric is failing else ""
            self._recorder.add(metric, allowed, Evidence(cause=cause))
        if "p99_us" in limits:
            cause = f"the median is {us:.4g} us: single calls stall"
            self._recorder.check_budget(tail, limits["p99_us"], lambda: f"{cause}\n{self._tracing.longest(call, us)}")
        return timing


def add_to_table(item: pytest.Item, name: str, timing: Timing) -> None:
    """Add `timing` as the benchmark `test:name` of pytest-benchmark, where that plugin is installed and not disabled.

    pytest-benchmark has no public way to add a benchmark that it did not run itself, nor two in one test. So the
    samples are replayed through a copy of its fixture, with a clock that returns them. The private names are in
    `_replaying`; `tests/integration/test_benchmark_table.py` fails when they move.
    """
    if not item.config.pluginmanager.hasplugin("benchmark"):
        return
    request: pytest.FixtureRequest = item._request  # type: ignore[attr-defined]
    fixture = request.getfixturevalue("benchmark")
    if "benchmark" not in item.fixturenames:  # type: ignore[attr-defined]
        fixture.skipped = True  # or it warns, at the end, that nobody used it
    if fixture.disabled:
        return
    replay = _replaying(fixture, [us / 1e6 for us in timing.samples_us])
    replay.name = f"{item.name}:{name}"
    replay.fullname = f"{item.nodeid}:{name}"
    replay.extra_info = {
        "to_return_median_us": timing.to_return.median_us,
        "to_ready_median_us": timing.to_ready.median_us,
        "to_ready_p99_us": timing.to_ready.p99_us,
        "calls_per_block": timing.calls_per_block,
        "harness_us": timing.harness_us,
    }
    replay.pedantic(lambda: None, rounds=len(timing.samples_us))


def _replaying(fixture, seconds: list[float]):
    """An unused copy of pytest-benchmark's fixture, whose clock advances by the next of `seconds` in each round."""
    readings = iter([reading for duration in seconds for reading in (0.0, duration)])
    replay = copy.copy(fixture)
    replay._mode = None
    replay._timer = lambda: next(readings)
    return replay
