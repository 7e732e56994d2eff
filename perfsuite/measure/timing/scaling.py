"""`fit_scaling`: how a metric grows with size, as a line with its slope, intercept and R^2, and with its power."""

import dataclasses
import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import numpy as np

from perfsuite.measure.call import Call, with_room
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.first_call.first_call import COUNTED, first_call
from perfsuite.measure.metric import Estimate, Interval, Kind, Metric
from perfsuite.measure.private.capabilities import FIRST_CALLS, PROGRAM_RUNS, SLOW_PATH, TRANSFERS, Capability
from perfsuite.measure.program.compilation import compile_call
from perfsuite.measure.program.lowering import runs_as_one
from perfsuite.measure.program.program_metrics import GATED_FACTS, metrics_of
from perfsuite.measure.runtime import dispatches, memory, transfers
from perfsuite.measure.runtime.fast_path import fast_path
from perfsuite.measure.runtime.host_calls import host_calls
from perfsuite.measure.runtime.programs import program_of_all
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
from perfsuite.measure.timing.intervals import BATCHES, LEAST_FOR_MEDIAN, median_is_precise, median_within_run

MakeCall = Callable[[int], tuple[Call, float]]

LEAST_ROUNDS = 12
MOST_ROUNDS = 2000
PRECISION = 0.01
"""Sampling stops once the half-width of the slope is this share of it, or when time is up."""

STEEPEST = 16.0
"""Growth above this power is not told apart from it."""
_DIGITS = 4

UNLIKE = 0.02
"""The share by which times differ for reasons outside the code: between processes two builds of the same code have a
standard deviation of up to 2.3 % (2-core x86-64 machine)."""


_INSTRUMENTS: tuple[tuple[Callable[[Call], Iterable[Metric]], Iterable[str], Capability | None], ...] = (
    (lambda call: host_calls(call).metrics(call.label), [" host calls"], None),
    (lambda call: dispatches.dispatches(call).of_budget(call.label), dispatches.SUFFIXES, PROGRAM_RUNS),
    (lambda call: fast_path(call).metrics(call.label), [" fast-path misses"], SLOW_PATH),
    (
        lambda call: first_call(call, compiles=False).metrics(call.label).values(),
        [each.suffix for each in COUNTED.values()],
        FIRST_CALLS,
    ),
    (lambda call: transfers.transfers_of(call).metrics(call.label), transfers.SUFFIXES.values(), TRANSFERS),
    (lambda call: memory.memory_of(call).metrics(call.label), memory.SUFFIXES, None),
    (lambda call: memory.donation_of(call).metrics(call.label), memory.OF_DONATION, None),
    (
        lambda call: metrics_of(compile_call(call).program() if runs_as_one(call) else program_of_all(call)),
        [f" {fact}" for fact in GATED_FACTS],
        None,
    ),
)
"""Each with what the names of its counts and sizes end with, and with what it needs of JAX."""

COUNTS = {
    suffix.strip().lower().replace(" ", "_").replace("-", "_"): (metrics, suffix, capability)
    for metrics, suffixes, capability in _INSTRUMENTS
    for suffix in suffixes
}
"""What can be fitted beside times, by name: every count and size of the instruments that take one call."""


@dataclasses.dataclass(frozen=True)
class Scaling:
    """A line through (units, metric): `per_unit` and `intercept` in microseconds, or in the unit of a count.

    `units` and `values` have shape (sizes,); a value is the median over the rounds. `per_unit` is the median of the
    slopes of the rounds, so drift between the rounds does not reach it. Its interval is that within this run; the next
    run may lie outside. `quickest` is the slope of the quickest blocks, None for a count.

    Of a count, `exponent` is the power of the units with which it grows, None for fewer than three sizes. `smallest`
    and `largest` are the counts at those sizes, with their parts.
    """

    label: str
    metric: str
    units: np.ndarray
    values: np.ndarray
    per_unit: Estimate
    intercept: float
    r_squared: float
    rounds: int
    quickest: float | None = None
    exponent: Estimate | None = None
    smallest: Metric | None = None
    largest: Metric | None = None

    def metrics(self, name: str) -> list[Metric]:
        """Slope, intercept, R^2, exponent. Of times the slope is gated; of counts the exact one at the largest size."""
        name = f"{name} {metric_name(self.metric)}"
        unit = "us" if self.largest is None else self.largest.unit
        kind: Kind = "time" if self.largest is None else "info"
        per_unit = Metric(f"{name} per unit", self.per_unit.value, f"{unit}/unit", kind, quickest=self.quickest)
        metrics = [
            self._sampled(per_unit, self.per_unit),
            Metric(f"{name} intercept", self.intercept, unit, "info"),
            Metric(f"{name} R^2", self.r_squared, "1", "info", better="higher"),
        ]
        if self.exponent is not None:
            exponent = Metric(f"{name} exponent", self.exponent.value, "(1 is linear)", "info")
            metrics.append(self._sampled(exponent, self.exponent))
        if self.largest is not None:
            metrics.append(dataclasses.replace(self.largest, name=f"{name} at {self.units.max():g}", id=""))
        return metrics

    def _sampled(self, metric: Metric, estimate: Estimate) -> Metric:
        """The metric with its interval, where it is of times. The range of a few rounds is no interval."""
        if self.largest is not None:
            return metric
        interval = estimate.interval if self.rounds >= LEAST_FOR_MEDIAN else None
        return dataclasses.replace(metric, interval=interval, samples=self.rounds)


