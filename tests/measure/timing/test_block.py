"""`measure.timing.block`: one timed block of calls, on a clock that the tests move themselves."""

import contextlib
import gc
import itertools
import random
import sys
import warnings
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from support.fakes import MS, US, FakeArray, FakeBlocks, FakeDevice, takes

from perfsuite.measure.call import call
from perfsuite.measure.errors import MeasurementError, RecompilationError
from perfsuite.measure.timing import block, comparison, scaling, timing
from perfsuite.measure.timing.block import (
    MOST_CALLS_PER_BLOCK,
    READINGS_PER_BLOCK,
    SLOW_NS,
    Clock,
    Subject,
    calls_per_block,
    clock,
    columns_us,
    run_block,
    steady,
    subjects_alike,
    waiting_for,
)
from perfsuite.measure.timing.comparison import compare_calls
from perfsuite.measure.timing.scaling import fit_scaling
from perfsuite.measure.timing.timing import time_call


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


# While an instrument samples.


INSTRUMENTS = {
    "time": (timing, time_call),
    "compare": (comparison, lambda subject: compare_calls(subject, call(takes(100)))),
    "scaling": (scaling, lambda subject: fit_scaling([subject, call(takes(200))], np.array([1.0, 2.0]))),
}


@pytest.fixture(params=INSTRUMENTS)
def sampling(request, monkeypatch):
    """The fake blocks of an instrument, and what samples a call with it."""
    module, sample = INSTRUMENTS[request.param]
    return FakeBlocks().install(monkeypatch, module), sample


def test_the_collector_is_off_in_every_block_and_on_afterwards(sampling):
    blocks, sample = sampling
    sample(call(takes(100)))
    assert not any(blocks.collecting)
    assert gc.isenabled()


def test_a_compile_in_the_middle_is_an_error_and_no_sample(sampling):
    blocks, sample = sampling
    usual, runs = takes(100), iter(range(1000))

    def step():
        if next(runs) == 5:
            jax.jit(lambda x: x + 1)(np.ones(3))
        return usual()

    with pytest.raises(RecompilationError):
        sample(call(step))
    assert gc.isenabled()
    assert {subject.given_back for subject in blocks.subjects} == {1}


# The clock.


