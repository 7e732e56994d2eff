"""`compare_calls`: two calls, paired in one run, in random order, until their ratio is known well enough.

Timings on shared machines drift far more than the effects to be caught: sequential medians of the same code differed by
8 % (standard deviation) and by up to 62 %, paired ones by 0.26 % (2-core x86-64 machine, 0.36 ms jitted step). So the
sides take turns in random order in windows of a few blocks, and the metric is the median of candidate / reference over
all pairs of blocks of the same window.
"""

import dataclasses
import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from perfsuite.measure import peers, progress
from perfsuite.measure.call import Call
from perfsuite.measure.estimate import Estimate
from perfsuite.measure.measurement import Interval, Metric
from perfsuite.measure.stats.error_rates import DECIDING_ERROR, error_of_look
from perfsuite.measure.stats.rank_sum import Windows
from perfsuite.measure.stats.sequential import (
    Look,
    Sequential,
    estimates,
    fewest_pairs,
    in_windows,
    window_of,
)
from perfsuite.measure.timing.block import (
    COLUMNS,
    Sample,
    Subject,
    Until,
    columns_us,
    run_block,
    steady,
    subjects_alike,
)
from perfsuite.measure.words import plural

LEAST_PAIRS = 3
"""Taken even when time is up. So few have no interval, and the metric stays open."""
HOPELESS = 0.001
"""Two sides of the same code may differ by about as much, for reasons outside it (where memory lies)."""
MARGIN = 1.35
"""The estimate itself moves: to settle nine times in ten, the interval must be so much narrower than its distance from
the limit (its half-width is 3.6 standard errors, and 1.28 more stay free)."""
MOST_SECONDS = 600
PRECISION = 0.005
"""Without a limit, sampling stops at this half-width of the log ratio's interval."""

Field = Literal["ratio", "overhead_us"]

Samples = tuple[list[Sample], list[Sample]]
"""Of the candidate and of the reference."""

