"""`measure.timing.block`: one timed block of calls, on a clock that the tests move themselves."""

import gc
import sys
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.fakes import MS, US, FakeArray, FakeDevice

from perfsuite.measure.call import call
from perfsuite.measure.errors import MeasurementError, RecompilationError
from perfsuite.measure.timing import block
from perfsuite.measure.timing.block import (
    Subject,
    collector_off,
    columns_us,
    run_block,
    steady,
    subjects_alike,
)
from perfsuite.measure.timing.readiness import SLOW_NS


@pytest.fixture
def device(monkeypatch):
    return FakeDevice(reading_ns=30, waiting_ns=200).install(monkeypatch)


@pytest.fixture
def real_step():
    return jax.jit(lambda state, batch: (state + batch, state.sum()), donate_argnums=0)


def near(to_return_us, to_ready_us):
    """What a block should say, in nanoseconds, but for the reading of the clock while the device works."""
    return pytest.approx((to_return_us * US, to_ready_us * US), abs=35)


# What a block says.


def test_nothing_traces_python_while_sampling_and_what_traced_it_goes_on():
    seen = []

    def tracer(frame, event, argument):
        seen.append(frame.f_code.co_name)

    def sampled():
        assert sys.gettrace() is None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        with steady():
            sampled()
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)
    assert "steady" in seen
    assert "sampled" not in seen


def test_to_return_is_the_hosts_time_and_to_ready_the_devices_too(device):
    subject = Subject(call(device.run, 100 * US, 700 * US))
    assert subject.calls == 1
    assert run_block(subject) == near(100, 800)


def test_a_call_too_short_for_the_clock_runs_many_times_a_block(device):
    subject = Subject(call(device.run, 1 * US))
    # A block is to last 50 us, and the clock's own reading of 30 ns takes part of it.
    assert subject.calls == 49
    assert run_block(subject) == near(1, 1)


def test_the_time_to_ready_of_many_calls_is_shared_out(device):
    subject = Subject(call(device.run, 10 * US, 30 * US))
    assert subject.calls == 5
    # The first call waits for nobody, and the device then works without a pause: 10 + 5 * 30 over 5 calls.
    assert run_block(subject) == near(10, 32)


@pytest.mark.parametrize("reading_ns", [0, 30, 400])
@pytest.mark.parametrize("waiting_ns", [0, 200, 5000])
@pytest.mark.parametrize("host_us", [7, 300])
def test_the_harness_takes_its_own_cost_off(monkeypatch, reading_ns, waiting_ns, host_us):
    device = FakeDevice(reading_ns, waiting_ns).install(monkeypatch)
    subject = Subject(call(device.run, host_us * US, 0))
    assert run_block(subject) == near(host_us, host_us)


def test_the_harness_costs_what_it_costs_after_a_call_that_left_the_caches_cold(device):
    cold = 0

    def step():
        nonlocal cold
        cold = 3
        return device.run(10 * US)

    def now_ns():
        nonlocal cold
        device.now += 90 if cold > 0 else 30
        cold -= 1
        return device.now

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block, "now_ns", now_ns)
        subject = Subject(call(step))
        assert subject.harness.to_return * subject.calls == 90
        assert run_block(subject) == pytest.approx((10 * US, 10 * US), abs=1)


@pytest.mark.parametrize("stalled", range(1, 12))
@pytest.mark.parametrize("host_us", [10, 300])
def test_one_stall_of_the_machine_while_getting_ready_does_not_change_the_metric(device, host_us, stalled):
    runs = iter(range(1, 1_000_000))

    def step():
        return device.run(host_us * US + (200 * MS if next(runs) == stalled else 0))

    subject = Subject(call(step))
    assert next(runs) > stalled, "the stall must have been while getting ready"
    assert subject.calls == (1 if host_us == 300 else 5)
    assert run_block(subject) == near(host_us, host_us)


def test_a_slow_call_is_run_once_a_block_and_a_few_times_to_get_ready(device):
    runs = []

    def step():
        runs.append(1)
        return device.run(1 * US, 2 * SLOW_NS)

    subject = Subject(call(step))
    assert subject.calls == 1
    assert len(runs) <= 5
    assert subject.call_ns == pytest.approx(2 * SLOW_NS, rel=0.001)


def test_donated_arguments_are_freed_after_the_clock_was_read(device):
    class State:
        def __del__(self):
            device.now += 900 * US

    def step(state, scale):
        return State(), device.run(100 * US)

    subject = Subject(call(step, State(), 1, carry=1))
    run_block(subject)  # the caller's call still has the state of this one
    before = device.now
    assert run_block(subject) == near(100, 100)
    assert device.now - before >= 1000 * US, "the state was kept for longer than its block"


def test_the_next_block_starts_with_an_idle_device(device):
    def step():
        return device.run(50 * US), device.run(50 * US, 5 * MS)

    subject = Subject(call(step))
    subject.wait = lambda outputs: outputs[0].block_until_ready()
    assert run_block(subject).to_ready < 1 * MS
    assert device.now >= device.idle_at


def test_programs_that_a_call_leaves_are_waited_for_by_draining_it(device):
    """As those of a step that returns the loss of the run before."""

    def leaves():
        device.run(10 * US, 500 * US)
        return FakeArray(device, 0)

    subject = Subject(call(leaves))
    assert subject.leaves
    run_block(subject)
    assert device.idle_at > device.now
    subject.drain()
    assert device.idle_at <= device.now


