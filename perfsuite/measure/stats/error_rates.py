"""How often an interval may miss the truth, and how the looks of a comparison and the gates of a session share that."""

import math

DECIDING_ERROR = 0.001
"""The chance that the interval of a comparison misses the truth, over all of its looks together. It fails builds."""

SESSION_ERROR = 0.01
"""The chance that any comparison of a session does, over all of its gates together, however many there are."""

INFORMING_ERROR = 0.05
"""The chance that the interval of a plain timing misses the truth. It informs, and its gates have wide tolerances."""


def error_of_look(look: int, error: float) -> float:
    """The share of `error` that the n-th look (from 1) may spend: error * 6 / (pi * n)^2.

    The shares of all looks sum to `error`, so by the union bound the intervals of all looks hold at once with
    probability 1 - `error`: stopping at any look does not raise the rate of false alarms. (Alpha spending after
    K. K. G. Lan and D. L. DeMets, Biometrika 70, 1983, with the series of 1 / n^2.)
    """
    return error * 6 / (math.pi * look) ** 2


def error_of_gate(gate: int, expected: int) -> float:
    """The error of the n-th gate (from 1) of a session that expects `expected` gates.

    The expected gates share half of `SESSION_ERROR` equally. The gates beyond them share the other half as an infinite
    series (`error_of_look`). No gate gets more than `DECIDING_ERROR`. So the shares of any number of gates sum to
    `SESSION_ERROR` at most, which by the union bound limits the chance of any false alarm, however the gates depend on
    each other (O. J. Dunn, Multiple comparisons among means, Journal of the American Statistical Association 56, 1961;
    the shares need not be equal).
    """
    if gate <= expected:
        return min(DECIDING_ERROR, SESSION_ERROR / 2 / expected)
    return min(DECIDING_ERROR, error_of_look(gate - expected, SESSION_ERROR / 2))
