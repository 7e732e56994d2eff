"""The `perf` fixture: one object a test, which measures, checks budgets at once, and baselines when the test ends."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pytest

from perfsuite.gate.budget import Budget, BudgetExceeded
from perfsuite.measure.call import Call, checked, label_of
from perfsuite.measure.measurement import Better, Interval, Kind, Measurement, title

if TYPE_CHECKING:
    from perfsuite.gate.verdict import Gate
    from perfsuite.measure.comparison import Comparison, Until
    from perfsuite.measure.hostcalls import HostCalls
    from perfsuite.measure.program import Program
    from perfsuite.measure.scaling import Figure, MakeCall, Scaling
    from perfsuite.measure.timing import Timing
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
        self._tolerance = tolerance
        self._seconds = seconds
        self._causes: dict[str, str] = {}
        self.programs: ProgramGates | None = None
        self._tolerances: dict[str, float | None] = {}
        self.measurements: dict[str, Measurement] = {}
        """By title: the same name may stand for the present device and for a target."""
        self.gates: list[Gate] = []
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
        warmed = warm(fn, over)
        name = name or label_of(fn)
        self._record(
            Measurement(self._unique(f"{name} compile seconds"), warmed.compile_seconds, "s", "info", samples=1)
        )
        if "compiles" in limits:
            made = Measurement(self._unique(f"{name} compiles to warm"), warmed.compiles, "compiles", "count")
            cause = f"{len(warmed.signatures)} signatures were declared; look for one that compiles more than once"
            self._check_budget(made, limits["compiles"], lambda: cause)
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

        self._timing_or_skip("perf.time")
        limits = budget.only("perf.time", "p99_us")
        least = LEAST_FOR_TAIL if limits else LEAST_SAMPLES
        timing = time_call(checked(call, "perf.time"), seconds=self._seconds, least_samples=least)
        name = self._unique(name or timing.label, *timing.suffixes)
        made = timing.measurements(name)
        for measurement in made[:-1]:
            self._record(measurement, tolerance)
        self._record(made[-1], TAIL_TOLERANCE if tolerance is None else tolerance)
        add_to_table(self._item, name, timing)
        if "p99_us" in limits:
            cause = f"the median is {timing.to_ready.median_us:.4g} us: single calls stall"
            self._check_budget(made[-1], limits["p99_us"], lambda: cause)
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
        from perfsuite.comparison_gates import cause_of, limited, settled_by, worst
        from perfsuite.measure.comparison import compare_calls

        self._timing_or_skip("perf.compare")
        limits = budget.only("perf.compare", "ratio", "overhead_us")
        calls = checked(candidate, "perf.compare"), checked(reference, "perf.compare")
        name = self._unique(name or f"{candidate.label}/{reference.label}", f" ratio to {until}")
        figure = f"{name} ratio to {until}"
        ratio_limits = [limits["ratio"]] if "ratio" in limits else []
        ratio_limits += self._session.ratio_limit(self._test, figure, self._tolerance_of(tolerance))
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
            self._record(measurement, tolerance)
        judged = [self._compare_gate(comparison, measurement, limit) for measurement, limit in limited(made, limits)]
        against_baseline = self._session.judge(self._test, made[0], self._tolerance_of(tolerance))
        comparison = dataclasses.replace(comparison, verdict=worst(judged or [against_baseline]))
        if any(gate.failed for gate in (*judged, against_baseline)):
            self._causes[figure] = cause_of(comparison, *calls)
        for gate in judged:
            if gate.failed:
                self._fail_budget(gate, self._causes[figure])
        return comparison

    def host_calls(self, call: Call, *, budget: Budget = NO_BUDGET, name: str | None = None) -> "HostCalls":
        """Count the Python and C function calls that one warm call makes: exact, repeatable, any increase fails."""
        __tracebackhide__ = True
        from perfsuite.measure.hostcalls import host_calls

        limits = budget.only("perf.host_calls", "host_calls")
        counted = host_calls(checked(call, "perf.host_calls"))
        made = counted.measurements(self._unique(name or counted.label, " host calls"))[0]
        self._record(made)
        if "host_calls" in limits:
            busiest = ", ".join(f"{function} ({calls})" for function, calls in list(counted.by_function.items())[:3])
            self._check_budget(made, limits["host_calls"], lambda: f"busiest: {busiest}")
        return counted

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
            self._timing_or_skip("perf.scaling")
        limits = budget.only("perf.scaling", "us_per_leaf")
        if limits and figure == "host_calls":
            raise ValueError(
                'perf.scaling(figure="host_calls") is not a time, so it does not check Budget(us_per_leaf=...)'
            )
        scaling = fit_scaling(make_call, sizes, figure=figure, seconds=self._seconds)
        made = scaling.measurements(self._unique(name or scaling.label, f" {scaling.what} per unit"))
        for measurement in made:
            self._record(measurement, tolerance)
        if "us_per_leaf" in limits:
            cause = f"R^2 of the line is {scaling.r_squared:.3f} over {len(scaling.units)} sizes"
            self._check_budget(made[0], limits["us_per_leaf"], lambda: cause)
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
        label = self._unique(name or call.label, " flops", " compile seconds", target=target)
        self.programs = self.programs or ProgramGates(self._session, self._test)
        self._session.baselines_of(target)  # a damaged file is an error before minutes of compiling
        try:
            program = self.programs.compile(call, target, chips, label)
        except TargetUnavailable as error:
            self._session.unavailable(str(error))
        except (CompileFailed, HostCallbackError) as error:
            self.gates.append(refusal(self._test, label, target, error))
            # Not `from error`: that would print the source of perfsuite and of jax above the reason.
            raise BudgetExceeded(str(error)) from None
        for made in measurements_of(program):
            self._record_once(made)
        if "peak_bytes" in limits:
            peak = self.measurements[title(f"{label} peak bytes", target)]
            self._check_budget(peak, limits["peak_bytes"], lambda: in_words(program.memory_use))
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
        self._record_once(made, tolerance)

    def judge_baselines(self) -> "list[Gate]":
        """Every figure of this test against its baseline. The plugin calls it when the test's body has ended."""
        gates = [
            self._session.judge(self._test, measurement, self._tolerances[title], cause=self._causes.get(title, ""))
            for title, measurement in self.measurements.items()
        ]
        if self.programs is not None:
            gates = self.programs.explained(gates)
            if self._session.options.save:
                self.programs.keep()
        self.gates += gates
        return gates

    def _record_once(self, measurement: Measurement, tolerance: float | None = None) -> None:
        if measurement.title in self.measurements:
            raise ValueError(f"{self._test} records {measurement.title!r} twice; give each figure a name of its own")
        self._record(measurement, tolerance)

    def _record(self, measurement: Measurement, tolerance: float | None = None) -> None:
        self.measurements[measurement.title] = measurement
        self._tolerances[measurement.title] = self._tolerance_of(tolerance)

    def _tolerance_of(self, tolerance: float | None) -> float | None:
        return self._tolerance if tolerance is None else tolerance

    def _unique(self, name: str, *suffixes: str, target: str | None = None) -> str:
        """`name`, or `name #2` and so on, so that a second figure of the same function has a name of its own."""
        number, candidate = 1, name
        while any(title(candidate + suffix, target) in self.measurements for suffix in suffixes or ("",)):
            number += 1
            candidate = f"{name} #{number}"
        return candidate

    def _timing_or_skip(self, instrument: str) -> None:
        __tracebackhide__ = True
        if self._session.timing_refused:
            pytest.skip(f"{instrument}: {self._session.timing_refused}")

    def _budget_gate(self, measurement: Measurement, limit: float) -> "Gate":
        from perfsuite.gate.verdict import judge_budget

        gate = judge_budget(self._test, measurement, limit)
        self.gates.append(gate)
        return gate

    def _compare_gate(self, comparison: "Comparison", measurement: Measurement, limit: float) -> "Gate":
        gate = self._budget_gate(measurement, limit)
        if comparison.bounded:
            return gate
        reason = f"{measurement.name}: {comparison.pairs} pairs are too few for an interval; allow more --perf-seconds"
        self.gates[-1] = dataclasses.replace(gate, verdict="inconclusive", reason=reason)
        return self.gates[-1]

    def _check_budget(self, measurement: Measurement, limit: float, cause: Callable[[], str]) -> None:
        __tracebackhide__ = True  # a failure is shown at the test's own line
        gate = self._budget_gate(measurement, limit)
        if gate.failed:
            self._fail_budget(gate, cause())

    def _fail_budget(self, gate: "Gate", cause: str) -> None:
        __tracebackhide__ = True
        raise BudgetExceeded(f"{gate.reason}\nlikely cause: {cause}" if cause else gate.reason)
