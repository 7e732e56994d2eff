"""Gates whose truth is known: one call against itself (A/A), and against itself with a planted slowdown (A/B).

They show how often a gate on this machine raises a false alarm, and which slowdown it catches. Both sides of such a
gate are the same function with the same state behind the same `Planted` object, so they differ in the plant alone.

So they do not show what two builds of the same code differ by. The same comparison in several processes does: each
process builds both sides anew (`Builds`).
"""

import contextlib
import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import scipy

from perfsuite.measure.call import Call, label_of
from perfsuite.measure.compiles.warmup import borrowed, warm
from perfsuite.measure.estimate import Estimate
from perfsuite.measure.metric import Interval
from perfsuite.measure.timing.block import Until
from perfsuite.measure.timing.clock import now_ns
from perfsuite.measure.timing.comparison import compare_calls
from perfsuite.measure.timing.readiness import wait_for_nothing, waiting_for

WorkloadKey = TypeVar("WorkloadKey", bound=Hashable)

LADDER = (0.005, 0.01, 0.02, 0.03, 0.05, 0.10)
"""The slowdowns to plant."""

DETECTION = 0.99
"""The share of gates that have to catch an effect for it to count as caught."""

LEAST_GATES = 3
"""With fewer A/A gates of one condition, over all workloads, their spread is unknown."""

LEAST_BUILDS = 10
"""With fewer builds, of all workloads that have several, nothing is said of what builds differ by."""

_BUILDS_WITHIN = 0.95
"""The share of builds that differ by no more than is said."""

MOST_SHIFT = math.log(10)
"""Where a gate may miss even a slowdown by a factor of 10, no slowdown is named."""

FLOOR_NS = 2_000
"""Both sides wait for at least so long: a side that read the clock once and went on made plants of 0.4 us come out as
0.1 us (2-core x86-64 machine, Python 3.11)."""

_LEAST_THRESHOLD = 1e-5
"""Smaller ones (that of a gate that alarmed is below zero) have no logarithm that means anything."""


class Planted:
    """Runs `inner`, and takes `slowdown` times as long again: a busy wait of that share of what this very run took.

    So the plant has its true size at every speed of the machine. Both sides of a gate run the same lines, and wait for
    `FLOOR_NS` besides. Until "return", the wait follows the call's return; until "ready", it waits for the outputs
    first. Whichever side runs carries the state of `inner` on, so two sides need no second copy of a donated state.
    """

    def __init__(self, inner: Call, wait: Callable[[Any], None], slowdown: float):
        self.inner = inner
        self.wait = wait
        self.slowdown = slowdown
        self.__name__ = label_of(inner.fn)

    def __call__(self):
        start = now_ns()
        outputs = self.inner.run()
        self.wait(outputs)
        now = now_ns()
        end = now + FLOOR_NS + self.slowdown * (now - start + FLOOR_NS)
        while now_ns() < end:
            pass
        return outputs


@dataclasses.dataclass(frozen=True)
class Trial:
    """The outcome of one gate with the limit 1 whose sides differ by `planted` (0.01 is 1 %; 0 is an A/A gate).

    `interval` is the last of the ratio. `thresholds` are the slowdowns of the candidate and of the reference from
    which on this gate would have alarmed, as logarithms of their ratios; infinite where it had no interval.
    """

    planted: float
    interval: Interval
    thresholds: tuple[float, float]
    pairs: int
    seconds: float

    @property
    def alarmed(self) -> bool:
        """Whether the interval excludes that both sides are alike.

        An A/A gate that says "faster" is a false alarm too: with its sides exchanged it would fail the build.
        """
        return self.interval.low > 1 or (not self.planted and self.interval.high < 1)


class Workload:
    """A call made ready to be compared with itself."""

    def __init__(self, call: Call, until: Until):
        self.until = until
        with contextlib.ExitStack() as borrowing:
            self.inner = borrowing.enter_context(borrowed(call))
            warm(self.inner.fn, over=[self.inner])
            self.wait = wait_for_nothing if until == "return" else waiting_for(self.inner.run, self.inner.label)
            self._borrowing = borrowing.pop_all()

    def give_back(self) -> None:
        """Leave the caller's call able to run, with the state that the last run carried. No trial may follow."""
        self._borrowing.close()

    def trial(self, planted: float = 0.0, *, seconds: float, seed: int | None = None) -> Trial:
        """One gate, the reference against itself with `planted`, for at most `seconds` of sampling.

        It stops as soon as the interval excludes 1, as a gate with the budget `ratio=1` does. Raises what
        `compare_calls` raises.
        """
        looks: list[Interval] = []

        def settled(ratio: Estimate, overhead: Estimate) -> bool:
            looks.append(ratio.interval)
            return ratio.interval.low > 1 or ratio.interval.high < 1

        candidate, reference = (Call(Planted(self.inner, self.wait, size), (), {}, 0) for size in (planted, 0.0))
        compared = compare_calls(candidate, reference, until=self.until, seconds=seconds, settled=settled, seed=seed)
        looks.append(compared.ratio.interval)
        # A slowdown is caught at the look that leaves it the most room.
        highest_low, lowest_high = max(look.low for look in looks), min(look.high for look in looks)
        thresholds = -math.log(highest_low) if highest_low > 0 else math.inf, math.log(lowest_high)
        return Trial(planted, compared.ratio.interval, thresholds, compared.pairs, compared.seconds)


