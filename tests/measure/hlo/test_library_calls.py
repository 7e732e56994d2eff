"""FLOP and bytes of the calls of NVIDIA's libraries, from lines as XLA prints them for a GPU."""

import pytest
from support.compiled_texts import computation

from perfsuite.measure.hlo.cost_model import CostModel
from perfsuite.measure.hlo.library_calls import is_library_product, library_flops, library_of
from perfsuite.measure.hlo.reader import parse_hlo

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
    return parse_hlo("HloModule m\n\nENTRY " + computation("main", *lines) + "\n")


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
    assert root.attributes["operand_precision"] == '{"highest","default"}'


@pytest.mark.parametrize(
    ("target", "flops"),
    [
        ("cusolver_potrf_ffi", 300**3 // 3),
        ("__cublas$triangularSolve", 2 * 300 * 300 * 7),
        ("cusolver_syevd_ffi", None),
    ],
)
def test_factorisations_count_as_lapack_counts_them_and_others_are_unknown(target, flops):
    module = program("f32[300,300]", "f32[300,7]", "f32[300,300]", target, "backend_config={}")
    a, b, call = module.computations["main"].instructions
    assert library_of(call.custom_call_target)
    assert library_flops(call, [a.shapes[0], b.shapes[0]]) == flops


def test_other_custom_calls_are_of_no_library():
    assert not any(map(library_of, ("xla_ffi_python_gpu_callback", "__gpu$TopK", "tpu_custom_call", None)))


def test_the_kind_of_a_gpus_kernel_is_kept():
    inner = computation("fused", "%p = f32[8] parameter(0)", "%n = f32[8] negate(%p)")
    config = 'backend_config={"operation_queue_id":"0","fusion_backend_config":{"kind":"__triton","x":{"y":[1]}}}'
    lines = ("%a = f32[8] parameter(0)", f"%f = f32[8] fusion(%a), kind=kCustom, calls=%fused, {config}")
    module = parse_hlo(f"HloModule m\n\n{inner}\n\nENTRY " + computation("main", *lines) + "\n")
    assert module.computations["main"].root.kernel == "__triton"
