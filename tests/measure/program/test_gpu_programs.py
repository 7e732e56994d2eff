"""Programs compiled for GPUs that are not present, beside counts by hand: FLOP, library calls, fusions, host calls."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from support.compiled_texts import jitted, spec
from support.cuda_needed import needs_cuda_plugin
from support.programs import program_of

from perfsuite.measure.program.program_metrics import metrics_of
from perfsuite.measure.targets.target_compiler import CompileFailed

pytestmark = needs_cuda_plugin

GPU = "gpu-h100"
N = 256
PRODUCT = 2 * N**3
SQUARE, LAYERS = spec(N, N), spec(6, N, N)


def compiled(function, *arguments, target=GPU, **options):
    return program_of(jitted(function, *arguments, **options), target)


def scanned(weights, x):
    return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0]


def perceptron(weights, x):
    return jnp.sum(jnp.tanh(jnp.tanh(jnp.tanh(x @ weights[0]) @ weights[1]) @ weights[2]))


def convolved(x, kernel):
    return lax.conv_general_dilated(x, kernel, window_strides=(1, 1), padding="VALID")


IMAGES, KERNEL = spec(8, 64, 34, 34), spec(96, 64, 3, 3)
CONVOLUTION = 2 * 8 * 96 * 32 * 32 * 64 * 3 * 3

CASES = {
    "product": (jnp.matmul, (spec(512, 256), spec(256, 128)), 2 * 512 * 256 * 128),
    "product in bfloat16": (jnp.matmul, (spec(N, N, dtype=jnp.bfloat16),) * 2, PRODUCT),
    "product with a vector": (jnp.matmul, (spec(1024, 512), spec(512)), 2 * 1024 * 512),
    "attention": (
        functools.partial(jax.nn.dot_product_attention, implementation="xla"),
        (spec(4, N, 8, 256, dtype=jnp.bfloat16),) * 3,
        2 * 2 * 4 * 8 * N * N * 256,
    ),
    "scan": (scanned, (LAYERS, SQUARE), 6 * PRODUCT),
    # Forwards one product; backwards one for the weights and one for the input.
    "gradient of scan": (jax.grad(lambda w, x: jnp.sum(scanned(w, x))), (LAYERS, SQUARE), 6 * 3 * PRODUCT),
    # The compiler cuts small products into parts and adds these up: here that is less than 1 %.
    "gradient of a perceptron": (jax.grad(perceptron), (spec(3, 4 * N, 4 * N), spec(4 * N, 4 * N)), 8 * 64 * PRODUCT),
    "convolution": (convolved, (IMAGES, KERNEL), CONVOLUTION),
    "gradient of a convolution, of its input": (
        jax.grad(lambda x, k: jnp.sum(convolved(x, k) ** 2)),
        (IMAGES, KERNEL),
        2 * CONVOLUTION,
    ),
    "gradient of a convolution, of its kernel": (
        jax.grad(lambda x, k: jnp.sum(convolved(x, k) ** 2), argnums=1),
        (IMAGES, KERNEL),
        2 * CONVOLUTION,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_flops_are_those_counted_by_hand(case):
    function, arguments, flops = CASES[case]
    program = compiled(function, *arguments)
    # What is around the products: softmax of each score is some 5 operations beside 1024, a bias one beside 1152.
    assert program.flops == pytest.approx(flops, rel=0.01)
    if case != "product with a vector":  # which is a sum of an elementwise product there
        assert sum(product.flops * product.runs for product in program.products) == flops
    assert not program.at_least


@pytest.mark.parametrize("case", ["product", "scan", "gradient of a perceptron"])
def test_products_by_cublas_count_as_those_by_triton(case):
    """A T4 has no products by Triton."""
    function, arguments, flops = CASES[case]
    program = compiled(function, *arguments, target="gpu-t4")
    assert program.library_calls["__cublas$lt$matmul"] == len(program.products)
    assert not any(fusion.what.startswith("triton_gemm") for fusion in program.fusions)
    assert program.flops == pytest.approx(flops, rel=0.01)


M = 1024
MATRIX = spec(M, M)
FACTORISATIONS = {
    "cholesky": (jnp.linalg.cholesky, (MATRIX,), M**3 / 3, ["cusolver_potrf_ffi"]),
    "qr": (jnp.linalg.qr, (MATRIX,), 2 * 4 / 3 * M**3, ["cusolver_geqrf_ffi", "cusolver_orgqr_ffi"]),
    "solve": (
        jnp.linalg.solve,
        (MATRIX, MATRIX),
        (2 / 3 + 2) * M**3,
        ["__cublas$triangularSolve", "__cublas$triangularSolve", "cusolver_getrf_ffi"],
    ),
}


@pytest.mark.parametrize("case", FACTORISATIONS)
def test_factorisations_are_library_calls_of_known_flops(case):
    function, arguments, flops, calls = FACTORISATIONS[case]
    program = compiled(function, *arguments)
    assert sorted(call for call, count in program.library_calls.items() for _ in range(count)) == calls
    # The triangular copies around them are one or two operations an element.
    assert program.flops == pytest.approx(flops, rel=0.02)


def test_a_library_call_whose_flops_depend_on_data_makes_them_unknown():
    program = compiled(jnp.linalg.svd, SQUARE)
    assert (program.flops, program.bytes_accessed) == (None, None)
    (call,) = program.unestimated
    assert call.what == "cusolver_gesvdj_ffi"
    assert not {"flops", "bytes accessed"} & {metric.name.partition(" ")[2] for metric in metrics_of(program)}


def test_bytes_of_a_product_are_its_three_arrays_and_no_workspace():
    arguments = (spec(4096, 256), spec(256, 4096))
    arrays = 4 * (2 * 4096 * 256 + 4096 * 4096)
    for target in (GPU, "gpu-t4"):
        program = compiled(jnp.matmul, *arguments, target=target)
        assert program.bytes_accessed == arrays
    assert program.temp_bytes >= 2**20, "cuBLAS has a workspace"


def test_precision_of_products():
    for target in (GPU, "gpu-t4"):
        program = compiled(lambda a, b: jnp.matmul(a, b, precision="highest"), SQUARE, SQUARE, target=target)
        (product,) = program.high_precision_products
        assert (product.dtypes, product.precision) == (("f32", "f32"), "highest")
        assert not compiled(jnp.matmul, SQUARE, SQUARE, target=target).high_precision_products


def test_a_program_that_needs_more_memory_than_there_is_does_not_fit():
    """The GPU's compiler, unlike that of TPUs, does not refuse it."""
    program = compiled(lambda x: x + 1, spec(20, 1024, 1024, 1024))
    assert program.fits is False
    assert program.margin_bytes < 0
    # What pytest shows of a failed `assert program.fits`.
    argument, array = program.at_peak
    assert array.source.file == __file__
    assert repr(program).endswith(f"; does not fit: {argument.what} at args[0], {array.what} at {array.where}>")


