"""Kernels of the user's own: with a cost estimate they count, without one the program's FLOP and bytes are unknown."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas
from jax.experimental.pallas import tpu as pltpu
from support.compiled_texts import compile_here_or_for, jitted, spec
from support.libtpu_needed import needs_libtpu
from support.programs import program_of

from perfsuite.measure.program.program_metrics import metrics_of
from perfsuite.measure.targets.target_compiler import CompileFailed

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


def doubling(x, out):
    out[...] = x[...] * 2


def doubled(x, rows, **options):
    block = pallas.BlockSpec((rows, 512), lambda i: (i, 0))
    grid = (x.shape[0] // rows,)
    call = pallas.pallas_call(
        doubling, out_shape=x, grid=grid, in_specs=[block], out_specs=block, name="doubled", **options
    )
    return call(x)


KERNEL_LINE = doubled.__code__.co_firstlineno + 6
TALL = spec(8192, 512)


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


@pytest.mark.parametrize("limit", [None, 20 * 2**20])
def test_the_memory_on_the_chip_that_a_kernel_takes_and_may_take_is_known(limit):
    options = {"compiler_params": pltpu.CompilerParams(vmem_limit_bytes=limit)}
    program = compile_here_or_for(
        "tpu-v5e", lambda x, y: (doubled(x, 512, **options), doubled(y, 1024, **options)), TALL, TALL
    )
    small, large = sorted(program.kernels, key=lambda kernel: kernel.vmem_bytes)
    # Two arrays, of which each has one block in use and one on its way.
    assert [kernel.vmem_bytes for kernel in (small, large)] == [4 * 512 * 512 * 4, 4 * 1024 * 512 * 4]
    assert program.vmem_bytes == large.vmem_bytes
    assert (large.vmem_limit_bytes, large.what, large.source.line) == (limit, "doubled", KERNEL_LINE)
    (metric,) = (each for each in metrics_of(program) if each.name.endswith("vmem bytes"))
    assert (metric.value, metric.kind, metric.detail) == (large.vmem_bytes, "size", {large.part: large.vmem_bytes})
    assert str(KERNEL_LINE) in metric.places[large.part]


@needs_libtpu
def test_too_large_blocks_are_refused_with_the_size_the_limit_and_the_line():
    with pytest.raises(CompileFailed) as failure:
        program_of(jitted(lambda x: doubled(x, 4096), TALL), "tpu-v5e")
    assert failure.value.out_of_memory
    assert failure.value.where.endswith(f"test_kernels.py:{KERNEL_LINE} in doubled")
    said = str(failure.value)
    assert said.startswith(f"the compiler for tpu-v5e refused the program at {failure.value.where}: ")
    assert "32.00M" in said
    assert "limit 16.00M" in said
    assert "%doubled" in said
    assert "\n" not in said
