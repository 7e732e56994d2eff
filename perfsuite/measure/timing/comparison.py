"""`compare_calls`: two calls, paired in one run, in random order, until their ratio is known well enough.

**Turns.** Timings on shared machines drift far more than the effects to be caught: sequential medians of the same code
differed by 8 % (standard deviation) and by up to 62 %, paired ones by 0.26 % (2-core x86-64 machine, 0.36 ms jitted
step). So the sides take turns in random order in windows of a few blocks, and the metric is the median of candidate /
reference over all pairs of blocks of the same window.

What a call leaves behind (a program that it dispatched and did not return, cold caches, frees) must fall on its own
side. So wherever the sides change, programs that the last call left are waited for, and the next side first runs a
block that is not timed. A candidate that took 1.5 times as long in a loop, because of a program that it did not return,
otherwise had a ratio of 1.01.

**Interval.** Where there is time for many pairs it is a confidence sequence, which holds at any time; where there is
time for few, a rank sum, whose error two checks share. `shift` has both, with their sources.

**End.** Sampling ends when an interval settles what the caller asks, or when the time is up.
"""

import dataclasses
import math
import random
import time
from collections.abc import Callable
from typing import Literal

import numpy as np

from perfsuite.measure import peers, progress
from perfsuite.measure.call import Call, with_room
from perfsuite.measure.metric import Estimate, Interval, Metric
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
from perfsuite.measure.timing.intervals import DECIDING_ERROR
from perfsuite.measure.timing.shift import (
    LEAST_WINDOWS,
    Windows,
    rank_sum_interval,
    sequence_interval,
    shift,
)

LEAST_PAIRS = 3
"""Taken even when time is up. So few have no interval, and the metric stays open."""
BURN_IN = 0.1
"""The share of the time at the start whose blocks do not count: of the first 50 pairs of a call that reads much memory
the ratio was 0.98, later 0.60 (2-core x86-64 machine)."""
PRECISION = 0.005
"""Without a limit, sampling stops at this half-width of the log ratio's interval."""

WINDOW = 5
"""Pairs in a window. For the same noise in all blocks its intervals are 14 % narrower than those of single pairs (the
sign test). Ever larger windows gain 18 % at most, and let more of the machine's drift in."""
SMALL = 2
"""Pairs in a window where there is time for fewer than 50."""

MANY = 200
"""Where there is time for fewer pairs, the rank sum judges. Blocks that do not count leave about 130 of 200, and the
sequence needs 120 to begin."""
FIRST = LEAST_WINDOWS * WINDOW
"""Pairs at the first check of a confidence sequence."""
GROWTH = 1.15
"""A confidence sequence may be checked at any time; it rarely is, because a check takes up to a tenth of a second."""
EARLY = 0.25
"""The share of the time after which a rank sum is checked for the first time. The second and last check is at the
end."""

Field = Literal["ratio", "overhead_us"]

Settled = Callable[[Estimate, Estimate], bool]
"""Takes the ratio and the overhead; says whether they are known well enough to stop."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Candidate against reference, `until` they return or are ready.

    `ratio` is the median of candidate / reference over the pairs that share a window, `overhead_us` the median of
    candidate - reference in microseconds. Whoever holds the budget sets `verdict`. `candidate_us` and `reference_us`
    are the samples, shape (pairs, 2), the columns to return and to ready, in the order of sampling, `window` of them in
    each window. `seconds` is the time that counts against the most that was asked for.
    """

    candidate: str
    reference: str
    until: Until
    ratio: Estimate
    overhead_us: Estimate
    candidate_us: np.ndarray
    reference_us: np.ndarray
    seconds: float
    verdict: str = "new"
    window: int = 1

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
        """How many pairs of blocks were taken."""
        return len(self.candidate_us)

    @property
    def bounded(self) -> bool:
        """Whether the pairs are enough for an interval."""
        return is_bounded(self.ratio)

    @property
    def quickest_ratio(self) -> float:
        """The ratio of the quickest blocks of both sides."""
        column = COLUMNS[self.until]
        return float(quickest_us(self.candidate_us[:, column]) / quickest_us(self.reference_us[:, column]))

    def metrics(self, name: str) -> list[Metric]:
        """The metrics that a gate takes. The overhead is info: the ratio gates the same thing without its drift.

        Where the pairs are too few for an interval, neither has one, and the ratio stays open.
        """
        ratio = Metric(f"{name} ratio to {self.until}", self.ratio.value, "x", "ratio", samples=self.pairs)
        overhead = Metric(f"{name} overhead to {self.until}", self.overhead_us.value, "us", "info", samples=self.pairs)
        if self.bounded:
            quickest = self.quickest_ratio
            ratio = dataclasses.replace(ratio, interval=self.ratio.interval, quickest=quickest)
            overhead = dataclasses.replace(overhead, interval=self.overhead_us.interval)
        return [ratio, overhead]


