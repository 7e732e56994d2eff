"""`memory_of` and `donation_of`: leaks over steps, who holds them, and carried state that is in memory twice."""

import collections
import gc
import itertools
import sys
import types
import typing
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfsuite.measure.call import call
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.runtime.memory import (
    FEWEST_STEPS,
    LEAST_COPIED,
    WARM_STEPS,
    donation_of,
    holders_of,
    memory_of,
)

STEPS = 12


@jax.jit
def forward(state):
    return state + 1, state.sum()


@jax.jit
def plus_one(state):
    return jax.tree.map(lambda leaf: leaf + 1, state)


donating = jax.jit(plus_one, donate_argnums=0)


def state():
    return plus_one({"kernel": jnp.zeros((8, 8)), "bias": jnp.zeros(8)})


# Leaks, each planted beside what is like it and is none.


def test_losses_kept_in_a_list_leak_one_array_a_step_and_the_line_and_the_list_are_named():
    losses = []

    def step(state):
        state, loss = forward(state)
        losses.append(loss)
        return state

    found = memory_of(call(step, jnp.zeros(8), carry=1), steps=STEPS)
    assert (found.leaked_arrays, found.leaked_bytes) == (1, 4)
    assert len(found.grown) == 1
    kept = WARM_STEPS + STEPS
    line = f"test_memory.py:{step.__code__.co_firstlineno + 1}"
    assert found.grown[0].startswith("float32[]: 1 more a step (4 bytes each), made at ")
    assert f"{line}, held by a list of length {kept}, a variable in a closure" in found.grown[0]
    assert found.live_bytes == 8 * 4 + kept * 4


def test_a_cache_that_grows_by_concatenation_leaks_bytes_and_no_arrays():
    def step(cache):
        return jnp.concatenate([cache, jnp.zeros((1, 4))])

    found = memory_of(call(step, jnp.zeros((1, 4)), carry=1), steps=FEWEST_STEPS)
    assert (found.leaked_arrays, found.leaked_bytes) == (0, 16)
    assert found.programs > 0
    *compiled, grown = found.grown
    assert len(compiled) == found.programs
    assert grown.startswith("float32[13,4]: it grows with the steps (208 bytes now), made at ")
    assert grown.endswith(f"test_memory.py:{step.__code__.co_firstlineno + 1}, carried as args[0]")


def test_an_array_in_every_other_step_is_a_leak_of_a_half():
    losses = []

    def step(state):
        state, loss = forward(state)
        if int(state[0]) % 2:
            losses.append(loss)
        return state

    found = memory_of(call(step, jnp.zeros(8), carry=1), steps=STEPS)
    assert 0 < found.leaked_arrays < 1
    assert found.metrics("step")[1].value == 1


def test_a_donated_carried_state_does_not_leak():
    found = memory_of(call(donating, state(), carry=1), steps=STEPS)
    assert (found.leaked_arrays, found.leaked_bytes, found.grown) == (0, 0, ())
    assert found.live_bytes == (64 + 8) * 4


def test_a_bounded_history_does_not_leak():
    recent: collections.deque = collections.deque(maxlen=5)

    def step(state):
        state, loss = forward(state)
        recent.append(loss)
        return state

    found = memory_of(call(step, jnp.zeros(8), carry=1), steps=STEPS)
    assert (found.leaked_arrays, found.leaked_bytes, found.grown) == (0, 0, ())


@pytest.mark.parametrize("cyclic", [True, False])
def test_arrays_that_wait_in_cycles_do_not_leak_and_have_their_bytes_and_their_holder(cyclic):
    def step(state):
        state, loss = forward(state)
        cycle = [loss]
        if cyclic:
            cycle.append(cycle)
        return state

    found = memory_of(call(step, jnp.zeros(8), carry=1), steps=STEPS)
    assert (found.leaked_arrays, found.cyclic_bytes, found.live_bytes, gc.isenabled()) == (0, 4 * cyclic, 32, True)
    assert [line.partition(", made at ")[0] for line in found.grown] == [
        "float32[]: 4 bytes a step wait in a cycle for Python's collector"
    ] * cyclic
    assert not cyclic or f"test_memory.py:{step.__code__.co_firstlineno + 1}, held by a list of" in found.grown[0]


@pytest.mark.parametrize("first", [0, 1])
def test_a_cycle_of_every_second_step_has_its_line_whichever_step_is_the_last(first):
    numbers = itertools.count(first)

    def step(state):
        state, loss = forward(state)
        cycle = [loss]
        if next(numbers) % 2:
            cycle.append(cycle)
        return state

    found = memory_of(call(step, jnp.zeros(8), carry=1), steps=STEPS)
    assert found.cyclic_bytes == 2
    assert f"test_memory.py:{step.__code__.co_firstlineno + 1}" in found.in_words()


