"""`measure.timing.waits`: whether a call waits before it returns, single calls that stall, and where."""

import contextlib
import inspect
import itertools
import sys
import threading
import time
from collections import Counter
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import bdtr
from support.busy import busy_neighbours, cores
from support.fakes import MS, US, FakeDevice
from support.one_processor import on_one_processor

from perfsuite.measure.call import call
from perfsuite.measure.timing import waits as module
from perfsuite.measure.timing.block import Sample
from perfsuite.measure.timing.intervals import DECIDING_ERROR, error_of_check, median_interval
from perfsuite.measure.timing.waits import (
    CALLS,
    ENOUGH,
    LEAST_US,
    MOST_SAMPLES,
    NO_PLACE,
    REPEATED,
    TIMES,
    StackPlace,
    StackSampler,
    _jax_waits,
    asynchrony,
    count_stalls,
    process_delay_ns,
    thread_delay_ns,
)

NEEDS_SCHEDSTAT = pytest.mark.skipif(not module.counts_delays(), reason="needs Linux's schedstat")


def work(x):
    for _ in range(8):
        x = x @ x
    return x


# The device's work is some milliseconds, the host's some tens of microseconds.
X = jnp.eye(400)
SMALL = jnp.eye(4)
step = jax.jit(work)
filter_step = eqx.filter_jit(work)


def reads_the_loss(x):
    return float(step(x)[0, 0])


def waits_half_way(x):
    y = step(x).block_until_ready()
    return step(y)


def sleeps(x):
    y = step(x)
    time.sleep(0.05)
    return y


def line_of(fn, text):
    lines = inspect.getsource(fn).splitlines()
    return fn.__code__.co_firstlineno + next(i for i, line in enumerate(lines) if text in line)


def test_a_jitted_call_is_never_taken_for_one_that_waits():
    assert asynchrony(call(step, X), seconds=1).waits is not True


def test_filter_jit_waits_in_a_line_of_equinox():
    made = asynchrony(call(filter_step, X), seconds=1)
    assert made.waits is True
    assert "equinox/_jit.py:" in made.where
    assert made.where.startswith("tests/measure/timing/test_waits.py:")


@pytest.mark.parametrize(
    ("fn", "text", "frame"),
    [
        (reads_the_loss, "float", ", in jax/_src/array.py:"),
        (waits_half_way, "block_until_ready", ""),
        (sleeps, "time.sleep", ""),
    ],
)
def test_the_line_that_waits_is_named(fn, text, frame):
    made = asynchrony(call(fn, X), seconds=2)
    assert made.waits is True
    assert made.where.startswith(f"tests/measure/timing/test_waits.py:{line_of(fn, text)}{frame}")


def test_where_every_call_waits_none_is_blamed():
    before = jax.config.read("jax_cpu_enable_async_dispatch")
    assert not _jax_waits(call(step, X))
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    try:
        assert _jax_waits(call(step, X))
    finally:
        jax.config.update("jax_cpu_enable_async_dispatch", before)


def test_over_several_cpus_jax_itself_waits():
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2])
    assert _jax_waits(call(step, jax.device_put(X, jax.sharding.NamedSharding(mesh, jax.P("x")))))


# On a clock that only the tests move.


@pytest.fixture
def device(monkeypatch):
    device = FakeDevice(reading_ns=30, waiting_ns=200).install(monkeypatch)
    clocks = {"monotonic": lambda: device.now / 1e9, "thread_time_ns": lambda: device.cpu_ns}
    monkeypatch.setattr(module, "now_ns", device.now_ns)
    monkeypatch.setattr(module, "time", SimpleNamespace(**clocks))
    monkeypatch.setattr(module, "thread_delay_ns", lambda: 0)
    monkeypatch.setattr(module, "counts_delays", lambda: True)
    monkeypatch.setattr(module, "_places", lambda subject, seconds: Counter())
    return device


def test_a_call_that_only_dispatches_returns_before_the_device_is_done(device):
    made = asynchrony(call(device.run, 100 * US, 900 * US))
    assert (made.waits, made.label, made.where, made.reason) == (False, "run", "", "")
    assert (made.share, made.asleep) == (pytest.approx(0.1, rel=0.01), pytest.approx(0, abs=0.001))
    assert made.share_interval.low <= made.share <= made.share_interval.high
    assert (made.to_return_us, made.to_ready_us) == (pytest.approx(100, rel=0.01), pytest.approx(1000, rel=0.01))


