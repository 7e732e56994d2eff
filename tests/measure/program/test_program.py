"""What a program's facts come to: memory, what limits it, and which operations one kernel holds."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
from support.compiled_texts import ORIGIN, TEXTS, jitted, module, read, spec
from support.compilers import skip_without_compiler
from support.cuda_needed import needs_cuda_plugin
from support.libtpu_needed import needs_libtpu
from support.programs import program_of

from perfsuite.measure.hlo.costs import Cost
from perfsuite.measure.hlo.module import SourceFrame
from perfsuite.measure.program.program import Operation, Product, product_seconds, rate_of
from perfsuite.measure.targets.targets import Rates, peak_rates, target

TRAIN = read(TEXTS["train_v5e"])
RATES = Rates(peak_flops={"bf16": 100.0}, memory_bandwidth=10.0, source="https://example.org")


def known(memory_bytes=None, **changes):
    origin = dataclasses.replace(ORIGIN, memory_bytes=memory_bytes, rates=RATES)
    return dataclasses.replace(read(TEXTS["sharded_cpu"], origin=origin), **changes)


def test_the_peak_has_each_byte_once():
    program = known()
    assert program.peak_bytes == 1000 + (300 - 200) + 50 + 7


@pytest.mark.parametrize(
    ("memory", "fits", "margin"), [(1157, True, 0), (1156, False, -1), (2000, True, 843), (None, None, None)]
)
def test_a_program_fits_where_its_peak_does(memory, fits, margin):
    assert (known(memory).fits, known(memory).margin_bytes) == (fits, margin)


def test_the_bound_is_the_largest_time():
    program = known(known=Cost(flops=1001, bytes=100), compute_seconds=10.01, collective_bytes=0)
    assert program.bounds == {"compute": 10.01, "memory": 10.0}
    assert (program.bound, program.bound_seconds) == ("compute", 10.01)
    assert known(known=Cost(flops=999, bytes=100), compute_seconds=9.99).bound == "memory"


def test_what_collectives_move_counts_where_the_rates_are_published():
    program = known(known=Cost(bytes=1), compute_seconds=0.0, collective_bytes=1200, cross_slice_bytes=150)
    assert program.bound == "memory"
    rates = dataclasses.replace(RATES, link_bandwidth=4.0, network_bandwidth=0.4)
    program = dataclasses.replace(program, rates=rates)
    assert program.bounds == {"compute": 0.0, "memory": 0.1, "links": 300.0, "network": 375.0}
    assert program.bound == "network"


def test_fuses_gives_the_kernels_that_hold_all_names():
    both = TRAIN.fuses("dot_general", "select_n")
    assert both
    assert set(both) == {one for one in TRAIN.fusions if {"dot_general", "select_n"} <= one.names}
    assert 0 < len(both) < len(TRAIN.fuses("dot_general"))
    assert repr(both).startswith(f"<{len(both)} kernels: /project/programs.py:")


def test_a_line_that_moves_is_the_same_part():
    def at(line, function="Model.__call__.<locals>.attention", file="/a/bert.py"):
        return Operation("copy", "jit(f)/copy", SourceFrame(file, line, function), 8).part

    assert at(1) == at(2) == at(1, file="/b/bert.py") == "copy in attention (bert.py)"
    assert len({at(1), at(1, function="mlp"), at(1, file="/a/gpt.py")}) == 3


def test_fuses_says_where_the_operations_are_instead():
    none = TRAIN.fuses("dot_general", "no_such_primitive")
    assert not none
    first = TRAIN.fuses("dot_general")[0].where
    assert repr(none).startswith(f"<no kernel has all of them; dot_general: {first}")
    assert repr(none).endswith("no_such_primitive: in none>")


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
    for dtype, seconds in (("bf16", 1.0), ("s4", 0.0)):
        product = Product("", "", None, 0, dtypes=(dtype, dtype), precision="default", flops=197 * 10**12)
        assert product_seconds(V5E, product) == pytest.approx(seconds)
    origin = dataclasses.replace(ORIGIN, rates=V5E)
    assert read(module("%n = f32[8,16]{1,0} negate(%a)"), origin=origin).compute_seconds == pytest.approx(128 / 393e12)


def test_a_bound_has_of_a_conditional_its_largest_branch():
    """As its FLOP and bytes have."""
    skip_without_compiler("tpu-v5e")

    def products(count):
        return lambda w, x: functools.reduce(lambda x, _: x @ w, range(count), x)

    def function(index, w, x):
        return lax.switch(index, [products(1), products(3), products(2)], w, x)

    square = spec(2048, 2048, dtype=jnp.bfloat16)
    program = program_of(jitted(function, spec(dtype=jnp.int32), square, square), "tpu-v5e")
    seconds = 3 * 2 * 2048**3 / 197e12
    assert len(program.products) == 6
    assert program.bounds["compute"] == pytest.approx(seconds, rel=1e-6)
    alone = program_of(jitted(products(3), square, square), "tpu-v5e")
    assert program.estimated_us < 1.5 * alone.estimated_us, "all branches have two times its products"


@needs_libtpu
def test_collective_bytes_have_of_a_conditional_its_largest_branch():
    mesh = AbstractMesh((4,), ("d",))

    def reduced(index, x):
        once, thrice = (lambda x: lax.psum(x, "d")), (lambda x: lax.psum(jnp.tile(x, 3), "d")[: x.shape[0]])
        return lax.cond(index[0] > 0, once, thrice, x)

    body = jax.shard_map(reduced, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False)
    whole = NamedSharding(mesh, PartitionSpec())
    program = program_of(jitted(body, spec(1, sharding=whole), spec(4096, sharding=whole)), "tpu-v5e")
    assert sorted(each.bytes for each in program.collectives) == [4 * 4096, 3 * 4 * 4096]
    assert program.collective_bytes == 3 * 4 * 4096


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
