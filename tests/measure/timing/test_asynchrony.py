"""`measure.timing.asynchrony`: whether a call waits for the device before it returns, and where."""

import inspect
import itertools
import time
from collections import Counter
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.fakes import MS, US, FakeDevice

from perfsuite.measure.call import call
from perfsuite.measure.timing import asynchrony as module
from perfsuite.measure.timing.asynchrony import MOST_SAMPLES, _jax_waits, asynchrony
from perfsuite.measure.timing.block import Sample
from perfsuite.measure.timing.stack_sampler import StackPlace


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


# With functions of JAX.


def test_a_jitted_call_is_never_taken_for_one_that_waits():
    assert asynchrony(call(step, X), seconds=1).waits is not True


def test_filter_jit_waits_in_a_line_of_equinox():
    made = asynchrony(call(filter_step, X), seconds=1)
    assert made.waits is True
    assert "equinox/_jit.py:" in made.where
    assert made.where.startswith("tests/measure/timing/test_asynchrony.py:")


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
    assert made.where.startswith(f"tests/measure/timing/test_asynchrony.py:{line_of(fn, text)}{frame}")


def test_a_program_that_calls_back_into_python_is_no_pass():
    def callback(x):
        return work(jax.pure_callback(lambda y: np.asarray(y), x, x))

    made = asynchrony(call(jax.jit(callback), X), seconds=0.5)
    assert made.waits is not False
    if made.waits is None:  # on CPU the program runs in the calling thread
        assert made.reason


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
    monkeypatch.setattr(module, "is_known", lambda: True)
    monkeypatch.setattr(module, "_watched", lambda subject, seconds: Counter())
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
        monkeypatch.setattr(module, "_watched", lambda subject, seconds: Counter(dict(watched)))
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
    monkeypatch.setattr(module, "is_known", lambda: known)
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


def test_neighbours_that_hold_some_calls_up_change_nothing(taking):
    late = [100] * 9 + [990]
    assert taking(late, 1000, [0] * 9 + [800]).waits is False
