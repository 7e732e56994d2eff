"""`fit_scaling`: how a metric grows with size, as a line with its slope, intercept and R^2; a count with its power."""

import dataclasses
import random
import time
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from perfsuite.measure.call import Call
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.estimate import Estimate
from perfsuite.measure.first_call.first_call import first_call
from perfsuite.measure.first_call.metrics import COUNTED
from perfsuite.measure.first_call.metrics import metrics as metrics_of_first_call
from perfsuite.measure.metric import Metric
from perfsuite.measure.runtime.host_calls import host_calls
from perfsuite.measure.stack_room import with_room
from perfsuite.measure.stats import intervals
from perfsuite.measure.stats.exponent import growth_exponent
from perfsuite.measure.stats.intervals import LEAST_FOR_MEDIAN, line_fit, median_is_known, median_within_run
from perfsuite.measure.timing.block import (
    COLUMNS,
    Sample,
    Subject,
    Until,
    columns_us,
    quickest_us,
    rounding_us,
    run_block,
    steady,
    subjects_alike,
)

Time = Literal["return", "ready"]
Scaled = Literal[
    "return",
    "ready",
    "host_calls",
    "trace_calls",
    "lowering_calls",
    "traces",
    "equations",
    "stablehlo_bytes",
    "constants",
    "constant_bytes",
]
"""What is fitted against size: a time in microseconds, or a count."""
MakeCall = Callable[[int], tuple[Call, float]]

LEAST_ROUNDS = 12
MOST_ROUNDS = 2000
PRECISION = 0.01
"""Sampling stops once the slope is known to this share, or when time is up."""


@dataclasses.dataclass(frozen=True)
class Scaling:
    """A line through (units, metric): `per_unit` and `intercept` in microseconds, or in the unit of a count.

    `units` and `values` have shape (sizes,); a value is the median over the rounds. `per_unit` is the median of the
    slopes of the rounds, so drift between the rounds does not reach it. Its interval is that within this run; the next
    run may lie outside. `quickest` is the slope of the quickest blocks, None for a count.

    Of a count, `exponent` is the power of the units with which it grows, None for fewer than three sizes, and `largest`
    is the count at the largest size, with its parts.
    """

    label: str
    metric: Scaled
    units: np.ndarray
    values: np.ndarray
    per_unit: Estimate
    intercept: float
    r_squared: float
    rounds: int
    quickest: float | None = None
    exponent: float | None = None
    largest: Metric | None = None

    @property
    def what(self) -> str:
        """What the metrics are called, after the name of the function."""
        return what_of(self.metric)

    def metrics(self, name: str) -> list[Metric]:
        """Slope, intercept and R^2. Of times the slope is gated; of counts the exact one at the largest size."""
        name, slope = f"{name} {self.what}", self.per_unit
        unit = "us" if self.largest is None else self.largest.unit
        line = [
            Metric(f"{name} intercept", self.intercept, unit, "info"),
            Metric(f"{name} R^2", self.r_squared, "1", "info", better="higher"),
        ]
        if self.largest is None:
            interval = slope.interval if self.rounds >= LEAST_FOR_MEDIAN else None  # the range of a few is no interval
            per_unit = Metric(f"{name} per unit", slope.value, "us/unit", "time", "lower", interval, self.rounds)
            per_unit = dataclasses.replace(per_unit, quickest=self.quickest)
            return [per_unit, *line]
        if self.exponent is not None:
            line.append(Metric(f"{name} exponent", self.exponent, "(1 is linear)", "info"))
        largest = dataclasses.replace(self.largest, name=f"{name} at {self.units.max():g}", id="")
        return [Metric(f"{name} per unit", slope.value, f"{unit}/unit", "info"), *line, largest]


def what_of(metric: Scaled) -> str:
    """What the metrics of a scaling are called, after the name of the function."""
    if metric in COUNTED:
        return COUNTED[metric].suffix.strip()
    return "host calls" if metric == "host_calls" else f"to {metric}"