@pytest.fixture
def clock_of(monkeypatch):
    """A clock with this tick, whose reading costs so much and now and then more, both in nanoseconds."""

    def install(tick, reading):
        rng = random.Random(1)
        now = 0.0

        def now_ns():
            nonlocal now
            now += reading * rng.uniform(1, 1.2) * rng.choices([1, 20], [100, 1])[0]
            return int(now // tick * tick)

        monkeypatch.setattr(block, "now_ns", now_ns)

    clock.cache_clear()
    yield install
    clock.cache_clear()


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
    assert clock().tick_ns == seen
    assert clock().step_ns >= max(seen, reading // 2)


def test_a_clock_that_does_not_move_is_no_clock(clock_of):
    clock_of(10**9, 40)
    with pytest.raises(MeasurementError, match="stands still"):
        clock()


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
def test_a_block_has_as_many_calls_as_its_readings_need_and_not_one_more(monkeypatch, call_ns, calls):
    monkeypatch.setattr(block, "clock", lambda: Clock(1, 50))
    assert calls_per_block(call_ns) == calls


@pytest.mark.parametrize("call_ns", [0, 0.5, 1, -100])
def test_a_call_too_short_to_be_seen_still_makes_a_block_that_ends(monkeypatch, call_ns):
    monkeypatch.setattr(block, "clock", lambda: Clock(5_000, 5_000))
    assert calls_per_block(call_ns) == MOST_CALLS_PER_BLOCK


# Waiting.


@pytest.fixture
def waited(monkeypatch):
    """The fake arrays that were waited for, one by one, in order."""
    arrays = []
    one = FakeArray.block_until_ready

    def recording(array):
        arrays.append(array)
        return one(array)

    monkeypatch.setattr(FakeArray, "block_until_ready", recording)
    return arrays


@jax.tree_util.register_pytree_node_class
class Sealed:
    """A node that tells no names of its children, as those of many older libraries."""

    def __init__(self, *children):
        self.hidden = children

    def tree_flatten(self):
        return self.hidden, None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


@jax.tree_util.register_pytree_with_keys_class
class Misnamed(Sealed):
    """A node whose keys are not its attributes."""

    def tree_flatten_with_keys(self):
        return [(jax.tree_util.GetAttrKey(f"wrong{i}"), child) for i, child in enumerate(self.hidden)], None


class Model(eqx.Module):
    first: object
    last: object


def waits_for(wait, device, outputs, waited):
    """What `wait` waits for in `outputs`."""
    waited.clear()
    wait(outputs)
    return list(waited)


@pytest.mark.parametrize(
    "make",
    [
        lambda array: array(),
        lambda array: {1: array(), 2: [array(), {"c": array()}]},
        lambda array: Model(array(), Model("static", array())),
        lambda array: (array(), None, "loss", 3.5),
    ],
)
def test_one_array_is_enough_for_all_outputs_of_one_program(device, waited, make):
    def run():
        device.run(10 * US, 500 * US)
        return make(device.output)

    wait = waiting_for(run)
    outputs = run()
    assert (
        waits_for(wait, device, outputs, waited)
        == [array for array in jax.tree.leaves(outputs) if type(array) is FakeArray][-1:]
    )
    assert device.now >= device.idle_at


def test_of_each_program_one_output_is_waited_for(device, waited):
    """However often the second program is ready with the first: a busy machine hides it."""

    def run():
        now = device.run(10 * US)
        later = device.run(0, 0)
        return {"a": later, "b": now, "c": device.output(), "d": 1.5}

    wait = waiting_for(run)
    outputs = run()
    assert waits_for(wait, device, outputs, waited) == [outputs["c"], outputs["b"]]


def test_what_the_call_was_given_is_not_waited_for(device, waited):
    given = [FakeArray(device, 0) for _ in range(100)]

    def run():
        return {"loss": device.run(10 * US, 500 * US), "weights": given}

    wait = waiting_for(run)
    outputs = run()
    assert waits_for(wait, device, outputs, waited) == [outputs["loss"]]


@pytest.mark.parametrize(("programs", "all_at_once"), [(8, False), (9, True)])
def test_of_many_programs_all_is_waited_for(device, waited, programs, all_at_once):
    def run():
        return [device.run(10 * US) for _ in range(programs)]

    wait = waiting_for(run)
    assert (wait is block.jax.block_until_ready) == all_at_once
    outputs = run()
    assert waits_for(wait, device, outputs, waited) == outputs


def test_an_array_of_no_program_that_was_seen_is_waited_for_itself(device, waited):
    """As one from another thread, or one that was put on the device."""

    def run():
        return device.run(10 * US), FakeArray(device, device.now + 5 * MS)

    wait = waiting_for(run)
    outputs = run()
    assert waits_for(wait, device, outputs, waited) == list(outputs)


@pytest.mark.parametrize(
    "outputs", [None, (), 3.5, "loss", {"a": None}, np.ones(3), [np.float32(1)], Model("static", None)]
)
def test_outputs_without_arrays_are_not_waited_for(device, outputs):
    wait = waiting_for(lambda: outputs)
    before = device.now
    assert wait(outputs) is None
    assert device.now == before


@pytest.mark.parametrize("node", [Sealed, Misnamed])
def test_arrays_that_no_name_reaches_are_still_waited_for(device, waited, node):
    def run():
        return node(device.run(10 * US, 5 * MS), 3)

    outputs = run()
    assert waits_for(waiting_for(run), device, outputs, waited) == [outputs.hidden[0]]


# With arrays of JAX.


def test_an_attribute_whose_reading_warns_is_left_alone():
    class Warns:
        def __init__(self, *leaves):
            self.leaves = leaves

        @property
        def value(self):
            warnings.warn("use another", DeprecationWarning, stacklevel=2)
            return self.leaves[0]

    key = jax.tree_util.GetAttrKey("value")
    jax.tree_util.register_pytree_with_keys(
        Warns, lambda node: (((key, node.leaves[0]),), None), lambda _, leaves: Warns(*leaves)
    )
    model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    for run in (lambda: Warns(jnp.ones(3)), lambda: nnx.state(model)):
        waiting_for(run)(run())


class Trainer:
    """Keeps its state, and returns what `returned` makes of it."""

    def __init__(self, returned, beside=lambda weights: None):
        self.weights, self.returned, self.beside = jnp.eye(1000), returned, beside
        self.program = jax.jit(lambda weights, x: (product(weights, x), self.beside(weights)))

    def step(self, x):
        self.weights, _ = self.program(self.weights, x)
        return self.returned(self.weights)


@jax.jit
def product(weights, x):
    return jax.lax.fori_loop(0, 4, lambda _, w: jnp.tanh(w @ x), weights)


@pytest.mark.parametrize(
    "beside",
    [
        lambda weights: None,
        lambda weights: (weights.sum(), optax.EmptyState()),
        lambda weights: jax.random.key(3),
    ],
    ids=["alone", "an empty state last", "a key last"],
)
def test_a_call_that_returns_nothing_and_whose_programs_go_on_is_refused(beside):
    """Its time to ready was a thousandth of that of the program that it runs, and a gate of it passed anything."""
    x = jnp.ones((1000, 1000))
    with pytest.raises(MeasurementError, match="step returns no array of its own, and its programs go on"):
        Subject(call(Trainer(lambda weights: None, beside).step, x))


def test_a_call_that_reads_a_number_of_a_sharded_program_is_not_refused():
    """It waits for one device, and the others are a moment behind."""
    mesh = jax.make_mesh((len(jax.devices()),), ("x",))
    whole, rows = (jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes)) for axes in ((), ("x",)))
    step = jax.jit(lambda a, w: ((jnp.tanh(a @ w) @ w).sum(), jnp.tanh(a @ w)), out_shardings=(whole, rows))
    a, w = jax.device_put(jnp.ones((512, 128)) / 100, rows), jax.device_put(jnp.eye(128), whole)
    for _ in range(5):
        waiting_for(lambda: float(step(a, w)[0]))


