"""`measure.timing.stack_sampler`: where a thread is while it does not return."""

import collections
import sys
import threading
import time

import pytest

from perfsuite.measure.timing.stack_sampler import StackPlace, Watch, eager_switching, most_seen

WAITS = StackPlace("train.py:3", "equinox/_jit.py:271 in _call", True)
WORKS = StackPlace("train.py:4", "train.py:4 in step", False)


def sits_until(done, wait=time.sleep):
    hangs_at = time.monotonic() + 60
    while not done():
        assert time.monotonic() < hangs_at, "nobody looks"
        wait(1e-3)


def test_a_thread_that_does_not_return_is_seen_in_its_line():
    with Watch(1e-3) as watch, watch.during_call() as places:
        sits_until(lambda: places)
    assert watch.looks >= places.total() > 0
    place = most_seen(places)
    assert place.line.startswith("tests/measure/timing/test_stack_sampler.py:")
    assert " in " in place.frame


def test_a_wait_in_a_module_of_pythons_own_is_told_by_its_caller():
    with Watch(1e-3) as watch, watch.during_call() as places:
        sits_until(lambda: places, wait=threading.Event().wait)
    assert not [place for place in places if "threading.py" in place.frame]


def test_calls_that_return_sooner_are_left_alone():
    with Watch(1e-3, after_s=1e9) as watch, watch.during_call() as places:
        time.sleep(0.02)
    assert not places
    assert watch.looks == 0


def test_the_thread_that_looks_ends_with_the_body():
    with pytest.raises(ZeroDivisionError), Watch(1e-3):
        1 / 0
    assert "perfsuite watch" not in [thread.name for thread in threading.enumerate()]


def test_each_call_has_places_of_its_own():
    with Watch(1e-3) as watch:
        with watch.during_call() as first:
            sits_until(lambda: first)
        before = first.copy()
        with watch.during_call() as second:
            sits_until(lambda: second)
    assert first == before


def test_a_place_that_shows_a_wait_comes_before_any_that_does_not():
    assert most_seen(collections.Counter({WAITS: 1, WORKS: 100})) == WAITS
    assert most_seen(collections.Counter({WORKS: 1})) == WORKS
    assert most_seen(collections.Counter()) is None


def test_a_place_shows_its_line_once():
    assert str(WAITS) == "train.py:3, in equinox/_jit.py:271 in _call"
    assert str(WORKS) == "train.py:4"


def test_switching_is_as_it_was_afterwards():
    before = sys.getswitchinterval()
    with eager_switching():
        assert sys.getswitchinterval() == pytest.approx(1e-4)
    assert sys.getswitchinterval() == before
