"""Regressions planted in the programs of a user's steps: each fails its gate, and the message names its line.

The baselines are saved, then one line of the project changes. Programs are compiled for a TPU and a GPU that are not here,
those of the baselines once for all tests of this file.
"""

import re
from typing import NamedTuple

import jax
import pytest
from support.cuda_needed import UNAVAILABLE, needs_cuda_plugin
from support.libtpu_needed import needs_libtpu

from perfsuite.measure.call import call
from perfsuite.measure.program.lowering import lower_call
from perfsuite.measure.targets.targets import target as target_of

pytestmark = [
    pytest.mark.usefixtures("quick_to_compile"),
    pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning"),  # since jax 0.12
]

MODEL = """
import jax
import jax.numpy as jnp

BATCH, LENGTH, WIDTH, HIDDEN, WORDS = 2, 64, 128, 256, 128
BF16, F32 = jnp.bfloat16, jnp.float32


def initial_state():
    zeros = {"up": jnp.zeros((WIDTH, HIDDEN)), "down": jnp.zeros((HIDDEN, WIDTH)), "head": jnp.zeros((WIDTH, WORDS))}
    state = {name: jax.tree.map(jnp.copy, zeros) for name in ("params", "mean", "square")}
    return state | {"step": jnp.zeros((), jnp.int32), "losses": jnp.zeros((3000,))}


def batch():
    return {"x": jnp.ones((BATCH, LENGTH, WIDTH), BF16), "labels": jnp.ones((BATCH, LENGTH), jnp.int32)}


def dropout(x, key):
    keep = jax.random.bernoulli(key, 0.9, x.shape)
    return jnp.where(keep, x / 0.9, 0)


def block(params, x, key):
    hidden = jax.nn.gelu(x @ params["up"].astype(BF16))
    hidden = dropout(hidden, key)
    return x + hidden @ params["down"].astype(BF16)


def loss_fn(params, batch, key):
    x = block(params, batch["x"], key)
    scores = jax.nn.log_softmax((x @ params["head"].astype(BF16)).astype(F32))
    return -jnp.take_along_axis(scores, batch["labels"][..., None], -1).mean()


def adamw(gradient, weight, mean, square, step):
    mean = 0.9 * mean + 0.1 * gradient
    square = 0.999 * square + 0.001 * gradient**2
    change = mean / (1 - 0.9**step) / (jnp.sqrt(square / (1 - 0.999**step)) + 1e-8)
    return {"params": weight - 1e-4 * (change + 0.01 * weight), "mean": mean, "square": square}


def train_step(state, batch, key):
    loss, gradients = jax.value_and_grad(loss_fn)(state["params"], batch, key)
    step = state["step"] + 1
    updated = jax.tree.map(
        lambda *leaves: adamw(*leaves, step), gradients, state["params"], state["mean"], state["square"]
    )
    new = {part: {name: updated[name][part] for name in gradients} for part in ("params", "mean", "square")}
    losses = jnp.roll(state["losses"], 1).at[0].set(loss)
    return new | {"step": step, "losses": losses}, loss


train_step = jax.jit(train_step, donate_argnums=0)
"""

SHARDED = """
import functools
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def of(shape, dtype, *spec):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))


def initial_params():
    return {"up": of((256, 1024), jnp.float32, None, "model"), "down": of((1024, 256), jnp.float32, "model", None)}


def batch():
    return of((64, 256), jnp.bfloat16, "data", None)


def rows(x):
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("data", None)))


def loss_fn(params, x):
    out = jax.nn.gelu(x @ params["up"].astype(x.dtype)) @ params["down"].astype(x.dtype)
    return jnp.mean(out.astype(jnp.float32) ** 2)


@functools.partial(jax.jit, donate_argnums=0)
def sharded_step(params, x):
    gradients = jax.grad(loss_fn)(params, x)
    return jax.tree.map(lambda weight, gradient: weight - 1e-3 * gradient, params, gradients)
"""