@dataclasses.dataclass(frozen=True)
class GateCounts:
    """The outcome of the gates of one workload, or of all.

    Counted: `alarms` of `gates` A/A gates were false, and `caught[size]` is (caught, tried) for each planted size.
    Derived: `effect` (`smallest_caught`), None where the A/A gates do not tell.
    """

    gates: int
    alarms: int
    caught: Mapping[float, tuple[int, int]]
    effect: float | None


def count_trials(trials: Sequence[Trial], effect: float | None) -> GateCounts:
    """Count the outcomes of `trials`."""
    plain = [trial for trial in trials if not trial.planted]
    tried = Counter(trial.planted for trial in trials if trial.planted)
    caught = Counter(trial.planted for trial in trials if trial.planted and trial.alarmed)
    by_size = {size: (caught[size], tried[size]) for size in sorted(tried)}
    return GateCounts(len(plain), sum(trial.alarmed for trial in plain), by_size, effect)


@dataclasses.dataclass(frozen=True)
class Builds:
    """How the ratio of one comparison scatters over `count` processes, each of which builds both sides anew.

    `spread` is the standard deviation of the log ratio.
    """

    count: int
    spread: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> "Builds":
        """Of the ratios of two or more processes."""
        return cls(len(ratios), float(np.std(np.log(ratios), ddof=1)))


def builds_within(builds: Iterable[Builds]) -> float | None:
    """By what share (0.012 is 1.2 %) the ratio of two builds misses that of their code, at most, 19 times in 20.

    The log ratios count as normal, with a mean for each comparison and one variance for all. The result is the quantile
    of Student's t for that many degrees of freedom, so it is larger where little is known. None for fewer than
    `LEAST_BUILDS` builds.
    """
    known = list(builds)
    count, freedom = sum(each.count for each in known), sum(each.count - 1 for each in known)
    if count < LEAST_BUILDS:
        return None
    variance = sum((each.count - 1) * each.spread**2 for each in known) / freedom
    return math.expm1(float(scipy.stats.t.ppf((1 + _BUILDS_WITHIN) / 2, freedom)) * math.sqrt(variance))


def rate_below(alarms: int, gates: int) -> float:
    """What the rate is below with 95 % confidence (C. J. Clopper and E. S. Pearson, Biometrika 26, 1934)."""
    return float(scipy.stats.binomtest(alarms, gates, alternative="less").proportion_ci(0.95).high) if gates else 1.0


def too_many_alarms(alarms: int, gates: int, promised: float) -> bool:
    """Whether so many false alarms are one chance in a hundred or less, at the rate that is promised."""
    return bool(gates and scipy.stats.binomtest(alarms, gates, promised, alternative="greater").pvalue <= 0.01)


def smallest_caught(trials: Mapping[WorkloadKey, Sequence[Trial]]) -> dict[WorkloadKey, float | None]:
    """For each workload, of one condition, the slowdown (0.012 is 1.2 %) that its next gate catches 99 times in 100.

    A slowdown by a factor shifts every log ratio of an A/A gate by the same, so each such gate tells from which
    slowdown on it would have alarmed, to either side. The logarithms of these count as normal, with a mean for each
    workload and one variance for all; the result is the upper prediction limit of the next one (G. J. Hahn and
    W. Q. Meeker, Statistical Intervals, section 4.8), and no smaller than the largest of them. The degrees of freedom
    count gates, although each gives two thresholds. None for a workload without A/A gates, or with a gate of too few
    pairs for an interval; above a factor of 10; and for all where there are fewer than three gates.
    """
    logs = {key: _log_thresholds(of_one) for key, of_one in trials.items()}
    known = {key: values for key, values in logs.items() if values.size and np.isfinite(values).all()}
    limits: dict[WorkloadKey, float | None] = dict.fromkeys(logs)
    gates = sum(len(values) for values in known.values())
    if gates < LEAST_GATES:
        return limits
    squares = sum(float(np.sum((values - values.mean()) ** 2)) for values in known.values())
    spread = math.sqrt(squares / (2 * gates - len(known)))
    factor = float(scipy.stats.t.ppf(DETECTION, gates))
    for key, values in known.items():
        predicted = values.mean() + factor * spread * math.sqrt(1 + 1 / len(values))
        shift = math.exp(min(max(predicted, values.max()), 709.0))  # the largest whose exponential is finite
        limits[key] = math.expm1(shift) if shift <= MOST_SHIFT else None
    return limits


def _log_thresholds(trials: Iterable[Trial]) -> np.ndarray:
    """Logarithms of the thresholds of the A/A gates, shape (gates, 2)."""
    values = [trial.thresholds for trial in trials if not trial.planted]
    return np.log(np.maximum(np.asarray(values, dtype=np.float64).reshape(-1, 2), _LEAST_THRESHOLD))
