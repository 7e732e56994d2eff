"""mujoco's mjx: a step of a double pendulum, its model as an argument and closed over, and what it does outside jit."""

import jax
import pytest

from perfsuite import Budget, call

mujoco = pytest.importorskip("mujoco", reason="the project that is tried: pip install mujoco-mjx")
mjx = pytest.importorskip("mujoco.mjx", reason="the project that is tried: pip install mujoco-mjx")

ARM = '<joint type="hinge" axis="0 1 0"/><geom size=".1" pos="0 0 .4"/>'
MODEL = mjx.put_model(
    mujoco.MjModel.from_xml_string(
        '<mujoco><option><flag contact="disable"/></option><worldbody>'
        f'<body>{ARM}<body pos="0 0 .4">{ARM}</body></body></worldbody></mujoco>'
    )
)


def with_its_model(data, model):
    return mjx.step(model, data)


def closed_over(data):
    return mjx.step(MODEL, data)


GIVEN, CLOSED = jax.jit(with_its_model, donate_argnums=0), jax.jit(closed_over, donate_argnums=0)


def of_given():
    return call(GIVEN, mjx.make_data(MODEL), MODEL, carry=1)


def of_closed():
    return call(CLOSED, mjx.make_data(MODEL), carry=1)


@pytest.mark.parametrize("make", [of_given, of_closed], ids=["given", "closed over"])
def test_a_step(perf, make):
    perf.host_calls(make())
    perf.fast_path(make(), budget=Budget(fast_path_misses=0))
    perf.transfers(make(), budget=Budget(transfers=0))
    perf.memory(make(), budget=Budget(leaked_arrays=0))
    perf.program(make())


def test_a_step_does_not_read_most_of_its_data(perf):
    """It computes them anew, so their memory is not reused: mujoco-mjx 3.17.0."""
    assert len(perf.donation(of_closed()).undonated) > 30


def test_a_host_call_is_a_field_that_jax_takes_apart_in_python(perf):
    counted = perf.host_calls(of_given())
    flattened = [calls for origin, calls in counted.by_origin.items() if "register_pytree_with_keys" in str(origin)]
    assert sum(flattened) > 0.7 * counted.total, "mujoco/mjx/_src/dataclasses.py:143"