LOOPS = """
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas

STEPS = 10


def leapfrog(x, matrix):
    return x + 0.1 * (x @ matrix)


def hmc_step(x, matrix):
    return lax.fori_loop(0, STEPS, lambda _, x: leapfrog(x, matrix), x)


def until_small(x, matrix):
    y = x @ matrix
    return lax.while_loop(lambda y: jnp.sum(y) > 1, lambda y: leapfrog(y, matrix), y)


def solve(x, matrix):
    state = 0, x
    return lax.while_loop(lambda s: (s[0] < STEPS) & (jnp.sum(s[1]) > 1), lambda s: (s[0] + 1, leapfrog(s[1], matrix)), state)


def doubling(x, out):
    out[...] = x[...] * 2


def with_kernel(x, matrix):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pallas.pallas_call(doubling, out_shape=shape, name="doubled")(x @ matrix)


def write(buffer, update, row):
    return lax.dynamic_update_slice(buffer, update, (row,))


def unrolled(buffers, updates, rows):
    return jnp.stack([write(*each) for each in zip(buffers, updates, rows)])


write_all = unrolled
ROWS_AT_ONCE = 32


def row(x):
    return jnp.tanh(x) * jnp.exp(-x)


def rows(xs, matrix):
    return lax.map(row, xs, batch_size=ROWS_AT_ONCE)


def gated(on, x):
    return lax.cond(on, lambda x: jnp.sin(x @ x), lambda x: x + 1.0, x)


every = lax.map


def each_gated(x, matrix):
    return every(lambda x: gated(x[0, 0] > 0, x), x.reshape(4, 64, 64))
"""

KERNEL = """
import jax
from jax.experimental import pallas

ROWS = 512


def doubling(x, out):
    out[...] = x[...] * 2


def doubled(x):
    block = pallas.BlockSpec((ROWS, 512), lambda i: (i, 0))
    cost = pallas.CostEstimate(flops=x.size, transcendentals=0, bytes_accessed=8 * x.size)
    call = pallas.pallas_call(doubling, out_shape=x, grid=(x.shape[0] // ROWS,), in_specs=[block], out_specs=block, cost_estimate=cost, name="doubled")
    return call(x)
"""

BLOCKS = """
import jax
import jax.numpy as jnp
from jax.experimental import pallas

ROWS = 256


def product_kernel(x, y, out):
    out[...] = jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)


def product(x, y):
    rows, whole = pallas.BlockSpec((ROWS, 512), lambda i: (i, 0)), pallas.BlockSpec((512, 512), lambda i: (0, 0))
    return pallas.pallas_call(product_kernel, out_shape=x, grid=(4096 // ROWS,), in_specs=[rows, whole], out_specs=rows, name="product")(x, y)


def scaling(x, out):
    y = x[...] * 3 + 1
    out[...] = y


def scaled(x):
    rows = pallas.BlockSpec((512, 128), lambda i: (i, 0))
    return pallas.pallas_call(scaling, out_shape=x, grid=(16,), in_specs=[rows], out_specs=rows, name="scaled")(x)
"""

TILES = """
import jax
from jax.experimental import pallas
from jax.experimental.pallas import triton

ROWS = 64


def scaling(x, out):
    out[...] = x[...] * 3 + 1


def scaled(x):
    rows = pallas.BlockSpec((ROWS, 128), lambda i: (i, 0))
    options = {"name": "scaled", "compiler_params": triton.CompilerParams(num_warps=4)}
    return pallas.pallas_call(scaling, out_shape=x, grid=(8192 // ROWS,), in_specs=[rows], out_specs=rows, **options)(x)
"""

GATHERS = """
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P

MESH = AbstractMesh((8,), ("device",))
WHOLE = NamedSharding(MESH, P())


def of(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(MESH, P("device")))


def layers(weights, x):
    for weight in weights:
        y = x
        x = jax.nn.relu(y @ lax.with_sharding_constraint(weight, WHOLE))
    return x
"""

DEEP = """
import jax
import jax.numpy as jnp


def feed_forward(x, weight):
    return x + jax.nn.gelu(x @ weight) @ weight.T


def abstract(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


layer = jax.checkpoint(feed_forward)


def loss_fn(weights, x):
    for weight in weights:
        x = layer(x, weight)
    return jnp.sum(x**2)


def deep_step(weights, x):
    gradients = jax.grad(loss_fn)(weights, x)
    updated = jax.tree.map(lambda weight, gradient: weight - 1e-3 * gradient, weights, gradients)
    return updated


deep_step = jax.jit(deep_step, donate_argnums=0)
"""

