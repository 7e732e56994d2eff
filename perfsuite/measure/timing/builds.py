"""`compare_builds`: two functions that make calls, compared over several builds of both.

Two builds of the same code differ by 1 to 2 %: where their arrays and programs lie in memory, and which was built
first. All samples of one build have that in common, so no number of them shows it. Here both sides are built anew
several times, and the interval is over the builds (T. Kalibera and R. Jones, Rigorous benchmarking in reasonable time,
ISMM 2013).
"""

import dataclasses
import math
import random
from collections.abc import Callable, Sequence

import numpy as np
import scipy

from perfsuite.measure import peers
from perfsuite.measure.call import Call, label_of
from perfsuite.measure.estimate import Estimate
from perfsuite.measure.metric import Interval
from perfsuite.measure.stats.error_rates import DECIDING_ERROR
from perfsuite.measure.timing.block import Until
from perfsuite.measure.timing.comparison import Comparison, compare_calls
from perfsuite.measure.timing.load import lasting

LEAST_BUILDS, MOST_BUILDS = 6, 24

SECONDS_A_BUILD = 0.6
"""A build's estimate needs only its median, and more builds narrow the interval sooner than more samples of each."""

Make = Callable[[], Call]
"""A function of no arguments that makes a call."""


def builds_in(seconds: float) -> int:
    """How many builds share so many seconds of sampling."""
    return min(max(round(seconds / SECONDS_A_BUILD), LEAST_BUILDS), MOST_BUILDS)


def build(make: Make) -> Call:
    """A new call. Raises `TypeError` where `make` makes none."""
    made = make()
    if not isinstance(made, Call):
        raise TypeError(
            f"perf.compare: {label_of(make)}() must return call(fn, *args), not {type(made).__name__}: "
            "from perfsuite import call"
        )
    return made


def compare_builds(
    make_candidate: Make,
    make_reference: Make,
    *,
    first: tuple[Call, Call] | None = None,
    until: Until = "ready",
    seconds: float = 5.0,
    seed: int | None = None,
    error: float = DECIDING_ERROR,
) -> Comparison:
    """Compare the calls that two functions make, over 6 to 24 builds that share `seconds` of sampling.

    Each build is a `compare_calls` of calls made for it; in half of them the candidate is made first. The ratio is the
    geometric mean of the builds' ratios, the overhead the mean of theirs, each with Student's interval over the builds
    at `error`: they differ by chance, about normally. The samples are those of all builds. `first` is a build that
    there is already, its candidate made first.
    """
    count = builds_in(seconds)
    orders = [True, False] * ((count + 1) // 2)
    del orders[count:]
    if first is not None:
        orders.remove(True)
    drawn = random.getrandbits(53) if seed is None else seed
    random.Random(drawn if peers.alone() else peers.agreed(drawn)).shuffle(orders)
    parts = [] if first is None else [compare_calls(*first, until=until, seconds=seconds / count, error=error)]
    for candidate_first in orders:
        sides = _built(make_candidate, make_reference, candidate_first)
        parts.append(compare_calls(*sides, until=until, seconds=seconds / count, error=error))
        del sides  # before the next: a model may fill the device's memory
    ratio = over_builds([math.log(part.ratio.value) for part in parts], error)
    ends = ratio.interval.low, ratio.interval.high
    return dataclasses.replace(
        parts[0],
        ratio=Estimate(math.exp(ratio.value), Interval(*map(math.exp, ends))),
        overhead_us=over_builds([part.overhead_us.value for part in parts], error),
        candidate_us=np.concatenate([part.candidate_us for part in parts]),
        reference_us=np.concatenate([part.reference_us for part in parts]),
        seconds=sum(part.seconds for part in parts),
        builds=count,
        slowed=lasting((part.slowed, part.seconds) for part in parts),
    )


def over_builds(values: Sequence[float], error: float) -> Estimate:
    """The mean of one value a build, with Student's interval at `error`."""
    value, count = float(np.mean(values)), len(values)
    half = float(-scipy.special.stdtrit(count - 1, error / 2) * np.std(values, ddof=1) / math.sqrt(count))
    return Estimate(value, Interval(value - half, value + half))


def _built(make_candidate: Make, make_reference: Make, candidate_first: bool) -> tuple[Call, Call]:
    if candidate_first:
        candidate = build(make_candidate)
        return candidate, build(make_reference)
    reference = build(make_reference)
    return build(make_candidate), reference
