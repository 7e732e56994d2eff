"""The levels of a noisy series, and whether they stand out of the noise.

A segmentation with more steps always fits better, so each of its steps has to be larger than noise makes it anywhere in
all the series that are searched. Saves follow each other on one machine, so their noise is correlated: n values of a
level with a correlation r from save to save know it as well as n (1 - r) / (1 + r) independent ones (G. V. Bayley and
J. M. Hammersley, The "effective" number of independent observations in an autocorrelated time series, Supplement to the
Journal of the Royal Statistical Society 8, 1946). The segmentation takes a part of noise and correlation away, the more
the shorter the series: both are corrected for that.
"""

import bisect
import itertools
import math
import statistics
from collections.abc import Iterator, Sequence

SMALLEST = 3
"""The fewest values between two steps: one or two bad saves are no level. The first and the last level may be shorter,
because a save that agrees with the recorded metric does not record it again."""

ERROR = 0.001
"""How often noise alone makes a step anywhere in a history."""

FREE = 20
"""The least degrees of freedom for the noise of a short series.

With 20, two runners that take turns, one with a ratio 10 % above the other's, make a step in 5 of 1000 series of 20
saves, and 88 % of the steps by 12 % are found among a hundred series with 2 % of noise. With infinitely many: 20 of
1000, and 96 %.
"""

_MOST_CORRELATION = 0.9
_SPREAD = math.sqrt(math.pi / 2)
"""From the mean distance to a normal distribution's standard deviation."""


def segmentations(values: Sequence[float]) -> Iterator[list[int]]:
    """The best segmentations with 1, 2, 3, ... steps, by the distances to the medians of the segments.

    Each has the indices at which its segments begin, the first of them 0. (R. Bellman, On the approximation of curves
    by line segments using dynamic programming, Communications of the ACM 4, 1961.)
    """
    count = len(values)
    costs = _costs(values)
    # By the end of what is segmented so far: the cost, and where the segments begin.
    best = {end: (costs[0][end], [0]) for end in costs[0]}
    while best:
        better: dict[int, tuple[float, list[int]]] = {}
        for start, (cost, starts) in best.items():
            for end, of_segment in costs[start].items() if start < count else ():
                if end not in better or cost + of_segment < better[end][0]:
                    better[end] = cost + of_segment, [*starts, start]
        best = better
        if count in best:
            yield best[count][1]


def _costs(values: Sequence[float]) -> list[dict[int, float]]:
    """By the first value of a segment and its end: the sum of the distances to its median."""
    costs: list[dict[int, float]] = [{} for _ in values]
    for start in range(len(values)):
        ordered: list[float] = []
        cost = 0.0
        for end, value in enumerate(values[start:], start + 1):
            if ordered:  # the sum grows by the distance to the median, which may be an interval
                low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
                cost += max(low - value, value - high, 0.0)
            bisect.insort(ordered, value)
            if start == 0 or end == len(values) or end - start >= SMALLEST:
                costs[start][end] = cost
    return costs


def stand_out(levels: Sequence[Sequence[float]], least: float, most: float, places: int) -> bool:
    """Whether each level differs from the next by more than noise: `ERROR` of so many places without a step do.

    `least` and `most` limit the standard deviation that the noise may have.
    """
    count = sum(map(len, levels))
    rest = [[value - statistics.median(level) for value in level] for level in levels]
    distance = statistics.fmean(abs(value) for part in rest for value in part)
    correlation = _correlation(rest, distance)
    kept = (1 - correlation) / (1 + correlation)
    free = count * kept - len(levels)
    spread = _SPREAD * distance * math.sqrt(count * kept / max(free, 0.5))
    far = -statistics.NormalDist().inv_cdf(ERROR / 2 / places)
    noise = min(max(spread * _student(far, max(free, FREE)), least * far), most * far)
    known = [max(1.0, len(level) * kept) for level in levels]
    middles = [statistics.fmean(level) for level in levels]
    return all(
        abs(after - before) > noise * math.sqrt(1 / m + 1 / n)
        for (before, after), (m, n) in zip(itertools.pairwise(middles), itertools.pairwise(known), strict=True)
    )


def _student(far: float, free: float) -> float:
    """A normal distribution's quantile as Student's (D. P. Gaver and K. Kafadar, A retrievable recipe for inverse t,
    The American Statistician 38, 1984).
    """
    return math.sqrt(free * math.expm1(far**2 * (free - 1.5) / (free - 1) ** 2))


def _correlation(rest: Sequence[Sequence[float]], distance: float) -> float:
    """From value to value, at least 0: of normal noise, neighbours are sqrt(2 (1 - r)) times as far apart as a value is
    from its level.
    """
    steps = [abs(after - before) for part in rest for before, after in itertools.pairwise(part)]
    seen = 1 - (statistics.fmean(steps) / distance) ** 2 / 2 if steps and distance else 0.0
    # M. G. Kendall, Note on bias in the estimation of autocorrelation, Biometrika 41, 1954: for every level that is
    # estimated from the values.
    bias = len(rest) * (1 + 3 * max(seen, 0.0)) / sum(map(len, rest))
    return min(max(seen, 0.0) + bias, _MOST_CORRELATION)