@pytest.mark.parametrize("left_us", [0, 10])
def test_a_call_that_leaves_next_to_nothing_is_not_drained(device, left_us):
    def run():
        output = device.run(10 * US, 500 * US)
        device.run(0, left_us * US)
        return output

    subject = Subject(call(run))
    before = device.now
    subject.drain()
    assert device.now == before


def test_a_few_samples_no_longer_than_the_harness_count_as_the_shortest_that_is():
    samples = [(1000.0, 2000.0)] * 500 + [(300.0, 400.0), (-20.0, 0.0), (0.0, 500.0)]
    columns = columns_us(samples, "step")
    assert columns[-3:].tolist() == [[0.3, 0.4], [0.3, 0.4], [0.3, 0.5]]
    assert np.median(columns, axis=0).tolist() == [1, 2]
    with pytest.raises(MeasurementError, match="too little to be told from what timing it costs"):
        columns_us(samples + [(-1.0, 1.0)] * 5, "step")


# The arguments.


def test_a_donated_state_is_given_back_usable(real_step):
    training = call(real_step, jnp.zeros(3), jnp.ones(3), carry=1)
    first = training.args[0]
    subject = Subject(training)
    assert first.is_deleted(), "CPU donates: without that this test shows nothing"
    for _ in range(3):
        run_block(subject)
    subject.give_back()
    state, _ = training.run()
    assert np.isfinite(state).all()


def test_the_carried_state_is_not_copied():
    class Node:
        pass

    training = call(lambda state, batch: (state, sum(range(100))), Node(), 1, carry=1)
    node = training.args[0]
    subject = Subject(training)
    run_block(subject)
    subject.give_back()
    assert training.args[0] is node
    assert subject.call.args[0] is node


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("after", [0, 1, 4])
def test_arguments_survive_a_call_that_raises_in_the_middle_of_a_block(real_step, error, after):
    runs = []

    def step(state, batch):
        runs.append(1)
        if armed and len(runs) > after:
            raise error("in the middle")
        return real_step(state, batch)

    armed = False
    training = call(step, jnp.zeros(3), jnp.ones(3), carry=1)
    subject = Subject(training)
    subject.calls = 6
    runs.clear()
    armed = True
    with pytest.raises(error, match="in the middle"):
        run_block(subject)
    assert len(runs) == after + 1
    subject.give_back()
    assert not training.args[0].is_deleted()


def test_a_call_that_compiles_although_it_is_warm_is_refused_before_it_is_timed(real_step):
    runs = []

    def step(state, batch):
        runs.append(1)
        if len(runs) >= 4:
            jax.jit(lambda x: x + 1)(np.ones(len(runs)))
        return real_step(state, batch)

    training = call(step, jnp.zeros(3), jnp.ones(3), carry=1)
    with pytest.raises(RecompilationError):
        Subject(training)
    assert not training.args[0].is_deleted()


# Several subjects.


def test_calls_held_against_each_other_have_blocks_of_the_same_size(device):
    subjects = subjects_alike(
        call(device.run, 10 * US, 30 * US), call(device.run, 20 * US, 30 * US), call(device.run, 1 * MS)
    )
    assert [subject.calls for subject in subjects] == [5, 5, 5]
    assert run_block(subjects[1]) == near(20, 34)
    assert run_block(subjects[2]) == near(1000, 1000), "the harness's cost is that of the new size"


def test_the_same_program_has_the_same_time_on_both_sides_whatever_each_would_need_alone(device):
    runs = iter([*[12.4] * 18, *[12.6] * 10_000])  # a machine that changes its pace in between

    def step():
        return device.run(next(runs) * US, 100 * US)

    one, other = subjects_alike(call(step), call(step))
    assert one.calls == other.calls
    assert run_block(one) == pytest.approx(tuple(run_block(other)))


@pytest.mark.parametrize(("slow_us", "calls"), [(1_000, 49), (10_000, 5), (26_000, 1), (200_000, 1)])
def test_a_slow_call_is_not_repeated_for_the_sake_of_a_short_one(device, slow_us, calls):
    short, slow = subjects_alike(call(device.run, 1 * US), call(device.run, slow_us * US))
    assert short.calls == slow.calls == pytest.approx(calls, abs=1)
    assert run_block(short).to_return == pytest.approx(1 * US)
    assert run_block(slow).to_return == pytest.approx(slow_us * US, rel=1e-4)


# The garbage collector.


@pytest.fixture
def collecting():
    assert gc.isenabled()
    yield
    gc.enable()


def test_a_collector_that_was_off_stays_off(collecting):
    gc.disable()
    with collector_off():
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_what_a_call_leaves_in_cycles_does_not_pile_up():
    class Node:
        def __init__(self):
            self.myself = self

    left = weakref.WeakSet()

    def leaves_a_cycle():
        left.add(Node())

    subject = Subject(call(leaves_a_cycle))
    blocks = 20 * gc.get_threshold()[0] // subject.calls
    with steady(subject):
        most = 0
        for _ in range(blocks):
            run_block(subject)
            most = max(most, len(left))
        assert most < 3 * (gc.get_threshold()[0] + subject.calls)


def test_old_garbage_is_collected_first(collecting):
    class Node:
        pass

    node = Node()
    node.itself = node
    gone = weakref.ref(node)
    del node
    with collector_off():
        assert gone() is None