@pytest.mark.parametrize("padded", [False, True])
def test_a_step_that_compiles_each_time_has_its_programs_named(padded):
    total = jax.jit(lambda x: jnp.sin(x).sum())
    lengths = itertools.repeat(64) if padded else itertools.count(10)

    def ragged():
        return total(np.ones(next(lengths), np.float32))

    found = memory_of(call(ragged), steps=STEPS)
    assert (found.programs, found.metrics("step")[0].value) == (not padded, not padded)
    line = f"test_memory.py:{ragged.__code__.co_firstlineno + 1}"
    assert [line in each and "is compiled in each step" in each for each in found.grown] == [True] * (not padded)


def test_a_program_of_every_second_step_counts_and_one_of_a_single_step_does_not():
    numbers = itertools.count()

    def step(compiles):
        if compiles(next(numbers)):
            jax.jit(lambda x: x + 1)(np.ones(4))

    assert memory_of(call(step, lambda number: number % 2), steps=STEPS).programs == 1
    numbers = itertools.count()
    assert memory_of(call(step, lambda number: number == STEPS), steps=STEPS).programs == 0


def test_arrays_that_were_there_before_are_not_the_calls():
    others = [jnp.zeros(1000) + i for i in range(3)]
    found = memory_of(call(plus_one, jnp.zeros(8), carry=1), steps=FEWEST_STEPS)
    assert found.live_bytes == 32
    assert len(others) == 3


# Use.


@pytest.mark.parametrize("steps", [0, 8, -1, 9.5, True])
def test_too_few_steps_are_refused(steps):
    with pytest.raises(ValueError, match="steps must be an int of 9 or more"):
        memory_of(call(plus_one, jnp.zeros(8)), steps=steps)


def test_a_step_that_raises_leaves_a_call_that_can_go_on():
    def step(state):
        if state["bias"][0] > 5:
            raise ZeroDivisionError
        return donating(state)

    made = call(step, state(), carry=1)
    with pytest.raises(ZeroDivisionError):
        memory_of(made, steps=STEPS)
    assert not made.args[0]["bias"].is_deleted()


# Who holds an array, up to a name.


class Holder:
    pass


def test_what_holds_a_value_and_what_holds_its_container_are_named(monkeypatch):
    module = types.ModuleType("train")
    monkeypatch.setitem(sys.modules, "train", module)
    value, first, second = Holder(), Holder(), Holder()
    first.state = value
    second.kept = [value, 1]
    vars(second)  # it now has a dict of its own
    module.best = value
    module.history = [{"loss": value}]
    hidden = (value,)

    def uses():
        return value

    assert uses() is value
    assert {phrase.replace(f"{__name__}.", "") for phrase in holders_of(value, {id(hidden)})} == {
        "attribute `state` of Holder",
        "a list of length 2, attribute `kept` of Holder",
        "module global `train.best`",
        "a dict of length 1, a list of length 1, module global `train.history`",
        "a variable in a closure",
    }


def test_a_holder_is_followed_through_objects_classes_and_defaults(monkeypatch):
    """All of them are made here: what is older than the tests is frozen, and the collector does not see it."""

    class Keeper:
        kept: typing.ClassVar[dict] = {}

    def remembering(value, last=[]):  # noqa: B006  (what is planted)
        last.append(value)

    module = types.ModuleType("train")
    monkeypatch.setitem(sys.modules, "train", module)
    values = [types.SimpleNamespace(), types.SimpleNamespace(), types.SimpleNamespace()]
    module.trainers, module.Keeper = [Holder()], Keeper
    module.trainers[0].history = {"losses": [values[0]]}
    Keeper.kept["last"] = values[1]
    remembering(values[2])
    here = "test_a_holder_is_followed_through_objects_classes_and_defaults.<locals>"
    assert [holders_of(value, {id(values)}) for value in values] == [
        [
            "a list of length 1, a dict of length 1, attribute `history` of Holder, a list of length 1, "
            "module global `train.trainers`"
        ],
        [f"a dict of length 1, attribute `kept` of class {here}.Keeper, module global `train.Keeper`"],
        [f"a list of length 1, a tuple of length 1, function `{__name__}.{here}.remembering`"],
    ]


# Donation.


def test_a_donated_state_is_donated():
    found = donation_of(call(donating, state(), carry=1))
    assert (found.carried, found.carried_bytes, found.undonated) == (2, 288, ())
    assert [made.value for made in found.metrics("step")] == [0, 0, 0]


