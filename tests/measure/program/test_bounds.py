"""The least time of a program, against times worked out by hand from published rates."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
from support.compiled_texts import jitted, spec
from support.cuda_needed import needs_cuda_plugin
from support.libtpu_needed import needs_libtpu
from support.programs import program_of

from perfsuite.measure.program.bounds import compute_seconds, rate_of
from perfsuite.measure.targets.target import Rates
from perfsuite.measure.targets.targets import peak_rates, target

V5E = target("tpu-v5e").rates
H100 = peak_rates("NVIDIA H100 80GB HBM3")
T4_LIKE = Rates({"fp16": 65.0, "fp32": 8.0}, 1.0, "")


@pytest.mark.parametrize(
    ("rates", "dtype", "precision", "rate"),
    [
        (V5E, "bf16", "default", 197e12),
        (V5E, "f32", "default", 197e12),
        (V5E, "f32", "high", 197e12 / 3),
        (V5E, "f32", "highest", 197e12 / 3),
        (V5E, "s8", "default", 393e12),
        (V5E, "s4", "default", None),
        (V5E, "f16", "default", None),
        (target("tpu7x").rates, "f8e4m3fn", "default", 4614e12 / 2),
        (target("tpu-v5p").rates, "s8", "default", None),
        (H100, "f16", "default", 989e12),
        (H100, "f32", "default", 494e12),
        (H100, "f32", "highest", 67e12),
        (T4_LIKE, "f32", "default", 8.0),
    ],
)
def test_the_rate_is_that_of_the_type(rates, dtype, precision, rate):
    assert rate_of(rates, dtype, precision) == (None if rate is None else pytest.approx(rate))


def test_types_without_a_rate_count_nothing_and_other_flops_the_fastest():
    products = [("bf16", "default", 197e12), ("s4", "default", 1e20)]
    assert compute_seconds(V5E, products, 0.0) == pytest.approx(1)
    assert compute_seconds(V5E, products, 393e12) == pytest.approx(2)


SIZE = 4096


def product_of(size, dtype, precision=None):
    def function(x, y):
        return jnp.dot(x, y, precision=precision, preferred_element_type=jnp.int32 if dtype == jnp.int8 else None)

    return program_of(jitted(function, *[spec(size, size, dtype=dtype)] * 2), "tpu-v5e")


@needs_libtpu
@pytest.mark.parametrize(
    ("size", "dtype", "precision", "rate"),
    [
        (SIZE, jnp.bfloat16, None, 197e12),
        (SIZE, jnp.float32, None, 197e12),
        (2048, jnp.float32, "highest", 197e12 / 3),  # 4096 takes 10 s to compile
        (SIZE, jnp.int8, None, 393e12),
    ],
)
def test_a_large_product_is_bound_by_its_flops(size, dtype, precision, rate):
    program = product_of(size, dtype, precision)
    assert program.bound == "compute"
    assert program.bound_seconds == pytest.approx(2 * size**3 / rate, rel=0.01)


@needs_libtpu
def test_a_sum_is_bound_by_memory():
    program = program_of(jitted(lambda x, y: x + y, spec(SIZE, SIZE), spec(SIZE, SIZE)), "tpu-v5e")
    assert program.bound == "memory"
    assert program.bound_seconds == pytest.approx(3 * SIZE**2 * 4 / 819e9, rel=0.01)


@pytest.mark.parametrize(
    ("made_for", "axis", "slices", "bound", "bandwidth"),
    [
        pytest.param("tpu-v5e", "chip", 1, "links", 400e9, marks=needs_libtpu),
        pytest.param("tpu-v5e", "slice", 2, "network", 25e9 / 8, marks=needs_libtpu),
        pytest.param("gpu-a100", "chip", 1, "links", 600e9, marks=needs_cuda_plugin),
        pytest.param("gpu-h100", "chip", 1, "links", 900e9, marks=needs_cuda_plugin),
    ],
)
def test_a_shift_is_bound_by_the_links_or_by_the_network(made_for, axis, slices, bound, bandwidth):
    mesh = AbstractMesh((2, 4), ("slice", "chip"))
    rows = PartitionSpec(("slice", "chip"))

    def shift(x):
        return lax.ppermute(x, axis, [(0, 1), (1, 0)])

    body = jax.shard_map(shift, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)
    x = spec(8 * 128, SIZE, sharding=NamedSharding(mesh, rows))
    program = program_of(jitted(body, x), made_for, slices=slices)
    assert program.bounds[bound] == pytest.approx(128 * SIZE * 4 / bandwidth)
    assert program.bound == max(program.bounds, key=program.bounds.get)


@needs_libtpu
def test_the_flops_of_a_kernel_count_and_without_an_estimate_there_is_no_bound():
    def kernel(x, out):
        out[...] = x[...] * 2

    def doubled(x, flops):
        cost = flops and pallas.CostEstimate(flops=flops, transcendentals=0, bytes_accessed=8 * x.size)
        return pallas.pallas_call(kernel, out_shape=x, cost_estimate=cost)(x)

    known, unknown = (
        program_of(jitted(lambda x, flops=flops: doubled(x, flops), spec(512, 512)), "tpu-v5e")
        for flops in (393 * 10**9, None)
    )
    assert (known.bound, known.bound_seconds) == ("compute", pytest.approx(0.001))
    assert (unknown.bound, unknown.bound_seconds) == (None, None)
