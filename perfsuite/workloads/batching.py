"""Batches of fixed shapes from sequences of any length, in NumPy: a compiled step sees a known, small set of shapes."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

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


def fixed_size_batches(
    sequences: Iterable[Sequence[int] | np.ndarray],
    batch_size: int,
    *,
    length: int | Sequence[int] | None = None,
    pad_id: int,
) -> Iterator[Batch]:
    """Batches of `batch_size` rows, in the stream's order, every sequence exactly once, padded on the right.

    `length` is every batch's length in tokens; or several, increasing, of which a batch gets the smallest that holds
    its longest sequence; or `None` for the longest sequence of all, for which the whole stream is read first. The last
    batch is filled up with padding rows.

    Raises `ValueError` at once for arguments that make no sense, and on reaching it for a sequence that is empty,
    longer than the longest length, or not of int32 token ids.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if not _INT32.min <= pad_id <= _INT32.max:
        raise ValueError(f"pad_id must be an int32, got {pad_id}")
    if length is None:
        arrays = [_checked(i, sequence) for i, sequence in enumerate(sequences)]
        return _batches(arrays, batch_size, (max(map(len, arrays), default=1),), pad_id)
    buckets = (length,) if isinstance(length, int | np.integer) else tuple(length)
    if not buckets or buckets[0] < 1 or any(a >= b for a, b in itertools.pairwise(buckets)):
        raise ValueError(f"length must be one or more increasing numbers of tokens, at least 1, got {length}")
    return _batches(sequences, batch_size, buckets, pad_id)


def _batches(
    sequences: Iterable[Sequence[int] | np.ndarray], batch_size: int, buckets: tuple[int, ...], pad_id: int
) -> Iterator[Batch]:
    stream = enumerate(sequences)
    while chunk := list(itertools.islice(stream, batch_size)):
        arrays = [_checked(i, sequence, buckets[-1]) for i, sequence in chunk]
        lengths = np.zeros(batch_size, np.int32)
        lengths[: len(arrays)] = [len(array) for array in arrays]
        length = next(bucket for bucket in buckets if lengths.max() <= bucket)
        ids = np.full((batch_size, length), pad_id, np.int32)
        for row, array in zip(ids, arrays, strict=False):
            row[: len(array)] = array
        indices = np.full(batch_size, -1, np.int64)
        indices[: len(chunk)] = [i for i, _ in chunk]
        yield Batch(ids, np.arange(length) < lengths[:, None], lengths, indices, indices >= 0)


def _checked(index: int, sequence: Sequence[int] | np.ndarray, longest: int | None = None) -> np.ndarray:
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
