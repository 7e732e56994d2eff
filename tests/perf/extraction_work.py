"""Qwen2 and ragged texts for the suite, and the way from the lab note's extraction to the pipeline, one change at a time.

Run as a script, `python extraction_work.py small`, it times the first run of every step of that way, compiles included,
in a process that has compiled nothing yet, and prints them as JSON.
"""

import dataclasses
import json
import os
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from perfsuite.measure.compiles import compiles
from perfsuite.workloads.extraction import extract, extract_naive, make_extractor
from perfsuite.workloads.extraction.batching import Batch, fixed_size_batches
from perfsuite.workloads.qwen2 import Qwen2, Qwen2Config

Run = Callable[[Any, Sequence[np.ndarray]], Iterator[tuple[int, np.ndarray]]]
"""Of parameters and texts: each sample's index and its activations `[layers, tokens, hidden]`."""


@dataclasses.dataclass(frozen=True)
class Work:
    """A model, the layers wanted of it, and a stream of texts with the shapes of its batches."""

    config: Qwen2Config
    layers: tuple[int, ...] = (5, 11, 17, 23)
    samples: int = 2000
    batch_size: int = 250
    median: int = 20
    """Tokens of a text in the middle."""
    longest: int = 48

    def texts(self, samples: int | None = None) -> list[np.ndarray]:
        """Token ids. Lengths are log-normal, as those of real texts are, and cut at `longest`."""
        rng = np.random.default_rng(0)
        lengths = rng.lognormal(np.log(self.median), 0.3, samples or self.samples).astype(int)
        return [rng.integers(0, self.config.vocab_size, n) for n in np.clip(lengths, 4, self.longest)]

    def batches(self, texts: Iterable[np.ndarray], length: int | tuple[int, ...] | None = None) -> Iterator[Batch]:
        """Batches of the texts, all of `longest` tokens, or each of the smallest of `length` that holds it."""
        return fixed_size_batches(texts, self.batch_size, length=length or self.longest, pad_id=0)

    def params(self) -> Any:
        """Random parameters. The model's own initialisation would take longer to compile than the model."""
        rng = np.random.default_rng(1)
        shapes = jax.eval_shape(Qwen2(self.config).init, jax.random.key(0), jax.ShapeDtypeStruct((1, 1), jnp.int32))
        return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(0, 0.02, leaf.shape), leaf.dtype), shapes)


def work(size: str, **changes: Any) -> Work:
    """Qwen2-0.5B. The small size keeps its depth and narrows its arrays."""
    if size == "full":
        config = Qwen2Config.qwen2_0_5b(activation_dtype="bfloat16", parameter_dtype="bfloat16")
        made = Work(config, batch_size=16, samples=1000, median=80, longest=256)
    else:
        config = Qwen2Config.qwen2_0_5b(
            vocab_size=1024, hidden_size=32, num_heads=2, num_key_value_heads=1, intermediate_size=64
        )
        made = Work(config)
    return dataclasses.replace(made, **changes)


def naive(model: Qwen2, made: Work) -> Run:
    """The lab note's."""
    return lambda params, texts: extract_naive(model, params, texts, made.batch_size, made.layers)


def fixed_batches(model: Qwen2, made: Work) -> Run:
    """Every batch has one shape, so that each operation compiles once."""

    def run(params: Any, texts: Sequence[np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
        for batch in made.batches(texts):
            _, activations = model.apply(params, batch.ids, batch.mask, layers=made.layers)
            yield from _one_by_one(batch, activations)

    return run


def jitted(model: Qwen2, made: Work) -> Run:
    """And one program, of the chosen layers: no operations one by one, no logits, nothing after the last layer."""

    @jax.jit
    def forward(params: Any, ids: Any, mask: Any) -> Any:
        return model.apply(params, ids, mask, layers=made.layers, method="hidden_states")

    def run(params: Any, texts: Sequence[np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
        for batch in made.batches(texts):
            yield from _one_by_one(batch, forward(params, batch.ids, batch.mask))

    return run


def one_transfer(model: Qwen2, made: Work) -> Run:
    """And one array a batch comes to the host, not one a sample and layer."""
    return _extracted(model, made, ahead=0)


def pipelined(model: Qwen2, made: Work) -> Run:
    """And while it comes and is used, the device is on the next batch."""
    return _extracted(model, made, ahead=1)


VARIANTS: dict[str, Callable[[Qwen2, Work], Run]] = {
    "naive": naive,
    "fixed batches": fixed_batches,
    "jitted": jitted,
    "one transfer": one_transfer,
    "pipelined": pipelined,
}
"""Each with all that those before it have."""


def _extracted(model: Qwen2, made: Work, ahead: int) -> Run:
    extractor = make_extractor(model, made.layers)

    def run(params: Any, texts: Sequence[np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
        for done in extract(extractor, params, made.batches(texts), ahead=ahead):
            yield from done.samples()

    return run


def _one_by_one(batch: Batch, activations: Sequence[jax.Array]) -> Iterator[tuple[int, np.ndarray]]:
    for row in np.flatnonzero(batch.rows):
        layers = [np.array(activation[row])[: batch.lengths[row]] for activation in activations]
        yield int(batch.indices[row]), np.stack(layers)


def difference(found: list[tuple[int, np.ndarray]], wanted: list[tuple[int, np.ndarray]]) -> float:
    """The greatest difference of any sample, as a share of the sample's own size (Euclidean norm).

    Raises `ValueError` where they are not activations of the same samples, in the same order.
    """
    if [index for index, _ in found] != [index for index, _ in wanted]:
        raise ValueError("not the same samples in the same order")
    pairs = [(np.float32(mine), np.float32(theirs)) for (_, mine), (_, theirs) in zip(found, wanted, strict=True)]
    return float(max(np.linalg.norm(mine - theirs) / np.linalg.norm(theirs) for mine, theirs in pairs))


def first_runs(made: Work) -> dict[str, dict[str, float]]:
    """Of each variant the seconds of its first run over all texts, its compiles, and its difference from the naive one.

    Drops everything that JAX has compiled in this process, again and again: not for a process that does other things.
    """
    model, params, texts = Qwen2(made.config), made.params(), made.texts()
    # What a process does once, whatever it compiles, is not to count against the variant that comes first.
    one_layer = dataclasses.replace(made.config, num_layers=1)
    least = dataclasses.replace(made, config=one_layer, layers=(0,), batch_size=1)
    for make in (naive, pipelined):
        list(make(Qwen2(one_layer), least)(least.params(), texts[:1]))
    metrics, wanted = {}, None
    for name, make in VARIANTS.items():
        jax.clear_caches()
        with compiles.count() as counted:
            began = time.perf_counter()
            found = list(make(model, made)(params, texts))
            seconds = time.perf_counter() - began
        wanted = wanted or found
        metrics[name] = {
            "seconds": seconds,
            "compiles": counted.compiles,
            "compile seconds": counted.seconds,
            "difference": difference(found, wanted),
        }
    return metrics


def held_bytes() -> int:
    """What Python's objects, NumPy's and JAX's arrays hold, once `tracemalloc` has started.

    Resident memory also has what was freed and is kept for later, which differs from run to run: of the same 40 batches
    it grew by 3 to 13 beside busy processes (2-core x86-64 machine).
    """
    traced, _ = tracemalloc.get_traced_memory()
    return traced + sum(array.nbytes for array in jax.live_arrays() if not array.is_deleted())


def resident_bytes() -> int:
    """Memory of this process that is in RAM. Linux only."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    print(json.dumps(first_runs(work(sys.argv[1], samples=int(sys.argv[2])))))
