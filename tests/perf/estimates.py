"""Prints how good estimated times are, as the Markdown tables of docs/estimates.md: python tests/perf/estimates.py TABLE

TABLE is `published`, against times that others measured on devices; `pairs`, whether the program that others measured to
be the slower one is estimated so; `rooflines`, hand-made programs against their FLOP and bytes; `schedules`, sharded
programs against the totals in the compilers' own schedules. For these nothing runs, and no device need be present.
`measured` runs programs on the present device, and compares with the profiler's device time.
"""

import dataclasses
import functools
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from perfsuite import call
from perfsuite.measure.call import Call
from perfsuite.measure.program.compilation import compile_call
from perfsuite.measure.program.program import Program
from perfsuite.measure.targets.targets import TARGETS
from perfsuite.measure.trace import trace_call
from perfsuite.workloads.bert import BertConfig
from perfsuite.workloads.bert.layers import Embeddings, Layer, Linear
from perfsuite.workloads.training import TrainState, make_flat_train_step

BF16, F16, F32, I8, I32 = jnp.bfloat16, jnp.float16, jnp.float32, jnp.int8, jnp.int32
MIB, GIB = 2**20, 2**30


def array(*shape: int, dtype: Any = BF16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def jitted(fn: Callable, *arguments: Any) -> Call:
    return call(jax.jit(fn), *arguments)


def product(m: int, k: int, n: int, dtype: Any = BF16) -> Call:
    return jitted(jnp.matmul, array(m, k, dtype=dtype), array(k, n, dtype=dtype))


def blocked_product(size: int, rows: int, depth: int, columns: int) -> Call:
    """A Pallas product of square matrices in blocks, with the sums in float32 on the chip."""
    steps = size // depth

    def kernel(x: Any, y: Any, out: Any, total: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def clear() -> None:
            total[...] = jnp.zeros_like(total)

        total[...] += jnp.dot(x[...], y[...], preferred_element_type=F32)

        @pl.when(pl.program_id(2) == steps - 1)
        def store() -> None:
            out[...] = total[...].astype(out.dtype)

    multiply = pl.pallas_call(
        kernel,
        grid=(size // rows, size // columns, steps),
        in_specs=[
            pl.BlockSpec((rows, depth), lambda i, j, step: (i, step)),
            pl.BlockSpec((depth, columns), lambda i, j, step: (step, j)),
        ],
        out_specs=pl.BlockSpec((rows, columns), lambda i, j, step: (i, j)),
        out_shape=array(size, size),
        scratch_shapes=[pltpu.VMEM((rows, columns), F32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        cost_estimate=pl.CostEstimate(flops=2 * size**3, transcendentals=0, bytes_accessed=6 * size**2),
    )
    return jitted(multiply, array(size, size), array(size, size))


def rms_norm(x: jax.Array, weight: jax.Array) -> jax.Array:
    wide = x.astype(F32)
    wide *= jax.lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + 1e-6)
    return (wide * weight.astype(F32)).astype(x.dtype)


def add_and_norm(x: jax.Array, branch: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
    return rms_norm(x + branch, weight), x + branch


def layer_norm(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    wide = x.astype(F32)
    wide -= jnp.mean(wide, axis=-1, keepdims=True)
    wide *= jax.lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + 1e-5)
    return (wide * weight + bias).astype(x.dtype)


def softmax(x: jax.Array, kept: Callable = lambda x: x) -> jax.Array:
    """A softmax over rows; `kept` sees each array between its steps."""
    shifted = kept(x - kept(jnp.max(x, axis=-1, keepdims=True)))
    powers = kept(jnp.exp(shifted))
    return powers / kept(jnp.sum(powers, axis=-1, keepdims=True))


def sharded(fn: Callable, devices: int, specs: Iterable[P], *shapes: Any, out: P | None = None) -> Call:
    """A call over a line of devices, its arguments as `specs` say; with `out`, of a function of one device's share."""
    mesh = jax.make_mesh((devices,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])
    specs = tuple(specs)
    if out is not None:
        fn = jax.shard_map(fn, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)
    shardings = [NamedSharding(mesh, spec) for spec in specs]
    pairs = zip(shapes, shardings, strict=True)
    return jitted(fn, *(jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=each) for shape, each in pairs))


def all_reduce(size: int, dtype: Any = F32) -> Call:
    """Of so many bytes on each of 8 devices."""
    one = array(size // 4096 // jnp.dtype(dtype).itemsize, 4096, dtype=dtype)
    return sharded(lambda x: jax.lax.psum(x, "x"), 8, [P()], one, out=P())


def all_gather(size: int, dtype: Any = F32) -> Call:
    """Of arrays on 8 devices to one of so many bytes."""
    whole = array(size // 4096 // jnp.dtype(dtype).itemsize, 4096, dtype=dtype)
    return sharded(lambda x: jax.lax.all_gather(x, "x", tiled=True), 8, [P("x")], whole, out=P())


def permute(size: int) -> Call:
    """Of so many bytes from each of 4 devices to the next."""
    ring = [(number, (number + 1) % 4) for number in range(4)]
    whole = array(4 * size // 4096 // 2, 4096)
    return sharded(lambda x: jax.lax.ppermute(x, "x", ring), 4, [P("x")], whole, out=P("x"))


def gathered_product(overlapped: bool = False) -> Call:
    """Rows of both matrices are on 4 devices; `overlapped` multiplies by what is here while the next part travels."""

    def multiply(x: jax.Array, y: jax.Array) -> jax.Array:
        return x @ jax.lax.all_gather(y, "x", tiled=True)

    def multiply_in_turn(x: jax.Array, y: jax.Array) -> jax.Array:
        number, depth = jax.lax.axis_index("x"), y.shape[0]
        total: Any = 0
        for step in range(4):
            part = jax.lax.dynamic_slice_in_dim(x, (number + step) % 4 * depth, depth, axis=1)
            total += part @ y
            y = jax.lax.ppermute(y, "x", [((each + 1) % 4, each) for each in range(4)]) if step < 3 else y
        return total

    fn = multiply_in_turn if overlapped else multiply
    return sharded(fn, 4, [P("x"), P("x")], array(8192, 8192), array(8192, 1024), out=P("x"))


def split_product(left: P, right: P, dtype: Any = BF16) -> Call:
    return sharded(jnp.matmul, 8, [left, right], *[array(2**15, 2**15, dtype=dtype)] * 2)


def feed_forward() -> Call:
    """Three times the feed-forward part of Llama 2 7B for 8 tokens, over 8 devices."""

    def run(x: jax.Array, gate: jax.Array, down: jax.Array, up: jax.Array) -> jax.Array:
        for _ in range(3):
            x = jax.lax.psum((jax.nn.silu(x @ gate) * (x @ up)) @ down, "x")
        return x

    wide, narrow = array(4096, 11008), array(11008, 4096)
    specs = [P(), P(None, "x"), P("x"), P(None, "x")]
    return sharded(run, 8, specs, array(8, 4096), wide, narrow, wide, out=P())


def split_training() -> Call:
    """A train step of four feed-forward layers, weights and tokens both over 8 devices."""

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for up, down in weights:
            x += jax.nn.gelu(x @ up) @ down
        return jnp.sum(x.astype(F32) ** 2)

    def step(x: jax.Array, *weights: jax.Array) -> Any:
        pairs = list(zip(weights[::2], weights[1::2], strict=True))
        return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, pairs, jax.grad(loss)(pairs, x))

    layers = [array(1024, 4096), array(4096, 1024)] * 4
    return sharded(step, 8, [P("x")] * 9, array(2**15, 1024), *layers)


class Classifier(eqx.Module):
    """BERT-base with two classes."""

    embeddings: Embeddings
    layers: tuple[Layer, ...]
    pooler: Linear
    classes: Linear

    def __init__(self, config: BertConfig):
        key = jax.random.key(0)
        self.embeddings = Embeddings(config, key=key)
        self.layers = tuple(Layer(config, key=key) for _ in range(config.num_layers))
        self.pooler = Linear(config.hidden_size, config.hidden_size, 0.02, key=key)
        self.classes = Linear(config.hidden_size, 2, 0.02, key=key)

    def __call__(self, ids: jax.Array, mask: jax.Array, key: jax.Array | None = None) -> jax.Array:
        keys = [None] * 37 if key is None else list(jax.random.split(key, 37))
        x = self.embeddings(ids, jnp.zeros_like(ids), keys[0])
        for number, layer in enumerate(self.layers):
            x = layer(x, mask, tuple(keys[1 + 3 * number : 4 + 3 * number]))
        return self.classes(jnp.tanh(self.pooler(x.reshape(*ids.shape, -1)[:, 0])))


def bert(batch_size: int, *, train: bool) -> Call:
    config = BertConfig.base(attention="eager")
    ids, mask = array(batch_size, 512, dtype=I32), array(batch_size, 512, dtype=jnp.bool_)
    if not train:
        return jitted(lambda model, *batch: model(*batch), eqx.filter_eval_shape(Classifier, config), ids, mask)

    def loss(model: Classifier, batch: Any, key: jax.Array) -> tuple[jax.Array, None]:
        ids, mask, labels = batch
        return optax.softmax_cross_entropy_with_integer_labels(model(ids, mask, key), labels).mean(), None

    state = eqx.filter_eval_shape(lambda: TrainState.create(optax.adamw(1e-3), Classifier(config)))
    key = jax.eval_shape(lambda: jax.random.key(1))
    batch = (ids, mask, array(batch_size, dtype=I32))
    return call(make_flat_train_step(loss, optax.adamw(1e-3)), state, batch, key, carry=1)


GITHUB = "https://github.com/"
PAGES = {
    "pallas": "https://docs.jax.dev/en/latest/pallas/tpu/matmul.html",
    "sparse": "https://docs.jax.dev/en/latest/pallas/tpu/sparse.html",
    "recipes": f"{GITHUB}AI-Hypercomputer/tpu-recipes/tree/main/microbenchmarks",
    "ironwood": f"{GITHUB}AI-Hypercomputer/tpu-recipes/tree/main/microbenchmarks/ironwood",
    "mamf": f"{GITHUB}stas00/ml-engineering/tree/master/compute/accelerator",
    "nccl": f"{GITHUB}stas00/ml-engineering/tree/master/network",
    "gist": "https://gist.github.com/Chillee/2ec89696db8b7ed1c24461159e325405",
    "einsum": f"{GITHUB}jax-ml/jax/issues/11705",
    "liger": f"{GITHUB}linkedin/Liger-Kernel/pull/1462",
    "olmo": f"{GITHUB}allenai/OLMo/issues/258",
    "marin": f"{GITHUB}marin-community/marin/issues/6736",
    "jetstream": f"{GITHUB}AI-Hypercomputer/jetstream-pytorch/pull/168",
    "forum": "https://discuss.google.dev/t/346048",
    "keras": "https://keras.io/getting_started/benchmarks/",
    "devices": f"{GITHUB}chsasank/device-benchmarks",
    "triton": f"{GITHUB}intel/intel-xpu-backend-for-triton/issues/544",
}
"""What others published, by the names that `PUBLISHED` and `PAIRS` use."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A program, and how long a device takes for it by a page: microseconds."""

    what: str
    target: str
    program: Callable[[], Call]
    us: float
    page: str


def _rate(m: int, k: int, n: int, target: str, tflops: float, page: str) -> Row:
    """A product in bfloat16, published as TFLOP/s."""
    what = f"product {n}^3" if m == k == n else f"product {m}x{k}x{n}"
    return Row(what, target, functools.partial(product, m, k, n), 2 * m * k * n / tflops / 1e6, page)


def _row(what: str, target: str, us: float, page: str, program: Callable, *args: Any, **kwargs: Any) -> Row:
    return Row(what, target, functools.partial(program, *args, **kwargs), us, page)


PUBLISHED = (
    _row("product 8192^3", "tpu-v5e", 6047.15, "pallas", product, 8192, 8192, 8192),
    _row("product 16384^3", "tpu-v5e", 46953, "sparse", product, 16384, 16384, 16384),
    _row("product 8192^3", "tpu-v6e", 1328.756, "recipes", product, 8192, 8192, 8192),
    _rate(1024, 1024, 1024, "tpu7x", 349.7270639, "ironwood"),
    _rate(4096, 4096, 4096, "tpu7x", 892.9445127, "ironwood"),
    _rate(16384, 16384, 16384, "tpu7x", 950.1286983, "ironwood"),
    _rate(1024, 5120, 10240, "gpu-a100", 271.2, "mamf"),
    _rate(2048, 6144, 5120, "gpu-a100-pcie", 252.9, "mamf"),
    _rate(2048, 13312, 2048, "gpu-h100", 794.5, "mamf"),
    _rate(4224, 8192, 2048, "gpu-h100", 780.169, "gist"),
    _rate(1792, 3072, 16128, "gpu-b200", 1745, "mamf"),
    _row(
        *("1536 products 384x16x384", "gpu-a100-40gb", 566, "einsum", jitted),
        *(lambda x, y: jnp.einsum("bqc,bkc->bqk", x, y), *[array(1536, 384, 16, dtype=F16)] * 2),
    ),
    _row("copy of 32 MiB", "tpu-v6e", 49.359, "recipes", jitted, jnp.copy, array(16 * MIB)),
    _row("RMS norm 8192x4096", "gpu-h100", 51.968, "liger", jitted, rms_norm, array(8192, 4096), array(4096)),
    _row(
        *("add, RMS norm 2048x8192", "gpu-h100", 50.720, "liger", jitted, add_and_norm),
        *(array(2048, 8192), array(2048, 8192), array(8192)),
    ),
    _row("RMS norm 8192x4096", "gpu-b200", 28.992, "liger", jitted, rms_norm, array(8192, 4096), array(4096)),
    _row(
        *("layer norm 4096x8192", "gpu-a100", 4 * 4096 * 8192 / 1379.705e3, "olmo", jitted, layer_norm),
        *(array(4096, 8192, dtype=F16), *[array(8192, dtype=F16)] * 2),
    ),
    _row("Pallas 4096^3, 128x128x128", "tpu-v5e", 11771.52, "pallas", blocked_product, 4096, 128, 128, 128),
    _row("Pallas 8192^3, 128x128x128", "tpu-v5e", 91835.77, "pallas", blocked_product, 8192, 128, 128, 128),
    _row("Pallas 8192^3, 512x1024x1024", "tpu-v5e", 6099.43, "pallas", blocked_product, 8192, 512, 1024, 1024),
    _row(
        *("product 16384^3, mask", "tpu-v5e", 49988, "sparse", jitted, lambda mask, x, y: mask * (x @ y)),
        *(array(16384, 16384, dtype=I32), array(16384, 16384), array(16384, 16384)),
    ),
    _row("ppermute, 1 MiB", "tpu-v5p", 16.94, "marin", permute, MIB),
    _row("ppermute, 64 MiB", "tpu-v5p", 781.98, "marin", permute, 64 * MIB),
    _row("ppermute, 64 MiB", "tpu-v6e", 776.34, "marin", permute, 64 * MIB),
    _row("all-reduce, 256 MiB", "tpu-v5e", 8253.86, "jetstream", all_reduce, 256 * MIB, BF16),
    _row("all-gather, 2 GiB", "tpu-v5e", 68338.1, "jetstream", all_gather, 2 * GIB, BF16),
    _row("all-reduce, 1 GiB", "gpu-h100", 4060, "marin", all_reduce, GIB),
    _row("all-reduce, 16 GiB", "gpu-h200", 16 * GIB * 14 / 8 / 480.0e3, "nccl", all_reduce, 16 * GIB),
    _row("all-gather, 16 GiB", "gpu-h200", 16 * GIB * 7 / 8 / 361.4e3, "nccl", all_gather, 16 * GIB),
    _row("gather, product 8192x8192x1024", "tpu-v5e", 330, "forum", gathered_product),
    _row("split product, all-reduce", "tpu-v5e", 108891, "jetstream", split_product, P(None, "x"), P("x")),
    _row("split product, all-gather", "tpu-v5e", 76638.6, "jetstream", split_product, P("x"), P("x")),
    _row("BERT-base training, 32x512", "gpu-a100-40gb", 222370, "keras", bert, 32, train=True),
    _row("BERT-base forward, 256x512", "gpu-a100-40gb", 418720, "keras", bert, 256, train=False),
)


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two programs, of which the second takes `slower` times as long by a page."""

    what: str
    target: str
    slower: float
    page: str
    first: Call
    second: Call


def apart(x: jax.Array) -> jax.Array:
    """An array that is written before the next step reads it."""
    return jax.lax.optimization_barrier(x)


def einsum(dtype: Any) -> Call:
    return jitted(lambda x, y: jnp.einsum("bqc,bkc->bqk", x, y), *[array(1536, 384, 16, dtype=dtype)] * 2)


def exact_product() -> Call:
    return jitted(functools.partial(jnp.matmul, precision="highest"), *[array(4096, 4096, dtype=F32)] * 2)


def pairs() -> Sequence[Pair]:
    """The pairs, those that others measured to differ least first."""
    wide, rows = array(16384, 16384), array(4096, 12288, dtype=F32)
    masked = jitted(lambda mask, x, y: mask * (x @ y), array(16384, 16384, dtype=I32), wide, wide)
    large = functools.partial(blocked_product, 4096, 512, 1024, 1024)
    gathered, reduced = (P("x"), P("x")), (P(None, "x"), P("x"))
    f16, bf16 = (product(4096, 4096, 4096, dtype) for dtype in (F16, BF16))
    return (
        Pair("gather beside the product, before it", "tpu-v5e", 330 / 319, "forum", gathered_product(True), gathered_product()),
        Pair("product, and a mask", "tpu-v5e", 49988 / 46953, "sparse", jitted(jnp.matmul, wide, wide), masked),
        Pair("product 4096^3 by XLA, by Pallas", "tpu-v5e", 889.09 / 827.29, "pallas", bf16, large()),
        Pair("einsum in f16, in bf16", "gpu-a100-40gb", 731 / 566, "einsum", einsum(F16), einsum(BF16)),
        Pair("split product: all-gather, all-reduce", "tpu-v5e", 108.891 / 76.6386, "jetstream", split_product(*gathered), split_product(*reduced)),
        Pair("product 32768^3 in int8, in bf16", "tpu-v5e", 438.17 / 186.436, "jetstream", product(2**15, 2**15, 2**15, I8), product(2**15, 2**15, 2**15)),
        Pair("softmax: fused, apart", "gpu-a100", 675.6 / 223.9, "triton", jitted(softmax, rows), jitted(functools.partial(softmax, kept=apart), rows)),
        Pair("product in f16, in bf16", "gpu-t4", 25 / 2.25, "devices", f16, bf16),
        Pair("product in bf16, in exact f32", "gpu-h100-pcie", 449 / 38, "devices", bf16, exact_product()),
        Pair("Pallas: blocks of 512x1024x1024, of 128", "tpu-v5e", 11771.52 / 889.09, "pallas", large(), blocked_product(4096, 128, 128, 128)),
    )  # fmt: skip


def hand_made() -> dict[str, Call]:
    """Programs of one operation, whose FLOP and bytes are plain."""
    square, wide = array(8192, 8192), array(8192, 8192, dtype=F32)
    image, kernel = array(64, 56, 56, 256), array(3, 3, 256, 256)
    heads = array(96, 512, 64)
    convolve = functools.partial(
        jax.lax.conv_general_dilated, window_strides=(1, 1), padding="SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return {
        "product 4096^3": product(4096, 4096, 4096),
        "product 8192x1024x8192": product(8192, 1024, 8192),
        "batched product": jitted(lambda x, y: jnp.einsum("bqd,bkd->bqk", x, y), heads, heads),
        "convolution 3x3": jitted(convolve, image, kernel),
        "copy": jitted(jnp.copy, square),
        "transpose": jitted(jnp.transpose, square),
        "sum of two": jitted(jnp.add, square, square),
        "sum of rows": jitted(lambda x: x.sum(-1), wide),
        "sum of columns": jitted(lambda x: x.sum(0), wide),
        "softmax": jitted(softmax, wide),
        "layer norm": jitted(layer_norm, square, *[array(8192)] * 2),
        "embedding": jitted(lambda table, ids: table[ids], array(50000, 1024), array(32768, dtype=I32)),
    }  # fmt: skip


def split() -> dict[str, Call]:
    """Programs over several devices."""
    return {
        "gather, product": gathered_product(),
        "gather beside the product": gathered_product(True),
        "split product, all-gather": split_product(P("x"), P("x")),
        "three feed-forwards": feed_forward(),
        "training, four layers": split_training(),
        "split product, all-reduce": split_product(P(None, "x"), P("x")),
    }


def compiled(made: Call, target: str) -> Program:
    return compile_call(made, target, cache=Path(tempfile.gettempdir()) / "perfsuite-estimates").program()


def print_row(*cells: Any) -> None:
    texts = [f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells]
    print(f"| {' | '.join(texts)} |", flush=True)


def microseconds(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's, of values without ties."""
    ranks = [np.argsort(np.argsort(values)) for values in (one, other)]
    return float(np.corrcoef(*ranks)[0, 1])


def print_published() -> None:
    estimates, times, bounds = [], [], []
    for row in PUBLISHED:
        program = compiled(row.program(), row.target)
        estimate, bound = program.estimated_us, (program.bound_seconds or 0) * 1e6
        ratio = estimate / row.us if estimate else "unknown"
        print_row(f"[{row.what}]({PAGES[row.page]}), `{row.target}`", microseconds(row.us), ratio)
        if estimate and bound:
            estimates, times, bounds = [*estimates, estimate], [*times, row.us], [*bounds, bound]
    ratios, rooflines = (np.divide(values, times) for values in (estimates, bounds))
    for name, values in (("estimate", ratios), ("roofline", rooflines)):
        away = np.abs(np.log(values))
        near, far = ((away < np.log(factor)).sum() for factor in (1.25, 2))
        print(f"{name}: {len(values)} programs, median {np.median(values):.2f}, {near} within 1.25, {far} within 2")
    beyond = rank_correlation(ratios / rooflines, 1 / rooflines)
    print(f"rank correlation {rank_correlation(estimates, times):.3f}, of what is over the roofline {beyond:.2f}")


def print_pairs() -> None:
    for pair in pairs():
        first, second = (compiled(one, pair.target).estimated_us for one in (pair.first, pair.second))
        ratio = second / first if first and second else "unknown"
        print_row(f"[{pair.what}]({PAGES[pair.page]}), `{pair.target}`", pair.slower, ratio)


def print_rooflines() -> None:
    targets = ("tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "gpu-a100", "gpu-h100")
    for what, made in hand_made().items():
        programs = [compiled(made, target) for target in targets]
        print_row(
            what,
            *(each.estimated_us / each.bound_seconds / 1e6 if each.estimated_us else "unknown" for each in programs),
        )


def print_measured() -> None:
    """On a machine with a target's device: estimates against the profiler's device time."""
    kind = jax.devices()[0].device_kind
    names = [target.name for target in TARGETS.values() if target.device_kind == kind]
    if not names:
        sys.exit(f"no target has the device {kind!r}: there are {', '.join(TARGETS)}")
    published = {row.what: row.program() for row in PUBLISHED if row.target == names[0]}
    for what, made in (hand_made() | published).items():
        if compiled(made, names[0]).partitions == 1:
            print_row(what, *measured(made, names[0]))


def measured(made: Call, target: str) -> tuple[float, float]:
    """Microseconds of a call with random arguments on the first device, and the estimate over them."""
    ready = dataclasses.replace(made, args=jax.tree.map(_random, made.args))
    trace = trace_call(ready)
    us = trace.device_us / trace.runs
    return us, (compiled(made, target).estimated_us or float("nan")) / us


def _random(leaf: Any) -> Any:
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key(0)
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return jax.random.normal(jax.random.key(0), leaf.shape, leaf.dtype)
    return jnp.ones(leaf.shape, leaf.dtype)


def print_schedules() -> None:
    for target in ("tpu-v5e", "tpu-v5p", "gpu-h100"):
        for what, made in split().items():
            with tempfile.TemporaryDirectory() as folder:
                os.environ["XLA_FLAGS"] = f"--xla_dump_to={folder} --xla_dump_latency_hiding_schedule=true"
                program = compile_call(made, target).program()
                schedule = "".join(path.read_text() for path in Path(folder).glob("*schedule.txt"))
            totals = {
                name: re.findall(rf"\b{name}: (\S+)", schedule)
                for name in ("total_cycles", "total_wasted_cycles", "cycles_per_microsecond")
            }
            clock = float(totals["cycles_per_microsecond"][-1]) if schedule else 1
            # The entry computation is the last.
            total, waiting = (
                float(totals[name][-1]) / clock if totals[name] else None
                for name in ("total_cycles", "total_wasted_cycles")
            )
            print_row(
                what, f"`{target}`", *map(microseconds, (total, program.estimated_us, waiting, program.waiting_us))
            )


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    tables = {
        "published": print_published,
        "pairs": print_pairs,
        "rooflines": print_rooflines,
        "schedules": print_schedules,
        "measured": print_measured,
    }
    if len(sys.argv) != 2 or sys.argv[1] not in tables:
        sys.exit(f"usage: python {sys.argv[0]} {'|'.join(tables)}")
    tables[sys.argv[1]]()
