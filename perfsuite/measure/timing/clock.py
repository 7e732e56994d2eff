"""The clock that everything is timed with, what it can resolve, and how many calls make a block worth timing."""

import functools
import time

from perfsuite.measure.errors import MeasurementError

now_ns = time.perf_counter_ns
"""Monotonic, in nanoseconds. On Linux it reads CLOCK_MONOTONIC without a system call."""

TICKS_PER_BLOCK = 100
"""A block lasts at least this many ticks of the clock: rounding then costs one sample 1 %, and a median far less.

Not more, because a block of several calls is another thing than one call where a call returns before the device is
done: the second queues behind the first.
"""

MOST_CALLS_PER_BLOCK = 10_000

_MOST_READINGS = 5_000_000
"""Readings that may say the same: of the coarsest clocks a tick is 16 ms, which is some 300,000 of them."""


@functools.cache
def resolution_ns() -> int:
    """The smallest step that two readings of the clock in a row can show, in nanoseconds.

    Raises `MeasurementError` where the clock stands still, or runs backwards.
    """
    smallest = 10**9
    for _ in range(1000):
        start = now_ns()
        readings = 1
        while (end := now_ns()) == start and readings < _MOST_READINGS:
            readings += 1
        if not end > start:
            raise MeasurementError(
                f"the machine's clock {'stands still' if end == start else 'runs backwards or gives no number'} "
                f"(two readings in a row: {start}, {end} ns), so nothing can be timed"
            )
        smallest = min(smallest, end - start)
    return smallest


def calls_per_block(call_ns: float) -> int:
    """How many calls of `call_ns` nanoseconds one block needs."""
    needed = TICKS_PER_BLOCK * resolution_ns() / max(call_ns, 1.0)
    return int(min(max(1, -(-needed // 1)), MOST_CALLS_PER_BLOCK))
