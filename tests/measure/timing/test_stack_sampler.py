"""`measure.timing.stack_sampler`: where a thread is while it does not return."""

import sys
import threading
import time
from collections import Counter

import pytest

from perfsuite.measure.timing.stack_sampler import UNSEEN, StackPlace, Watch, certain_place, eager_switching

WAITS = StackPlace("train.py:3, in equinox/_jit.py:271 in _call", True)
WORKS = StackPlace("train.py:4", False)


def sits_until(done, wait=time.sleep):
    hangs_at = time.monotonic() + 60
    while not done():
        assert time.monotonic() < hangs_at, "nobody looks"
        wait(1e-3)


def test_a_thread_that_does_not_return_is_seen_in_its_line():
    places = Counter()
    with Watch(1e-3) as watch, watch.during_call(places):
        sits_until(lambda: places.keys() - {UNSEEN})
    line = sits_until.__code__.co_firstlineno
    assert {place.line for place in places} <= {
        "",
        *(f"tests/measure/timing/test_stack_sampler.py:{line + n}" for n in range(1, 5)),
    }
    assert not any(place.waits for place in places)


def test_a_wait_in_a_module_of_pythons_own_is_told_by_its_caller():
    places = Counter()
    with Watch(1e-3) as watch, watch.during_call(places):
        sits_until(lambda: places.keys() - {UNSEEN}, wait=threading.Event().wait)
    assert not [place for place in places if "threading.py" in place.line]


def test_calls_that_return_sooner_are_left_alone():
    places = Counter()
    with Watch(1e-3, after_s=1e9) as watch, watch.during_call(places):
        time.sleep(0.02)
    assert not places


def test_the_thread_that_looks_ends_with_the_body():
    with pytest.raises(ZeroDivisionError), Watch(1e-3):
        1 / 0
    assert "perfsuite watch" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize(
    ("places", "place"),
    [
        ({WAITS: 1, WORKS: 100}, WAITS),
        ({WORKS: 2, UNSEEN: 1}, WORKS),
        ({WORKS: 1, UNSEEN: 1}, UNSEEN),
        ({}, UNSEEN),
    ],
)
def test_a_place_is_certain_if_it_shows_a_wait_or_most_looks_saw_it(places, place):
    assert certain_place(Counter(places)) == place


def test_switching_is_as_it_was_afterwards():
    before = sys.getswitchinterval()
    with eager_switching():
        assert sys.getswitchinterval() == pytest.approx(1e-4)
    assert sys.getswitchinterval() == before