TIMES = """
import jax
import jax.numpy as jnp
from jax.lax import optimization_barrier

BF16, F32 = jnp.bfloat16, jnp.float32
LENGTH = 32


def of(*shape):
    return jax.ShapeDtypeStruct(shape, BF16)


def attention(query, key, value):
    scores = query @ key.mT
    weights = jax.nn.softmax(scores.astype(F32)).astype(BF16)
    return weights @ value


def layer(x, weight):
    return jnp.tanh(x @ weight)


def scanned(x, weight):
    return jax.lax.scan(lambda x, _: (layer(x, weight), None), x, None, length=LENGTH)[0]


def added(x, y):
    total = x + y
    return total


def summed(x, weight):
    for _ in range(4):
        x = layer(x, weight)
    return x.astype(F32).sum()


gradient = jax.grad(summed)
"""

SLICES = """
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

MESH = AbstractMesh((2, 4), ("slice", "chip"))
ROWS = PartitionSpec(("slice", "chip"))


def normalised(x):
    mean = lax.pmean(x, "chip")
    return x - mean


def step(x):
    y = jax.shard_map(normalised, mesh=MESH, in_specs=ROWS, out_specs=ROWS, check_vma=False)(jnp.sin(x))
    return y * 2


X = jax.ShapeDtypeStruct((1024, 512), jnp.float32, sharding=NamedSharding(MESH, ROWS))
"""


class Project(NamedTuple):
    """The source of a module, and its programs: a call by name."""

    source: str
    calls: dict[str, str]
    options: str = ""


def of_square(*names):
    return {name: f"call(jax.jit({name}), SQUARE, SQUARE)" for name in names}


PROJECTS = {
    "model": Project(MODEL, {"train_step": "call(train_step, initial_state(), batch(), jax.random.key(1), carry=1)"}),
    "sharded": Project(SHARDED, {"sharded_step": "call(sharded_step, initial_params(), batch())"}),
    "loops": Project(LOOPS, of_square("hmc_step", "until_small", "solve")),
    "steps": Project(
        LOOPS,
        of_square("rows", "each_gated")
        | {"write_all": "call(jax.jit(lambda *of: write_all(*of)), SQUARE, SQUARE[:, :2], jnp.zeros(128, int))"},
    ),
    "gathers": Project(GATHERS, {"layers": "call(jax.jit(layers), [of(4096, 4096)] * 4, of(8192, 4096))"}),
    "deep": Project(DEEP, {"deep_step": "call(deep_step, [abstract(512, 2048)] * 4, abstract(16, 1024, 512))"}),
    "times": Project(
        TIMES,
        {
            "attention": "call(jax.jit(attention), *[of(4, 1024, 128)] * 3)",
            "scanned": "call(jax.jit(scanned), of(1024, 1024), of(1024, 1024))",
            "added": "call(jax.jit(added), of(2048, 4096), of(2048, 4096))",
            "gradient": "call(jax.jit(gradient), of(2048, 1024), of(1024, 1024))",
        },
    ),
    "kernel": Project(KERNEL, {"doubled": "call(jax.jit(doubled), jax.ShapeDtypeStruct((8192, 512), jnp.float32))"}),
    "blocks": Project(
        BLOCKS,
        {
            "product": "call(jax.jit(product), jnp.ones((4096, 512)), jnp.ones((512, 512)))",
            "scaled": "call(jax.jit(scaled), jnp.ones((8192, 128)))",
        },
    ),
    "tiles": Project(TILES, {"scaled": "call(jax.jit(scaled), jnp.ones((8192, 128)))"}),
    "slices": Project(SLICES, {"step": "call(jax.jit(step), X)"}, ", chips=8, slices=2"),
    "unknown": Project(LOOPS, of_square("with_kernel")),
}


def written_tests(module: str) -> str:
    """The perf tests of a module."""
    project = PROJECTS[module]
    tests = [
        f"def test_{name}(perf, perf_target):\n    perf.program({made}, perf_target, name={name!r}{project.options})"
        for name, made in project.calls.items()
    ]
    head = f"import jax\nimport jax.numpy as jnp\nfrom {module} import *\nfrom perfsuite import call\n"
    return f"{head}SQUARE = jnp.ones((128, 128))\n\n" + "\n\n".join(tests)


