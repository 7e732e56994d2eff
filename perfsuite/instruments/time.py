"""`perf.time`: how long one call takes, in the steady state."""

import dataclasses

import pytest

from perfsuite.gate.budget import Budget
from perfsuite.gate.verdict import Evidence
from perfsuite.instruments.base import NO_BUDGET, Instrument, declare
from perfsuite.measure.call import Call, checked
from perfsuite.measure.compiles.compiles import tracing_allowed
from perfsuite.measure.metric import Metric
from perfsuite.measure.private import libraries
from perfsuite.measure.private.capabilities import BENCHMARK
from perfsuite.measure.timing.timing import LEAST_FOR_TAIL, LEAST_SAMPLES, Timing, time_call
from perfsuite.processes import LAUNCH
from perfsuite.session.outcomes import REQUEST

TIME = declare(
    "perf.time",
    {
        "time_us": "median time to ready, on a machine of your own",
        "p99_us": "99th percentile of the time to ready",
    },
    needs=("quiet",),
)

SYNCHRONOUS = 0.95
"""A call whose time to return is this share of its time to ready waits for its outputs, or has them at once: then the
time to return is the call's own."""

LONG_US = 100.0
"""What is ready this long after an asynchronous call began is ready when the device is done, and not when the operating
system has woken a thread.

The load of the host decides the rest: one and the same 16 x 16 product returned after 5 us and was ready after 6 us
beside a busy core, and on a quiet machine after 7 us and 44 us (2-core x86-64 machine, jax 0.10.2)."""

OUTLASTS_US = 1000.0
"""The tail of a shorter call is what the operating system gives to other processes: with a load of 11 on two cores the
99th percentile of 0.1 ms calls rose from 0.16 to 4 ms."""

TAIL_TOLERANCE = 9.0
"""A 99th percentile fails at ten times its baseline, where a step in a hundred stalls. With two busy neighbours on two
cores that of a 9 ms step rose by a factor of 2.2 to 5.6 without any change of code."""

_NO_REFERENCE = "a plain time has no reference; perf.compare with the old code has one, or perfsuite against REV"


class TimeInstrument(Instrument):
    def time(
        self,
        call: Call,
        *,
        budget: Budget = NO_BUDGET,
        name: str | None = None,
        tolerance: float | None = None,
        traces: bool = False,
    ) -> Timing:
        """Time one call in the steady state: `.to_return` and `.to_ready`, each with median, interval and p99.

        The metrics are of kind `time`, so they are compared only with a baseline of the same machine; where the host's
        load decides them, they are `info`. With an option of pytest-benchmark (`--benchmark-json`, ...) they also
        appear in its table and file. `Budget(time_us=)` limits the median to ready, for a machine of one's own;
        `Budget(p99_us=)` limits the tail. `traces=True` is for a call that is meant to trace in every run.
        """
        __tracebackhide__ = True
        limits = self._begin(TIME, budget)
        with tracing_allowed(traces):
            return self._time(checked(call, "perf.time"), limits, name, tolerance)

    def _time(self, call: Call, limits: dict[str, float], name: str | None, tolerance: float | None) -> Timing:
        __tracebackhide__ = True
        least_samples = LEAST_FOR_TAIL if "p99_us" in limits else LEAST_SAMPLES
        measured = self._recorder.measured("time", call.label, *Timing.suffixes, name=name)
        mode = self._session.mode
        mode.about_to_time(self._item, [f"{measured.name}{suffix}" for suffix in Timing.suffixes], [call])
        timing = time_call(call, seconds=self._seconds, least_samples=least_samples, **mode.timing)
        *times, tail = self._gated(measured.metrics(timing.metrics(measured.name)))
        tolerances = [(each, tolerance) for each in times]
        tolerances.append((tail, TAIL_TOLERANCE if tolerance is None else tolerance))
        _add_to_table(self._item, measured.name, timing)
        us = timing.to_ready.median_us
        self._keep_trace(call, measured.name, us=us)
        # One that fails is explained: the others fail for the same reason.
        failing = next((metric for metric, allowed in tolerances if self._recorder.fails(metric, allowed)), None)
        for metric, allowed in tolerances:
            unexplained = f"{_NO_REFERENCE}\n{self._tracing.longest(call, us)}" if metric is failing else ""
            self._recorder.add(metric, allowed, Evidence(unexplained=unexplained))
        if "time_us" in limits:
            self._recorder.check_budget(times[1], limits["time_us"], lambda: self._tracing.longest(call, us))
        if "p99_us" in limits:
            stalls = f"the median is {us:.4g} us: single calls stall"
            self._recorder.check_budget(tail, limits["p99_us"], lambda: f"{stalls}\n{self._tracing.longest(call, us)}")
        return timing

    def _gated(self, metrics: list[Metric]) -> list[Metric]:
        """The metrics, as information where the load of the host decides them: the code would fail for it."""
        if not self._judge.gates:
            return metrics  # `perfsuite against` compares times of its own, side by side
        to_return, to_ready, tail = metrics
        tail = self._kind(tail, to_ready.value, OUTLASTS_US)
        to_return = self._kind(to_return, to_return.value / to_ready.value, SYNCHRONOUS)
        if to_return.kind == "info":
            to_ready = self._kind(to_ready, to_ready.value, LONG_US)
        return [to_return, to_ready, tail]

    def _kind(self, metric: Metric, size: float, least: float) -> Metric:
        """The metric, as information where `size` is too small for a gate.

        A metric keeps the kind of its baseline unless it is far from the boundary: or unchanged code would not be
        comparable every other time, and busy machines would save it anew. A save decides what was information.
        """
        recorded = self._judge.entries(self._test).get(metric.id)
        if recorded is not None and recorded.kind == "time":
            least /= 2
        elif recorded is not None and not self._session.options.save:
            least *= 2
        return metric if size >= least else dataclasses.replace(metric, kind="info")


def _add_to_table(item: pytest.Item, name: str, timing: Timing) -> None:
    """Add `timing` as the benchmark `test:name` of pytest-benchmark, where one of that plugin's options was given."""
    if not (item.config.stash[LAUNCH].asks_for_benchmarks and item.config.pluginmanager.hasplugin("benchmark")):
        return
    if BENCHMARK.lost():
        BENCHMARK.falls_back("its table lacks what perf.time timed")
        return
    fixture = item.stash[REQUEST].getfixturevalue("benchmark")
    if "benchmark" not in item.fixturenames:  # type: ignore[attr-defined]
        libraries.leave_benchmark_unused(fixture)
    libraries.add_benchmark(
        fixture,
        [us / 1e6 for us in timing.samples_us],
        name=f"{item.name}:{name}",
        fullname=f"{item.nodeid}:{name}",
        extra_info={
            "to_return_median_us": timing.to_return.median_us,
            "to_ready_median_us": timing.to_ready.median_us,
            "to_ready_p99_us": timing.to_ready.p99_us,
            "calls_per_block": timing.calls_per_block,
            "harness_us": timing.harness_us,
        },
    )
