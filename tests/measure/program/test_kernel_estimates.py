"""Kernels for a GPU, whose estimates JAX drops when it lowers them: they count as the trace has them."""

import dataclasses

import jax
import pytest
from jax.experimental import pallas
from jax.experimental.pallas import mosaic_gpu, triton
from support.compiled_texts import jitted, spec
from support.cuda_needed import needs_cuda_plugin
from support.programs import program_of

from perfsuite.measure.hlo.hlo_module import Computation, Frame, Instruction, Module, Shape
from perfsuite.measure.program.kernel_estimates import KernelEstimate, estimates_in, with_estimates

SQUARE = spec(128, 128)
ESTIMATE = pallas.CostEstimate(flops=10**6, transcendentals=7, bytes_accessed=10**5)
COSTS = {"flops": 10**6, "transcendentals": 7, "bytes_accessed": 10**5}


def doubling(x, out):
    out[...] = x[...] * 2


def doubled(x, **options):
    return pallas.pallas_call(doubling, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), **options)(x)


PLACE = f"{__file__}:{doubled.__code__.co_firstlineno + 1}"


def estimates(function, *arguments):
    return estimates_in(jax.jit(function).trace(*arguments).jaxpr.jaxpr)


def test_the_estimates_of_a_trace_have_their_lines_and_shapes():
    known = KernelEstimate(PLACE, ((128, 128),), **COSTS)
    assert estimates(lambda x: doubled(x, cost_estimate=ESTIMATE), SQUARE) == (known,)
    assert estimates(lambda x: doubled(x), SQUARE) == (KernelEstimate(PLACE, ((128, 128),)),)
    twice = estimates(lambda x: doubled(doubled(x, cost_estimate=ESTIMATE), cost_estimate=ESTIMATE), SQUARE)
    assert twice == (known,)


def module_of(*kernels):
    root = Instruction("root", "tuple", (), is_root=True)
    return Module("m", {"main": Computation("main", (*kernels, root))}, "main", frozenset())


def kernel(line=1, dims=(8,), target="__gpu$xla.gpu.triton", **fields):
    stack = (Frame("site-packages/library.py", 9, "call"), Frame("model.py", line, "step"))
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
        return lambda x: jax.lax.fori_loop(0, 3, lambda _, x: doubled(x, **options), x)

    known, unknown = (program_of(jitted(times(estimate), SQUARE), "gpu-h100") for estimate in (ESTIMATE, None))
    assert known.flops == pytest.approx(3 * 10**6, rel=0.01)
    assert known.transcendentals == 3 * 7
    assert known.bytes_accessed >= 3 * 10**5
    assert [each.what for each in known.kernels] == ["own_doubling"]
    assert (unknown.flops, unknown.bytes_accessed) == (None, None)
    (named,) = unknown.unestimated
    assert (named.what, f"{named.source.file}:{named.source.line}") == ("own_doubling", PLACE)
