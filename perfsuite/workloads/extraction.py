"""Activations of chosen layers for a stream of batches, on the host.

`extract` is the pipeline: one compiled program a batch shape, one transfer a batch, and the device on the next batch
while this one is copied and used. `extract_naive` is where the seed document (001) started from, and the reference:
both give every sample the same activations, up to rounding, because they are not the same programs.

What an activation is, says `perfsuite.workloads.qwen2`.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from perfsuite.workloads.batching import Batch
from perfsuite.workloads.qwen2 import Qwen2, check_ids, check_layers


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

        Raises `ValueError` for NumPy `ids` that are not in the vocabulary. Ids on a device are not looked at, because
        that would wait for them; of those the results are NaN.
        """
        if isinstance(ids, np.ndarray):
            check_ids("ids", ids, self.model.config)
        return self.step(params, ids, mask)


@dataclasses.dataclass(frozen=True)
class BatchActivations:
    """A batch's activations on the host: `values` is `[batch, layers, sequence, hidden]`, and not to be written to."""

    batch: Batch
    values: np.ndarray

    def samples(self) -> Iterator[tuple[int, np.ndarray]]:
        """Each sample's index and its activations `[layers, tokens, hidden]`, a view, without any padding."""
        for row in np.flatnonzero(self.batch.rows):
            yield int(self.batch.indices[row]), self.values[row, :, : self.batch.lengths[row]]


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
    extractor: Callable[[Any, np.ndarray, np.ndarray], Array], params: Any, batches: Iterable[Batch], *, ahead: int = 1
) -> Iterator[BatchActivations]:
    """Activations of each batch, in order.

    When a batch is handed over, `ahead` more are under way: computed, then copied to the host as soon as they are
    there. So the device holds the activations of up to `ahead + 1` batches. With `ahead=0` nothing overlaps.

    Raises `ValueError` at once for a negative `ahead`.
    """
    if ahead < 0:
        raise ValueError(f"ahead must not be negative, got {ahead}")
    return _extract(extractor, params, batches, ahead)


def _extract(
    extractor: Callable[[Any, np.ndarray, np.ndarray], Array], params: Any, batches: Iterable[Batch], ahead: int
) -> Iterator[BatchActivations]:
    under_way: collections.deque[tuple[Batch, Array]] = collections.deque()
    for batch in batches:
        values = extractor(params, batch.ids, batch.mask)
        # Returns before there is anything to copy. jax.device_get would wait.
        values.copy_to_host_async()
        under_way.append((batch, values))
        # Else the array would live on the device until the batch after the next.
        del values
        if len(under_way) > ahead:
            yield _on_host(*under_way.popleft())
    while under_way:
        yield _on_host(*under_way.popleft())


def _on_host(batch: Batch, values: Array) -> BatchActivations:
    return BatchActivations(batch, np.asarray(values))


def extract_naive(
    model: Qwen2, params: Any, sequences: Sequence[Sequence[int] | np.ndarray], batch_size: int, layers: Sequence[int]
) -> Iterator[tuple[int, np.ndarray]]:
    """The seed document's extraction as it was: each sample's index and activations `[layers, tokens, hidden]`.

    The model is not jitted and computes all layers and logits; batches are as long as their longest sequence and the
    last is smaller, so that shapes change; and each layer of each sample is a transfer that waits.
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