def test_time_asleep_is_neither_work_nor_time_that_was_taken_away(device, monkeypatch):
    taken = itertools.count(0, 30 * MS)
    monkeypatch.setattr(module, "thread_delay_ns", lambda: next(taken))

    def works_and_sleeps():
        device.run(20 * MS)
        device.now += 50 * MS

    clock = module._SleepClock(works_and_sleeps)
    clock()
    assert clock.asleep_ns == pytest.approx(20 * MS, abs=100)
    monkeypatch.setattr(module, "thread_delay_ns", lambda: 0)
    clock()
    assert clock.asleep_ns == pytest.approx(50 * MS, abs=100)


# The decision, without any timing.


@pytest.fixture
def taking(monkeypatch):
    """`taking(to_return, to_ready, asleep)`: what each call takes, in microseconds, and how long it sleeps."""

    def set_up(to_return, to_ready, asleep=0.0, watched=()):
        returns, sleeps = itertools.cycle(np.atleast_1d(to_return)), itertools.cycle(np.atleast_1d(asleep))

        def run_block(subject):
            clocks[-1].asleep_ns = next(sleeps) * 1e3
            return Sample(next(returns) * 1e3, to_ready * 1e3)

        clocks = []
        make = module._SleepClock

        def keep(fn):
            clocks.append(make(fn))
            return clocks[-1]

        monkeypatch.setattr(module, "_SleepClock", keep)
        monkeypatch.setattr(module, "run_block", run_block)
        monkeypatch.setattr(module, "_places", lambda subject, seconds: Counter(dict(watched)))
        return asynchrony(call(step, SMALL), seconds=60)

    return set_up


DEVICE = StackPlace("train.py:3, in equinox/_jit.py:271 in _call", True)


@pytest.mark.parametrize(
    ("known", "jax_waits", "watched", "waits"),
    [
        (True, False, {}, True),
        (True, True, {}, None),
        (False, False, {}, None),
        (True, True, {DEVICE: 1}, True),
        (False, False, {DEVICE: 1}, True),
    ],
)
def test_where_another_may_be_why_it_sleeps_it_waits_only_if_it_was_seen_to(
    taking, monkeypatch, known, jax_waits, watched, waits
):
    monkeypatch.setattr(module, "counts_delays", lambda: known)
    monkeypatch.setattr(module, "_jax_waits", lambda call: jax_waits)
    made = taking(990, 1000, 900, watched=watched)
    assert (made.waits, bool(made.reason), made.for_device) == (waits, waits is None, bool(watched))
    assert taking(100, 1000).waits is False


def test_late_and_awake_is_unknown(taking):
    made = taking(990, 1000)
    assert (made.waits, made.samples) == (None, MOST_SAMPLES)
    assert "too little to do" in made.reason


def test_late_and_awake_at_a_line_that_waits_waits(taking):
    works = StackPlace("train.py:4", False)
    made = taking(990, 1000, watched={DEVICE: 2, works: 8})
    assert (made.waits, made.where, made.for_device, made.reason) == (True, DEVICE.line, True, "")
    assert taking(990, 1000, watched={works: 1000, DEVICE: 1}).waits is None
    assert taking(990, 1000, watched={DEVICE: 1}).waits is None, "too few looks to tell"


def test_the_place_is_named_only_where_it_is_certain(taking):
    here, there = (StackPlace(f"train.py:{line}", False) for line in (3, 4))
    made = taking(990, 1000, 900, watched={here: 6, there: 5})
    assert (made.where, made.for_device) == ("train.py:3", False)
    assert taking(990, 1000, 900, watched={here: 5, there: 5}).where == ""


def test_early_but_asleep_every_other_time_is_unknown(taking):
    assert taking(300, 1000, [0, 250]).waits is None


def test_what_is_too_near_to_call_says_so(taking):
    made = taking([450, 550] * 200, 1000)
    assert made.waits is None
    assert "too near to call" in made.reason


def test_the_checks_of_a_call_share_the_error(taking):
    """After 20, 40, 80, 160 and 320 samples, none of which decides."""
    shares = np.random.default_rng(0).uniform(0.4, 0.6, MOST_SAMPLES)
    undecided = taking(1000 * shares, 1000)
    expected = median_interval(shares, error_of_check(5, DECIDING_ERROR))
    assert undecided.waits is None
    assert (undecided.share_interval.low, undecided.share_interval.high) == pytest.approx((expected.low, expected.high))


def test_neighbours_that_hold_some_calls_up_change_nothing(taking):
    late = [100] * 9 + [990]
    assert taking(late, 1000, [0] * 9 + [800]).waits is False


# Stalls.