def test_a_sharded_program_that_is_left_running_is_refused():
    mesh = jax.make_mesh((len(jax.devices()),), ("x",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    step = jax.jit(lambda a: jax.lax.fori_loop(0, 300, lambda _, x: jnp.sin(x), a), out_shardings=rows)
    a = jax.device_put(jnp.ones((512, 128)), rows)
    with pytest.raises(MeasurementError, match="returns no array of its own"):
        waiting_for(lambda: step(a) is None)


# Outputs that are not the same objects, or not the same arrays, in each run.


def in_a_dict(now):
    state = {"weights": now(), "steps": 0}

    def run():
        state["weights"] = now()
        return state

    return run


def test_what_a_call_changes_in_place_and_returns_is_waited_for():
    """It looked like what the call had been given, and a step three times as slow passed."""
    x = jnp.ones((1000, 1000))
    run = in_a_dict(lambda: product(x, x))
    wait = waiting_for(run)
    for _ in range(3):
        outputs = run()
        wait(outputs)
        assert all(array.is_ready() for array in jax.tree.leaves(outputs) if isinstance(array, jax.Array))


@pytest.mark.parametrize("longer", [0, 1])
def test_an_output_that_is_there_in_some_runs_only_is_waited_for(longer):
    x, runs = jnp.ones((1000, 1000)), itertools.count()

    def run():
        loss = jnp.sum(x)  # before the others, or it would be ready after them
        return {"loss": loss, "metrics": product(x, x) if next(runs) % 2 == longer else None}

    wait = waiting_for(run)
    for _ in range(4):
        outputs = run()
        wait(outputs)
        assert all(array.is_ready() for array in jax.tree.leaves(outputs))


@pytest.mark.parametrize("waits", [True, False])
def test_next_to_nothing_of_a_long_call_is_kept_alive(waits):
    """An epoch of 200 steps kept 200 states, and then those of all steps that were under way."""
    x, alive = jnp.ones((600, 600)), []

    def epoch():
        state = x
        for _ in range(30):
            state = product(state, x)
            if waits:
                state.block_until_ready()
            alive.append(sum(array.nbytes for array in jax.live_arrays()))
        return state

    epoch().block_until_ready()
    plain = max(alive)
    alive.clear()
    waiting_for(epoch)
    waiting_for(lambda: float(epoch()[0, 0]))
    Subject(call(epoch))
    assert max(alive) < plain + 5 * x.nbytes


@pytest.mark.parametrize(
    "returned",
    [
        lambda weights: float(weights[0, 0]),
        lambda weights: [jax.block_until_ready(weights), None][1],
        lambda weights: weights,
    ],
    ids=["a number", "nothing, after it waited", "an array"],
)
def test_a_call_that_waits_itself_or_can_be_waited_for_is_not(returned):
    Subject(call(Trainer(returned).step, jnp.ones((1000, 1000))))


@pytest.mark.parametrize(
    ("left", "refused"),
    [
        ([0], False),
        ([1 * US], False),
        ([2 * US], True),
        ([1 * MS], True),
        ([0, 0, 1 * MS], False),
        ([0, 1 * MS, 1 * MS], True),
        ([2 * SLOW_NS], True),
        ([0, 0, 2 * SLOW_NS, 0, 0], False),
    ],
)
@pytest.mark.parametrize("returned", [None, 3.5, "given"])
def test_what_goes_on_for_a_good_part_of_most_tries_is_refused(device, left, refused, returned):
    """A call that waits may seem to leave something now and then, and one that does not may seem to leave nothing."""
    later, given = itertools.cycle(left), FakeArray(device, 0)

    def run():
        device.now = max(device.now, device.idle_at)
        device.run(10 * US, next(later))
        return given if returned == "given" else returned

    with pytest.raises(MeasurementError, match="return an array of it") if refused else contextlib.nullcontext():
        waiting_for(run)


@pytest.mark.parametrize(("times", "refused"), [(11, True), (10, False)])
def test_what_other_threads_run_is_refused_where_every_try_sees_it(device, times, refused):
    """It may be another's, such as a loader's."""
    runs = itertools.count()

    def run():
        device.now += 10 * US
        device.elsewhere_until = device.now + MS if next(runs) <= times else 0

    with pytest.raises(MeasurementError, match="return an array of it") if refused else contextlib.nullcontext():
        waiting_for(run)


def test_the_programs_of_real_calls_are_told_apart(monkeypatch):
    monkeypatch.setattr(block, "SLOW_NS", sys.maxsize)  # a busy machine would make it a call of 50 ms
    schedule, loss = jax.jit(lambda s: s * 0.1), jax.jit(lambda x: jnp.sum(x @ x))
    x, weights = jnp.ones((8, 8)), {f"layer{place}": jnp.ones(3) for place in range(20)}

    def step():
        rate = schedule(x[0, 0])
        return {"rate": rate, "loss": loss(x), "weights": weights, "again": rate}

    module = eqx.filter_jit(lambda model: Model(model.first * 2, Model("static", model.last + 1)))
    keyed = jax.jit(lambda key: (jax.random.split(key)[0], jax.random.normal(key)))
    eager = lambda: {"sum": jnp.sort(x).sum() + 1}
    for run, programs in (
        (step, 2),
        (lambda: module(Model(x, x)), 1),
        (lambda: keyed(jax.random.key(0)), 1),
        (lambda: eager(), 1),
        (lambda: [schedule(1.0) for _ in range(8)], 8),
    ):
        wait = waiting_for(run)
        assert len(wait.paths) == programs
        wait(run())
