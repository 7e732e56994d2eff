"""`compare_calls`: two calls, paired in one run, in random order, until their ratio is known well enough.

Timings on shared machines drift far more than the effects to be caught: sequential medians of the same code differed by
8 % (standard deviation) and by up to 62 %, paired ones by 0.26 % (2-core x86-64 machine, 0.36 ms jitted step). So the
figure is the median over pairs of candidate / reference, each pair taken within one block of the other.
"""

import dataclasses
import math
import random
import time
from collections.abc import Callable

import numpy as np

from perfsuite.measure import compiles
from perfsuite.measure.block import Sample, collector_off, run_block, subjects_alike
from perfsuite.measure.call import Call
from perfsuite.measure.measurement import Interval, Measurement
from perfsuite.measure.statistics import DECIDING_ERROR, error_of_look, median_interval
from perfsuite.measure.timing import Until, columns_us

FIRST_LOOK = 20
LOOK_GROWTH = 1.4
LEAST_PAIRS = 3
"""Taken even when time is up. Below 12 pairs there is no interval at this confidence, so the figure stays open."""
PRECISION = 0.005
"""With nothing else to settle, sampling stops at this half-width of the log ratio's interval."""


_COLUMNS: dict[Until, int] = {"return": 0, "ready": 1}


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A figure with its interval, which holds over all looks together with probability 1 - `DECIDING_ERROR`."""

    value: float
    interval: Interval

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.interval.low:.4g}, {self.interval.high:.4g}]"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Candidate against reference, `until` they return or are ready.

    `ratio` is the median of candidate / reference over the pairs, `overhead_us` the median of candidate - reference in
    microseconds. `verdict` is set by whoever holds the budget. `candidate_us` and `reference_us` are the samples,
    shape (pairs, 2), the columns to return and to ready, in the order in which the pairs were taken.
    """

    candidate: str
    reference: str
    until: Until
    ratio: Estimate
    overhead_us: Estimate
    candidate_us: np.ndarray
    reference_us: np.ndarray
    looks: int
    seconds: float
    verdict: str = "new"

    @property
    def candidate_median_us(self) -> float:
        """Median of the candidate alone, for people: it drifts, and only the paired figures decide."""
        return float(np.median(self.candidate_us[:, _COLUMNS[self.until]]))

    @property
    def reference_median_us(self) -> float:
        """Median of the reference alone."""
        return float(np.median(self.reference_us[:, _COLUMNS[self.until]]))

    @property
    def pairs(self) -> int:
        return len(self.candidate_us)

    def measurements(self, name: str) -> list[Measurement]:
        """The figures that a gate takes. The overhead is info: the ratio gates the same thing without its drift.

        Where the pairs were too few for an interval, the ratio is info as well.
        """
        ratio, overhead = self.ratio, self.overhead_us
        if not self.bounded:
            return [
                Measurement(f"{name} ratio to {self.until}", ratio.value, "x", "info", samples=self.pairs),
                Measurement(f"{name} overhead to {self.until}", overhead.value, "us", "info", samples=self.pairs),
            ]
        return [
            Measurement(
                f"{name} ratio to {self.until}", ratio.value, "x", "ratio", "lower", ratio.interval, self.pairs
            ),
            Measurement(
                f"{name} overhead to {self.until}", overhead.value, "us", "info", "lower", overhead.interval, self.pairs
            ),
        ]

    @property
    def bounded(self) -> bool:
        """Whether there were pairs enough for an interval at all."""
        return math.isfinite(self.ratio.interval.high)


Settled = Callable[[Estimate, Estimate], bool]
"""Says of the ratio and of the overhead whether they are known well enough to stop."""


def compare_calls(
    candidate: Call,
    reference: Call,
    *,
    until: Until = "ready",
    seconds: float = 5.0,
    settled: Settled | None = None,
    seed: int | None = None,
) -> Comparison:
    """Compare two calls in pairs, for at most `seconds` of sampling.

    Both are warmed first; a compile while sampling raises `RecompilationError`. After 20 pairs and then after every
    40 % more, the intervals are looked at, each look paid for (`error_of_look`), and sampling stops when `settled` says
    so. Without `settled` it stops once the ratio is known to 0.5 %.
    """
    sides = subjects_alike(candidate, reference)
    settled = settled or _precise
    order = random.Random(seed)
    samples: tuple[list[Sample], list[Sample]] = ([], [])
    column = _COLUMNS[until]
    look, next_look = 0, FIRST_LOOK
    best: tuple[Estimate, Estimate] | None = None
    started = time.monotonic()
    try:
        with collector_off(), compiles.forbid():
            while True:
                first = order.getrandbits(1)
                for side in (first, 1 - first):
                    samples[side].append(run_block(sides[side]))
                time_is_up = time.monotonic() - started > seconds
                if len(samples[0]) < next_look and not (time_is_up and len(samples[0]) >= LEAST_PAIRS):
                    continue
                look += 1
                next_look = int(len(samples[0]) * LOOK_GROWTH) + 1
                now = _estimates(*samples, column, error_of_look(look, DECIDING_ERROR))
                best = now or best
                if time_is_up or (now and settled(*now)):
                    break
    finally:
        for subject in sides:
            subject.give_back()
    candidate_us = columns_us(samples[0], candidate.label)
    reference_us = columns_us(samples[1], reference.label)
    ratio, overhead = best or _unbounded(candidate_us[:, column], reference_us[:, column])
    return Comparison(
        candidate=candidate.label,
        reference=reference.label,
        until=until,
        ratio=ratio,
        overhead_us=overhead,
        candidate_us=candidate_us,
        reference_us=reference_us,
        looks=look,
        seconds=time.monotonic() - started,
    )


def _estimates(
    candidate: list[Sample], reference: list[Sample], column: int, error: float
) -> tuple[Estimate, Estimate] | None:
    """Ratio and overhead (microseconds) of the pairs so far, or None while there are too few for an interval."""
    a = np.asarray(candidate)[:, column]
    b = np.asarray(reference)[:, column]
    if (a <= 0).any() or (b <= 0).any():
        return None  # `columns_us` says what is wrong, once sampling has ended
    log_ratio = np.log(a / b)
    overhead = (a - b) / 1e3
    ratio_interval = median_interval(log_ratio, error)
    overhead_interval = median_interval(overhead, error)
    if ratio_interval is None or overhead_interval is None:
        return None
    return (
        Estimate(
            float(np.exp(np.median(log_ratio))), Interval(math.exp(ratio_interval.low), math.exp(ratio_interval.high))
        ),
        Estimate(float(np.median(overhead)), overhead_interval),
    )


def _unbounded(candidate_us: np.ndarray, reference_us: np.ndarray) -> tuple[Estimate, Estimate]:
    return (
        Estimate(float(np.median(candidate_us / reference_us)), Interval(0.0, math.inf)),
        Estimate(float(np.median(candidate_us - reference_us)), Interval(-math.inf, math.inf)),
    )


def _precise(ratio: Estimate, overhead: Estimate) -> bool:
    return math.log(ratio.interval.high / ratio.interval.low) / 2 <= PRECISION
