"""Batches of fixed shapes from sequences of any length, in NumPy: a compiled step sees a known, small set of shapes."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

_INT32 = np.iinfo(np.int32)


@dataclasses.dataclass(frozen=True)
class Batch:
    """Padded sequences. Rows after the last sequence of a stream hold padding alone.

    ids: int32 `[batch, length]`.
    mask: bool `[batch, length]`, true on real tokens.
    lengths: int32 `[batch]`, tokens in a row; 0 in a padding row.
    indices: int64 `[batch]`, each row's place in the stream; -1 in a padding row.
    rows: bool `[batch]`, true where there is a sequence.
    """

    ids: np.ndarray
    mask: np.ndarray
    lengths: np.ndarray
    indices: np.ndarray
    rows: np.ndarray


@dataclasses.dataclass(frozen=True)
class BatchActivations:
    """A batch's activations on the host: `values` is `[batch, layers, sequence, hidden]`, and not to be written to."""

    batch: Batch
    values: np.ndarray

    def samples(self) -> Iterator[tuple[int, np.ndarray]]:
        """Each sample's index and its activations `[layers, tokens, hidden]`, a view, without any padding."""
        for row in np.flatnonzero(self.batch.rows):
            yield int(self.batch.indices[row]), self.values[row, :, : self.batch.lengths[row]]


def fixed_size_batches(
    sequences: Iterable[Sequence[int] | np.ndarray],
    batch_size: int,
    *,
    length: int | Sequence[int] | None = None,
    pad_id: int,
) -> Iterator[Batch]:
    """Batches of `batch_size` rows, in the stream's order, every sequence exactly once, padded on the right.

    `length` is every batch's length in tokens; or several, increasing, of which a batch gets the smallest that holds
    its longest sequence; or `None` for the longest sequence of all, for which the whole stream is read first. Padding
    rows fill the last batch.

    Raises `ValueError` at once for arguments that make no sense, and, when it reaches it, for a sequence that is empty,
    longer than the longest length, or not of int32 token ids.
    """
    _check_sizes(batch_size, pad_id)
    if length is None:
        sequences = [checked_sequence(i, sequence) for i, sequence in enumerate(sequences)]
        length = max(map(len, sequences), default=1)
    buckets = checked_lengths(length)
    stream = enumerate(sequences)
    chunks = iter(lambda: list(itertools.islice(stream, batch_size)), [])
    return (_padded(chunk, batch_size, buckets, pad_id) for chunk in chunks)


def chosen_batches(
    sequences: Sequence[Sequence[int] | np.ndarray],
    batch_size: int,
    chosen: Callable[[slice], bool],
    *,
    length: int | Sequence[int],
    pad_id: int,
) -> Iterator[Batch]:
    """The batches that `fixed_size_batches` makes whose samples, a slice of `sequences`, are `chosen`.

    Sequences of other batches are not read. Raises as `fixed_size_batches` does.
    """
    _check_sizes(batch_size, pad_id)
    buckets = checked_lengths(length)
    parts = (slice(i, min(i + batch_size, len(sequences))) for i in range(0, len(sequences), batch_size))
    chunks = ([(i, sequences[i]) for i in range(part.start, part.stop)] for part in parts if chosen(part))
    return (_padded(chunk, batch_size, buckets, pad_id) for chunk in chunks)


def checked_lengths(length: int | Sequence[int]) -> tuple[int, ...]:
    """The lengths that batches can have. Raises `ValueError` without any, or where they do not increase."""
    lengths = (length,) if isinstance(length, int | np.integer) else tuple(length)
    if not lengths or lengths[0] < 1 or any(a >= b for a, b in itertools.pairwise(lengths)):
        raise ValueError(f"length must be one or more increasing numbers of tokens, at least 1, got {length}")
    return lengths


def _check_sizes(batch_size: int, pad_id: int) -> None:
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if not _INT32.min <= pad_id <= _INT32.max:
        raise ValueError(f"pad_id must be an int32, got {pad_id}")


def _padded(
    chunk: Sequence[tuple[int, Sequence[int] | np.ndarray]], batch_size: int, buckets: tuple[int, ...], pad_id: int
) -> Batch:
    arrays = [checked_sequence(i, sequence, buckets[-1]) for i, sequence in chunk]
    lengths = np.zeros(batch_size, np.int32)
    lengths[: len(arrays)] = [len(array) for array in arrays]
    length = next(bucket for bucket in buckets if lengths.max() <= bucket)
    ids = np.full((batch_size, length), pad_id, np.int32)
    for row, array in zip(ids, arrays, strict=False):
        row[: len(array)] = array
    indices = np.full(batch_size, -1, np.int64)
    indices[: len(chunk)] = [i for i, _ in chunk]
    return Batch(ids, np.arange(length) < lengths[:, None], lengths, indices, indices >= 0)


def checked_sequence(index: int, sequence: Sequence[int] | np.ndarray, longest: int | None = None) -> np.ndarray:
    """`sequence`, the `index`-th of its stream, as an array. Raises `ValueError` as `fixed_size_batches` says."""
    array = np.asarray(sequence)
    if array.size == 0:
        raise ValueError(f"sequence {index} is empty")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"sequence {index} must be integers [tokens], got {array.dtype} of shape {array.shape}")
    if longest is not None and len(array) > longest:
        raise ValueError(f"sequence {index} has {len(array)} tokens, but the longest length is {longest}")
    if array.min() < _INT32.min or array.max() > _INT32.max:
        raise ValueError(f"sequence {index} has ids beyond int32: {array.min()} to {array.max()}")
    return array