@with_room
def compare_calls(
    candidate: Call,
    reference: Call,
    *,
    until: Until = "ready",
    seconds: float = 5.0,
    settled: Settled | None = None,
    seed: int | None = None,
) -> Comparison:
    """Compare two calls in windows of up to 5 pairs, each window in random order, for at most `seconds` of sampling.

    Warms both first; a compile while sampling raises `RecompilationError`. The first tenth of the time does not count.
    The blocks that a side runs where the sides change are part of the time, but for slow calls, which need it all.
    Checks the intervals now and then (`Rule`), and stops when `settled` says so: by default once the ratio is known to
    0.5 %. `DECIDING_ERROR` is the chance that the interval of the ratio, or that of the overhead, misses the truth at
    any check.
    """
    settled = settled or _is_precise
    column, left = COLUMNS[until], seconds * (1 - BURN_IN)
    sides = subjects_alike(candidate, reference)
    rounding = rounding_us(*sides)
    turns = Turns(sides, seed if peers.alone() else peers.agreed(random.getrandbits(53) if seed is None else seed))
    what = f"comparing {candidate.label} with {reference.label}"
    with steady(*sides), progress.sampling(what, seconds) as report:
        started = time.monotonic()
        rule = Rule(_burn_in(turns, seconds))
        burnt_in = time.monotonic()
        while True:
            sampling = time.monotonic() - burnt_in - (0.0 if rule.sequential else turns.uncounted_seconds)
            passed = peers.agreed(sampling / left if left else math.inf)
            if turns.pairs >= LEAST_PAIRS and rule.is_due(turns.pairs, passed):
                times_us = turns.times_us()
                candidate_us, reference_us = (times[:, column] for times in times_us)
                ratio, overhead_us = rule.estimates(candidate_us, reference_us, rounding)
                if peers.agreed(passed > 1 or (is_bounded(ratio) and settled(ratio, overhead_us))):
                    break
            # Between windows, whose order is random: the cost of checks and reports falls on either side alike.
            if report is not None:
                report()
            turns.take(rule.window)
    return Comparison(
        candidate=candidate.label,
        reference=reference.label,
        until=until,
        ratio=ratio,
        overhead_us=overhead_us,
        candidate_us=times_us[0],
        reference_us=times_us[1],
        seconds=burnt_in - started + sampling,
        window=rule.window,
    )


class Turns:
    """Two sides that take turns, and the samples of each, in the order of sampling."""

    def __init__(self, sides: list[Subject], seed: int | None):
        self._sides = sides
        self._order = random.Random(seed)
        self._last: int | None = None
        self.forget()

    def forget(self) -> None:
        """Drop the samples so far."""
        self._samples: tuple[list[Sample], list[Sample]] = ([], [])
        self.counted_seconds = self.uncounted_seconds = 0.0

    @property
    def pairs(self) -> int:
        return len(self._samples[0])

    def take(self, pairs: int) -> None:
        """Add a window of so many samples of each side, every order of the blocks as likely as any other."""
        turns = [0, 1] * pairs
        self._order.shuffle(turns)
        started = now = time.monotonic()
        uncounted = 0.0
        for side in turns:
            if side != self._last:
                if self._last is not None:
                    self._sides[self._last].drain()
                run_block(self._sides[side])
                uncounted += time.monotonic() - now
            self._samples[side].append(run_block(self._sides[side]))
            self._last = side
            now = time.monotonic()
        self.uncounted_seconds += uncounted
        self.counted_seconds += now - started - uncounted

    def times_us(self) -> list[np.ndarray]:
        """Microseconds of the candidate and of the reference, each of shape (pairs, 2): to return and to ready.

        Of several processes the slowest's. Raises `MeasurementError` for times that are not positive.
        """
        pairs = zip(self._samples, self._sides, strict=True)
        return [columns_us(peers.slowest(samples), side.call.label) for samples, side in pairs]


