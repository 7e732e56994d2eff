"""The costs of instructions, beside XLA's own analysis of the same programs, which counts a loop once."""

import functools

import jax
import jax.numpy as jnp
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax import lax
from support.compiled_texts import compile_here_or_for, computation, jitted, parse, spec

from perfsuite.measure.hlo.costs import CostModel, call_flops, is_library_call, is_library_product, overlaps
from perfsuite.measure.hlo.module import read_module
from perfsuite.measure.program.compilation import compile_call

SIZE = 16

OPERATIONS = {
    "tanh": jnp.tanh,
    "add": lambda x: x + 1.5,
    "product": lambda x: x @ x,
    "transpose": lambda x: x.T * 2,
    "sum": lambda x: x + x.sum(0),
    "softmax": jax.nn.softmax,
    "largest": lambda x: jnp.where(x > x.max(1, keepdims=True) / 2, x, -x),
    "cumulative": lambda x: jnp.cumsum(x, 0),
    "sorted": lambda x: jnp.sort(x, 1),
    "rows": lambda x: x[jnp.argmax(x, 0)],
    "updated": lambda x: x.at[jnp.argmax(x, 0)].add(x),
    "sliced": lambda x: lax.dynamic_update_slice(x, lax.dynamic_slice(x, (2, 3), (4, 5)), (1, 1)),
    "bfloat16": lambda x: (x.astype(jnp.bfloat16) @ x.astype(jnp.bfloat16)).astype(jnp.float32),
    "pooled": lambda x: lax.reduce_window(x, 0.0, lax.add, (3, 3), (1, 1), "SAME"),
    "random": lambda x: x * jax.random.normal(jax.random.key(0), x.shape),
    "branch": lambda x: lax.cond(x[0, 0] > 0, lambda x: x @ x, jnp.sin, x),
    "loop": lambda x: lax.fori_loop(0, 3, lambda _, x: jnp.cos(x) @ x, x),
    "scan": lambda x: lax.scan(lambda c, row: (c + row, jnp.exp(c)), x[0], x)[1],
    "fourier": lambda x: jnp.fft.rfft(x).real @ jnp.ones((SIZE // 2 + 1, SIZE)),
}


def composed(names, x):
    return functools.reduce(lambda x, name: OPERATIONS[name](x), names, x)


def compared(function, *arguments):
    """XLA's (FLOP, transcendentals, bytes) and those of the model."""
    call = jitted(function, *arguments)
    analysis = call.fn.lower(*arguments).compile().cost_analysis()
    cost = CostModel(read_module(compile_call(call).hlo), {}).total()
    xla = [max(analysis.get(name, 0), 0) for name in ("flops", "transcendentals", "bytes accessed")]
    return xla, [cost.flops, cost.transcendentals, cost.bytes]


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_costs_what_xla_says(name):
    xla, model = compared(OPERATIONS[name], spec(SIZE, SIZE))
    assert model[:2] == pytest.approx(xla[:2], rel=1e-6)
    # XLA has whole tables, no indices, and pointers of tuples.
    if name not in ("rows", "updated", "sliced", "random", "branch", "loop", "scan"):
        assert model[2] == pytest.approx(xla[2], rel=1e-6)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from(sorted(OPERATIONS)), min_size=2, max_size=5))
def test_programs_have_the_flops_that_xla_says(names):
    xla, model = compared(functools.partial(composed, names), spec(SIZE, SIZE))
    assert model[:2] == pytest.approx(xla[:2], rel=1e-3)


@pytest.mark.parametrize("backend", [None, "tpu-v5e"])
def test_a_batched_product_has_the_flops_of_its_parts(backend):
    program = compile_here_or_for(
        backend, lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, k), spec(4, 128, 8, 64), spec(4, 96, 8, 64)
    )
    (product,) = program.products
    assert product.flops == 2 * 4 * 8 * 128 * 96 * 64
    assert program.flops == pytest.approx(product.flops, rel=0.05)