def metric_name(metric: str) -> str:
    """What the metrics of a scaling are called, after the name of the function."""
    return COUNTS[metric][1].strip() if metric in COUNTS else f"to {metric}"


def calls_by_size(make_call: MakeCall, sizes: Sequence[int]) -> tuple[list[Call], np.ndarray]:
    """The calls of all sizes, and the units that `make_call(size)` names beside its call.

    Raises `ValueError` for fewer than two different sizes, and `MeasurementError` when all have the same units.
    """
    if len(set(sizes)) < 2:
        raise ValueError(f"scaling needs at least two different sizes, got {list(sizes)}")
    if not callable(make_call):
        raise TypeError(f"make_call must be a function of a size, got {type(make_call).__name__}: {make_call!r}")
    calls, units = [], []
    for size in sizes:
        pair = make_call(size)
        if not isinstance(pair, tuple | list):
            raise TypeError(f"make_call({size}) must return (call(...), units), got {type(pair).__name__}")
        if len(pair) != 2 or not isinstance(pair[0], Call):
            types = ", ".join(type(each).__name__ for each in pair)
            raise TypeError(f"make_call({size}) must return (call(...), units), got ({types})")
        calls.append(pair[0])
        units.append(float(pair[1]))
    if len(set(units)) < 2:
        raise MeasurementError(f"make_call gives {units[0]:g} units for every size; a line needs two different ones")
    return calls, np.asarray(units)


@with_room
def fit_scaling(
    calls: Sequence[Call],
    units: np.ndarray,
    *,
    metric: str = "return",
    seconds: float = 5.0,
    precision: float = PRECISION,
) -> Scaling:
    """Fit `metric` of the calls against their `units`, for at most `seconds` of sampling.

    `metric` is "return" or "ready", in microseconds, or one of `COUNTS`. Every round runs each call once, in random
    order. Sampling ends early where the half-width of the slope is at most the share `precision` of it.
    """
    if metric in COUNTS:
        return _fit_counts(calls, units, metric)
    subjects = subjects_alike(*calls)
    times = _timed_rounds(subjects, cast(Until, metric), units, seconds, precision)
    slopes, values = _slopes(units, times), np.median(times, axis=0)
    weights = _slopes(units, np.eye(len(units)))  # of each size's time in the slope
    rounding = rounding_us(*subjects) * float(np.abs(weights).sum())
    per_unit = Estimate(float(np.median(slopes)), median_within_run(slopes).widened(rounding))
    quickest = line_fit(units, quickest_us(times))[0]
    _, intercept, r_squared = line_fit(units, values)
    power = _exponent_of_times(units, times)
    rounds = len(times)
    return Scaling(calls[0].label, metric, units, values, per_unit, intercept, r_squared, rounds, quickest, power)


def _fit_counts(calls: Sequence[Call], units: np.ndarray, metric: str) -> Scaling:
    counts = [_count(call, metric) for call in calls]
    values = np.asarray([float(count.value) for count in counts])
    slope, intercept, r_squared = line_fit(units, values)
    per_unit = Estimate(slope, Interval(slope, slope))
    power = growth_exponent(units.tolist(), values.tolist())
    exponent = None if power is None else Estimate(power, Interval(power, power))
    ends = counts[units.argmin()], counts[units.argmax()]
    return Scaling(calls[0].label, metric, units, values, per_unit, intercept, r_squared, 1, None, exponent, *ends)


def _count(call: Call, metric: str) -> Metric:
    """The exact metric of one size, with its parts. Raises `MeasurementError` where the instrument does not know it."""
    metrics, suffix, _ = COUNTS[metric]
    count = next((each for each in metrics(call) if each.name == call.label + suffix), None)
    if count is None:
        raise MeasurementError(f"perf.scaling(metric={metric!r}): it is not known of {call.label}")
    return count


