"""`measure.timing.clock`: what the clock resolves, and how many calls make a block worth timing."""

import random

import pytest

from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.timing import clock
from perfsuite.measure.timing.clock import (
    MOST_CALLS_PER_BLOCK,
    READINGS_PER_BLOCK,
    TICKS_PER_BLOCK,
    calls_per_block,
    resolution_ns,
    tick_ns,
)


@pytest.fixture(autouse=True)
def forget_the_clock():
    of_this_machine = clock._steps_ns, clock.tick_ns
    yield
    for each in of_this_machine:
        each.cache_clear()


@pytest.fixture
def ticks_of(monkeypatch):
    """A clock with this tick, whose readings differ by so much at least, both in nanoseconds."""

    def of(tick, resolution):
        monkeypatch.setattr(clock, "tick_ns", lambda: tick)
        monkeypatch.setattr(clock, "resolution_ns", lambda: resolution)

    return of


@pytest.fixture
def clock_of(monkeypatch):
    """A clock with this tick, whose reading costs so much and now and then more, both in nanoseconds."""

    def of(tick, reading):
        rng = random.Random(1)
        now = 0.0

        def now_ns():
            nonlocal now
            now += reading * rng.uniform(1, 1.2) * rng.choices([1, 20], [100, 1])[0]
            return int(now // tick * tick)

        clock._steps_ns.cache_clear()
        clock.tick_ns.cache_clear()
        monkeypatch.setattr(clock, "now_ns", now_ns)

    return of


@pytest.mark.parametrize(
    ("tick", "reading", "seen"),
    [
        (1, 40, 1),
        (0.4, 40, 1),
        (2.5, 40, 2),
        (10, 60, 10),
        (100, 40, 100),
        (125 / 3, 30, 41),
        (125 / 3, 70, 41),
        (279.365, 1000, 279),
        (1_000, 40, 1_000),
        (100_000, 40, 100_000),
    ],
)
def test_the_tick_is_found_whether_a_reading_costs_more_or_less(clock_of, tick, reading, seen):
    clock_of(tick, reading)
    assert tick_ns() == seen
    assert resolution_ns() >= max(seen, reading // 2)


def test_a_clock_that_does_not_move_is_no_clock(clock_of):
    clock_of(10**9, 40)
    with pytest.raises(MeasurementError, match="stands still"):
        tick_ns()


@pytest.mark.parametrize(
    ("call_ns", "calls"),
    [
        (1_000_000, 1),
        (READINGS_PER_BLOCK * 50, 1),
        (READINGS_PER_BLOCK * 50 - 1, 2),
        (READINGS_PER_BLOCK * 25, 2),
        (READINGS_PER_BLOCK * 25 - 1, 3),
        (READINGS_PER_BLOCK, 50),
    ],
)
def test_a_block_has_as_many_calls_as_its_readings_need_and_not_one_more(ticks_of, call_ns, calls):
    ticks_of(1, 50)
    assert calls_per_block(call_ns) == calls


def test_a_coarse_clock_needs_longer_blocks(ticks_of):
    ticks_of(1_000, 1_000)
    assert calls_per_block(TICKS_PER_BLOCK * 25) == 40


@pytest.mark.parametrize("call_ns", [0, 0.5, 1, -100])
def test_a_call_too_short_to_be_seen_still_makes_a_block_that_ends(ticks_of, call_ns):
    ticks_of(5_000, 5_000)
    assert calls_per_block(call_ns) == MOST_CALLS_PER_BLOCK
