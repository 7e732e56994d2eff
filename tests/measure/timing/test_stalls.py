"""`measure.timing.stalls`: the calls of a thousand that take far longer than the others."""

import contextlib
import itertools
import os
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import bdtr
from support.busy import busy_neighbours, cores

from perfsuite.measure.call import call
from perfsuite.measure.errors import RecompilationError
from perfsuite.measure.timing import stalls as module
from perfsuite.measure.timing.block import Sample
from perfsuite.measure.timing.stack_sampler import StackPlace
from perfsuite.measure.timing.stalls import CALLS, ENOUGH, LEAST_US, REPEATED, TIMES, count_stalls

step = jax.jit(lambda x: x + 1)
X = jnp.ones(3)


@pytest.fixture
def taking(monkeypatch):
    """`taking(us, taken)`: what each call takes, and what of it the operating system took, in microseconds, in turn.

    The clock is the test's own: only calls move it, and what `collecting` says that a collection before them takes.
    """

    def set_up(us, taken=0.0, seconds=1e9, over_us=None, collecting=0.0):
        times, lost = itertools.cycle(np.atleast_1d(us)), itertools.cycle(np.atleast_1d(taken))
        state = SimpleNamespace(seconds=0.0, lost=0.0)

        def run_block(subject):
            sample = next(times)
            state.seconds += abs(sample) / 1e6
            state.lost += next(lost) * 1e3
            return Sample(sample * 1e3, sample * 1e3)

        @contextlib.contextmanager
        def steady(subject):
            state.seconds += collecting
            yield

        monkeypatch.setattr(module, "run_block", run_block)
        monkeypatch.setattr(module, "steady", steady)
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: state.seconds))
        monkeypatch.setattr(module, "now_ns", lambda: state.seconds * 1e9)
        monkeypatch.setattr(module, "process_delay_ns", lambda without: state.lost)
        return count_stalls(call(step, X), seconds=seconds, over_us=over_us)

    return set_up


def once_in(every, us, usual=1000.0):
    return [*[usual] * (every - 1), us]


def test_a_collection_before_the_first_call_takes_none_of_the_time(taking):
    """On a busy machine it took all of half a second, and 3 calls were found to have no stall."""
    assert taking(1000, seconds=0.5, collecting=10.0).calls >= 500


# What is a stall.


def test_a_steady_call_is_run_a_thousand_times_and_has_none(taking):
    made = taking(1000)
    assert (made.calls, made.count, made.machine, made.repeats, made.enough) == (CALLS, 0, 0, False, True)
    assert (made.median_us, made.longest_us, made.label) == (1000, 1000, "lambda")


@pytest.mark.parametrize("us", [1e6, 1e5])
def test_one_stall_in_a_hundred_calls_is_found_at_once(taking, us):
    made = taking(once_in(100, us))
    assert made.count == 3
    assert made.repeats
    assert made.calls == 300
    assert [stall.us for stall in made.stalls] == [us] * 3


def test_a_single_stall_is_seen_and_is_no_proof(taking):
    made = taking(once_in(CALLS, 1e6))
    assert (made.count, made.repeats) == (1, False)


@pytest.mark.parametrize(("usual", "limit"), [(100, 100 + LEAST_US), (10_000, TIMES * 10_000)])
def test_a_stall_is_ten_times_the_median_and_twenty_milliseconds_longer(taking, usual, limit):
    assert taking(once_in(100, limit - 1, usual)).count == 0
    assert taking(once_in(100, limit + 1, usual)).repeats
    assert taking(once_in(100, limit - 1, usual)).limit_us == limit


def test_the_caller_says_how_much_longer_a_call_may_take(taking):
    assert taking(once_in(100, 1600), over_us=500).repeats
    assert taking(once_in(100, 1400), over_us=500).count == 0


@pytest.mark.parametrize("us", [1e6, 1e5])
def test_what_the_operating_system_took_away_is_no_stall(taking, us):
    made = taking(once_in(100, us), once_in(100, us, 0))
    assert (made.count, made.machine, made.repeats) == (0, 10, False)
    assert made.enough
    assert made.calls == CALLS


def test_a_stall_that_the_operating_system_made_longer_is_one(taking):
    made = taking(once_in(100, 2e5), once_in(100, 1e5, 0))
    assert (made.repeats, made.machine) == (True, 0)
    assert [stall.taken_us for stall in made.stalls] == [1e5] * 3


@pytest.mark.parametrize(
    ("known", "line", "counts"), [(True, "", True), (False, "step.py:3", True), (False, "", False)]
)
def test_where_nobody_knows_what_the_machine_took_stalls_that_were_seen_count(taking, monkeypatch, known, line, counts):
    monkeypatch.setattr(module, "is_known", lambda: known)
    monkeypatch.setattr(module, "certain_place", lambda places: StackPlace(line, False))
    made = taking(once_in(100, 1e6))
    assert (made.repeats, made.count, made.machine) == ((True, 3, 0) if counts else (False, 0, 10))
    assert not (made.enough and made.machine), "nothing passes by luck"


def test_what_was_taken_away_long_before_a_stall_does_not_excuse_it(taking):
    made = taking(once_in(100, 1e6), [*[1e6], *[0] * 99])
    assert made.repeats


def test_a_first_guess_of_the_median_that_was_too_low_makes_no_stall_of_usual_calls(taking):
    made = taking([1000.0] * 5 + [30_000.0] * 995)
    assert (made.median_us, made.count, made.machine) == (30_000, 0, 0)


# How many calls are enough.


def test_enough_calls_show_a_stall_in_a_hundred_twice_but_for_once_in_a_thousand():
    assert bdtr(REPEATED - 1, ENOUGH, 0.01) <= 0.001 < bdtr(REPEATED - 1, ENOUGH - 10, 0.01)
    assert bdtr(REPEATED - 1, CALLS, 0.01) < 0.0005


# With the clock of this machine.


def stalling(every, seconds):
    runs = itertools.count(1)

    def sometimes(x):
        if next(runs) % every == 0:
            time.sleep(seconds)
        return step(x)

    return sometimes


def test_a_step_in_a_hundred_that_sleeps_is_named_with_its_line():
    fn = stalling(100, 0.2)
    made = count_stalls(call(fn, X), seconds=20)
    assert made.repeats
    assert made.where == (f"tests/measure/timing/test_stalls.py:{fn.__code__.co_firstlineno + 2}",)


@pytest.mark.skipif(not os.path.exists("/proc/thread-self/schedstat"), reason="needs Linux's schedstat")
def test_busy_neighbours_on_every_core_are_no_stalls():
    with busy_neighbours(2 * cores()):
        made = count_stalls(call(jax.jit(lambda x: x @ x), jnp.eye(200)), seconds=10)
    assert not made.repeats, made


def test_a_compile_in_the_middle_is_an_error_and_no_stall():
    runs = itertools.count(1)

    def compiles_later(x):
        run = next(runs)
        return jax.jit(lambda y: y + run)(x) if run == 300 else step(x)

    with pytest.raises(RecompilationError):
        count_stalls(call(compiles_later, X))


def test_calls_that_the_machine_held_up_are_not_among_the_calls_that_count(taking):
    made = taking(once_in(5, 1e5), once_in(5, 1e5, 0))
    assert (made.count, made.machine, made.enough) == (0, 200, False)
