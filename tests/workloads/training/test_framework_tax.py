"""The variants of the framework tax: the same arrays, the same numbers, no compiles once warm, and every call counted."""

import jax
import numpy as np
import pytest

from perfsuite import call
from perfsuite.measure.runtime.host_calls import host_calls
from perfsuite.workloads.training.framework_tax import FLOOR, VARIANTS, leaves_of, random_weights

LAYERS, UPDATES = 3, 3

each_variant = pytest.mark.parametrize("variant", VARIANTS)


@pytest.fixture
def made(variant):
    """The variant, and the call of its step."""
    taxed = VARIANTS[variant](random_weights(LAYERS))
    return taxed, call(taxed.step, *taxed.args, carry=taxed.carry)


def updated(taxed, step):
    """The losses of some updates, and the arrays after them."""
    losses = []
    for _ in range(UPDATES):
        outputs = step.run()
        losses.append(np.asarray(outputs[-1] if taxed.carry else outputs))
    return losses, [np.asarray(array) for array in taxed.arrays(step.args)]


def test_the_floor_does_what_is_written():
    """Its own arithmetic, in NumPy: all others are compared with it."""
    params = [np.asarray(array) for pair in random_weights(LAYERS) for array in pair]
    x = np.linspace(0.5, 1.5, 4, dtype=np.float32)
    mu, nu = ([np.zeros_like(array) for array in params] for _ in range(2))
    losses = []
    for _ in range(UPDATES):
        outputs = [x * weight + bias for weight, bias in zip(params[::2], params[1::2], strict=True)]
        losses.append(sum(np.sum(np.square(output)) for output in outputs) / 2)
        grads = [grad for output in outputs for grad in (x * output, output.sum(axis=0))]
        mu = [moment - 0.1 * grad for moment, grad in zip(mu, grads, strict=True)]
        nu = [moment + grad * grad for moment, grad in zip(nu, grads, strict=True)]
        params = [array + moment for array, moment in zip(params, mu, strict=True)]
    taxed = VARIANTS[FLOOR](random_weights(LAYERS))
    step = call(taxed.step, *taxed.args, carry=taxed.carry)
    found_losses, _ = updated(taxed, step)
    np.testing.assert_allclose(found_losses, losses, rtol=1e-5)
    *arrays, count, steps = step.args[0]
    assert count == steps == UPDATES
    for found, expected in zip(arrays, [*params, *mu, *nu], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@each_variant
def test_a_step_carries_as_many_arrays_as_that_of_the_floor_and_donates_them(variant, made):
    taxed, step = made
    before = taxed.arrays(step.args)
    assert len({id(array) for array in before}) == leaves_of(LAYERS)
    bound = variant == "nnx.cached_partial"
    assert len(jax.tree.leaves(step.args)) == 1 + (0 if bound else leaves_of(LAYERS)), "the arrays, and the batch"
    jax.block_until_ready(step.run())
    assert all(array.is_deleted() for array in before)
    assert not any(array.is_deleted() for array in taxed.arrays(step.args))


@each_variant
def test_a_step_compiles_once(made, compile_counter):
    _, step = made
    jax.block_until_ready(step.run())
    with compile_counter.forbid():
        for _ in range(3):
            jax.block_until_ready(step.run())


@each_variant
def test_host_calls_are_those_of_any_other_model_of_the_size(variant, made):
    """Not of how many were made before it, nor of what compiled them."""
    _, step = made
    another = VARIANTS[variant](random_weights(LAYERS))
    first, second = host_calls(step), host_calls(call(another.step, *another.args, carry=another.carry))
    assert first.by_function == second.by_function
