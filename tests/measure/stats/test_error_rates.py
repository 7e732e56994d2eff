"""`measure.stats.error_rates`: how looks share the chance of a false alarm."""

import numpy as np

from perfsuite.measure.stats.error_rates import error_of_look
from perfsuite.measure.stats.intervals import median_interval


def test_peeking_until_the_interval_misses_does_not_raise_the_error():
    """The worst user: looks after every few samples and stops at the first interval that excludes the truth."""
    rng = np.random.default_rng(3)
    looks = [20, 29, 41, 58, 82, 115, 162, 227, 318, 446]
    samples = rng.standard_t(2, size=(600, looks[-1]))
    paid = unpaid = np.zeros(600, bool)
    for n, size in enumerate(looks, 1):
        ordered = np.sort(samples[:, :size])
        paid = paid | misses_zero(ordered, error_of_look(n, 0.05))
        unpaid = unpaid | misses_zero(ordered, 0.05)
    assert paid.sum() <= 0.05 * 600
    assert unpaid.sum() > 0.1 * 600, "without paying, the simulation must raise false alarms, or it shows nothing"


def misses_zero(ordered, error):
    """Whether the interval of the median of each row excludes 0."""
    ranks = median_interval(np.arange(float(ordered.shape[1])), error)
    return (ordered[:, int(ranks.low)] > 0) | (ordered[:, int(ranks.high)] < 0)
