"""What would settle a comparison that left a limit inside its interval: so many seconds, or another limit."""

import math

from perfsuite.measure.estimate import Estimate
from perfsuite.measure.stats.looks import fewest_pairs
from perfsuite.measure.timing.comparison import Comparison, Field
from perfsuite.measure.words import plural

HOPELESS = 0.001
"""Two sides of the same code may differ by about as much, for reasons outside it (where memory lies)."""

MARGIN = 1.35
"""The estimate itself moves: to settle nine times in ten, the interval must be so much narrower than its distance from
the limit (its half-width is 3.6 standard errors, and 1.28 more stay free)."""

MOST_SECONDS = 600


def to_settle(compared: Comparison, limit: float, field: Field) -> str:
    """What would settle whether the ratio or the overhead keeps to `limit`, in words."""
    if not compared.bounded:
        needed = compared.seconds * fewest_pairs() / compared.pairs
        return (
            f"{compared.pairs} pairs are too few for an interval: allow more time (--perf-seconds={math.ceil(needed)})"
        )
    estimate: Estimate = getattr(compared, field)
    value, low, high = estimate.value, estimate.interval.low, estimate.interval.high
    if field == "ratio" and limit > 0:
        value, low, high, limit = (math.log(each) for each in (value, low, high, limit))
    distance = abs(limit - value)
    # A share of the reference's time, so that one bound serves both fields.
    relative = distance if field == "ratio" else distance / compared.reference_median_us
    if relative < HOPELESS:
        return (
            f"its estimate lies within {HOPELESS:.1%} of the limit, where no amount of sampling is sure to tell on "
            "which side: move the limit"
        )
    side = high - value if value <= limit else value - low
    # An interval narrows with the square root of the number of pairs.
    needed = compared.seconds * max(1.0, side * MARGIN / distance) ** 2
    if needed > MOST_SECONDS:
        return f"more than {MOST_SECONDS / 60:g} minutes of sampling: move the limit, or take a quieter machine"
    more = plural(max(1, math.ceil(needed - compared.seconds)), "more second")
    return f"about {more} of sampling (--perf-seconds={math.ceil(needed)})"