Settled = Callable[[Estimate, Estimate], bool]
"""Takes the ratio and the overhead; says whether they are known well enough to stop."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Candidate against reference, `until` they return or are ready.

    `ratio` is the median of candidate / reference over the pairs that share a window, `overhead_us` the median of
    candidate - reference in microseconds. Whoever holds the budget sets `verdict`. `candidate_us` and `reference_us`
    are the samples, shape (pairs, 2), the columns to return and to ready, in the order of sampling, `window` of them in
    each window. `unsettled` is a sentence where the ratio moved meanwhile; the intervals then hold both ends. `error`
    is the chance that an interval misses the truth at any look. `processes` is how many gave the samples.
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
    window: int = 1
    unsettled: str | None = None
    error: float = DECIDING_ERROR
    processes: int = 1

    @property
    def candidate_median_us(self) -> float:
        """Median of the candidate alone, for people: it drifts, and only the paired metrics decide."""
        return float(np.median(self.candidate_us[:, COLUMNS[self.until]]))

    @property
    def reference_median_us(self) -> float:
        """Median of the reference alone."""
        return float(np.median(self.reference_us[:, COLUMNS[self.until]]))

    @property
    def pairs(self) -> int:
        return len(self.candidate_us)

    @property
    def bounded(self) -> bool:
        """Whether the pairs are enough for an interval."""
        return math.isfinite(self.ratio.interval.high)

    def metrics(self, name: str) -> list[Metric]:
        """The metrics that a gate takes. The overhead is info: the ratio gates the same thing without its drift.

        Where the pairs are too few for an interval, the ratio is info as well.
        """
        ratio = Metric(f"{name} ratio to {self.until}", self.ratio.value, "x", "info", samples=self.pairs)
        overhead = Metric(f"{name} overhead to {self.until}", self.overhead_us.value, "us", "info", samples=self.pairs)
        if self.bounded:
            ratio = dataclasses.replace(ratio, kind="ratio", interval=self.ratio.interval)
            overhead = dataclasses.replace(overhead, interval=self.overhead_us.interval)
        return [ratio, overhead]

    def to_settle(self, limit: float, metric: Field = "ratio") -> str:
        """What would settle a comparison that left `limit` inside the interval of `metric`, in words."""
        if self.unsettled:
            return f"{self.unsettled}; more sampling does not settle that"
        if not self.bounded:
            needed = self.seconds * fewest_pairs(self.error) / self.pairs
            return (
                f"{self.pairs} pairs are too few for an interval: allow more time (--perf-seconds={math.ceil(needed)})"
            )
        estimate: Estimate = getattr(self, metric)
        value, low, high = estimate.value, estimate.interval.low, estimate.interval.high
        if metric == "ratio" and limit > 0:
            value, low, high, limit = (math.log(each) for each in (value, low, high, limit))
        distance = abs(limit - value)
        # A share of the reference's time, so that one bound serves both metrics.
        relative = distance if metric == "ratio" else distance / self.reference_median_us
        if relative < HOPELESS:
            return (
                f"its estimate lies within {HOPELESS:.1%} of the limit, where no amount of sampling is sure to tell "
                "on which side: move the limit"
            )
        side = high - value if value <= limit else value - low
        # An interval narrows with the square root of the number of pairs.
        needed = self.seconds * max(1.0, side * MARGIN / distance) ** 2
        if needed > MOST_SECONDS:
            return f"more than {MOST_SECONDS / 60:g} minutes of sampling: move the limit, or take a quieter machine"
        more = plural(max(1, math.ceil(needed - self.seconds)), "more second")
        return f"about {more} of sampling (--perf-seconds={math.ceil(needed)})"


def compare_calls(
    candidate: Call,
    reference: Call,
    *,
    until: Until = "ready",
    seconds: float = 5.0,
    settled: Settled | None = None,
    seed: int | None = None,
    error: float = DECIDING_ERROR,
) -> Comparison:
    """Compare two calls in windows of up to 5 pairs, each window in random order, for at most `seconds` of sampling.

    Warms both first; a compile while sampling raises `RecompilationError`. Looks at the intervals after 20 pairs and
    then after every 40 % more, each look paid for (`Sequential`), and stops when `settled` says so: by default once the
    ratio is known to 0.5 %. `error` is the chance that the interval of the ratio, or that of the overhead, misses the
    truth at any look.
    """
    if not 0 < error < 1:
        raise ValueError(f"compare_calls(error={error!r}): must lie between 0 and 1")
    sides = subjects_alike(candidate, reference)
    settled = settled or _precise
    order = random.Random(seed if peers.alone() else peers.agreed(random.getrandbits(53) if seed is None else seed))
    column = COLUMNS[until]
    rule = Sequential(error)
    best: Look | None = None
    what = f"comparing {candidate.label} with {reference.label}"
    started = time.monotonic()
    samples: Samples = ([], [])
    with steady(*sides), progress.sampling(what, seconds) as report:
        _run_window(sides, 1, order, samples)
        window = peers.agreed(window_of(seconds / max(time.monotonic() - started, 1e-9), error))
        if window > 1:  # that pair was no window, and there is time for others
            samples = ([], [])
        while True:
            time_passed = peers.agreed((time.monotonic() - started) / seconds if seconds else math.inf)
            pairs = len(samples[0])
            if pairs >= LEAST_PAIRS and rule.due(pairs, time_passed):
                a, b = (np.asarray(peers.slowest(side))[:, column] / 1e3 for side in samples)
                now = rule.look(a, b, window, time_passed)
                best = now or best
                if peers.agreed(time_passed > 1 or bool(now and settled(now.ratio, now.overhead))):
                    break
            if report is not None:  # between windows, whose order is random: its cost falls on either side alike
                report()
            _run_window(sides, window, order, samples)
    candidate_us = columns_us(peers.slowest(samples[0]), candidate.label)
    reference_us = columns_us(peers.slowest(samples[1]), reference.label)
    if best is None:
        best = estimates([in_windows(candidate_us[:, column], reference_us[:, column], window)], 0.0)
    return Comparison(
        candidate=candidate.label,
        reference=reference.label,
        until=until,
        ratio=best.ratio,
        overhead_us=best.overhead,
        candidate_us=candidate_us,
        reference_us=reference_us,
        looks=rule.looks,
        seconds=time.monotonic() - started,
        window=window,
        unsettled=best.unsettled,
        error=error,
    )


def _run_window(sides: list[Subject], pairs: int, order: random.Random, samples: Samples) -> None:
    """Add `pairs` samples of each side, every order of the blocks as likely as any other."""
    turns = [0, 1] * pairs
    order.shuffle(turns)
    for side in turns:
        samples[side].append(run_block(sides[side]))


def _precise(ratio: Estimate, overhead: Estimate) -> bool:
    return math.log(ratio.interval.high / ratio.interval.low) / 2 <= PRECISION


def pooled(parts: Sequence[Comparison], error: float | None = None) -> Comparison:
    """One comparison over all pairs of `parts`, each from a process of its own, in that order.

    The pairs stay in their windows, so the interval holds whatever differs between the processes' machines. But the
    ratio itself differs between processes (where arrays and code lie in memory), and no number of pairs in one process
    shows by how much. So the interval also holds the estimate of every process: only what the pairs together and every
    single process say counts as decided.

    It may be called after each new process: with n parts it spends the (n - 1)-th share of `error`, and the intervals
    of all those calls hold at once with probability 1 - `error`. What the first comparison spent comes on top; by
    default `error` is as much again.

    Raises `ValueError` for no parts, and for parts that are not of the same two calls until the same moment.
    """
    if not parts:
        raise ValueError("pooled() needs at least one comparison")
    if len(kinds := {(part.candidate, part.reference, part.until) for part in parts}) > 1:
        named = ", ".join(sorted(f"{a}/{b} to {until}" for a, b, until in kinds))
        raise ValueError(f"pooled() takes comparisons of the same two calls, got {named}")
    if len(parts) == 1:
        return parts[0]
    error = parts[0].error if error is None else error
    windows = [_windows_of(part) for part in parts]
    look = estimates(windows, error_of_look(len(parts) - 1, error))
    alone = [estimates([times], 0.0) for times in windows]
    ratio = _holding(look.ratio, [each.ratio.value for each in alone])
    unsettled = [look.unsettled] if look.unsettled else []
    if ratio != look.ratio:
        values = ", ".join(f"{each.ratio.value:.4g}" for each in alone)
        unsettled.append(f"the processes contradict each other: the ratios of each are {values}")
    return dataclasses.replace(
        parts[0],
        ratio=ratio,
        overhead_us=_holding(look.overhead, [each.overhead.value for each in alone]),
        candidate_us=np.concatenate([part.candidate_us for part in parts]),
        reference_us=np.concatenate([part.reference_us for part in parts]),
        looks=sum(part.looks for part in parts),
        seconds=sum(part.seconds for part in parts),
        window=parts[0].window if len({part.window for part in parts}) == 1 else 1,
        unsettled="; ".join(unsettled) or None,
        error=error,
        processes=len(parts),
    )


def _windows_of(part: Comparison) -> Windows:
    column = COLUMNS[part.until]
    return in_windows(part.candidate_us[:, column], part.reference_us[:, column], part.window)


def _holding(estimate: Estimate, values: list[float]) -> Estimate:
    """The estimate, its interval wide enough for all the values."""
    interval = estimate.interval
    return Estimate(estimate.value, Interval(min(interval.low, *values), max(interval.high, *values)))