def test_a_forgotten_donation_names_every_array():
    found = donation_of(call(plus_one, state(), carry=1))
    assert [(leaf.path, leaf.what) for leaf in found.undonated] == [
        ("args[0]['kernel']", "float32[8,8]"),
        ("args[0]['bias']", "float32[8]"),
    ]
    arrays, size, _ = found.metrics("step")
    assert (arrays.value, size.value) == (2, 288)
    assert size.detail == {"args[0]['kernel']": 256, "args[0]['bias']": 32}


def test_a_donated_array_whose_type_changes_is_donated_in_vain():
    def alternating(state):
        other = jnp.bfloat16 if state["a"].dtype == jnp.float32 else jnp.float32
        return {"a": state["a"].astype(other), "b": state["b"] + 1}

    first = {"a": jnp.zeros(8), "b": jnp.zeros(8)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        found = donation_of(call(jax.jit(alternating, donate_argnums=0), first, carry=1))
    assert [leaf.path for leaf in found.undonated] == ["args[0]['a']"]
    assert "donated but not used, because the step returns" in found.undonated[0].reason


def host_owned(size):
    """An array of float32 that lies in memory of NumPy's, which `jax.device_put` takes over: its address fits."""
    raw = np.zeros(size + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    return jax.device_put(raw[begin : begin + size].view(np.float32))


def test_a_restored_array_of_the_host_is_copied_by_the_first_step_and_said_to_be():
    made = {"restored": host_owned(LEAST_COPIED), "small": host_owned(64), "own": jnp.zeros(LEAST_COPIED // 4)}
    found = donation_of(call(donating, made, carry=1))
    assert [(leaf.path, leaf.bytes) for leaf in found.copied] == [("args[0]['restored']", LEAST_COPIED)]
    assert "its memory belongs to the host" in found.in_words()
    assert [(each.value, each.kind) for each in found.metrics("step")] == [
        (0, "count"),
        (0, "size"),
        (LEAST_COPIED, "info"),
    ]
    again = {name: jnp.array(np.asarray(leaf)) for name, leaf in made.items() if not leaf.is_deleted()}
    assert donation_of(call(donating, again | {"restored": jnp.zeros(LEAST_COPIED // 4)}, carry=1)).copied == ()


def test_a_first_step_that_cannot_donate_counts_though_later_ones_do():
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2])
    spread, whole = (jax.sharding.NamedSharding(mesh, spec) for spec in (jax.P("x"), jax.P()))
    step = jax.jit(lambda x: x + 1, donate_argnums=0, out_shardings=spread)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        (kept,) = donation_of(call(step, jax.device_put(jnp.zeros(8), whole), carry=1)).undonated
    assert (kept.path, "another sharding" in kept.reason) == ("args[0]", True)
    assert donation_of(call(step, jax.device_put(jnp.zeros(8), spread), carry=1)).undonated == ()


def test_a_donated_array_that_the_program_does_not_read_is_donated_in_vain():
    step = jax.jit(lambda state: {"a": state["a"] + 1, "b": jnp.zeros((4, 4))}, donate_argnums=0)
    found = donation_of(call(step, {"a": jnp.zeros(8), "b": jnp.zeros((4, 4))}, carry=1))
    assert [(leaf.path, leaf.bytes) for leaf in found.undonated] == [("args[0]['b']", 64)]


def test_a_plain_function_around_a_step_is_seen_through_as_far_as_arrays_tell():
    found = donation_of(call(lambda state: plus_one(state), state(), carry=1))
    assert {leaf.reason for leaf in found.undonated} == {"not donated; jit the step with donate_argnums for argument 0"}
    assert donation_of(call(lambda state: donating(state), state(), carry=1)).undonated == ()


def test_an_array_that_is_returned_as_it_is_needs_no_donation():
    def step(state):
        return {"new": donating(state["new"]), "frozen": state["frozen"]}

    found = donation_of(call(step, {"new": jnp.zeros(8), "frozen": jnp.zeros(100)}, carry=1))
    assert (found.carried, found.undonated) == (1, ())


def test_a_call_that_carries_nothing_is_refused():
    with pytest.raises(MeasurementError, match=r"carries nothing(.|\n)*carry=n"):
        donation_of(call(plus_one, state()))
    with pytest.raises(MeasurementError, match=r"hold no jax\.Array"):
        donation_of(call(lambda n: n + 1, 3, carry=1))


def test_a_state_of_numpy_arrays_is_refused():
    with pytest.raises(MeasurementError, match=r"args\[0\]\['b'\] of plus_one is a NumPy array(.|\n)*jax\.device_put"):
        donation_of(call(donating, {"a": jnp.zeros(8), "b": np.zeros(8)}, carry=1))
