"""`fit_scaling`: how a metric grows with size, as a line with its slope, intercept and R^2."""

import dataclasses
import random
import time
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from perfsuite.measure.call import Call
from perfsuite.measure.compiles import compiles
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.measurement import Interval, Metric
from perfsuite.measure.runtime.hostcalls import host_calls
from perfsuite.measure.stats.intervals import INFORMING_ERROR, line_fit, median_interval
from perfsuite.measure.timing.block import Sample, collector_off, run_block, subjects_alike
from perfsuite.measure.timing.comparison import Estimate
from perfsuite.measure.timing.timing import columns_us

Scaled = Literal["return", "ready", "host_calls"]
MakeCall = Callable[[int], tuple[Call, float]]

LEAST_ROUNDS = 12
MOST_ROUNDS = 2000
PRECISION = 0.01


@dataclasses.dataclass(frozen=True)
class Scaling:
    """A line through (units, metric): `per_unit` and `intercept` in microseconds, or in calls for "host_calls".

    `units` and `values` have shape (sizes,); a value is the median over the rounds. `per_unit` is the median of the
    slopes of the rounds, with its interval: drift between the rounds does not reach it.
    """

    label: str
    metric: Scaled
    units: np.ndarray
    values: np.ndarray
    per_unit: Estimate
    intercept: float
    r_squared: float
    rounds: int

    @property
    def what(self) -> str:
        """What the metrics are called, after the name of the function."""
        return "host calls" if self.metric == "host_calls" else f"to {self.metric}"

    def metrics(self, name: str) -> list[Metric]:
        """Slope, intercept and R^2. Of times the slope is gated; of host calls the exact count at the largest size."""
        name = f"{name} {self.what}"
        if self.metric == "host_calls":
            unit = "calls"
            fit = Metric(f"{name} per unit", self.per_unit.value, "calls/unit", "info")
            largest = self.units.argmax()
            exact = [Metric(f"{name} at {self.units[largest]:g}", int(self.values[largest]), unit, "count")]
        else:
            unit, slope, exact = "us", self.per_unit, []
            fit = Metric(f"{name} per unit", slope.value, "us/unit", "time", "lower", slope.interval, self.rounds)
        return [
            fit,
            Metric(f"{name} intercept", self.intercept, unit, "info"),
            Metric(f"{name} R^2", self.r_squared, "1", "info", better="higher"),
            *exact,
        ]


def fit_scaling(
    make_call: MakeCall, sizes: Sequence[int], *, metric: Scaled = "return", seconds: float = 5.0
) -> Scaling:
    """Fit `metric` against the units that `make_call(size)` names beside its call, for at most `seconds` of sampling.

    Every round runs each size once, in random order. Raises `ValueError` for fewer than two different sizes, and
    `MeasurementError` when `make_call` gives the same units for all of them.
    """
    if len(set(sizes)) < 2:
        raise ValueError(f"scaling needs at least two different sizes, got {list(sizes)}")
    calls, units = [], []
    for size in sizes:
        made, unit = make_call(size)
        if not isinstance(made, Call):
            raise TypeError(f"make_call({size}) must return (call(...), units), got {type(made).__name__} first")
        calls.append(made)
        units.append(float(unit))
    at = np.asarray(units)
    if len(set(units)) < 2:
        raise MeasurementError(f"make_call gives {units[0]:g} units for every size; a line needs two different ones")
    if metric == "host_calls":
        values = np.asarray([float(host_calls(each).total) for each in calls])
        slope, intercept, r_squared = line_fit(at, values)
        exact = Estimate(slope, Interval(slope, slope))
        return Scaling(calls[0].label, metric, at, values, exact, intercept, r_squared, rounds=1)
    times = _timed_rounds(calls, metric, at, seconds)
    slopes = np.polyfit(at, times.T, 1)[0]
    values = np.median(times, axis=0)
    _, intercept, r_squared = line_fit(at, values)
    slope = float(np.median(slopes))
    interval = median_interval(slopes, INFORMING_ERROR) or Interval(float(slopes.min()), float(slopes.max()))
    return Scaling(calls[0].label, metric, at, values, Estimate(slope, interval), intercept, r_squared, len(times))


def _timed_rounds(calls: list[Call], metric: Scaled, units: np.ndarray, seconds: float) -> np.ndarray:
    """Microseconds, shape (rounds, sizes)."""
    subjects = subjects_alike(*calls)
    column = 0 if metric == "return" else 1
    samples: list[list[Sample]] = [[] for _ in subjects]
    order = list(range(len(subjects)))
    shuffle = random.Random().shuffle
    try:
        with collector_off(), compiles.forbid():
            deadline = time.monotonic() + seconds
            look = LEAST_ROUNDS
            while (rounds := len(samples[0])) < MOST_ROUNDS:
                if rounds >= 3 and time.monotonic() > deadline:
                    break
                if rounds == look:
                    look *= 2
                    if _precise(samples, column, units):
                        break
                shuffle(order)
                for index in order:
                    samples[index].append(run_block(subjects[index]))
    finally:
        for subject in subjects:
            subject.give_back()
    return np.stack(
        [columns_us(taken, each.label)[:, column] for taken, each in zip(samples, calls, strict=True)], axis=1
    )


def _precise(samples: list[list[Sample]], column: int, units: np.ndarray) -> bool:
    times = np.asarray(samples)[:, :, column]  # (sizes, rounds)
    slopes = np.polyfit(units, times, 1)[0]
    interval = median_interval(slopes, INFORMING_ERROR)
    return interval is not None and interval.half_width <= PRECISION * abs(float(np.median(slopes)))