@pytest.mark.parametrize(("backend", "stride", "groups"), [(None, 2, 1), (None, 1, 16), ("tpu-v5e", 2, 1)])
def test_convolutions_count_as_the_compiler_counts_them(backend, stride, groups):
    """Forwards, and backwards where they are dilated, reversed, and cut in groups."""

    def loss(x, kernel):
        numbers = ("NHWC", "HWIO", "NHWC")
        made = jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), "SAME", dimension_numbers=numbers, feature_group_count=groups
        )
        return jnp.sum(made**2)

    program = compile_here_or_for(backend, jax.grad(loss, (0, 1)), spec(8, 32, 32, 16), spec(3, 3, 16 // groups, 32))
    assert len(program.products) == 3
    assert sum(product.flops for product in program.products) == pytest.approx(program.flops, rel=0.05)


WINDOW = st.tuples(*[st.integers(1, 6)] * 3, st.integers(-4, 6))


@given(st.integers(0, 12), st.integers(0, 9), st.integers(0, 12), WINDOW)
@example(8, 8, 8, (7, 8, 1, 0))
def test_overlaps_are_those_of_trying_every_position(size, kernel, outputs, window):
    stride, into_dilation, kernel_dilation, padding = window
    places = {element * into_dilation for element in range(size)}
    tried = [
        position * stride - padding + element * kernel_dilation in places
        for position in range(outputs)
        for element in range(kernel)
    ]
    assert overlaps(size, kernel, outputs, window) == sum(tried)


def test_a_batch_of_very_many_products_is_counted_without_trying_every_position():
    many = 10**6
    assert overlaps(many, many, many, (many - 1, many, 1, 0)) == many


GEMM = (
    'backend_config={"operation_queue_id":"0","gemm_backend_config":{"alpha_real":1,"dot_dimension_numbers":'
    '{"lhs_contracting_dimensions":["2"],"rhs_contracting_dimensions":["1"],"lhs_batch_dimensions":["0"]},'
    '"precision_config":{"operand_precision":["HIGHEST","DEFAULT"],"algorithm":"ALG_UNSET"}}}'
)
WINDOW = "window={size=3x3 stride=2x2}, dim_labels=b01f_o01i->b01f"
INPUT, KERNEL, OUTPUT = "f32[8,33,33,64]", "f32[96,3,3,64]", "f32[8,16,16,96]"
CONVOLUTION = 2 * 8 * 16 * 16 * 96 * 3 * 3 * 64

CALLS = {
    "product": ("f32[4,128,256]", "f32[4,256,64]", "f32[4,128,64]", "__cublas$lt$matmul", GEMM, 2 * 4 * 128 * 64 * 256),
    "convolution": (INPUT, KERNEL, OUTPUT, "__cudnn$convForward", WINDOW, CONVOLUTION),
    "of its input": (OUTPUT, KERNEL, INPUT, "__cudnn$convBackwardInput", WINDOW, CONVOLUTION),
    "of its kernel": (INPUT, OUTPUT, KERNEL, "__cudnn$convBackwardFilter", WINDOW, CONVOLUTION),
}


def program(left, right, result, target, attributes):
    lines = (
        f"%a = {left} parameter(0)",
        f"%b = {right} parameter(1)",
        f'%c = ({result}, s8[4096]) custom-call(%a, %b), custom_call_target="{target}", {attributes}',
    )
    return parse("HloModule m\n\nENTRY " + computation("main", *lines) + "\n")


@pytest.mark.parametrize("case", CALLS)
def test_a_product_or_convolution_counts_its_multiply_adds(case):
    left, right, result, target, attributes, flops = CALLS[case]
    module = program(left, right, result, target, attributes)
    assert is_library_product(module.computations["main"].root)
    cost = CostModel(module, {}).total()
    assert cost.flops == flops
    operands = [op.shapes[0] for op in module.computations["main"].instructions]
    assert cost.bytes == sum(shape.bytes for shape in operands), "the workspace is no part of that"


def test_the_precision_of_a_product_is_kept_as_that_of_a_dot():
    left, right, result, target, attributes, _ = CALLS["product"]
    root = program(left, right, result, target, attributes).computations["main"].root
    assert (root.precision, root.contracted) == ("highest", (2,))


@pytest.mark.parametrize(
    ("target", "flops"),
    [
        ("cusolver_potrf_ffi", 300**3 // 3),
        ("__cublas$triangularSolve", 300 * 300 * 7),
        ("lapack_dtrsm_ffi", 300 * 300 * 7),
        ("cublas_getrf_batched_ffi", 2 * 300**3 // 3),
        ("cusolver_syevd_ffi", 9 * 300**3),
        ("cusolver_gesvdj_ffi", None),
        ("__gpu$TopK", None),
        ("a_call_of_the_user", None),
        ("xla_ffi_python_gpu_callback", 0),
    ],
)
def test_factorisations_count_as_lapack_counts_them_and_others_are_unknown(target, flops):
    module = program("f32[300,300]", "f32[300,7]", "f32[300,300]", target, "backend_config={}")
    a, b, call = module.computations["main"].instructions
    assert call_flops(call, [a.shapes[0], b.shapes[0]]) == flops


def test_a_call_without_arrays_costs_nothing():
    """As the compiler of TPUs adds to find out which slice it is on."""
    text = (
        "HloModule m\n\nENTRY " + computation("main", '%c = u32[] custom-call(), custom_call_target="SliceId"') + "\n"
    )
    assert call_flops(parse(text).computations["main"].root, []) == 0


def test_other_custom_calls_are_of_no_library():
    assert not any(map(is_library_call, ("xla_ffi_python_gpu_callback", "__gpu$TopK", "tpu_custom_call", "")))


def test_the_kind_of_a_gpus_kernel_is_kept():
    inner = computation("fused", "%p = f32[8] parameter(0)", "%n = f32[8] negate(%p)")
    config = 'backend_config={"operation_queue_id":"0","fusion_backend_config":{"kind":"__triton","x":{"y":[1]}}}'
    lines = ("%a = f32[8] parameter(0)", f"%f = f32[8] fusion(%a), kind=kCustom, calls=%fused, {config}")
    module = parse(f"HloModule m\n\n{inner}\n\nENTRY " + computation("main", *lines) + "\n")
    assert module.computations["main"].root.kernel == "__triton"
