"""The shift between two sides with an interval that holds at any time: a self-normalised confidence sequence.

Each window gives one score: the share of its pairs whose difference is above the shift that is tested, less one half.
Chance chose the order of the blocks, so at the true shift a score is as likely to be s as -s. For such scores S with
C = sum S and Q = sum S^2, exp(x C - x^2 Q / 2) is a supermartingale for every x (V. H. de la Pena, A general class of
exponential inequalities for martingales and ratios, Annals of Probability 27, 1999). Its mixture over x is one as well
(H. Robbins, Statistical methods related to the law of the iterated logarithm, Annals of Mathematical Statistics 41,
1970), so

    |C| >= sqrt((Q + rho) log((Q + rho) / (rho error^2)))

happens at any time with probability `error` at most. A shift is excluded where that holds, so sampling may stop at any
moment, for any reason.

The scores measure their own scatter, so the sides may scatter differently. Noise that one side has by itself and that
lasts over several blocks makes scores in a row alike. Therefore the same must hold for sums of 2, 4, 8, ... scores, as
long as there are `LEAST_SUMS` of them, with Q enlarged as for an autoregressive series with their correlation. That
covers noise whose states last for less than some 100 blocks.
"""

import bisect
import math
from collections.abc import Callable, Iterator

import numpy as np

from perfsuite.measure.metric import Interval
from perfsuite.measure.stats.rank_sum import Windows

LEAST_WINDOWS = 24
"""Of 18 windows of five pairs it can exclude the first shift at an error of 0.001. The first few looks are those that
noise of a side's own fools most often."""

LEAST_SUMS = 52
"""In the simulation so many sums show noise of a side's own as well as 26 longer ones do, and on a real machine the
intervals of 1,000 pairs are a fourth narrower with them. Of fewer than 26 long sums not even a shift beyond all
differences is excluded."""

RHO = 5
"""In variances of a score where all orders are equally likely. The bound is tightest where Q is some 10 to 20 times as
much: after about 50 to 100 windows."""

MOST_CORRELATED = 0.8
"""A higher correlation of sums is not believed: of 52 sums it is known to 0.14."""


def sequence_interval(windows: Windows, error: float) -> Interval:
    """The shifts that are not excluded; infinite where the windows are too few, or a time is not finite.

    Takes candidate and reference, each of shape (windows, m), in the order of sampling. An end is the difference of two
    blocks of one window, found by bisection: the further from the median of the differences, the larger is |C|.
    """
    candidate, reference = windows
    differences = (candidate[:, :, None] - reference[:, None, :]).reshape(len(candidate), candidate.shape[1] ** 2)
    if len(candidate) < LEAST_WINDOWS or not np.isfinite(differences).all():
        return Interval(-math.inf, math.inf)
    ordered, rho = np.sort(differences, axis=None), RHO * _variance(candidate.shape[1])
    # Differences that are equal to an end count as beyond it, so the end itself is not excluded.
    low = _first(ordered, lambda by: _excluded(0.5 - (differences < by).mean(1), rho, error))
    high = _first(ordered[::-1], lambda by: _excluded(0.5 - (differences > by).mean(1), rho, error))
    return Interval(-math.inf if low is None else low, math.inf if high is None else high)


def scores(windows: Windows, by: float) -> np.ndarray:
    """The score of each window, in the order of sampling, where the shift that is tested is `by`."""
    candidate, reference = windows
    return np.sign(candidate[:, :, None] - by - reference[:, None, :]).mean((1, 2)) / 2


def scores_exclude(scores: np.ndarray, m: int, error: float) -> bool:
    """Whether the scores of windows of m pairs exclude the shift that they test."""
    return _excluded(scores * np.sign(scores.sum()), RHO * _variance(m), error)


def _variance(m: int) -> float:
    """Of a score of windows of m pairs, where all orders are equally likely."""
    return (2 * m + 1) / 12 / m**2


def _first(ordered: np.ndarray, excluded: Callable[[float], bool]) -> float | None:
    """The last of the values from the start on beside which shifts are excluded; None where none are."""
    outside = bisect.bisect_left(ordered, True, key=lambda by: not excluded(by))
    return float(ordered[outside - 1]) if outside else None


def _excluded(scores: np.ndarray, rho: float, error: float) -> bool:
    """Whether scores are too high for the true shift, at this error over all times at which one asks."""
    return all(_beyond(sums, rho * length, error) for length, sums in _sums(scores))


def _sums(scores: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """The scores, and the sums of 2, 4, 8, ... of them in a row: the number of scores, and their sums."""
    length = 1
    while length == 1 or len(scores) // length >= LEAST_SUMS:
        whole = scores[len(scores) % length :]
        yield length, whole.reshape(-1, length).sum(1)
        length *= 2


def _beyond(sums: np.ndarray, rho: float, error: float) -> bool:
    total, squares = float(sums.sum()), float(sums @ sums) + rho
    if total < _bound(squares, rho, error):  # nearly always so, and correlation only adds to the bound
        return False
    return total >= _bound(squares + _correlated(sums - sums.mean()), rho, error)


def _bound(squares: float, rho: float, error: float) -> float:
    return math.sqrt(squares * math.log(squares / (rho * error**2)))


def _correlated(centred: np.ndarray) -> float:
    """What the correlation r of neighbours adds to the variance of all the sums together: 2 r / (1 - r) of it.

    The correlation of so few numbers comes out too low by about (1 + 3 r) / n (M. G. Kendall, Note on bias in the
    estimation of autocorrelation, Biometrika 41, 1954).
    """
    squares = float(centred @ centred)
    if not squares:
        return 0.0
    correlation = float(centred[1:] @ centred[:-1]) / squares
    correlation += (1 + 3 * correlation) / len(centred)
    correlation = min(max(correlation, 0.0), MOST_CORRELATED)
    return squares * 2 * correlation / (1 - correlation)