def _timed_rounds(
    subjects: list[Subject], until: Until, units: np.ndarray, seconds: float, precision: float
) -> np.ndarray:
    """Microseconds, shape (rounds, sizes)."""
    column = COLUMNS[until]
    rounds: list[list[Sample]] = []
    order = list(range(len(subjects)))
    next_check = LEAST_ROUNDS
    with steady(*subjects):
        deadline = time.monotonic() + seconds
        while len(rounds) < MOST_ROUNDS and (len(rounds) < 3 or time.monotonic() <= deadline):
            if len(rounds) == next_check:
                next_check *= 2
                if median_is_precise(_slopes(units, np.asarray(rounds)[:, :, column]), precision):
                    break
            random.shuffle(order)
            samples = {index: run_block(subjects[index]) for index in order}
            rounds.append([samples[index] for index in range(len(subjects))])
    by_size = zip(zip(*rounds, strict=True), subjects, strict=True)
    times = [columns_us(list(samples), each.call.label)[:, column] for samples, each in by_size]
    return np.stack(times, axis=1)


def _exponent_of_times(units: np.ndarray, times: np.ndarray) -> Estimate | None:
    """The power with which times of shape (rounds, sizes) grow; None for fewer than three sizes.

    The interval holds that of the medians of batches of rounds, and that of the quickest blocks, for other processes
    disturb long calls more than short ones. It allows for times that are `UNLIKE` off: where a time hardly grows, no
    power is certain.
    """

    def power(of_sizes: np.ndarray) -> float | None:
        return growth_exponent(units.tolist(), of_sizes.tolist())

    value, quickest = power(np.median(times, axis=0)), power(quickest_us(times))
    if value is None or quickest is None:
        return None
    apart = np.where((units == units.min()) | (units == units.max()), 1 + UNLIKE, 1 - UNLIKE)
    batches = [np.median(batch, axis=0) for batch in np.array_split(times, min(BATCHES, len(times)))]
    flattest = median_within_run(np.asarray([power(batch * (2 - apart)) for batch in batches])).low
    steepest = median_within_run(np.asarray([power(batch * apart) for batch in batches])).high
    return Estimate(value, Interval(min(value, quickest, flattest), max(value, quickest, steepest)))


def _slopes(units: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The slope of each round; `times` has shape (rounds, sizes)."""
    return np.polyfit(units, times.T, 1)[0]


def line_fit(sizes: np.ndarray, values: np.ndarray) -> tuple[float, float, float]:
    """Least squares through (size, value): slope, intercept and the coefficient of determination R^2.

    R^2 is 1 for constant values, which a flat line explains fully.
    """
    spread = np.ptp(values)
    if spread == 0:  # the rounding errors of the fit would be compared with each other
        return 0.0, float(values[0]), 1.0
    variance, covariance = np.cov(sizes, values, bias=True)[0]
    slope = covariance / variance
    intercept = values.mean() - slope * sizes.mean()
    left = (values - slope * sizes - intercept) / spread  # of the spread: the squares of tiny numbers are zero
    whole = (values - values.mean()) / spread
    return float(slope), float(intercept), float(1 - left @ left / (whole @ whole))


def growth_exponent(units: Sequence[float], values: Sequence[float]) -> float | None:
    """The power p for which `values` lie on a + b * units ** p, through the smallest, a middle and the largest size.

    What does not depend on the size, a, may be anything: a line has 1, however large its intercept. None where there
    are fewer sizes, or one is not above zero. 0 where the values grow no more than with the logarithm of the size.
    """
    points = sorted(dict(zip(units, values, strict=True)).items())
    if len(points) < 3 or points[0][0] <= 0:
        return None
    (first, low), (last, high) = points[0], points[-1]
    middle, between = min(points[1:-1], key=lambda point: abs(math.log(point[0]) - math.log(first * last) / 2))
    if high <= between:
        return 0.0
    if between <= low:
        return STEEPEST
    ratio = (high - between) / (between - low)
    if ratio <= math.log(last / middle) / math.log(middle / first):
        return 0.0
    flat, steep = 0.0, STEEPEST
    for _ in range(60):  # the ratio rises with the power
        power = (flat + steep) / 2
        if ((last / middle) ** power - 1) / (1 - (first / middle) ** power) < ratio:
            flat = power
        else:
            steep = power
    return round((flat + steep) / 2, _DIGITS)
