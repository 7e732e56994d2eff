"""Gates whose truth is known: one call against itself (A/A), and against itself with a planted slowdown (A/B).

They say how often a gate of this machine cries wolf, and which slowdown it catches. Both sides of such a gate are the
same function with the same state behind the same `Planted` object, so nothing but the plant tells them apart.
"""

import contextlib
import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from scipy import stats

from perfsuite.measure.call import Call, label_of
from perfsuite.measure.compiles.warmup import borrowed, warm
from perfsuite.measure.measurement import Interval
from perfsuite.measure.stats.intervals import DECIDING_ERROR
from perfsuite.measure.stats.sequential import Estimate
from perfsuite.measure.timing.clock import now_ns
from perfsuite.measure.timing.comparison import compare_calls
from perfsuite.measure.timing.readiness import waiting_for
from perfsuite.measure.timing.timing import Until

Key = TypeVar("Key", bound=Hashable)

LADDER = (0.005, 0.01, 0.02, 0.03, 0.05, 0.10)
"""The slowdowns that are planted."""

DETECTION = 0.99
"""The share of gates that have to catch an effect for it to count as caught."""

LEAST_GATES = 3
"""A/A gates of one condition, over all workloads, below which nothing is derived from their spread."""

MOST_SHIFT = math.log(10)
"""Where not even a slowdown by a factor of 10 is surely caught, there is none to be named."""

FLOOR_NS = 2_000
"""Both sides wait for at least so long: a side that read the clock once and went on made plants of 0.4 us come out as
0.1 us (2-core x86-64 machine, Python 3.11)."""

_LEAST_THRESHOLD = 1e-5
"""Smaller ones (a gate that alarmed has one below zero) have no logarithm that means anything."""


class Planted:
    """Runs `inner`, and takes `slowdown` times as long again: a busy wait of that share of what this very run took.

    So the plant is of the true size at every pace of the machine. Both sides of a gate run the same lines, and wait for
    `FLOOR_NS` besides. Until "return", the wait follows the call's return; until "ready", the outputs are waited for
    first. The state of `inner` is carried on by whichever side runs: two sides need no second copy of a state that is
    donated.
    """

    def __init__(self, inner: Call, wait: Callable[[Any], None], slowdown: float):
        self.inner = inner
        self.wait = wait
        self.slowdown = slowdown

    def __call__(self):
        start = now_ns()
        outputs = self.inner.run()
        self.wait(outputs)
        now = now_ns()
        end = now + FLOOR_NS + self.slowdown * (now - start + FLOOR_NS)
        while now_ns() < end:
            pass
        return outputs

    @property
    def __name__(self) -> str:
        return label_of(self.inner.fn)


@dataclasses.dataclass(frozen=True)
class Trial:
    """What one gate with the limit 1 said of two sides that differ by `planted` (0.01 is 1 %; 0 is an A/A gate).

    `interval` is the last of the ratio. `thresholds` are the slowdowns of the candidate and of the reference from
    which on this gate would have alarmed, as logarithms of their ratios; infinite where there was no interval.
    """

    planted: float
    interval: Interval
    thresholds: tuple[float, float]
    pairs: int
    seconds: float

    @property
    def alarmed(self) -> bool:
        """Whether the interval excludes that both sides are alike.

        An A/A gate cries wolf either way: with its sides exchanged, the one that says "faster" would fail the build.
        """
        return self.interval.low > 1 or (not self.planted and self.interval.high < 1)


class Workload:
    """A call made ready to be held against itself. `give_back` leaves it with the state that the last run carried."""

    def __init__(self, call: Call, until: Until):
        self.until = until
        with contextlib.ExitStack() as borrowing:
            self.inner = borrowing.enter_context(borrowed(call))
            warm(self.inner.fn, over=[self.inner])
            self.wait = _wait_for_nothing if until == "return" else waiting_for(self.inner.run)
            self._borrowing = borrowing.pop_all()

    def give_back(self) -> None:
        """Leave the caller's call able to run. No trial may follow."""
        self._borrowing.close()

    def trial(
        self, planted: float = 0.0, *, seconds: float, seed: int | None = None, error: float = DECIDING_ERROR
    ) -> Trial:
        """One gate, the reference against itself with `planted`, for at most `seconds` of sampling.

        It stops as soon as the interval excludes 1, as a gate with the budget `ratio=1` does; `error` is the chance
        that it does so where nothing is planted. Raises what `compare_calls` raises.
        """
        looks: list[Interval] = []

        def settled(ratio: Estimate, overhead: Estimate) -> bool:
            looks.append(ratio.interval)
            return ratio.interval.low > 1 or ratio.interval.high < 1

        candidate, reference = (Call(Planted(self.inner, self.wait, size), (), {}, 0) for size in (planted, 0.0))
        compared = compare_calls(
            candidate, reference, until=self.until, seconds=seconds, settled=settled, seed=seed, error=error
        )
        looks.append(compared.ratio.interval)
        return Trial(planted, compared.ratio.interval, _thresholds(looks), compared.pairs, compared.seconds)