@pytest.fixture(scope="module", autouse=True)
def _dialects_of_triton():
    """Lower a kernel for a GPU in this process: its dialects register once, and modules go with the session."""
    if not UNAVAILABLE:
        module = {}
        exec(TILES, module)
        x = jax.ShapeDtypeStruct((8192, 128), "float32")
        lower_call(call(jax.jit(module["scaled"]), x), "cuda", device_kind=target_of(GPU).device_kind)


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run(pytester, cache_dir):
    """Run pytest in a folder with all projects."""
    pytester.makepyfile(**{name: project.source for name, project in PROJECTS.items()})
    pytester.makepyfile(**{f"test_{name}": written_tests(name) for name in PROJECTS})
    # The mesh needs four devices; this process has more by its own conftest.py.
    pytester.makeconftest(
        "import jax\nif jax.config.jax_num_cpu_devices < 4: jax.config.update('jax_num_cpu_devices', 4)"
    )
    pytester.makeini(f"[pytest]\npythonpath = .\ncache_dir = {cache_dir}\n")

    def run(*arguments: str, target: str | None) -> pytest.RunResult:
        return pytester.runpytest_inprocess(*arguments, *([f"--perf-target={target}"] if target else []))

    return run


TPU, GPU = "tpu-v5e", "gpu-h100"
OF_DEVICES = {TPU: needs_libtpu, GPU: needs_cuda_plugin, None: ()}
SECTION = "differences from the baseline's program:"


def planted(name, module, old, new, words, *targets):
    """A plant for each of these targets. In `words`, `{line}` stands for the place of the plant."""
    return [
        pytest.param(target, module, old, new, words, id=f"{name} {target}", marks=OF_DEVICES[target])
        for target in targets
    ]


PRINT = (
    "    hidden = jax.nn.gelu(x @",
    '    jax.debug.print("{}", x.mean()); hidden = jax.nn.gelu(x @',
)
HIDDEN = 'jax.nn.gelu(x @ params["up"].astype(x.dtype))'