add_one = jax.jit(lambda x: x + 1)


@pytest.fixture
def timed(monkeypatch):
    """`timed(us, taken)`: what each call takes, and what of it the operating system took, in microseconds, in turn.

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
        monkeypatch.setattr(
            module, "time", SimpleNamespace(monotonic=lambda: state.seconds, perf_counter=time.perf_counter)
        )
        monkeypatch.setattr(module, "now_ns", lambda: state.seconds * 1e9)
        monkeypatch.setattr(module, "process_delay_ns", lambda without: state.lost)
        return count_stalls(call(add_one, SMALL), seconds=seconds, over_us=over_us)

    return set_up


def once_in(every, us, usual=1000.0):
    return [*[usual] * (every - 1), us]


def test_a_collection_before_the_first_call_takes_none_of_the_time(timed):
    """On a busy machine it took all of half a second, and 3 calls were found to have no stall."""
    assert timed(1000, seconds=0.5, collecting=10.0).calls >= 500


def test_a_steady_call_is_run_a_thousand_times_and_has_none(timed):
    made = timed(1000)
    assert (made.calls, made.count, made.machine, made.repeats, made.enough) == (CALLS, 0, 0, False, True)
    assert (made.median_us, made.longest_us, made.label) == (1000, 1000, "lambda")


@pytest.mark.parametrize("us", [1e6, 1e5])
def test_one_stall_in_a_hundred_calls_is_found_at_once(timed, us):
    made = timed(once_in(100, us))
    assert made.count == 3
    assert made.repeats
    assert made.calls == 300
    assert [stall.us for stall in made.stalls] == [us] * 3


@pytest.mark.parametrize(("usual", "limit"), [(100, 100 + LEAST_US), (10_000, TIMES * 10_000)])
def test_a_stall_is_ten_times_the_median_and_twenty_milliseconds_longer(timed, usual, limit):
    assert timed(once_in(100, limit - 1, usual)).count == 0
    assert timed(once_in(100, limit + 1, usual)).repeats
    assert timed(once_in(100, limit - 1, usual)).limit_us == limit


def test_the_caller_says_how_much_longer_a_call_may_take(timed):
    assert timed(once_in(100, 1600), over_us=500).repeats
    assert timed(once_in(100, 1400), over_us=500).count == 0


@pytest.mark.parametrize("us", [1e6, 1e5])
def test_what_the_operating_system_took_away_is_no_stall(timed, us):
    made = timed(once_in(100, us), once_in(100, us, 0))
    assert (made.count, made.machine, made.repeats) == (0, 10, False)
    assert made.enough
    assert made.calls == CALLS
    assert not timed(once_in(5, us), once_in(5, us, 0)).enough, "calls that the machine held up say nothing"


def test_a_stall_that_the_operating_system_made_longer_is_one(timed):
    made = timed(once_in(100, 2e5), once_in(100, 1e5, 0))
    assert (made.repeats, made.machine) == (True, 0)
    assert [stall.taken_us for stall in made.stalls] == [1e5] * 3


@pytest.mark.parametrize(
    ("known", "line", "counts"), [(True, "", True), (False, "step.py:3", True), (False, "", False)]
)
def test_where_nobody_knows_what_the_machine_took_stalls_that_were_seen_count(timed, monkeypatch, known, line, counts):
    monkeypatch.setattr(module, "counts_delays", lambda: known)
    monkeypatch.setattr(module, "certain_place", lambda places: StackPlace(line, False))
    made = timed(once_in(100, 1e6))
    assert (made.repeats, made.count, made.machine) == ((True, 3, 0) if counts else (False, 0, 10))
    assert not (made.enough and made.machine), "nothing passes by luck"


def test_what_was_taken_away_long_before_a_stall_does_not_excuse_it(timed):
    made = timed(once_in(100, 1e6), [*[1e6], *[0] * 99])
    assert made.repeats


def test_a_first_guess_of_the_median_that_was_too_low_makes_no_stall_of_usual_calls(timed):
    made = timed([1000.0] * 5 + [30_000.0] * 995)
    assert (made.median_us, made.count, made.machine) == (30_000, 0, 0)


def test_enough_calls_show_a_stall_in_a_hundred_twice_but_for_once_in_a_thousand():
    assert bdtr(REPEATED - 1, ENOUGH, 0.01) <= 0.001 < bdtr(REPEATED - 1, ENOUGH - 10, 0.01)
    assert bdtr(REPEATED - 1, CALLS, 0.01) < 0.0005


# With the clock of this machine.


def stalling(every, seconds):
    runs = itertools.count(1)

    def sometimes(x):
        if next(runs) % every == 0:
            time.sleep(seconds)
        return add_one(x)

    return sometimes


def test_a_step_in_a_hundred_that_sleeps_is_named_with_its_line():
    fn = stalling(100, 0.2)
    made = count_stalls(call(fn, SMALL), seconds=20)
    assert made.repeats
    assert made.where == (f"tests/measure/timing/test_waits.py:{fn.__code__.co_firstlineno + 2}",)


@NEEDS_SCHEDSTAT
def test_busy_neighbours_on_every_core_are_no_stalls():
    with busy_neighbours(2 * cores()):
        made = count_stalls(call(jax.jit(lambda x: x @ x), jnp.eye(200)), seconds=10)
    assert not made.repeats, made


# Where a thread is.

WAITS = StackPlace("train.py:3, in equinox/_jit.py:271 in _call", True)
WORKS = StackPlace("train.py:4", False)


def sits_until(done, wait=time.sleep):
    hangs_at = time.monotonic() + 60
    while not done():
        assert time.monotonic() < hangs_at, "nobody looks"
        wait(1e-3)


def test_a_thread_that_does_not_return_is_seen_in_its_line():
    places = Counter()
    with StackSampler(1e-3) as watch, watch.during_call(places):
        sits_until(lambda: places.keys() - {NO_PLACE})
    line = sits_until.__code__.co_firstlineno
    assert {place.line for place in places} <= {
        "",
        *(f"tests/measure/timing/test_waits.py:{line + n}" for n in range(1, 5)),
    }
    assert not any(place.waits for place in places)


def test_a_wait_in_a_module_of_pythons_own_is_told_by_its_caller():
    places = Counter()
    with StackSampler(1e-3) as watch, watch.during_call(places):
        sits_until(lambda: places.keys() - {NO_PLACE}, wait=threading.Event().wait)
    assert not [place for place in places if "threading.py" in place.line]


def test_calls_that_return_sooner_are_left_alone():
    places = Counter()
    with StackSampler(1e-3, after_s=1e9) as watch, watch.during_call(places):
        time.sleep(0.02)
    assert not places


def test_the_thread_that_looks_ends_with_the_body():
    with pytest.raises(ZeroDivisionError), StackSampler(1e-3):
        1 / 0
    assert "perfsuite stacks" not in [thread.name for thread in threading.enumerate()]


def test_threads_switch_often_in_the_runs_whose_stacks_are_read_and_as_before_afterwards():
    before, intervals = sys.getswitchinterval(), []
    module._places(SimpleNamespace(call=call(lambda: intervals.append(sys.getswitchinterval()))), seconds=0)
    assert intervals == [pytest.approx(1e-4)] * 3
    assert sys.getswitchinterval() == before


# What the operating system took.


@NEEDS_SCHEDSTAT
def test_a_thread_that_is_kept_from_running_is_known_to_the_operating_system():
    with on_one_processor(), busy_neighbours(1):
        # The process's first, and last below: what this thread loses between two readings is then in the process's too.
        all_of_us, mine = process_delay_ns(), thread_delay_ns()
        hangs_at = time.monotonic() + 60
        while thread_delay_ns() - mine < 20e6:
            assert time.monotonic() < hangs_at, "a neighbour on the same processor takes nothing away"
        assert process_delay_ns() - all_of_us >= 20e6


@NEEDS_SCHEDSTAT
def test_the_process_has_the_delays_of_all_threads_but_for_the_one_left_out(tmp_path, monkeypatch):
    for thread, delay in (("1", 5), ("2", 70)):
        (tmp_path / thread).mkdir()
        (tmp_path / thread / "schedstat").write_text(f"900 {delay} 3\n")
    listdir, opened = module.os.listdir, open
    moved = lambda path: str(path).replace("/proc/self/task", str(tmp_path))
    monkeypatch.setattr(module.os, "listdir", lambda path: listdir(moved(path)))
    monkeypatch.setattr("builtins.open", lambda path, *rest: opened(moved(path), *rest))
    assert process_delay_ns() == 75
    assert process_delay_ns(without=SimpleNamespace(native_id=2)) == 5


def test_where_the_system_counts_nothing_the_answer_is_zero(monkeypatch):
    monkeypatch.setattr(module.os, "listdir", lambda path: ["1", "2"])
    monkeypatch.setattr("builtins.open", lambda *_: (_ for _ in ()).throw(FileNotFoundError()))
    assert thread_delay_ns() == 0
    assert process_delay_ns() == 0
