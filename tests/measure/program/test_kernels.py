"""Kernels of the user's own: with a cost estimate they count, without one the program's FLOP and bytes are unknown."""

import dataclasses
import tempfile

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas
from jax.experimental.pallas import mosaic_gpu, triton
from jax.experimental.pallas import tpu as pltpu
from support.compiled_texts import compile_here_or_for, jitted, spec
from support.cuda_needed import needs_cuda_plugin
from support.libtpu_needed import needs_libtpu
from support.programs import program_of

from perfsuite.measure.hlo.module import Computation, HloModule, Instruction, Shape, SourceFrame
from perfsuite.measure.private import capabilities, libraries
from perfsuite.measure.private.capabilities import KERNEL_SCHEDULES
from perfsuite.measure.program.lowering import KernelEstimate, estimates_in
from perfsuite.measure.program.program_metrics import metrics_of
from perfsuite.measure.program.program_reader import with_estimates
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
    windows = "input window allocation for operator input 0", "output window allocation for operator output 0"
    assert small.vmem == dict.fromkeys(windows, 2 * 512 * 512 * 4)
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


def repeated(times):
    """A kernel that doubles a block `times(x)` times, in a loop."""

    def kernel(x, out):
        out[...] = jax.lax.fori_loop(0, times(x), lambda _, block: block * 1.5, x[...])

    return kernel


def in_blocks(kernel, x, name, steps=8192 // 64, **options):
    block = pallas.BlockSpec((64, 512), lambda i: (i, 0))
    return pallas.pallas_call(
        kernel, out_shape=x, grid=(steps,), in_specs=[block], out_specs=block, name=name, **options
    )(x)


def test_the_schedule_of_a_kernel_counts_the_steps_of_its_grid_and_its_loops():
    def function(x, steps):
        known = [in_blocks(repeated(lambda _, times=times: times), x, f"loop{times}") for times in (10, 20, 30)]
        unknown = in_blocks(repeated(lambda x: x[0, 0].astype(int)), x, "unknown_loop")
        return known, unknown, in_blocks(repeated(lambda _: 1), x, "unknown_grid", steps[0])

    program = compile_here_or_for("tpu-v5e", function, TALL, spec(1, dtype=jnp.int32))
    kernels = {kernel.what: kernel for kernel in program.kernels}
    one, two, three = (kernels[f"loop{times}"] for times in (10, 20, 30))
    assert two.bundles - one.bundles == three.bundles - two.bundles > 10 * 8
    assert {kernel.grid_steps for kernel in (one, two, three, kernels["unknown_loop"])} == {128}
    assert [one.unknown_loops, kernels["unknown_loop"].unknown_loops, kernels["unknown_grid"].grid_steps] == [
        0,
        1,
        None,
    ]
    assert 0.5 < three.unit_use["VALU"] <= 1
    metric = next(each for each in metrics_of(program) if each.name.endswith("known kernel bundles"))
    assert metric.value == sum(kernel.bundles * 128 for kernel in program.kernels if kernel.grid_steps)
    assert (metric.kind, metric.at_least) == ("size", (kernels["unknown_loop"].where,))
    assert metric.detail[three.part] == three.bundles * 128
    assert program.kernel_spills == 0
    assert [each.kind for each in metrics_of(program) if each.name.endswith("kernel spills")] == ["info"]


def test_two_cores_share_the_steps_of_a_parallel_grid():
    parallel = {"compiler_params": pltpu.CompilerParams(dimension_semantics=("parallel",))}
    program = compile_here_or_for(
        "tpu-v5p", lambda x: in_blocks(doubling, in_blocks(doubling, x, "one"), "shared", **parallel), TALL
    )
    assert {kernel.what: kernel.grid_steps for kernel in program.kernels} == {"one": 128, "shared": 64}


@needs_libtpu
def test_schedules_are_read_where_the_name_of_the_temporary_folder_has_a_space(monkeypatch, tmp_path):
    folder = tmp_path / "my files"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    (kernel,) = program_of(jitted(lambda x: doubled(x, 256), TALL), "tpu-v5e").kernels
    assert kernel.bundles


@pytest.fixture
def no_such_flag(monkeypatch):
    """Schedules are asked for by a flag that libtpu lacks."""
    flags = {"xla_jf_dump_nowhere": "true", **libraries._SCHEDULE_FLAGS}
    monkeypatch.setattr(libraries, "_SCHEDULE_FLAGS", flags)
    capabilities.forget()
    yield
    capabilities.forget()


@needs_libtpu
@pytest.mark.parametrize("probed", [True, False], ids=["the probe sees it", "libtpu refuses it"])
def test_without_the_flags_of_schedules_all_else_is_known_and_it_is_said(no_such_flag, monkeypatch, probed):
    if probed:
        assert KERNEL_SCHEDULES.lost() == "libtpu has no flag xla_jf_dump_nowhere"
    else:
        monkeypatch.setattr(KERNEL_SCHEDULES, "_probe", None)
    program = program_of(jitted(lambda x: doubled(x, 512), TALL), "tpu-v5e")
    (kernel,) = program.kernels
    assert (kernel.bundles, kernel.spills, program.kernel_bundles, program.kernel_spills) == (None,) * 4
    assert kernel.vmem_bytes == 4 * 512 * 512 * 4
    assert not any("kernel " in each.name for each in metrics_of(program))
    assert ["knows no bundles and spills" in line for line in capabilities.fallbacks()] == [True]


ESTIMATE = pallas.CostEstimate(flops=10**6, transcendentals=7, bytes_accessed=10**5)
COSTS = {"flops": 10**6, "transcendentals": 7, "bytes_accessed": 10**5}


def plain_doubled(x, **options):
    return pallas.pallas_call(doubling, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), **options)(x)


