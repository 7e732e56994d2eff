"""JAX's frames in a first call are where `perfsuite/measure/private/first_calls.py` looks for them."""

import sys

import jax
import jax.numpy as jnp
import pytest

from perfsuite.measure.private import first_calls, jax_traces

MOVED = "JAX has moved a function that perfsuite/measure/private/first_calls.py names"


def scaled(x):
    return jnp.sin(x) * 2


@pytest.fixture(scope="module")
def seen():
    """What JAX's frames say while a function is lowered, by step."""
    found = {}
    open_steps = {}

    def watch(frame, event, arg):
        if event == "call" and (step := first_calls.step_of(frame)) is not None:
            open_steps[id(frame)] = step
            if step == "trace":
                found.setdefault("traced", jax_traces.traced_function(frame))
            elif step == "lower":
                found["jaxpr"] = first_calls.lowered_jaxpr(frame)
        elif event == "return" and open_steps.pop(id(frame), None) == "module":
            found["module"] = first_calls.module_of(arg)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        jax.jit(scaled).lower(jax.ShapeDtypeStruct((3,), jnp.float32))  # to make an array would be a trace before it
    finally:
        sys.setprofile(before)
    return found


def test_a_trace_is_seen_with_the_function_and_its_place(seen):
    assert seen.get("traced") == ("scaled", __file__, scaled.__code__.co_firstlineno), MOVED


def test_a_lowering_is_seen_with_its_jaxpr(seen):
    assert "jaxpr" in seen, MOVED
    assert [each.primitive.name for each in seen["jaxpr"].eqns] == ["sin", "mul"], MOVED


def test_a_module_is_seen_when_it_is_made(seen):
    assert "module" in seen, MOVED
    assert "stablehlo.sine" in seen["module"].operation.get_asm(large_elements_limit=16), MOVED


def test_an_equation_has_the_frames_in_which_it_was_traced(seen):
    files = {file: function for file, function, _ in first_calls.frames_of(seen["jaxpr"].eqns[0])}
    assert files.get(__file__) == "scaled", MOVED