@dataclasses.dataclass(frozen=True)
class Found:
    """What the gates of one workload, or of all, came to.

    `alarms` of `gates` A/A gates cried wolf, and `caught[size]` is (caught, tried) for each planted size: these are
    counted. `effect` is derived (`smallest_caught`); None where the A/A gates do not say.
    """

    gates: int
    alarms: int
    caught: Mapping[float, tuple[int, int]]
    effect: float | None

    @property
    def rate_below(self) -> float:
        """What the rate of false alarms is below, with 95 % confidence: the end of Clopper and Pearson's interval."""
        return rate_below(self.alarms, self.gates)


def found(trials: Iterable[Trial], effect: float | None) -> Found:
    """Count what `trials` said."""
    trials = list(trials)
    plain = [trial for trial in trials if not trial.planted]
    tried = Counter(trial.planted for trial in trials if trial.planted)
    caught = Counter(trial.planted for trial in trials if trial.planted and trial.alarmed)
    counted = {size: (caught[size], tried[size]) for size in sorted(tried)}
    return Found(len(plain), sum(trial.alarmed for trial in plain), counted, effect)


def rate_below(alarms: int, gates: int, confidence: float = 0.95) -> float:
    """The upper end of a rate's one-sided exact interval (C. J. Clopper and E. S. Pearson, Biometrika 26, 1934)."""
    if not gates:
        return 1.0
    return float(stats.binomtest(alarms, gates, alternative="less").proportion_ci(confidence).high)


def too_many_alarms(alarms: int, gates: int, promised: float) -> bool:
    """Whether so many false alarms are one chance in a hundred or less, at the rate that is promised."""
    return bool(gates and stats.binomtest(alarms, gates, promised, alternative="greater").pvalue <= 0.01)


def smallest_caught(trials: Mapping[Key, Sequence[Trial]]) -> dict[Key, float | None]:
    """For each workload, of one condition, the slowdown (0.012 is 1.2 %) that its next gate catches 99 times in 100.

    A slowdown by a factor shifts every log ratio of an A/A gate by the same, so each such gate says from which slowdown
    on it would have alarmed, to either side. The logarithms of these are taken as normal, with a mean for each workload
    and one variance for all; the result is the upper prediction limit of the next one (G. J. Hahn and W. Q. Meeker,
    Statistical Intervals, section 4.8), and no smaller than the largest that was seen. The degrees of freedom are
    counted in gates, although each gives two metrics. None for a workload without A/A gates, or one of whose gates had
    too few pairs for an interval; above a factor of 10; and for all where there are fewer than three gates.
    """
    logs = {key: _log_thresholds(of_one) for key, of_one in trials.items()}
    known = {key: values for key, values in logs.items() if values.size and np.isfinite(values).all()}
    gates = sum(len(values) for values in known.values())
    if gates < LEAST_GATES:
        return dict.fromkeys(logs)
    squares = sum(float(np.sum((values - values.mean()) ** 2)) for values in known.values())
    spread = math.sqrt(squares / (2 * gates - len(known)))
    factor = float(stats.t.ppf(DETECTION, gates))
    limits: dict[Key, float | None] = dict.fromkeys(logs)
    for key, values in known.items():
        predicted = values.mean() + factor * spread * math.sqrt(1 + 1 / len(values))
        shift = math.exp(min(max(predicted, values.max()), 709.0))  # the largest whose exponential is finite
        limits[key] = math.expm1(shift) if shift <= MOST_SHIFT else None
    return limits


def _log_thresholds(trials: Iterable[Trial]) -> np.ndarray:
    """Logarithms of the thresholds of the A/A gates, shape (gates, 2)."""
    values = [trial.thresholds for trial in trials if not trial.planted]
    return np.log(np.maximum(np.asarray(values, dtype=np.float64).reshape(-1, 2), _LEAST_THRESHOLD))


def _thresholds(looks: Sequence[Interval]) -> tuple[float, float]:
    """A slowdown is caught at the look that leaves it the most room."""
    highest_low = max(interval.low for interval in looks)
    lowest_high = min(interval.high for interval in looks)
    return (-math.log(highest_low) if highest_low > 0 else math.inf, math.log(lowest_high))


def _wait_for_nothing(outputs: Any) -> None:
    pass
