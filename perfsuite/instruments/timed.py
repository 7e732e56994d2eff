"""The instruments of the fixture `perf` that look at the clock: they refuse where nothing can be timed."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfsuite.gate.budget import Budget
from perfsuite.instruments.base import NO_BUDGET, Instruments
from perfsuite.instruments.comparison_processes import Limits
from perfsuite.measure.call import Call, checked
from perfsuite.session.plots import distribution_of, line_of

if TYPE_CHECKING:
    from perfsuite.measure.timing.asynchrony import Asynchrony
    from perfsuite.measure.timing.comparison import Comparison, Until
    from perfsuite.measure.timing.scaling import MakeCall, Scaled, Scaling
    from perfsuite.measure.timing.stalls import Stalls
    from perfsuite.measure.timing.timing import Timing

TAIL_TOLERANCE = 9.0
"""A 99th percentile fails at ten times its baseline, where a step in a hundred stalls. With two busy neighbours on two
cores that of a 9 ms step rose by a factor of 2.2 to 5.6 without any change of code."""


class TimedInstruments(Instruments):
    """Times, and what is made of times: ratios, slopes, waits and stalls."""

    def time(
        self, call: Call, *, budget: Budget = NO_BUDGET, name: str | None = None, tolerance: float | None = None
    ) -> "Timing":
        """Time one call in the steady state: `.to_return` and `.to_ready`, each with median, interval and p99.

        The metrics are of kind `time`, so they are compared only with a baseline of the same machine. They also appear
        in pytest-benchmark's table and its --benchmark-json. `Budget(p99_us=)` limits the tail.
        """
        __tracebackhide__ = True
        from perfsuite.instruments.benchmark_table import add_to_table
        from perfsuite.measure.timing.timing import LEAST_FOR_TAIL, LEAST_SAMPLES, time_call

        self._session.check_timing("perf.time")
        limits = budget.only("perf.time", "p99_us")
        call = checked(call, "perf.time")
        least = LEAST_FOR_TAIL if limits else LEAST_SAMPLES
        timing = time_call(call, seconds=self._seconds, least_samples=least)
        name = self.metrics.unique(name or timing.label, *timing.suffixes)
        made = timing.metrics(name)
        for metric in made[:-1]:
            self.metrics.record(metric, tolerance)
        self.metrics.record(made[-1], TAIL_TOLERANCE if tolerance is None else tolerance)
        add_to_table(self._item, name, timing)
        us = timing.to_ready.median_us
        self.traces.keep_trace(call, name, us=us)
        self.traces.remember(call, us, *made)
        for each in made:
            if self.metrics.failing([self.metrics.against_baseline(each)]):
                self.metrics.causes[each.title] = self.traces.since_baseline(call, us, each)
                break  # the others fail for the same reason
        if "p99_us" in limits:
            cause = f"the median is {us:.4g} us: single calls stall"
            self.metrics.check_budget(made[-1], limits["p99_us"], lambda: f"{cause}\n{self.traces.longest(call, us)}")
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
        from perfsuite.instruments.comparison_gates import cause_of, judge_budgets, worst
        from perfsuite.measure.stats.error_rates import DECIDING_ERROR
        from perfsuite.measure.timing.comparison import compare_calls

        self._session.check_timing("perf.compare")
        limits = budget.only("perf.compare", "ratio", "overhead_us")
        calls = checked(candidate, "perf.compare"), checked(reference, "perf.compare")
        if elsewhere := self._session.calibration or self._session.upgrade:
            name = name or f"{candidate.label}/{reference.label}"
            return elsewhere.compare(self._test, name, *calls, until=until, seconds=self._seconds)
        name = self.metrics.unique(name or f"{candidate.label}/{reference.label}", f" ratio to {until}")
        title = f"{name} ratio to {until}"
        ratio_limits = [limits["ratio"]] if "ratio" in limits else []
        ratio_limits += self._session.ratio_limit(self._test, title, self.metrics.tolerance_of(tolerance))
        overhead_limits = [limits["overhead_us"]] if "overhead_us" in limits else []
        held = Limits(ratio_limits, overhead_limits)
        # A metric that becomes a baseline is worth the time to know it well.
        settled = self.processes.settled(title, held.settled if held and not self._session.options.save else None)
        error = self._session.error_of_next_gate(self._item) if held else DECIDING_ERROR
        if self._session.options.processes > 1:
            error /= 2  # the other half is for what they say together
        comparison = compare_calls(*calls, until=until, seconds=self._seconds, settled=settled, error=error)
        comparison = self.processes.settle(name, comparison, held)
        made = comparison.metrics(name)
        for metric in made:
            self.metrics.record(metric, tolerance)
        if self._session.options.report is not None:
            self.metrics.distributions.append(distribution_of(made[0].title, comparison))
        us = max(comparison.candidate_median_us, comparison.reference_median_us)
        for side, each in zip(("candidate", "reference"), calls, strict=True):
            self.traces.keep_trace(each, name, side, us=us)
        self.traces.remember(calls[0], us, made[0])
        judged = judge_budgets(self.metrics, comparison, made, limits)
        judged = self.processes.explained_last(self.metrics.gates, judged)
        if comparison.processes == 1:
            self.metrics.settling[title] = comparison.to_settle
        against_baseline = self.metrics.against_baseline(made[0])
        comparison = dataclasses.replace(comparison, verdict=worst(judged or [against_baseline]))
        if failing := self.metrics.failing([*judged, against_baseline]):
            grown = self.traces.compared(*calls, us, made[0], by_budget=failing[0].source == "budget")
            group = self._session.group
            last = "" if group is None else group.last_to_return[0]  # of the candidate's samples
            self.metrics.causes[title] = "\n".join(filter(None, [cause_of(comparison, *calls), last, grown]))
        for gate in judged:
            if gate.failed:
                self.metrics.fail(gate, self.metrics.causes[title])
        return comparison

    def scaling(
        self,
        make_call: "MakeCall",
        sizes: Sequence[int],
        *,
        metric: "Scaled" = "return",
        budget: Budget = NO_BUDGET,
        name: str | None = None,
        tolerance: float | None = None,
    ) -> "Scaling":
        """Fit a metric against size: `.per_unit`, `.intercept`, `.r_squared`.

        `make_call(size)` returns `(call, units)`, for example the call of a model with `size` layers and its number of
        leaves. `metric` is "return" or "ready" (microseconds) or "host_calls". `Budget(us_per_leaf=)` limits the slope
        of the first two.
        """
        __tracebackhide__ = True
        from perfsuite.measure.timing.scaling import fit_scaling

        if metric != "host_calls":
            self._session.check_timing("perf.scaling")
            self._session.check_alone("perf.scaling of times")
        limits = budget.only("perf.scaling", "us_per_leaf")
        if limits and metric == "host_calls":
            raise ValueError(
                'perf.scaling(metric="host_calls") is not a time, so it does not check Budget(us_per_leaf=...)'
            )
        scaling = fit_scaling(make_call, sizes, metric=metric, seconds=self._seconds)
        name = self.metrics.unique(name or scaling.label, f" {scaling.what} per unit")
        made = scaling.metrics(name)
        for each in made:
            self.metrics.record(each, tolerance)
        if self._session.options.report is not None:
            self.metrics.lines.append(line_of(made[0].title, scaling))
        self.traces.keep_made_trace(make_call, max(sizes), name)
        if "us_per_leaf" in limits:
            cause = f"R^2 of the line is {scaling.r_squared:.3f} over {len(scaling.units)} sizes"
            self.metrics.check_budget(made[0], limits["us_per_leaf"], lambda: cause)
        return scaling

    def stays_async(self, call: Call, *, name: str | None = None) -> "Asynchrony":
        """Fail where a call waits for the device before it returns, and say where: `.share`, `.waits`, `.where`.

        A call that waits keeps the host from preparing the next step meanwhile. Where the device has too little to do
        to tell, the verdict is `inconclusive` and says what to do. Raises `MeasurementError` where JAX's asynchronous
        dispatch is off.
        """
        __tracebackhide__ = True
        from perfsuite.instruments.wait_gates import judge_asynchrony
        from perfsuite.measure.timing.asynchrony import asynchrony

        self._session.check_timing("perf.stays_async")
        self._session.check_alone("perf.stays_async")
        made = asynchrony(checked(call, "perf.stays_async"), seconds=self._seconds)
        judge_asynchrony(self.metrics, self.metrics.unique(name or made.label, " returns at"), made)
        return made

    def stalls(self, call: Call, *, budget: Budget = NO_BUDGET, name: str | None = None) -> "Stalls":
        """Fail where single calls stall, twice or more in 1000, and say where: `.count`, `.where`.

        A call stalls that takes ten times the median and 20 ms more at least; `Budget(stall_us=)` says how much more
        it may take. What the operating system gave to other processes is no stall. A stall in one of a hundred calls
        is found with probability 0.999; where --perf-seconds is over before, the verdict is `inconclusive`.
        """
        __tracebackhide__ = True
        from perfsuite.instruments.wait_gates import judge_stalls
        from perfsuite.measure.timing.stalls import count_stalls

        self._session.check_timing("perf.stalls")
        self._session.check_alone("perf.stalls")
        over_us = budget.only("perf.stalls", "stall_us").get("stall_us")
        made = count_stalls(checked(call, "perf.stalls"), seconds=self._seconds, over_us=over_us)
        judge_stalls(self.metrics, self.metrics.unique(name or made.label, " longest"), made)
        return made
