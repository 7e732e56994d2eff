"""`measure.timing.clock`: what the clock resolves, and how many calls make a block worth timing."""

import itertools

import pytest

from perfsuite.measure.timing import clock
from perfsuite.measure.timing.clock import MOST_CALLS_PER_BLOCK, TICKS_PER_BLOCK, calls_per_block, resolution_ns


@pytest.fixture
def ticks_of(monkeypatch):
    """A clock whose smallest step is so many nanoseconds."""

    def of(nanoseconds):
        monkeypatch.setattr(clock, "resolution_ns", lambda: nanoseconds)

    return of


def test_readings_never_run_backwards():
    readings = [clock.now_ns() for _ in range(1000)]
    assert readings == sorted(readings)


def test_resolution_is_the_smallest_step_between_readings(monkeypatch):
    # After each reading the clock stands still for another one, and then moves by 100 ns or by 40 ns.
    steps = itertools.cycle([500, 0, 100, 500, 0, 40, 500, 0, 100])
    readings = itertools.accumulate(steps)
    monkeypatch.setattr(clock, "now_ns", lambda: next(readings))
    assert resolution_ns.__wrapped__() == 40


def test_resolution_of_this_clock_is_positive_and_stays():
    assert 0 < resolution_ns() == resolution_ns()


@pytest.mark.parametrize(
    ("call_ns", "calls"),
    [
        (1_000_000, 1),
        (TICKS_PER_BLOCK * 50, 1),
        (TICKS_PER_BLOCK * 50 - 1, 2),
        (TICKS_PER_BLOCK * 25, 2),
        (TICKS_PER_BLOCK * 25 - 1, 3),
        (TICKS_PER_BLOCK, 50),
    ],
)
def test_a_block_has_as_many_calls_as_its_ticks_need_and_not_one_more(ticks_of, call_ns, calls):
    ticks_of(50)
    assert calls_per_block(call_ns) == calls


def test_a_coarse_clock_needs_longer_blocks(ticks_of):
    ticks_of(1_000)
    assert calls_per_block(TICKS_PER_BLOCK * 25) == 40


@pytest.mark.parametrize("call_ns", [0, 0.5, 1, -100])
def test_a_call_too_short_to_be_seen_still_makes_a_block_that_ends(ticks_of, call_ns):
    ticks_of(5_000)
    assert calls_per_block(call_ns) == MOST_CALLS_PER_BLOCK


def test_block_sizes_are_whole_numbers(ticks_of):
    ticks_of(50)
    assert type(calls_per_block(333.3)) is int
