"""`perf.scaling`: how a metric grows with the size of a call."""

import dataclasses
from collections.abc import Sequence

from perfsuite.gate.budget import Budget
from perfsuite.gate.diagnosis import growing
from perfsuite.gate.verdict import NO_EVIDENCE, Evidence
from perfsuite.instruments.base import NO_BUDGET, Declaration, Instrument, check_choice, declare
from perfsuite.measure.metric import Metric
from perfsuite.measure.timing.block import COLUMNS
from perfsuite.measure.timing.scaling import COUNTS, MakeCall, Scaling, calls_by_size, fit_scaling, metric_name

_EXPONENT = {"exponent": "the power of the size with which a metric grows"}
_OF_TIMES = {"us_per_leaf": "slope of a time over sizes", **_EXPONENT}

SCALING = declare("perf.scaling", _OF_TIMES, needs=("quiet", "alone"))
OF_COUNTS = Declaration("perf.scaling of a count", _EXPONENT)
"""Counts need neither a quiet machine nor a process alone."""


class ScalingInstrument(Instrument):
    def scaling(
        self,
        make_call: MakeCall,
        sizes: Sequence[int],
        *,
        metric: str = "return",
        budget: Budget = NO_BUDGET,
        name: str | None = None,
        tolerance: float | None = None,
    ) -> Scaling:
        """Fit a metric against size: `.per_unit`, `.intercept`, `.r_squared`, `.exponent`.

        `make_call(size)` returns `(call, units)`, for example the call of a model with `size` layers and its number of
        leaves. `metric` is "return" or "ready" (microseconds), or a count or a size of an instrument that takes one
        call, such as "host_calls", "equations" or "peak_bytes". `Budget(us_per_leaf=)` limits the slope of the first
        two, `Budget(exponent=)` the power with which any metric grows; that takes three sizes.
        """
        __tracebackhide__ = True
        check_choice("perf.scaling(metric=...)", metric, (*COLUMNS, *COUNTS))
        is_time = metric not in COUNTS
        limits = self._begin(SCALING if is_time else OF_COUNTS, budget)
        if not is_time and (capability := COUNTS[metric][2]) is not None:
            capability.check(f"perf.scaling(metric={metric!r})")
        calls, units = calls_by_size(make_call, sizes)
        what = metric_name(metric)
        measured = self._recorder.measured("scaling", calls[0].label, f" {what} per unit", name=name)
        if is_time:
            self._session.mode.about_to_time(self._item, [f"{measured.name} {what} per unit"], calls)
        scaling = fit_scaling(calls, units, metric=metric, seconds=self._seconds, **self._session.mode.timing)
        metrics = measured.metrics(scaling.metrics(measured.name))
        evidence = Evidence(cause=growing(scaling))
        for each in metrics:
            self._recorder.add(each, tolerance, NO_EVIDENCE if each.kind == "info" else evidence)
        if is_time and "exponent" not in limits and (growth := growing(scaling)):
            self._recorder.notes.append(f"{self._test}: {metrics[0].title}: {growth}; Budget(exponent=) limits it")
        if "us_per_leaf" in limits:
            cause = f"R^2 of the line is {scaling.r_squared:.3f} over {len(scaling.units)} sizes"
            self._recorder.check_budget(metrics[0], limits["us_per_leaf"], lambda: cause)
        if "exponent" in limits:
            self._check_exponent(scaling, metrics, limits["exponent"])
        return scaling

    def _check_exponent(self, scaling: Scaling, metrics: Sequence[Metric], limit: float) -> None:
        __tracebackhide__ = True
        if scaling.exponent is None:
            raise ValueError(f"Budget(exponent=) needs three different sizes above 0, got {scaling.units.tolist()}")
        exponent = next(each for each in metrics if each.name.endswith(" exponent"))
        if scaling.largest is not None:
            exponent = dataclasses.replace(exponent, kind="size", interval=None)  # exact
        self._recorder.check_budget(exponent, limit, lambda: growing(scaling, limit))