def _burn_in(turns: Turns, seconds: float) -> float:
    """Run pairs that do not count, and return for how many there would be time if all blocks counted."""
    started = time.monotonic()
    while True:
        turns.take(1)
        if peers.agreed(time.monotonic() - started >= BURN_IN * seconds):
            break
    pairs = peers.agreed(seconds * (1 - BURN_IN) * turns.pairs / max(turns.counted_seconds, 1e-9))
    turns.forget()
    return pairs


class Rule:
    """The rule of a comparison for which there is time for about `pairs` pairs, if all blocks counted.

    It says how large a window is, when the intervals are checked, and what they are. The intervals of all checks hold
    at once with probability 1 - `error`. Those of the rank sum assume that a block takes as long as it takes whichever
    side runs. Those of the confidence sequence need no such assumption.
    """

    def __init__(self, pairs: float, error: float = DECIDING_ERROR):
        self.error = error
        self.window = WINDOW
        if pairs < 10 * WINDOW:
            self.window = SMALL if pairs >= fewest_pairs(error) else 1
        self.sequential = pairs >= MANY
        self._next_check = FIRST
        self._checked = False

    def is_due(self, pairs: int, time_passed: float) -> bool:
        """Whether to check after so many pairs; `time_passed` is a share, above 1 when time is up."""
        if time_passed > 1:
            return True
        return pairs >= self._next_check if self.sequential else time_passed >= EARLY and not self._checked

    def postpone(self, pairs: int) -> None:
        """No check is due until there are some more than so many pairs."""
        self._checked, self._next_check = True, int(pairs * GROWTH) + 1

    def estimates(
        self, candidate: np.ndarray, reference: np.ndarray, rounding: float = 0.0
    ) -> tuple[Estimate, Estimate]:
        """The ratio, and the overhead in the unit of the times so far: shape (pairs,), whole windows, all above zero.

        Each time may be off by `rounding`, in their unit, so no interval is narrower than that. Of too few pairs both
        intervals are unbounded.
        """
        self.postpone(len(candidate))
        times = candidate.reshape(-1, self.window), reference.reshape(-1, self.window)
        logs = np.log(times[0]), np.log(times[1])
        hidden = rounding / min(np.median(times[0]), np.median(times[1]))
        log_ratio = self._interval(logs).widened(math.log1p(hidden))
        return (
            Estimate(math.exp(shift([logs])), Interval(math.exp(log_ratio.low), math.exp(log_ratio.high))),
            Estimate(shift([times]), self._interval(times).widened(rounding)),
        )

    def _interval(self, windows: Windows) -> Interval:
        if not self.sequential:
            return rank_sum_interval([windows], self.error / 2)
        if len(windows[0]) < LEAST_WINDOWS:  # time is up earlier than thought, before any other check
            return rank_sum_interval([windows], self.error)
        return sequence_interval(windows, self.error)


def is_bounded(ratio: Estimate) -> bool:
    """Whether the pairs of a ratio are enough for an interval, to both sides."""
    return ratio.interval.low > 0 and math.isfinite(ratio.interval.high)


def fewest_pairs(error: float = DECIDING_ERROR) -> int:
    """The pairs, in windows of two, of which the rank sum has an interval at its first check.

    Two of the orders of each window are the most extreme ones.
    """
    orders = math.comb(2 * SMALL, SMALL)
    return SMALL * math.ceil(math.log(4 / error) / math.log(orders))


def _is_precise(ratio: Estimate, overhead: Estimate) -> bool:
    return math.log(ratio.interval.high / ratio.interval.low) / 2 <= PRECISION
