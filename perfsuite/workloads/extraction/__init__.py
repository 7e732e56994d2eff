"""Activations of chosen layers for a stream of batches, on the host and in a store.

`extract` is the pipeline: one compiled program a batch shape, one transfer a batch, and the device computes the next
batch while this one is copied and used. `extract_to` puts the results in an `ActivationStore`, and continues an earlier
run that was interrupted:

    identity = StoreIdentity.of(config, layers, params, sequences, samples_per_chunk=32)
    store = ActivationStore.create_or_open("gs://bucket/activations", identity)
    extract_to(store, make_extractor(model, layers), params, sequences, batch_size=32, pad_id=0)

`extract_naive` is the reference, and what the lab note behind docs/workloads/extraction.md began with. Both give every
sample the same activations up to rounding. `perfsuite.workloads.qwen2` defines an activation.
"""

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from perfsuite.workloads.checks import check_ids
from perfsuite.workloads.extraction.activation_store import ActivationStore, StoreError
from perfsuite.workloads.extraction.batching import (
    Batch,
    BatchActivations,
    checked_lengths,
    chosen_batches,
    fixed_size_batches,
)
from perfsuite.workloads.extraction.prefetch import prefetched
from perfsuite.workloads.extraction.store_identity import StoreIdentity
from perfsuite.workloads.qwen2 import Qwen2, check_layers

__all__ = [
    "ActivationStore",
    "BatchActivations",
    "Extracted",
    "Extractor",
    "StoreError",
    "StoreIdentity",
    "extract",
    "extract_naive",
    "extract_to",
    "fixed_size_batches",
    "make_extractor",
]


@dataclasses.dataclass(frozen=True)
class Extractor:
    """A jitted forward pass that gives activations alone. Call it once a batch shape to warm it.

    `step` is the function under `jax.jit`: `(params, ids, mask)` to `[batch, layers, sequence, hidden]`.
    """

    model: Qwen2
    layers: tuple[int, ...]
    step: Callable[[Any, Any, Any], Array]

    def __call__(self, params: Any, ids: np.ndarray | Array, mask: np.ndarray | Array) -> Array:
        """Activations `[batch, layers, sequence, hidden]` of `ids` and `mask`, both `[batch, sequence]`; does not wait.

        Raises `ValueError` for NumPy `ids` that are not in the vocabulary. To check ids on a device would be to wait
        for them; wrong ones give NaN.
        """
        if isinstance(ids, np.ndarray):
            check_ids("ids", ids, self.model.config.vocab_size)
        return self.step(params, ids, mask)


def make_extractor(model: Qwen2, layers: Sequence[int]) -> Extractor:
    """The extractor of `layers`, in that order. Layers after the last of them, and the head, are not computed.

    Raises `ValueError` for no layers, and for layers that the model does not have.
    """
    layers = check_layers(layers, model.config)
    if not layers:
        raise ValueError("layers must name at least one layer")

    # Parameters are not donated: the next batch needs them.
    @jax.jit
    def extract_activations(params: Any, ids: Any, mask: Any) -> Array:
        # One array, and so one transfer. Samples first: a sample is one block of memory.
        activations: Any = model.apply(params, ids, mask, layers=layers, method="hidden_states")
        return jnp.stack(activations, axis=1)

    return Extractor(model, layers, extract_activations)


def extract(
    extractor: Callable[[Any, np.ndarray, np.ndarray], Any], params: Any, batches: Iterable[Batch], *, ahead: int = 1
) -> Iterator[BatchActivations]:
    """Activations of each batch, in order.

    When a batch is handed over, `ahead` more are under way: computed, then copied to the host. So the device holds the
    activations of up to `ahead + 1` batches. With `ahead=0` nothing overlaps.

    Raises `ValueError` at once for a negative `ahead`.
    """
    if ahead < 0:
        raise ValueError(f"ahead must not be negative, got {ahead}")
    return _extract(extractor, params, batches, ahead)


