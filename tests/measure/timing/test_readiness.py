"""`measure.timing.readiness`: waiting for the device without the host's own work getting into the metric."""

import contextlib
import dataclasses
import itertools
import warnings
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from support.fakes import MS, US, FakeArray, FakeDevice

from perfsuite.measure.call import call
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.timing import readiness
from perfsuite.measure.timing.block import Subject
from perfsuite.measure.timing.readiness import SLOW_NS, waiting_for


@pytest.fixture
def device(monkeypatch):
    return FakeDevice(reading_ns=30, waiting_ns=200).install(monkeypatch)


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


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    weights: object
    count: object


class Pair(NamedTuple):
    first: object
    last: object


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
        lambda array: (array(), array()),
        lambda array: [array(), array()],
        lambda array: {"a": array(), "b": array()},
        lambda array: {1: array(), 2: [array(), {"c": array()}]},
        lambda array: Pair(array(), array()),
        lambda array: State(array(), array()),
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
    assert (wait is readiness.jax.block_until_ready) == all_at_once
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


def test_outputs_of_zero_size_and_random_keys_and_numbers_that_are_none_can_be_waited_for():
    outputs = jnp.zeros((0, 3)), jax.random.key(0), jnp.full(3, jnp.nan)
    waiting_for(lambda: outputs)(outputs)


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
        lambda weights: {"loss": weights.sum()},
        lambda weights: jax.random.key(3),
    ],
    ids=["alone", "an empty state last", "a dict last", "a key last"],
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


def in_a_module(now):
    class Weights(nnx.Module):
        def __init__(self):
            self.kernel = nnx.Param(now())

    module = Weights()

    def run():
        module.kernel[...] = now()
        return module

    return run


@pytest.mark.parametrize("keeping", [in_a_dict, in_a_module])
def test_what_a_call_changes_in_place_and_returns_is_waited_for(keeping):
    """It looked like what the call had been given, and a step three times as slow passed."""
    x = jnp.ones((1000, 1000))
    run = keeping(lambda: product(x, x))
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


def test_an_output_that_has_gone_since_is_no_error():
    wait = waiting_for(lambda: {"loss": jnp.ones(3) * 2, "more": jnp.ones(3) * 3})
    assert wait.depth
    wait({"loss": jnp.ones(3)})


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


@pytest.mark.parametrize(("times", "refused"), [(10, True), (9, False)])
def test_what_other_threads_run_is_refused_where_every_try_sees_it(device, times, refused):
    """It may be another's, such as a loader's."""
    runs = itertools.count()

    def run():
        device.now += 10 * US
        device.elsewhere_until = device.now + MS if next(runs) <= times else 0

    with pytest.raises(MeasurementError, match="return an array of it") if refused else contextlib.nullcontext():
        waiting_for(run)


def test_the_programs_of_real_calls_are_told_apart():
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
