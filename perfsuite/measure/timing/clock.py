"""The clock that everything is timed with, its tick, and how many calls make a block worth timing."""

import functools
import time

import numpy as np

from perfsuite.measure.errors import MeasurementError

now_ns = time.perf_counter_ns
"""Monotonic, in nanoseconds. On Linux it reads CLOCK_MONOTONIC without a system call."""

READINGS_PER_BLOCK = 100
"""A block lasts at least this many readings of the clock, because a reading does not always take the same time."""

TICKS_PER_BLOCK = 500
"""A block lasts at least this many ticks of the clock. One tick then hides 0.2 % of it, a fifth of the closest limit
that makes sense, 1 %.

Neither is more, because a block of several calls is another thing than one call where a call returns before the device
is done: the second queues behind the first. With a tick of 10 ns and readings that take 60 (a virtual x86-64 machine)
the readings decide, and a block lasts 6 us. With a tick of 100 ns (Windows) the ticks do, and a block lasts 50 us.
"""

MOST_CALLS_PER_BLOCK = 10_000

_READINGS = 100_000
"""They take a few milliseconds. A clock with a longer tick cannot time anything here."""


@functools.cache
def _steps_ns() -> np.ndarray:
    """The different steps between readings in a row, ascending, without 0.

    Raises `MeasurementError` where the clock stands still, or runs backwards.
    """
    readings = [now_ns() for _ in range(_READINGS)]
    with np.errstate(invalid="ignore"):  # what is no number is an error below
        steps = np.unique(np.diff(np.asarray(readings)))
    if not (steps >= 0).all() or not steps.any():
        how = "stands still" if not steps.any() else "runs backwards or gives no number"
        raise MeasurementError(
            f"the machine's clock {how} (the first and the last of {_READINGS} readings: {readings[0]}, "
            f"{readings[-1]} ns), so nothing can be timed"
        )
    return steps[steps > 0]


def resolution_ns() -> int:
    """The smallest step that two readings in a row show: what a reading costs, or the tick where that is longer."""
    return int(_steps_ns()[0])


@functools.cache
def tick_ns() -> int:
    """The tick: every reading is a multiple of it, so a time may be off by one tick. In nanoseconds, at least 1.

    It is the smallest distance between the steps that occur. A tick of 41.67 ns shows steps of 41, 42, 83, 84 and so on
    in whole nanoseconds, so a step that is 1 ns above another one is no other step, unless a third one follows.
    """
    steps = np.append(0, _steps_ns())
    above = np.diff(steps) == 1
    if (above[1:] & above[:-1]).any():
        return 1
    others = steps[np.append(True, ~above)]
    return int(np.diff(others).min()) if len(others) > 1 else 1


def calls_per_block(call_ns: float) -> int:
    """How many calls of `call_ns` nanoseconds one block needs."""
    least_ns = max(READINGS_PER_BLOCK * resolution_ns(), TICKS_PER_BLOCK * tick_ns())
    return int(min(max(1, -(-least_ns / max(call_ns, 1.0) // 1)), MOST_CALLS_PER_BLOCK))
