"""How often an interval may miss the truth, and how several looks share that."""

import math

DECIDING_ERROR = 0.001
"""The chance that the interval of a comparison misses the truth, over all of its looks together."""

INFORMING_ERROR = 0.05
"""The chance that the interval of a plain timing misses the truth. It informs, and its gates have wide tolerances."""


def error_of_look(look: int, error: float) -> float:
    """The share of `error` that the n-th look (from 1) may spend: error * 6 / (pi * n)^2.

    The shares of all looks sum to `error`, so by the union bound the intervals of all looks hold at once with
    probability 1 - `error`: stopping at any look does not raise the rate of false alarms. (Alpha spending after
    K. K. G. Lan and D. L. DeMets, Biometrika 70, 1983, with the series of 1 / n^2.)
    """
    return error * 6 / (math.pi * look) ** 2
