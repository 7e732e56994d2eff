"""Which of several packages it is, where all of them changed together."""

from collections.abc import Callable, Collection, Sequence
from typing import Literal

Tried = Literal["good", "bad", "skipped"]


def responsible(names: Sequence[str], tried: Callable[[Collection[str]], Tried]) -> list[str]:
    """The fewest packages whose bad versions make it bad: the first that does so alone, else those that it takes.

    `tried` says how it is with the bad versions of the packages that it is given, and the good ones of the others; with
    all of them it is bad. Where none is enough alone, each in turn gets its good version back, and stays so where it is
    bad without it (A. Zeller and R. Hildebrandt, Simplifying and isolating failure-inducing input, IEEE Transactions on
    Software Engineering 28, 2002: the result is 1-minimal). What cannot be tried counts as not bad.
    """
    if len(names) == 1:
        return list(names)
    for name in names:
        if tried([name]) == "bad":
            return [name]
    left = list(names)
    for name in names:
        without = [each for each in left if each != name]
        # With one left that is known not to be enough.
        if len(without) > 1 and tried(without) == "bad":
            left = without
    return left
