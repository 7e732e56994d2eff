"""FLOP and bytes of programs beside counts by hand, on the present device, and for a TPU and a GPU without one."""

import functools
import operator
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from support.compiled_texts import compile_here_or_for, jitted, spec
from support.compilers import skip_without_compiler
from support.programs import program_of

from perfsuite.measure.program.program_metrics import metrics_of

FILE = os.path.relpath(__file__)

N = 256
"""Rows and columns of the square products, of 2 * N**3 FLOP each."""

PRODUCT = 2 * N**3
LAYERS = spec(6, N, N)
SQUARE = spec(N, N)
COUNT = spec(dtype=jnp.int32)


def layer(x, weights):
    return jnp.tanh(x @ weights), None


def scanned(weights, x):
    return lax.scan(layer, x, weights)[0]


def repeated(times, weights, x):
    return lax.fori_loop(0, times, lambda _, x: x @ weights, x)


def by_steps(start, stop, step, weights, x):
    """The products of a loop that counts by `step`, up or down."""
    goes_on = operator.lt if step > 0 else operator.ge
    state = lax.while_loop(
        lambda state: goes_on(state[0], stop), lambda state: (state[0] + step, state[1] @ weights), (start, x)
    )
    return state[1]


def nested(weights, x):
    return lax.scan(lambda x, one: (repeated(5, one, x), None), x, weights)[0]


def nested_twice(weights, x):
    return lax.fori_loop(0, 3, lambda _, x: nested(weights, x), x)


def gradient(of):
    return jax.grad(lambda weights, x: jnp.sum(of(weights, x)))


def rematerialized(weights, x):
    return lax.scan(jax.checkpoint(layer), x, weights)[0]


def one_branch(index, weights, x):
    return lax.fori_loop(0, 6, lambda _, x: lax.cond(index > 0, lambda x: x @ weights, lambda x: x + 1.0, x), x)