def fit_scaling(
    make_call: MakeCall, sizes: Sequence[int], *, metric: Scaled = "return", seconds: float = 5.0
) -> Scaling:
    """Fit `metric` against the units that `make_call(size)` names beside its call, for at most `seconds` of sampling.

    Every round runs each size once, in random order. Raises `ValueError` for fewer than two different sizes, and
    `MeasurementError` when `make_call` gives the same units for all of them.
    """
    return fit_calls(*calls_of(make_call, sizes), metric=metric, seconds=seconds)


@with_room
def fit_calls(
    calls: Sequence[Call], units: np.ndarray, *, metric: Scaled, seconds: float, known_to: float = PRECISION
) -> Scaling:
    """Fit `metric` of calls that were made, against their `units`."""
    intervals.load()
    largest, exponent, quickest = None, None, None
    if metric != "return" and metric != "ready":
        counts = [_count(each, metric) for each in calls]
        values = np.asarray([float(each.value) for each in counts])
        rounds, slopes, hidden = 1, np.asarray([line_fit(units, values)[0]]), 0.0
        largest, exponent = counts[units.argmax()], growth_exponent(units.tolist(), values.tolist())
    else:
        subjects = subjects_alike(*calls)
        times = _timed_rounds(subjects, metric, units, seconds, known_to)
        rounds, slopes, values = len(times), _slopes(units, times), np.median(times, axis=0)
        weights = _slopes(units, np.eye(len(units)))  # of each size's time in the slope
        quickest = float(line_fit(units, quickest_us(times))[0])
        hidden = rounding_us(*subjects) * float(np.abs(weights).sum())
    _, intercept, r_squared = line_fit(units, values)
    per_unit = Estimate(float(np.median(slopes)), median_within_run(slopes).widened(hidden))
    return Scaling(
        calls[0].label, metric, units, values, per_unit, intercept, r_squared, rounds, quickest, exponent, largest
    )


def _count(call: Call, metric: Scaled) -> Metric:
    """The exact metric of one size, with its parts."""
    if metric == "host_calls":
        return host_calls(call).metrics(call.label)[0]
    return metrics_of_first_call(first_call(call, compiles=False), call.label)[metric]


def calls_of(make_call: MakeCall, sizes: Sequence[int]) -> tuple[list[Call], np.ndarray]:
    """The calls of all sizes, and their units. Raises as `fit_scaling` does."""
    if len(set(sizes)) < 2:
        raise ValueError(f"scaling needs at least two different sizes, got {list(sizes)}")
    if not callable(make_call):
        raise TypeError(f"make_call must be a function of a size, got {type(make_call).__name__}: {make_call!r}")
    calls, units = [], []
    for size in sizes:
        pair = make_call(size)
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], Call)):
            got = (
                f"({', '.join(type(each).__name__ for each in pair)})"
                if isinstance(pair, tuple | list)
                else type(pair).__name__
            )
            raise TypeError(f"make_call({size}) must return (call(...), units), got {got}")
        made, unit = pair
        calls.append(made)
        units.append(float(unit))
    if len(set(units)) < 2:
        raise MeasurementError(f"make_call gives {units[0]:g} units for every size; a line needs two different ones")
    return calls, np.asarray(units)


def _timed_rounds(
    subjects: list[Subject], until: Until, units: np.ndarray, seconds: float, known_to: float
) -> np.ndarray:
    """Microseconds, shape (rounds, sizes)."""
    column = COLUMNS[until]
    rounds: list[list[Sample]] = []
    order = list(range(len(subjects)))
    look = LEAST_ROUNDS
    with steady(*subjects):
        deadline = time.monotonic() + seconds
        while len(rounds) < MOST_ROUNDS and (len(rounds) < 3 or time.monotonic() <= deadline):
            if len(rounds) == look:
                look *= 2
                if median_is_known(_slopes(units, np.asarray(rounds)[:, :, column]), known_to):
                    break
            random.shuffle(order)
            samples = {index: run_block(subjects[index]) for index in order}
            rounds.append([samples[index] for index in range(len(subjects))])
    by_size = zip(zip(*rounds, strict=True), subjects, strict=True)
    times = [columns_us(list(samples), each.call.label)[:, column] for samples, each in by_size]
    return np.stack(times, axis=1)


def _slopes(units: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The slope of each round; `times` has shape (rounds, sizes)."""
    return np.polyfit(units, times.T, 1)[0]
