"""Kernels of the user's own: with a cost estimate they count, without one the program's FLOP and bytes are unknown."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas
from support.compiled_texts import compile_here_or_for, spec

from perfsuite.measure.program.program_metrics import metrics_of

SQUARE = spec(128, 128)
UNKNOWN = {"flops", "transcendentals", "bytes accessed", "arithmetic intensity"}


def product_kernel(x, y, out):
    out[...] = jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)


def product(x, y, estimate):
    shape = jax.ShapeDtypeStruct(x.shape, jnp.float32)
    return pallas.pallas_call(product_kernel, out_shape=shape, cost_estimate=estimate, name="own_product")(x, y)


def program_with(estimate, times=1):
    def function(x, y):
        return jax.lax.fori_loop(0, times, lambda _, x: product(x, y, estimate) + 1, x)

    return compile_here_or_for("tpu-v5e", function, SQUARE, SQUARE)


def names(program):
    return {metric.name.removeprefix(f"{program.label} ") for metric in metrics_of(program)}


def test_without_an_estimate_flops_and_bytes_are_unknown_and_the_kernel_is_named():
    program = program_with(None)
    assert (program.flops, program.bytes_accessed, program.transcendentals) == (None, None, None)
    assert (program.arithmetic_intensity, program.bound) == (None, None)
    assert not UNKNOWN & names(program)
    (kernel,) = program.unestimated
    assert (kernel.what, kernel.source.line) == ("own_product", product.__code__.co_firstlineno + 2)
    assert "unknown FLOP" in repr(program)


@pytest.mark.parametrize("times", [1, 7])
def test_with_an_estimate_it_counts_in_each_iteration(times):
    estimate = pallas.CostEstimate(flops=10**7, transcendentals=777, bytes_accessed=10**6)
    program = program_with(estimate, times)
    assert program.flops == pytest.approx(times * (10**7 + 128 * 128), rel=0.001)
    assert program.transcendentals == times * 777
    assert program.bytes_accessed > times * 10**6
    assert names(program) >= UNKNOWN
    assert program.unestimated == ()