def attention(weights, x):
    """Six layers of attention over as many positions as features, in 4 heads."""

    def heads(x, one):
        q, k, v = (jnp.reshape(x @ each, (N, 4, N // 4)) for each in one)
        scores = jax.nn.softmax(jnp.einsum("qhd,khd->hqk", q, k))
        return jnp.reshape(jnp.einsum("hqk,khd->qhd", scores, v), (N, N)), None

    return lax.scan(heads, x, weights)[0]


def convolved(x, kernel):
    convolution = functools.partial(lax.conv_general_dilated, window_strides=(1, 1), padding="SAME")
    return lax.map(lambda one: convolution(one, kernel), x)


def combined(matrices):
    return lax.associative_scan(jnp.matmul, matrices)


def solved(y, field):
    """20 steps of Euler's method, each of one product."""
    diffrax = pytest.importorskip("diffrax")
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, field: y @ field),
        diffrax.Euler(),
        t0=0.0,
        t1=1.0,
        dt0=None,
        y0=y,
        args=field,
        stepsize_controller=diffrax.StepTo(ts=jnp.linspace(0.0, 1.0, 21)),
        max_steps=20,
    )
    return solution.ys


def moved(steps, position, matrix, key):
    """A step of Hamiltonian Monte Carlo, whose density is one product and its gradient another."""
    blackjax = pytest.importorskip("blackjax")
    hmc = blackjax.hmc(
        lambda position: -jnp.sum((position @ matrix) ** 2), 1e-3, jnp.ones(position.size), num_integration_steps=steps
    )
    return hmc.step(key, hmc.init(position))[0].position


def moved_arguments():
    return spec(8, 2048), spec(2048, 2048), spec(2, dtype=jnp.uint32)


CASES = {
    "scan": (scanned, (LAYERS, SQUARE), 6 * PRODUCT),
    "scan of one": (scanned, (spec(1, N, N), SQUARE), PRODUCT),
    "scan, unrolled in part": (
        lambda weights, x: lax.scan(layer, x, weights, unroll=4)[0],
        (LAYERS, SQUARE),
        6 * PRODUCT,
    ),
    "reversed scan": (
        lambda weights, x: lax.scan(layer, x, weights, reverse=True)[0],
        (LAYERS, SQUARE),
        6 * PRODUCT,
    ),
    "fori_loop": (functools.partial(repeated, 7), (SQUARE, SQUARE), 7 * PRODUCT),
    "fori_loop of 1000": (functools.partial(repeated, 1000), (SQUARE, SQUARE), 1000 * PRODUCT),
    "while upwards by 3": (functools.partial(by_steps, 1, 30, 3), (SQUARE, SQUARE), 10 * PRODUCT),
    "while downwards by 2": (functools.partial(by_steps, 10, 0, -2), (SQUARE, SQUARE), 6 * PRODUCT),
    "scan of fori_loop": (nested, (LAYERS, SQUARE), 6 * 5 * PRODUCT),
    "fori_loop of scan of fori_loop": (nested_twice, (LAYERS, SQUARE), 3 * 6 * 5 * PRODUCT),
    # Forwards one product; backwards one for the weights and one for the input.
    "gradient of scan": (gradient(scanned), (LAYERS, SQUARE), 6 * 3 * PRODUCT),
    "gradient of scan, rematerialized": (gradient(rematerialized), (LAYERS, SQUARE), 6 * 4 * PRODUCT),
    "vmap of scan": (jax.vmap(scanned, (None, 0)), (LAYERS, spec(4, N, N)), 4 * 6 * PRODUCT),
    "cond in a loop": (one_branch, (COUNT, SQUARE, SQUARE), 6 * PRODUCT),
    "attention": (attention, (spec(6, 3, N, N), SQUARE), 6 * (3 * PRODUCT + 2 * 2 * N * N * N)),
    # Of 8 matrices: 4 products, then of 4: 2 + 1 (of 2: 1 + 0) and 1, then 3 to fill in.
    "associative_scan": (combined, (spec(8, N, N),), (4 + (2 + 1 + 0 + 1) + 3) * PRODUCT),
    "chain of products": (
        lambda a, b, c: (a @ b) @ c,
        (spec(64, 256), spec(256, 512), spec(512, 32)),
        2 * 64 * 256 * 512 + 2 * 64 * 512 * 32,
    ),
    "lax.map": (lambda x: lax.map(lambda one: one @ one, x), (LAYERS,), 6 * PRODUCT),
    "empty scan": (scanned, (spec(0, N, N), SQUARE), 0),
    "diffrax": (solved, (SQUARE, SQUARE), 20 * PRODUCT),
    # The gradient at the start, and one for each leapfrog.
    "blackjax, 10 leapfrogs": (functools.partial(moved, 10), moved_arguments(), 11 * 2 * 2 * 8 * 2048**2),
    "blackjax, 11 leapfrogs": (functools.partial(moved, 11), moved_arguments(), 12 * 2 * 2 * 8 * 2048**2),
    "gradient of a perceptron": (
        jax.grad(lambda weights, x: jnp.sum(jnp.tanh(jnp.tanh(jnp.tanh(x @ weights[0]) @ weights[1]) @ weights[2]))),
        (LAYERS, SQUARE),
        # Backwards one for each weight, and one for the input of all but the first.
        (3 + 3 + 2) * PRODUCT,
    ),
}


TARGETS = pytest.mark.parametrize("target", [None, "tpu-v5e"])


@TARGETS
@pytest.mark.parametrize("case", CASES)
def test_flops_are_those_counted_by_hand(case, target):
    function, arguments, products = CASES[case]
    program = compile_here_or_for(target, function, *arguments)
    assert sum(product.flops * product.runs for product in program.products) == products
    assert program.flops == pytest.approx(products, rel=0.01)
    assert not program.at_least


@pytest.mark.parametrize(("target", "rows"), [(None, 46), ("tpu-v5e", 72)])
def test_a_convolution_in_a_loop_is_what_the_compiler_makes_of_it(target, rows):
    """Of 16 positions with a kernel of 3, 46 products are not of padding.

    The TPU's compiler makes 8 groups of 3 rows of the 16, and convolves all of them.
    """
    program = compile_here_or_for(target, convolved, spec(5, 1, 128, 16, 16), spec(128, 128, 3, 3))
    products = 5 * 2 * 128 * 128 * 46 * rows
    assert sum(product.flops * product.runs for product in program.products) == products
    assert program.flops == pytest.approx(products, rel=0.01)


def limited(limit, weights, x):
    """Goes on until the sum is large enough, but never more than 20 times."""
    state = lax.while_loop(
        lambda state: (state[0] < 20) & (jnp.sum(state[1]) < limit),
        lambda state: (state[0] + 1, state[1] @ weights),
        (0, x),
    )
    return state[1]


def solved_within(y, field):
    """Euler's method of 20 steps, which diffrax ends after 64."""
    diffrax = pytest.importorskip("diffrax")
    term = diffrax.ODETerm(lambda t, y, field: y @ field)
    return diffrax.diffeqsolve(term, diffrax.Euler(), t0=0.0, t1=1.0, dt0=0.05, y0=y, args=field, max_steps=64).ys


LIMITED = {
    "while": (limited, (spec(), SQUARE, SQUARE), 20),
    "while in a loop": (
        lambda limit, weights, x: lax.fori_loop(0, 3, lambda _, x: limited(limit, weights, x), x),
        (spec(), SQUARE, SQUARE),
        3 * 20,
    ),
    "diffrax": (solved_within, (SQUARE, SQUARE), 64),
}


@pytest.mark.parametrize("target", [None, "tpu-v5e"])
@pytest.mark.parametrize("case", LIMITED)
def test_a_loop_that_may_end_before_its_limit_counts_so_often_as_that_allows_and_is_named(case, target):
    function, arguments, products = LIMITED[case]
    program = compile_here_or_for(target, function, *arguments)
    assert sum(product.flops * product.runs for product in program.products) == products * PRODUCT
    assert program.flops == pytest.approx(products * PRODUCT, rel=0.01)
    assert not program.at_least
    (loop,) = [each for each in program.at_most if each.what == "while"]
    first = line_of(solved_within if case == "diffrax" else limited)
    assert loop.source.file == __file__
    assert first < loop.source.line <= first + 4


@pytest.mark.parametrize("target", [None, "tpu-v5e"])
def test_a_loop_with_two_limits_that_are_both_known_is_no_bound(target):
    def function(weights, x):
        return lax.while_loop(
            lambda state: (state[0] < 20) & (state[1] > 4),
            lambda state: (state[0] + 1, state[1] - 2, state[2] @ weights),
            (0, 17, x),
        )[2]

    program = compile_here_or_for(target, function, SQUARE, SQUARE)
    assert program.flops == pytest.approx(7 * PRODUCT, rel=0.01)
    assert (program.at_least, program.at_most) == ((), ())


def endless(limit, weights, x):
    return lax.while_loop(lambda x: jnp.sum(x) < limit, lambda x: x @ weights, x)


def line_of(function):
    return function.__code__.co_firstlineno


@TARGETS
def test_a_loop_whose_iterations_depend_on_data_counts_once_and_is_named(target):
    program = compile_here_or_for(target, endless, spec(), SQUARE, SQUARE)
    assert program.flops == pytest.approx(PRODUCT, rel=0.01)
    (loop,) = program.at_least
    assert (loop.iterations, loop.source.line, loop.source.file) == (None, line_of(endless) + 1, __file__)
    assert not program.at_most


@TARGETS
def test_a_loop_of_unknown_count_in_a_loop_counts_once_in_each_iteration(target):
    program = compile_here_or_for(
        target,
        lambda weights, x, limit: lax.fori_loop(0, 5, lambda _, x: endless(limit, weights, x), x),
        SQUARE,
        SQUARE,
        spec(),
    )
    assert program.flops == pytest.approx(5 * PRODUCT, rel=0.01)
    assert [(loop.runs, loop.source.line) for loop in program.at_least] == [(5, line_of(endless) + 1)]


@TARGETS
def test_a_conditional_counts_with_its_largest_branch_and_is_named(target):
    program = compile_here_or_for(target, one_branch, COUNT, SQUARE, SQUARE)
    assert [branch.source.line for branch in program.at_most] == [line_of(one_branch) + 1]
    assert not program.at_least


@TARGETS
def test_branches_of_the_same_cost_are_no_bound(target):
    def function(index, weights, x):
        return lax.cond(index > 0, lambda x: x @ weights, lambda x: weights @ x, x)

    program = compile_here_or_for(target, function, COUNT, SQUARE, SQUARE)
    assert program.flops == pytest.approx(PRODUCT, rel=0.01)
    assert program.at_most == ()


def widened(x):
    return (x * np.linspace(0.0, 1.0, N)).sum().astype(x.dtype)


@TARGETS
def test_operations_in_float64_are_named_with_their_line(target):
    """A TPU has none, and makes pairs of float32 of them."""
    with jax.enable_x64(True):
        wide = compile_here_or_for(target, widened, SQUARE)
    assert compile_here_or_for(target, widened, SQUARE).float64_operations == ()
    assert {operation.where for operation in wide.float64_operations} == {f"{FILE}:{line_of(widened) + 1} in widened"}


@TARGETS
def test_parts_are_of_all_runs(target):
    """The line in the loop has its part of the FLOP, and of the bytes: of each weight only its own slice."""
    program = compile_here_or_for(target, scanned, spec(32, N, N), SQUARE)
    found = {metric.name.rpartition(" ")[2]: metric for metric in metrics_of(program)}
    flops, exponentials = found["flops"], found["transcendentals"]
    assert (sum(flops.detail.values()), sum(exponentials.detail.values())) == (program.flops, program.transcendentals)
    product, in_layer = max(flops.detail, key=flops.detail.get), f"{FILE}:{line_of(layer) + 1} in layer"
    assert (flops.detail[product], flops.places[product]) == (32 * PRODUCT, in_layer)
    assert exponentials.places == dict.fromkeys(exponentials.detail, in_layer)
    read = sum(found["accessed"].detail.values())
    assert 0.8 * program.bytes_accessed < read < 1.25 * program.bytes_accessed
    # 32 slices, each read and written once or twice, and the product's three arrays; not 32 times all 32 weights.
    assert 32 * 4 * SQUARE.size < program.bytes_accessed < 32 * 12 * 4 * SQUARE.size


def test_collective_bytes_are_of_all_iterations():
    mesh = jax.sharding.AbstractMesh((4,), ("d",))

    def reduced(x):
        return lax.fori_loop(0, 7, lambda _, x: lax.psum(x, "d") * 0.25, x)

    function = jax.shard_map(reduced, mesh=mesh, in_specs=jax.P(), out_specs=jax.P(), check_vma=False)
    whole = spec(64, 64, sharding=jax.sharding.NamedSharding(mesh, jax.P()))
    program = compile_here_or_for("tpu-v5e", function, whole)
    assert [collective.runs for collective in program.collectives] == [7]
    assert program.collective_bytes == 7 * 64 * 64 * 4


ROWS = 64 * 1024 * 4
"""Bytes of 64 rows of a table of 256 MiB."""
TABLE, INDICES, VALUES = spec(65536, 1024), spec(64, dtype=jnp.int32), spec(64, 1024)
CACHE, ENTRY = spec(8, 4096, 512), spec(8, 1, 512)


def written(cache, entry, position):
    return lax.dynamic_update_slice(cache, entry, (0, position, 0))


TOUCHED = {
    "gather": (lambda table, rows: table[rows], (TABLE, INDICES), 2 * ROWS),
    "gather in a branch": (
        lambda rows, table, index: lax.cond(index > 0, lambda: table[rows], lambda: jnp.zeros(VALUES.shape)),
        (INDICES, TABLE, COUNT),
        2 * ROWS,
    ),
    # Donated: each of these would copy the table otherwise.
    "scatter": (lambda table, rows, values: table.at[rows].set(values), (TABLE, INDICES, VALUES), 2 * ROWS),
    "scatter that adds": (lambda table, rows, values: table.at[rows].add(values), (TABLE, INDICES, VALUES), 3 * ROWS),
    "cache": (written, (CACHE, ENTRY, COUNT), 2 * 4 * ENTRY.size),
    "cache in a loop": (
        lambda cache, entry: lax.fori_loop(0, 10, lambda i, cache: written(cache, entry, i), cache),
        (CACHE, ENTRY),
        10 * 2 * 4 * ENTRY.size,
    ),
    # Two rows read, one written, in each iteration.
    "rows in a loop": (
        lambda table: lax.fori_loop(0, 50, lambda i, total: total + table[3 * i, :], jnp.zeros(1024)),
        (TABLE,),
        50 * 3 * 1024 * 4,
    ),
}


@pytest.mark.parametrize("target", [None, "gpu-h100", "tpu-v5e"])
@pytest.mark.parametrize("case", TOUCHED)
def test_bytes_are_those_that_a_gather_a_scatter_and_an_update_touch(case, target):
    function, arguments, touched = TOUCHED[case]
    if target is not None:
        skip_without_compiler(target)
    program = program_of(jitted(function, *arguments, donate_argnums=0), target)
    # A TPU pads scalars and indices, and writes some rows twice.
    assert touched <= program.bytes_accessed < touched * (3 if target == "tpu-v5e" else 1.01)


def triangular(a, b):
    return jax.scipy.linalg.solve_triangular(a, b, lower=True)


M = 1024
MATRIX = spec(M, M)
FACTORISED = {
    "cholesky": (jnp.linalg.cholesky, (MATRIX,), M**3 / 3),
    "lu": (jnp.linalg.solve, (MATRIX, MATRIX), (2 / 3 + 2) * M**3),
    "qr": (jnp.linalg.qr, (MATRIX,), 8 / 3 * M**3),
    "triangular": (triangular, (MATRIX, spec(M, 512)), M * M * 512),
    "triangular, complex": (triangular, (spec(M, M, dtype=jnp.complex64),) * 2, 4 * M**3),
    "eigenvectors": (jnp.linalg.eigh, (spec(3, 256, 256),), 3 * 9 * 256**3),
    "singular vectors": (jnp.linalg.svd, (MATRIX,), 20 / 3 * M**3),
    "singular values": (lambda x: jnp.linalg.svd(x, compute_uv=False), (MATRIX,), 8 / 3 * M**3),
}


@pytest.mark.parametrize("case", FACTORISED)
def test_calls_of_lapack_count_as_their_books_count_them(case):
    function, arguments, flops = FACTORISED[case]
    program = compile_here_or_for(None, function, *arguments)
    # Beside them are a few operations for each element.
    assert program.flops == pytest.approx(flops, rel=0.015)
    assert program.bytes_accessed >= sum(shape.size * shape.dtype.itemsize for shape in arguments)


@pytest.mark.parametrize(("target", "products"), [(None, 4), ("gpu-h100", 4), ("tpu-v5e", 3)])
def test_a_complex_product_counts_its_real_ones(target, products):
    """A TPU's compiler makes three of them, and some sums."""
    program = compile_here_or_for(target, jnp.matmul, *(spec(M, M, dtype=jnp.complex64),) * 2)
    assert program.flops == pytest.approx(products * 2 * M**3, rel=0.01)
    assert sum(product.flops for product in program.products) == products * 2 * M**3


@pytest.mark.parametrize("target", [None, "gpu-h100"])
def test_operations_on_complex_numbers_count_those_on_real_ones(target):
    numbers = spec(64, dtype=jnp.complex64)
    for function, operations in ((lambda x, y: x * y, 6), (lambda x, y: x + y, 2)):
        assert compile_here_or_for(target, function, numbers, numbers).flops == 64 * operations


@pytest.mark.parametrize("target", [None, "tpu-v5e"])
def test_a_ragged_product_counts_what_is_multiplied(target):
    """On the CPU all groups times all rows, of which a mask keeps what is asked for."""
    arguments = spec(512, 128), spec(4, 128, 256), spec(4, dtype=jnp.int32)
    program = compile_here_or_for(target, lax.ragged_dot, *arguments)
    assert program.flops == pytest.approx(2 * 512 * 128 * 256 * (1 if target else 4), rel=0.01)


@pytest.mark.parametrize(
    ("target", "function", "call"),
    [
        (None, lambda x: lax.top_k(x.ravel(), 8), "TopK"),
        ("gpu-h100", lambda x: lax.top_k(x.ravel(), 8), "__gpu$TopK"),
        pytest.param(
            "gpu-h100",
            lambda x: lax.approx_max_k(x.ravel(), 8),
            "__gpu$TopK",
            marks=pytest.mark.skipif(jax.__version_info__ >= (0, 12), reason="from jax 0.12 on it is a sort there"),
        ),
        ("tpu-v5e", jnp.linalg.eigh, "EighTpu"),
    ],
)
def test_an_unknown_call_makes_costs_unknown_and_the_known_part_stays_gated(target, function, call):
    def after_a_product(x):
        return function(x @ x)

    program = compile_here_or_for(target, after_a_product, SQUARE)
    assert (program.flops, program.bytes_accessed, program.transcendentals, program.bounds) == (None, None, None, {})
    assert {each.what for each in program.unestimated} == {call}
    # The GPU's compiler makes its call without a line.
    assert target == "gpu-h100" or program.unestimated[0].source.file == __file__
    metrics = {metric.name.partition(" ")[2]: metric for metric in metrics_of(program)}
    assert not {"flops", "bytes accessed", "transcendentals"} & metrics.keys()
    assert PRODUCT <= metrics["known flops"].value < 1.2 * PRODUCT
    assert metrics["known flops"].kind == metrics["known bytes accessed"].kind == "size"
    assert metrics["known bytes accessed"].value >= 3 * 4 * SQUARE.size, "the product's arrays, and the call's"


def test_a_call_of_the_host_costs_the_device_its_arrays():
    program = compile_here_or_for(None, lambda x: jax.pure_callback(lambda x: x, x, x), SQUARE)
    assert (program.flops, program.bytes_accessed) == (0, 2 * 4 * SQUARE.size)
