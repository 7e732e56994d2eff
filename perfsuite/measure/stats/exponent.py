"""The power with which a count grows: 1 is linear, 2 quadratic."""

import math
from collections.abc import Sequence

MOST = 16.0
"""Growth above this power is not told apart from it."""

DIGITS = 4


def growth_exponent(units: Sequence[float], values: Sequence[float]) -> float | None:
    """The power p for which `values` lie on a + b * units ** p, through the smallest, a middle and the largest size.

    What does not depend on the size, a, may be anything: a line has 1, however large its intercept. Counts have no
    noise, so three points are enough. None where there are fewer, or where a size is not above zero. 0 where the values
    grow no more than with the logarithm of the size.
    """
    points = sorted(dict(zip(units, values, strict=True)).items())
    if len(points) < 3 or points[0][0] <= 0:
        return None
    (first, low), (last, high) = points[0], points[-1]
    middle, between = min(points[1:-1], key=lambda point: abs(math.log(point[0]) - math.log(first * last) / 2))
    if high <= between:
        return 0.0
    if between <= low:
        return MOST
    return round(_solved(first / middle, last / middle, (high - between) / (between - low)), DIGITS)


def _solved(first: float, last: float, ratio: float) -> float:
    """The p for which (last ** p - 1) / (1 - first ** p), which rises with p, is `ratio`."""
    low, high = 0.0, MOST
    for _ in range(60):
        p = (low + high) / 2
        if (last**p - 1) / (1 - first**p) < ratio:
            low = p
        else:
            high = p
    return (low + high) / 2