PLACE = f"{__file__}:{plain_doubled.__code__.co_firstlineno + 1}"


def estimates(function, *arguments):
    return estimates_in(jax.jit(function).trace(*arguments).jaxpr.jaxpr)


def test_the_estimates_of_a_trace_have_their_lines_and_shapes():
    known = KernelEstimate(PLACE, ((128, 128),), **COSTS)
    assert estimates(lambda x: plain_doubled(x, cost_estimate=ESTIMATE), SQUARE) == (known,)
    assert estimates(lambda x: plain_doubled(x), SQUARE) == (KernelEstimate(PLACE, ((128, 128),)),)
    twice = estimates(lambda x: plain_doubled(plain_doubled(x, cost_estimate=ESTIMATE), cost_estimate=ESTIMATE), SQUARE)
    assert twice == (known,)


def module_of(*kernels):
    root = Instruction("root", "tuple", (), is_root=True)
    return HloModule("m", {"main": Computation("main", (*kernels, root))}, "main", {})


def kernel(line=1, dims=(8,), target="__gpu$xla.gpu.triton", **fields):
    stack = (SourceFrame("site-packages/library.py", 9, "call"), SourceFrame("model.py", line, "step"))
    return Instruction("k", "custom-call", (Shape("f32", dims),), stack=stack, custom_call_target=target, **fields)


def costs_after(op, *known):
    return with_estimates(module_of(op), known).computations["main"].instructions[0].cost_estimate


ONE = KernelEstimate("model.py:1", ((8,),), **COSTS)


def test_a_kernel_gets_the_estimate_of_its_line_and_shape():
    assert costs_after(kernel(), ONE) == COSTS
    assert costs_after(kernel(line=2), ONE) is None
    assert costs_after(kernel(dims=(4,)), ONE) is None


def test_two_of_one_line_and_shape_that_differ_are_not_known():
    assert costs_after(kernel(), ONE, dataclasses.replace(ONE, flops=5)) is None
    assert costs_after(kernel(), ONE, KernelEstimate("model.py:1", ((8,),))) is None
    assert costs_after(kernel(), ONE, dataclasses.replace(ONE, results=((4,),), flops=5)) == COSTS


@needs_cuda_plugin
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")  # since jax 0.12
@pytest.mark.parametrize(
    "parameters",
    [
        triton.CompilerParams(num_warps=4),
        pytest.param(
            mosaic_gpu.CompilerParams(),
            marks=pytest.mark.skipif(
                jax.__version_info__ >= (0, 12), reason="from jax 0.12 on, pallas_call makes no kernels of Mosaic GPU"
            ),
        ),
    ],
)
def test_a_kernel_compiled_for_a_gpu_counts_with_an_estimate_and_is_named_without_one(parameters):
    def times(estimate):
        options = {"name": "own_doubling", "compiler_params": parameters, "cost_estimate": estimate}
        return lambda x: jax.lax.fori_loop(0, 3, lambda _, x: plain_doubled(x, **options), x)

    known, unknown = (program_of(jitted(times(estimate), SQUARE), "gpu-h100") for estimate in (ESTIMATE, None))
    assert known.flops == pytest.approx(3 * 10**6, rel=0.01)
    assert known.transcendentals == 3 * 7
    assert known.bytes_accessed >= 3 * 10**5
    assert [each.what for each in known.kernels] == ["own_doubling"]
    assert (unknown.flops, unknown.bytes_accessed) == (None, None)
    (kernel,) = known.kernels
    of_mosaic = isinstance(parameters, mosaic_gpu.CompilerParams)
    assert (kernel.spills, kernel.grid_steps, kernel.threads) == ((None,) * 3 if of_mosaic else (0, 1, 128))
    assert known.kernel_spills == kernel.spills
    assert kernel.occupancy is None if of_mosaic else 0 < kernel.occupancy < 1
    (named,) = unknown.unestimated
    assert (named.what, f"{named.source.file}:{named.source.line}") == ("own_doubling", PLACE)
