"""The `perf` fixture: one object a test, which measures, checks budgets at once, and baselines when the test ends."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

from perfsuite.figures import Figures, fail_budget
from perfsuite.gate.budget import Budget, BudgetExceeded
from perfsuite.measure.call import Call, checked, label_of
from perfsuite.measure.measurement import Better, Interval, Kind, Measurement, title
from perfsuite.measure.trace_recording import RUNS
from perfsuite.trace_gates import TraceGates

if TYPE_CHECKING:
    from perfsuite.gate.verdict import Gate
    from perfsuite.measure.comparison import Comparison, Until
    from perfsuite.measure.hostcalls import HostCalls
    from perfsuite.measure.program import Program
    from perfsuite.measure.scaling import Figure, MakeCall, Scaling
    from perfsuite.measure.timing import Timing
    from perfsuite.measure.trace_recording import Traced
    from perfsuite.measure.traces import Trace
    from perfsuite.measure.warmup import Warm
    from perfsuite.program_gates import ProgramGates
    from perfsuite.session import PerfSession

NO_BUDGET = Budget()

TAIL_TOLERANCE = 9.0
"""A 99th percentile fails at ten times its baseline, where a step in a hundred stalls. With two busy neighbours on two
cores that of a 9 ms step rose by a factor of 2.2 to 5.6 without any change of code."""


class Perf:
    """The instruments, for one test. Get it by asking for the fixture `perf`.

    Every figure is recorded under a name that is unique in the test: the name of the function, or `name=`. A budget is
    checked where it is given and raises `BudgetExceeded`; baselines are checked when the test's body has ended.
    """

    def __init__(self, session: "PerfSession", item: pytest.Item, *, tolerance: float | None, seconds: float):
        self._session = session
        self._item = item
        self._test = item.nodeid
        self._seconds = seconds
        self.figures = Figures(session, item.nodeid, tolerance)
        self.programs: ProgramGates | None = None
        self.traces = TraceGates(session, item.nodeid)
        self.ended = False

    @property
    def size(self) -> str:
        """The size asked for with --perf-size, "small" or "full": which workload the test should build."""
        return self._session.options.size

    def warm(
        self, fn: Callable, over: Sequence[tuple | Call], *, budget: Budget = NO_BUDGET, name: str | None = None
    ) -> "Warm":
        """Compile and run every signature in `over`, block, and return the function, warm.

        `over` has tuples of positional arguments, or `call`s. Arrays in tuples are copied first, so that a function
        that donates them leaves the caller's alone. `Budget(compiles=)` limits the backend compiles that it takes.
        """
        __tracebackhide__ = True
        from perfsuite.measure.warmup import warm

        limits = budget.only("perf.warm", "compiles")
        name = name or label_of(fn)
        # Nothing that is measured here gates as a time, so it may run under the profiler, and it compiles only once.
        with self.traces.keeping_block(self.figures.unique(f"warming {name}")):
            warmed = warm(fn, over)
        self.figures.record(
            Measurement(self.figures.unique(f"{name} compile seconds"), warmed.compile_seconds, "s", "info", samples=1)
        )
        if "compiles" in limits:
            made = Measurement(self.figures.unique(f"{name} compiles to warm"), warmed.compiles, "compiles", "count")
            cause = f"{len(warmed.signatures)} signatures were declared; look for one that compiles more than once"
            self.figures.check_budget(made, limits["compiles"], lambda: cause)
        return warmed

    def no_compiles(self):
        """Context manager: any trace, lowering or compile inside, in any thread, raises `RecompilationError`."""
        from perfsuite.measure import compiles

        return compiles.forbid()

    def count_compiles(self):
        """Context manager giving `traces`, `lowerings`, `compiles`, `cache_hits` and `by_function`; asserts nothing."""
        from perfsuite.measure import compiles

        return compiles.count()

    def time(
        self, call: Call, *, budget: Budget = NO_BUDGET, name: str | None = None, tolerance: float | None = None
    ) -> "Timing":
        """Time one call in the steady state: `.to_return` and `.to_ready`, each with median, interval and p99.

        The figures are of kind `time`, so they are compared only with a baseline of the same machine. They also appear
        in pytest-benchmark's table and its --benchmark-json. `Budget(p99_us=)` limits the tail.
        """
        __tracebackhide__ = True
        from perfsuite.benchmark_table import add_to_table
        from perfsuite.measure.timing import LEAST_FOR_TAIL, LEAST_SAMPLES, time_call

        self._session.check_timing("perf.time")
        limits = budget.only("perf.time", "p99_us")
        call = checked(call, "perf.time")
        least = LEAST_FOR_TAIL if limits else LEAST_SAMPLES
        timing = time_call(call, seconds=self._seconds, least_samples=least)
        name = self.figures.unique(name or timing.label, *timing.suffixes)
        made = timing.measurements(name)
        for measurement in made[:-1]:
            self.figures.record(measurement, tolerance)
        self.figures.record(made[-1], TAIL_TOLERANCE if tolerance is None else tolerance)
        add_to_table(self._item, name, timing)
        us = timing.to_ready.median_us
        self.traces.keep_trace(call, name, us=us)
        self.traces.remember(call, us, *made)
        for measurement in made:
            if self.figures.failing([self.figures.against_baseline(measurement)]):
                self.figures.causes[measurement.title] = self.traces.since_baseline(call, us, measurement)
                break  # the others fail for the same reason
        if "p99_us" in limits:
            cause = f"the median is {us:.4g} us: single calls stall"
            self.figures.check_budget(made[-1], limits["p99_us"], lambda: f"{cause}\n{self.traces.longest(call, us)}")
        return timing

    def compare(
        self,
        candidate: Call,
        reference: Call,
        budget: Budget = NO_BUDGET,
        *,
        until: "Until" = "ready",
        name: str | None = None,
        tolerance: float | None = None,
    ) -> "Comparison":
        """Compare two calls, paired and interleaved in random order: `.ratio`, `.overhead_us`, `.verdict`.

        `until="return"` compares what the host pays, `until="ready"` what the user waits. Sampling stops as soon as
        the intervals lie wholly above one limit, or wholly below all of them: the budget's `ratio` and `overhead_us`,
        and the baseline's.
        The two calls must not share arrays that either donates.
        """
        __tracebackhide__ = True
        from perfsuite.comparison_gates import cause_of, judge_budgets, settled_by, worst
        from perfsuite.measure.comparison import compare_calls

        self._session.check_timing("perf.compare")
        limits = budget.only("perf.compare", "ratio", "overhead_us")
        calls = checked(candidate, "perf.compare"), checked(reference, "perf.compare")
        name = self.figures.unique(name or f"{candidate.label}/{reference.label}", f" ratio to {until}")
        figure = f"{name} ratio to {until}"
        ratio_limits = [limits["ratio"]] if "ratio" in limits else []
        ratio_limits += self._session.ratio_limit(self._test, figure, self.figures.tolerance_of(tolerance))
        overhead_limits = [limits["overhead_us"]] if "overhead_us" in limits else []
        has_limits = bool(ratio_limits or overhead_limits)
        comparison = compare_calls(
            *calls,
            until=until,
            seconds=self._seconds,
            # A figure that becomes a baseline is worth the time to know it well.
            settled=settled_by(ratio_limits, overhead_limits)
            if has_limits and not self._session.options.save
            else None,
        )
        made = comparison.measurements(name)
        for measurement in made:
            self.figures.record(measurement, tolerance)
        us = max(comparison.candidate_median_us, comparison.reference_median_us)
        for side, each in zip(("candidate", "reference"), calls, strict=True):
            self.traces.keep_trace(each, name, side, us=us)
        self.traces.remember(calls[0], us, made[0])
        judged = judge_budgets(self.figures, comparison, made, limits)
        against_baseline = self.figures.against_baseline(made[0])
        comparison = dataclasses.replace(comparison, verdict=worst(judged or [against_baseline]))
        if failing := self.figures.failing([*judged, against_baseline]):
            grown = self.traces.compared(*calls, us, made[0], by_budget=failing[0].source == "budget")
            self.figures.causes[figure] = "\n".join(filter(None, [cause_of(comparison, *calls), grown]))
        for gate in judged:
            if gate.failed:
                fail_budget(gate, self.figures.causes[figure])
        return comparison

    def host_calls(self, call: Call, *, budget: Budget = NO_BUDGET, name: str | None = None) -> "HostCalls":
        """Count the Python and C function calls that one warm call makes: exact, repeatable, any increase fails."""
        __tracebackhide__ = True
        from perfsuite.measure.hostcalls import host_calls

        limits = budget.only("perf.host_calls", "host_calls")
        counted = host_calls(checked(call, "perf.host_calls"))
        name = self.figures.unique(name or counted.label, " host calls")
        made = counted.measurements(name)[0]
        self.figures.record(made)
        self.traces.keep_trace(call, name)
        if "host_calls" in limits:
            busiest = ", ".join(f"{function} ({calls})" for function, calls in list(counted.by_function.items())[:3])
            self.figures.check_budget(made, limits["host_calls"], lambda: f"busiest: {busiest}")
        return counted

    def trace(self, call: Call, *, runs: int = RUNS, name: str | None = None) -> "Trace":
        """Trace `runs` warm runs of a call: where its time goes, on the host and on the devices. Never gates by itself.

        The files are kept under --perf-trace. Raises `MeasurementError` where a trace is being recorded already and
        where no device ran anything, and `RecompilationError` when a run compiles.
        """
        trace = self.traces.trace(checked(call, "perf.trace"), name or call.label, runs)
        for measurement in trace.measurements(self.figures.unique(name or call.label, *trace.suffixes)):
            self.figures.record(measurement)
        return trace

    @contextlib.contextmanager
    def trace_block(self, name: str) -> Iterator["Traced"]:
        """Context manager: trace what the block does, compilations included. `.trace` is there once it has ended.

        For what is no single call: a loop, a pipeline. Nothing that gates should be timed in the block.
        """
        with self.traces.block(name) as traced:
            yield traced
        for measurement in traced.trace.measurements(self.figures.unique(name, *traced.trace.suffixes)):
            self.figures.record(measurement)

    def scaling(
        self,
        make_call: "MakeCall",
        sizes: Sequence[int],
        *,
        figure: "Figure" = "return",
        budget: Budget = NO_BUDGET,
        name: str | None = None,
        tolerance: float | None = None,
    ) -> "Scaling":
        """Fit a figure against size: `.per_unit`, `.intercept`, `.r_squared`.

        `make_call(size)` returns `(call, units)`, for example the call of a model with `size` layers and its number of
        leaves. `figure` is "return" or "ready" (microseconds) or "host_calls". `Budget(us_per_leaf=)` limits the slope
        of the first two.
        """
        __tracebackhide__ = True
        from perfsuite.measure.scaling import fit_scaling

        if figure != "host_calls":
            self._session.check_timing("perf.scaling")
        limits = budget.only("perf.scaling", "us_per_leaf")
        if limits and figure == "host_calls":
            raise ValueError(
                'perf.scaling(figure="host_calls") is not a time, so it does not check Budget(us_per_leaf=...)'
            )
        scaling = fit_scaling(make_call, sizes, figure=figure, seconds=self._seconds)
        name = self.figures.unique(name or scaling.label, f" {scaling.what} per unit")
        made = scaling.measurements(name)
        for measurement in made:
            self.figures.record(measurement, tolerance)
        self.traces.keep_made_trace(make_call, max(sizes), name)
        if "us_per_leaf" in limits:
            cause = f"R^2 of the line is {scaling.r_squared:.3f} over {len(scaling.units)} sizes"
            self.figures.check_budget(made[0], limits["us_per_leaf"], lambda: cause)
        return scaling

    def program(
        self,
        call: Call,
        target: str | None = None,
        *,
        chips: int | None = None,
        budget: Budget = NO_BUDGET,
        name: str | None = None,
    ) -> "Program":
        """Compile a call without running it, and record its program's facts: FLOPs, bytes, fusions, collectives.

        `target` names a device that need not be here, such as "tpu-v5e"; None is the present one. A sharded program
        (its arguments lie on a mesh, or are `jax.ShapeDtypeStruct`s with shardings) is compiled for as many devices of
        the target as its mesh has, in a slice of `chips` chips or the smallest that has them. The figures of a target
        are gated by the target's own baseline file. `Budget(peak_bytes=)` limits the memory.

        A program that the compiler refuses, because it needs more memory than there is, fails as a budget does. Where
        the target's compiler is not installed the test is skipped, and fails under --perf-strict.
        """
        __tracebackhide__ = True
        from perfsuite.measure.lowering import HostCallbackError
        from perfsuite.measure.program_figures import measurements_of
        from perfsuite.measure.target_compiler import CompileFailed, TargetUnavailable
        from perfsuite.program_gates import ProgramGates, in_words, refusal

        limits = budget.only("perf.program", "peak_bytes")
        call = checked(call, "perf.program")
        # perf.warm has compile seconds of the function, too.
        label = self.figures.unique(name or call.label, " flops", " compile seconds", target=target)
        self.programs = self.programs or ProgramGates(self._session, self._test)
        self._session.baselines_of(target)  # a damaged file is an error before minutes of compiling
        try:
            program = self.programs.compile(call, target, chips, label)
        except TargetUnavailable as error:
            self._session.unavailable(str(error))
        except (CompileFailed, HostCallbackError) as error:
            self.figures.gates.append(refusal(self._test, label, target, error))
            # Not `from error`: that would print the source of perfsuite and of jax above the reason.
            raise BudgetExceeded(str(error)) from None
        for made in measurements_of(program):
            self.figures.record_once(made)
        if "peak_bytes" in limits:
            peak = self.figures.measurements[title(f"{label} peak bytes", target)]
            self.figures.check_budget(peak, limits["peak_bytes"], lambda: in_words(program.memory_use))
        return program

    def record(
        self,
        name: str,
        value: float,
        *,
        unit: str,
        kind: Kind,
        better: Better = "lower",
        interval: "tuple[float, float] | None" = None,
        tolerance: float | None = None,
        target: str | None = None,
    ) -> None:
        """Record any other figure, gated like the rest.

        `interval` is (low, high), for a figure that was sampled. `target` names the device that it was compiled for,
        None says that it was made on the present one.
        """
        made = Measurement(name, value, unit, kind, better, Interval(*interval) if interval else None, target=target)
        self.figures.record_once(made, tolerance)

    def judge_baselines(self) -> "list[Gate]":
        """Every figure of this test against its baseline. The plugin calls it when the test's body has ended."""
        gates = self.figures.judge_baselines()
        if self.programs is not None:
            gates = self.programs.explained(gates)
        if self._session.options.save:
            self.traces.keep()
            if self.programs is not None:
                self.programs.keep()
        self.figures.gates += gates
        return gates
