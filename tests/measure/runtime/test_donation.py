"""`measure.runtime.donation`: carried state that is in memory twice, and why."""

import warnings

import jax
import jax.numpy as jnp
import pytest

from perfsuite.measure.call import call
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.runtime.donation import donation_of


@jax.jit
def plus_one(state):
    return jax.tree.map(lambda leaf: leaf + 1, state)


donating = jax.jit(plus_one, donate_argnums=0)


def state():
    return plus_one({"kernel": jnp.zeros((8, 8)), "bias": jnp.zeros(8)})


def test_a_donated_state_is_donated():
    found = donation_of(call(donating, state(), carry=1))
    assert (found.carried, found.carried_bytes, found.undonated) == (2, 288, ())
    assert [made.value for made in found.metrics("step")] == [0, 0]


def test_a_forgotten_donation_names_every_array():
    found = donation_of(call(plus_one, state(), carry=1))
    assert found.in_words().splitlines() == [
        "args[0]['kernel'] float32[8,8] (256 bytes): not donated; jit the step with donate_argnums for argument 0",
        "args[0]['bias'] float32[8] (32 bytes): not donated; jit the step with donate_argnums for argument 0",
    ]
    arrays, size = found.metrics("step")
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


def test_a_donated_array_that_the_program_does_not_read_is_donated_in_vain():
    step = jax.jit(lambda state: {"a": state["a"] + 1, "b": jnp.zeros((4, 4))}, donate_argnums=0)
    found = donation_of(call(step, {"a": jnp.zeros(8), "b": jnp.zeros((4, 4))}, carry=1))
    assert [str(leaf) for leaf in found.undonated] == [
        "args[0]['b'] float32[4,4] (64 bytes): donated but not used, because the program does not read it, "
        "or has no output of its shape and dtype left"
    ]


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
