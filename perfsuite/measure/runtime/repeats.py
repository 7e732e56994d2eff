"""Runs of one call until they agree: which of them is what the call does each time."""

from collections.abc import Callable
from typing import TypeVar

from perfsuite.measure.errors import MeasurementError

FEWEST = 3
"""The first run after warming may fill a cache still."""

T = TypeVar("T")


def agreed(once: Callable[[], T], counts: Callable[[T], tuple[int, ...]], differs: str, *, exact: bool = True) -> T:
    """Run `once` until two runs in a row have the same counts, and return the last of them.

    So neither what fills a cache counts, nor what happens once by chance. The least of all runs would also leave out
    what the call does every second time: where the counts alternate, this is the larger of the two.

    Raises `MeasurementError`, which begins with `differs`, where three runs in a row all differ; with `exact=False` it
    returns the least of them. It ends after five runs at most.
    """
    __tracebackhide__ = True
    runs = [once() for _ in range(FEWEST)]
    while True:
        seen = [counts(run) for run in runs]
        if seen[-1] == seen[-2]:
            return runs[-1]
        if seen[-4:-2] == seen[-2:]:
            return max(runs[-2:], key=lambda run: _size(counts(run)))
        if len(set(seen[-3:])) == 3:
            break
        runs.append(once())
    if exact:
        totals = [sum(each) for each in seen]
        said = ", ".join(map(str, totals if len(set(totals)) > 1 else seen))
        why = "a count gates only code that does the same each time"
        raise MeasurementError(f"{differs} from run to run ({said}); {why}")
    return min(runs, key=lambda run: _size(counts(run)))


def _size(counts: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    return sum(counts), counts