PLANTS = [
    *planted(
        "a donation lost to another dtype", "model", '"losses": losses}', '"losses": losses.astype(BF16)}',
        [
            r"lost donations.* is 1 buffer, \+1 over the baseline 0 buffers",
            r"args\[0\]\['losses'\] \(float32\[3000\]: no output took its memory\) \(\+1\) at model.py:\d+ in train_step",
        ],
        TPU, GPU,
    ),
    *planted(
        "no donation any more", "model", "jax.jit(train_step, donate_argnums=0)", "jax.jit(train_step)",
        [
            r"\ntrain_step reused donations.* is 0 buffers, \d+ \(-100 %\) under the baseline \d+ buffers; fell: args\[0\]",
        ],
        TPU, GPU, None,
    ),
    *planted(
        "a cast to float32", "model", "keep = jax.random", "x = x.astype(jnp.float32); keep = jax.random",
        [r"bf16 to f32 in dropout \(model.py\) \(\+1\) at {line} in dropout"],
        GPU,
    ),
    *planted(
        "an output of a wider type", "model", 'return new | {"step": step, "losses": losses}, loss',
        'return new | {"step": step, "losses": losses}, jnp.ones((64, 64)) * loss',
        [r"\ntrain_step output bytes.*; grew: result\[1\] \(\+16,380\)"],
        None,
    ),
    *planted(
        "a sharding that is lost", "sharded", 'of((256, 1024), jnp.float32, None, "model")', "of((256, 1024), jnp.float32)",
        [r"likely cause: args\[0\]\['up'\]: in 2 shards before, whole on each device now: jax.device_put"],
        TPU, None,
    ),
    *planted(
        "longer by float32", "times", "x @ weight", 'jnp.matmul(x.astype(F32), weight.astype(F32), precision="highest").astype(BF16)',
        [r"gradient estimated us.* is .*% over the baseline .*\+[\d.]+\) at {line} in layer, bound by"],
        GPU,
    ),
    *planted(
        "longer by a softmax in pieces", "times", "softmax(scores.astype(F32))", "softmax(optimization_barrier(scores.astype(F32)))",
        [r"attention estimated us.* is .*% over the baseline .*\+[\d.]+\) at {line} in attention, bound by memory"],
        TPU, GPU,
    ),
    *planted(
        "longer by a transposition", "times", "    return total", "    return optimization_barrier(optimization_barrier(total).T.reshape(total.shape))",
        [r"added estimated us.* is .*% over the baseline .*\+[\d.]+\) at {line} in added, bound by memory"],
        TPU, GPU,
    ),
    *planted(
        "longer by an iteration", "times", "LENGTH = 32", "LENGTH = 33",
        [r"scanned estimated us.* is .*\+3\.\d+ % over the baseline .* at times.py:\d+ in layer, bound by"],
        TPU, GPU,
    ),
    *planted(
        "longer by what is computed again", "times", "x = layer(x, weight)", "x = jax.checkpoint(layer)(x, weight)",
        [r"gradient estimated us.* is .*% over the baseline .*\+[\d.]+\) at times.py:\d+ in layer, bound by"],
        TPU, GPU,
    ),
    *planted(
        "a float32 product", "model", 'x @ params["up"].astype(BF16)', '(x @ params["up"]).astype(BF16)',
        [r"float32 products", r"f32 \w+ in block \(model.py\) \(\+\d\) at {line} in block"],
        TPU,
    ),
    *planted(
        "a broken dropout fusion", "model",
        "keep = jax.random.bernoulli(key, 0.9, x.shape)",
        "keep = jax.lax.optimization_barrier(jax.random.bernoulli(key, 0.9, x.shape))",
        [
            r"fusion in dropout \(model.py\) \(\+\d\) at {line} in dropout",
            SECTION,
            r"\n  unfused: _uniform and \w+ were in one kernel: model.py:\d+",
        ],
        TPU,
    ),
    *planted(
        "2 % more bytes", "model",
        'step = state["step"] + 1',
        'step = state["step"] + jnp.isfinite(state["mean"]["up"]).any().astype(jnp.int32)',
        [
            r"bytes accessed.* is .*, \+2\.1\d* % over the baseline",
            r"fusion in train_step \(model.py\) \(\+131,584\) at {line} in train_step",
        ],
        TPU,
    ),
    *planted(
        "a library call for a fusion", "model",
        "jax.jit(train_step, donate_argnums=0)",
        'jax.jit(train_step, donate_argnums=0, compiler_options={"xla_gpu_enable_triton_gemm": False})',
        [r"custom calls", r"__cublas\$lt\$matmul in block \(model.py\) \(\+\d\) at model.py:\d+ in block"],
        GPU,
    ),
    *planted("a print left in", "model", *PRINT, [r"send in block \(model.py\) \(\+1\) at {line} in block"], TPU),
    *planted(
        "a print left in", "model", *PRINT, [r"callback in block \(model.py\) \(\+1\) at {line} in block"], GPU, None
    ),
    *planted(
        "an extra all-gather", "sharded", HIDDEN, f"rows({HIDDEN})",
        [r"resharding", r"all-gather in loss_fn \(sharded.py\) \(\+1\) at {line} in loss_fn"],
        TPU, GPU,
    ),
    *planted(
        "an eleventh leapfrog", "loops", "STEPS = 10", "STEPS = 11",
        [
            r"hmc_step flops @ tpu-v5e is ",
            rf"\(\+{2 * 128**3:,}\) at loops.py:\d+ in leapfrog",
            r"solve flops @ tpu-v5e is at most (.|\n)*while at loops.py:\d+ in solve",
        ],
        TPU,
    ),
    *planted(
        "a product before a loop that depends on data", "loops",
        "    y = x @ matrix\n", "    y = x @ matrix @ matrix\n",
        [r"until_small flops @ tpu-v5e is at least (.|\n)*at loops.py:\d+ in until_small"],
        TPU,
    ),
    *planted(
        "larger blocks", "kernel", "ROWS = 512", "ROWS = 1024",
        [
            r"doubled vmem bytes @ tpu-v5e is 8,388,608 bytes, \+100 % over the baseline 4,194,304 bytes",
            r"grew: doubled in doubled \(kernel.py\) \(\+4,194,304\) at kernel.py:\d+ in doubled",
        ],
        TPU,
    ),
    *planted(
        "blocks that do not fit", "kernel", "ROWS = 512", "ROWS = 4096",
        [
            r"the compiler for tpu-v5e refused the program at kernel.py:\d+ in doubled: ",
            r"size 32.00M and limit 16.00M",
        ],
        TPU,
    ),
    *planted(
        "small blocks of a product", "blocks", "ROWS = 256", "ROWS = 8",
        [
            r"product kernel bundles @ tpu-v5e is [\d,]+ bundles, \+688 % over the baseline [\d,]+ bundles",
            r"grew: product in product \(blocks.py\) \(\+[\d,]+\) at blocks.py:\d+ in product",
            r"product estimated us @ tpu-v5e is .*% over the baseline .* at blocks.py:\d+ in product, bound by compute",
        ],
        TPU,
    ),
    *planted(
        "a loop that carries more than the registers hold", "blocks",
        "y = x[...] * 3 + 1", "y = jax.lax.fori_loop(0, 4, lambda _, y: y * 3 + 1, x[...])",
        [
            r"scaled kernel bundles @ tpu-v5e is [\d,]+ bundles, \+[\d,.]+ % over the baseline [\d,]+ bundles",
            r"scaled in scaled \(blocks.py\) \(\+[\d,]+\) at blocks.py:\d+ in scaled, with \d+ spills and fills",
        ],
        TPU,
    ),
    *planted(
        "large blocks of a kernel for a GPU", "tiles", "ROWS = 64", "ROWS = 256",
        [
            r"scaled kernel spills @ gpu-h100 is \d+ spills and fills, \+\d+ over the baseline 0 spills and fills",
            r"scaled in scaled \(tiles.py\) \(\+\d+\) at tiles.py:\d+ in scaled",
        ],
        GPU,
    ),
    *planted(
        "a loop of single rows", "steps", "ROWS_AT_ONCE = 32", "ROWS_AT_ONCE = None",
        [
            r"rows sequential steps.* is 128 iterations, \+124 .* over the baseline 4 iterations",
            r"grew: loop in rows \(steps.py\) \(\+124\) at steps.py:\d+ in rows",
            r"rows launches",
            r"\n  \+ 1 x loop of 128 iterations in rows \(steps.py\): steps.py:\d+",
        ],
        TPU, GPU, None,
    ),
    *planted(
        "a write that becomes a loop", "steps", "write_all = unrolled", "write_all = jax.vmap(write)",
        [r"write_all sequential steps.* is 128 iterations, \+128 over", r"loop in write \(steps.py\) \(\+128\) at steps.py:\d+ in write"],
        TPU,
    ),
    *planted(
        "a branch that is always taken", "steps", "every = lax.map", "every = lambda f, x: jax.vmap(f)(x)",
        [
            r"each_gated conditionals.* is 0 conditionals, 1 .*under the baseline 1 conditional",
            r"likely cause: where a select took the place of the conditional, all branches run: jax.vmap",
            r"fell: conditional in gated \(steps.py\) \(-1\) at steps.py:\d+ in gated",
        ],
        TPU, GPU, None,
    ),
    *planted(
        "a barrier between collectives and products", "gathers", "y = x\n", "weight, y = lax.optimization_barrier((weight, x))\n",
        [
            r"layers exposed collectives.* is 4 collectives, \+\d .* over",
            r"(all-gather|collective-permute) in layers \(gathers.py\) \(\+\d\) at gathers.py:\d+ in layers",
            r"layers exposed collective bytes",
            r"layers waiting us.* us, estimated, \+.* over the baseline .*at gathers.py:\d+ in layers, bound by link",
        ],
        TPU, GPU,
    ),
    *planted(
        "a checkpoint that is taken away", "deep", "layer = jax.checkpoint(feed_forward)", "layer = feed_forward",
        [
            r"\ndeep_step peak bytes.* is .*, \+[\d.,]+ % over the baseline",
            r"f32\[16\d*,(1024,)?2048\] of \w+ in feed_forward \(deep.py\) \(\+[\d,]{11}\) at deep.py:\d+ in feed_forward",
            r"\n  \+ \d x alive at the peak: f32\[16\d*,(1024,)?2048\] of \w+ in feed_forward \(deep.py\): deep.py:\d+ in",
        ],
        TPU, GPU,
    ),
    *planted(
        "outputs that do not fit", "deep", "return updated", "return updated, [jnp.tile(x, (64, 1, 1)) + i for i in range(9)]",
        [
            r"the compiler for tpu-v5e refused the program: (.|\n)*On tpu-v5p, which has more memory, alive at the peak: ",
            r"\d x f32\[[\d,]+\] of add in deep_step \(deep.py\) \([\d,]{14} bytes\) at {line} in deep_step",
        ],
        TPU,
    ),
    *planted(
        "an output that nobody asked for", "deep", "return updated", "return updated, x @ jnp.concatenate(weights, 1)",
        [
            r"deep_step peak bytes.* is .*, \+[\d.]+ % over the baseline",
            r"f32\[16(384|,1024),8192\] of dot_general in deep_step \(deep.py\) \(\+536,870,912\) at {line} in deep_step",
        ],
        TPU, GPU,
    ),
    *planted(
        "a mean over both slices", "slices", 'lax.pmean(x, "chip")', 'lax.pmean(x, ("slice", "chip"))',
        [
            r"cross-slice collectives @ tpu-v5e is 1 collective, \+1 over the baseline 0 collectives",
            r"all-reduce in normalised \(slices.py\) \(\+1\) at {line} in normalised",
        ],
        TPU,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("target", "module", "old", "new", "words"), PLANTS)
def test_a_plant_fails_and_its_line_is_named(pytester, run, target, module, old, new, words):
    assert run("--perf-save", f"test_{module}.py", target=target).ret == pytest.ExitCode.OK
    path = pytester.path / f"{module}.py"
    source = path.read_text()
    assert source.count(old) == 1
    path.write_text(source.replace(old, new))
    line = f"{module}.py:{source.partition(old)[0].count(chr(10)) + 1}"
    result = run("--perf", "-v", f"test_{module}.py", target=target)
    assert result.ret == pytest.ExitCode.TESTS_FAILED, result.stdout.str()
    for each in words:
        assert re.search(each.replace("{line}", re.escape(line)), result.stdout.str()), f"{each}\n{result.stdout}"


@pytest.mark.parametrize(
    ("target", "modules"),
    [
        pytest.param(
            TPU,
            ["model", "sharded", "loops", "steps", "gathers", "deep", "times", "kernel", "blocks", "slices"],
            marks=needs_libtpu,
        ),
        pytest.param(GPU, ["model", "sharded", "deep", "times", "tiles"], marks=needs_cuda_plugin),
    ],
)
def test_control_no_change_is_green_and_compiles_nothing(pytester, run, target, modules):
    tests = [f"test_{module}.py" for module in modules]
    assert run("--perf-save", *tests, target=target).ret == pytest.ExitCode.OK
    for module in set(modules) - {"kernel", "blocks", "tiles"}:  # whose program has the numbers of its lines
        path = pytester.path / f"{module}.py"
        path.write_text(f"# a comment moves every line\n{path.read_text()}")
    result = run("--perf", "--perf-strict", *tests, target=target)
    assert result.ret == pytest.ExitCode.OK
    programs = sum(len(PROJECTS[module].calls) for module in modules)
    result.stdout.fnmatch_lines([f"{programs} programs: 0 compiled, {programs} from the cache*"])
    result.stdout.no_fnmatch_line(f"*{SECTION}*")


@needs_libtpu
def test_a_kernel_without_an_estimate_is_named_and_has_no_flops(pytester, run):
    result = run("--perf-save", "test_unknown.py", target=TPU)
    assert result.ret == pytest.ExitCode.OK
    assert re.search(r"unknown FLOP and bytes: .* for doubled at\s+unknown.py:\d+ in with_kernel", result.stdout.str())
    saved = (pytester.path / "baselines" / f"{TPU}.json").read_text()
    assert ' flops": {"label": "with_kernel flops"' not in saved
    assert ' known flops": {"label": "with_kernel known flops"' in saved


def test_a_loop_whose_iterations_become_unknown_is_named(pytester, run):
    assert run("--perf-save", "test_loops.py", target=None).ret == pytest.ExitCode.OK
    path = pytester.path / "loops.py"
    source = path.read_text()
    path.write_text(source.replace("fori_loop(0, STEPS", "fori_loop(0, x[0, 0].astype(int)"))
    result = run("--perf", "-v", "test_loops.py", target=None)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    first = (
        r"\nhmc_step data-dependent loops is 1 loop, \+1 over the baseline 0 loops; .* at loops.py:\d+ in hmc_step\n"
    )
    assert re.search(first, result.stdout.str()), result.stdout
    for metric in ("launches", "sequential steps"):
        reason = rf"hmc_step {metric}: not known of this program: data-dependent loops"
        assert re.search(reason, result.stdout.str()), result.stdout


def test_64_bit_types_that_a_test_switches_on_for_itself_are_named(saved_project):
    gated = saved_project(
        "WIDE = False\n",
        """
        import jax
        import numpy as np
        from model import WIDE
        from perfsuite import call

        def test_doubled(perf):
            with jax.enable_x64(WIDE):
                perf.program(call(jax.jit(lambda x: x + x), np.ones(8)), name="doubled")
        """,
    )
    assert "jax_enable_x64" not in gated("WIDE = False\n")
    failure = gated("WIDE = True\n")
    assert "likely cause: 64-bit types are on (jax_enable_x64)" in failure, failure
    assert re.search(r"doubled float64 operations is", failure)