def _extract(
    extractor: Callable[[Any, np.ndarray, np.ndarray], Any], params: Any, batches: Iterable[Batch], ahead: int
) -> Iterator[BatchActivations]:
    under_way: collections.deque[tuple[Batch, Array]] = collections.deque()
    for batch in batches:
        values = extractor(params, batch.ids, batch.mask)
        # Returns at once; jax.device_get would wait.
        values.copy_to_host_async()
        under_way.append((batch, values))
        # Otherwise the array would live on the device until the batch after the next.
        del values
        if len(under_way) > ahead:
            yield _on_host(*under_way.popleft())
    while under_way:
        yield _on_host(*under_way.popleft())


def _on_host(batch: Batch, values: Array) -> BatchActivations:
    return BatchActivations(batch, np.asarray(values))


@dataclasses.dataclass(frozen=True)
class Extracted:
    """How many samples `extract_to` computed and stored, and how many were there already."""

    computed: int
    skipped: int


def extract_to(
    store: ActivationStore,
    extractor: Extractor,
    params: Any,
    sequences: Sequence[Sequence[int] | np.ndarray],
    batch_size: int,
    *,
    length: int | Sequence[int] | None = None,
    pad_id: int,
    ahead: int = 1,
    prefetch: int = 2,
) -> Extracted:
    """Store the activations of all `sequences` that `store` lacks, and wait until they are there.

    Batches are those of `fixed_size_batches`, with the store's `length` by default, in order; a batch whose samples the
    store has is skipped. So the same call completes an interrupted run with the same batches, and hence with bit for
    bit the same activations as a run in one go. Another `batch_size` or `length` gives the remaining samples the same
    activations up to rounding.

    A batch is computed while the one before is copied to the host and earlier ones are compressed and written; a thread
    prepares up to `prefetch` batches ahead. However this ends, the threads end too, and every batch that was computed
    and handed over is in the store.

    Raises `ValueError` before anything is computed where extractor, number of sequences or sizes are not the store's,
    `StoreError` if something cannot be written, and what `extract` and `fixed_size_batches` raise.
    """
    _check_fits(store.identity, extractor, len(sequences))
    if batch_size < 1 or batch_size % store.identity.samples_per_chunk:
        raise ValueError(
            f"batch_size must be a multiple of the samples in a chunk of the store, "
            f"{store.identity.samples_per_chunk}, got {batch_size}"
        )
    lengths = checked_lengths(store.identity.length if length is None else length)
    if lengths[-1] > store.identity.length:
        raise ValueError(f"length must be at most that of the store, {store.identity.length}, got {lengths[-1]}")
    there = store.tokens() > 0
    batches = chosen_batches(sequences, batch_size, lambda rows: not there[rows].all(), length=lengths, pad_id=pad_id)
    computed = 0
    with store, contextlib.closing(prefetched(batches, prefetch)) as prepared:
        for done in extract(extractor, params, prepared, ahead=ahead):
            store.write(done)
            computed += int(done.batch.rows.sum())
            # Otherwise it would live until the next one is there.
            del done
    return Extracted(computed, len(sequences) - computed)


def _check_fits(identity: StoreIdentity, extractor: Extractor, samples: int) -> None:
    for name, expected, got in (
        ("layers", identity.layers, extractor.layers),
        ("model's config", identity.config, extractor.model.config),
        ("number of sequences", identity.samples, samples),
    ):
        if got != expected:
            raise ValueError(f"the {name} must be that of the store, {expected}, got {got}")


def extract_naive(
    model: Qwen2, params: Any, sequences: Sequence[Sequence[int] | np.ndarray], batch_size: int, layers: Sequence[int]
) -> Iterator[tuple[int, np.ndarray]]:
    """The lab note's extraction: each sample's index and activations `[layers, tokens, hidden]`.

    The model is not jitted and computes all layers and logits; batches are as long as their longest sequence and the
    last one is smaller, so shapes change; and each layer of each sample is a transfer that waits.
    """
    for start in range(0, len(sequences), batch_size):
        chunk = sequences[start : start + batch_size]
        lengths = np.array([len(sequence) for sequence in chunk])
        mask = np.arange(lengths.max()) < lengths[:, None]
        ids = np.zeros(mask.shape, np.int32)
        ids[mask] = np.concatenate(chunk)
        _, activations = model.apply(params, ids, mask, layers=tuple(layers))
        for row, length in enumerate(lengths):
            yield start + row, np.stack([np.array(activation[row])[:length] for activation in activations])