@pytest.mark.parametrize("how", ["debug.print", "pure_callback", "io_callback"])
def test_calls_of_the_host_are_host_transfers(how):
    def function(x):
        if how == "debug.print":
            jax.debug.print("{}", x.mean())
        elif how == "pure_callback":
            x = jax.pure_callback(lambda x: x, x, x)
        else:
            jax.experimental.io_callback(lambda x: None, None, x)
        return x * 2

    (transfer,) = compiled(function, SQUARE).host_transfers
    assert transfer.what == "callback"
    assert transfer.source.file == __file__
    assert not compiled(lambda x: x * 2, SQUARE).host_transfers


def data_parallel(devices):
    mesh = jax.sharding.AbstractMesh((devices,), ("data",))
    whole, rows = (jax.sharding.NamedSharding(mesh, jax.P(*spec)) for spec in ((), ("data",)))

    def step(weights, x):
        return weights - jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(weights)

    arguments = spec(N, N, sharding=whole), spec(16 * 64, N, sharding=rows)
    return jitted(step, *arguments, donate_argnums=0)


@pytest.mark.parametrize(("devices", "chips"), [(8, None), (8, 16), (16, None)])
def test_a_data_parallel_step_reduces_its_gradients_once(devices, chips):
    program = program_of(data_parallel(devices), GPU, chips=chips)
    assert program.partitions == devices
    assert [collective.what for collective in program.collectives] == ["all-reduce"]
    assert program.collective_bytes == 4 * N * N
    assert program.flops == pytest.approx(2 * 2 * (1024 // devices) * N * N, rel=0.1)
    assert not program.resharding
    assert not program.lost_donations


def test_what_the_gpu_cannot_do_is_refused_with_the_compilers_reason():
    attention = functools.partial(jax.nn.dot_product_attention, implementation="xla")
    with pytest.raises(CompileFailed, match=r"gpu-t4 refused the program: .*algorithm.*ALG_DOT_BF16_BF16_F32"):
        compiled(attention, *(spec(2, 64, 4, 64, dtype=jnp.bfloat16),) * 3, target="gpu-t4")


@pytest.mark.usefixtures("cold_compilers")
def test_nothing_of_the_compiler_reaches_the_terminal(capfd):
    compiled(lambda x: jnp.sort(x) * 3, spec(4096))
    assert capfd.readouterr() == ("", "")


def test_a_program_of_thousands_of_arguments_compiles_and_reuses_them():
    """A TPU's program would take them as one tuple."""
    state = [spec(2) for _ in range(2100)]
    program = compiled(lambda state: [each + 1 for each in state], state, donate_argnums=0)
    assert len(program.reused_donations) + len(program.lost_donations) == 2100
    assert not program.lost_donations
