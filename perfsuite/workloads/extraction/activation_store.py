"""Activations in a folder or a bucket: a Zarr group of two arrays, written and read by tensorstore.

`activations` is `[sample, layer, token, hidden]`, zero beyond a sample's tokens. A chunk, all layers of some samples,
is one object, which one writer writes at once, so that processes can share a store and write different chunks. Inside
it every sample is compressed by itself, with a checksum, and can be read by itself. `tokens` is `[sample]`: a sample's
tokens, and 0 while it is missing. A chunk's tokens are written after its activations are on the disk, so that a sample
that is marked is there, whatever kills the process.
"""

import collections
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeVar, overload

import numpy as np
import tensorstore as ts

from perfsuite.workloads.extraction.batching import Batch, BatchActivations
from perfsuite.workloads.extraction.store_identity import StoreIdentity
from perfsuite.workloads.extraction.store_layout import (
    StoreError,
    created_or_read,
    located,
    open_arrays,
    read_identity,
    tried,
)

__all__ = ["ActivationStore", "StoreError"]

T = TypeVar("T")


class ActivationStore:
    """Activations of an extraction, sample by sample, as `create_or_open` or `open` give it.

    Writing is asynchronous: `write` returns while up to `in_flight` chunks are being written, and a later `write`, or
    `wait`, raises their errors. As a context manager a store waits at the end, and can be used again. Threads can share
    an instance for reading, not for writing.
    """

    def __init__(
        self, path: str, identity: StoreIdentity, activations: ts.TensorStore, tokens: ts.TensorStore, in_flight: int
    ) -> None:
        """Use `create_or_open` or `open`."""
        self.path = path
        self.identity = identity
        self._activations = activations
        self._tokens = tokens
        self._in_flight = in_flight
        self._pool: ThreadPoolExecutor | None = None
        self._writing: collections.deque[Future[None]] = collections.deque()

    @classmethod
    def create_or_open(cls, path: str | os.PathLike[str], identity: StoreIdentity, *, in_flight: int = 2) -> Self:
        """The store of `identity` at `path`, with the samples that it holds; a new one where there is nothing.

        `path` is a local folder, or a URL that tensorstore knows: `gs://bucket/folder`, `file:///folder`,
        `memory://name` (this process). Several processes may do this at once. `in_flight` bounds the chunks that are
        written at a time, and so the memory for them.

        Raises `StoreError`, and changes nothing, if something else is there: activations of another identity, files
        that are not a store, a damaged store.
        """
        if in_flight < 1:
            raise ValueError(f"in_flight must be at least 1, got {in_flight}")
        name, root = located(path)
        found = created_or_read(name, root, identity)
        if differences := found.differences(identity):
            raise StoreError(
                f"activation store {name} holds other activations: {'; '.join(differences)}. Use another path, or "
                "delete the store"
            )
        return cls(name, found, *open_arrays(name, root, found, create=True), in_flight)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """The store at `path`, to be read. Raises `StoreError` if there is none, or it is damaged."""
        name, root = located(path)
        found, _ = read_identity(name, root)
        if found is None:
            raise StoreError(f"there is no activation store at {name}")
        return cls(name, found, *open_arrays(name, root, found, create=False), 0)

    def __len__(self) -> int:
        """All samples, with those that are missing."""
        return self.identity.samples

    def tokens(self) -> np.ndarray:
        """Each sample's tokens, int32 `[samples]`, 0 where the sample is missing. Read from the store each time."""
        tokens: np.ndarray = self._tried("its tokens cannot be read", lambda: self._tokens.read().result())
        if tokens.size and not 0 <= tokens.min() <= tokens.max() <= self.identity.length:
            raise StoreError(
                f"activation store {self.path} is damaged: a sample has {tokens.min()} or {tokens.max()} tokens, but "
                f"they are from 0 to {self.identity.length}"
            )
        return tokens

    def missing(self) -> np.ndarray:
        """The missing samples, increasing, int64."""
        return np.flatnonzero(self.tokens() == 0)

    @overload
    def read(self, which: int) -> np.ndarray: ...
    @overload
    def read(self, which: slice) -> list[np.ndarray]: ...
    def read(self, which: int | slice) -> np.ndarray | list[np.ndarray]:
        """A sample's activations `[layers, tokens, hidden]`, or those of a slice of samples.

        Raises `IndexError` for an index that the store does not have, `LookupError` for a missing sample, and
        `StoreError` for a damaged store.
        """
        if isinstance(which, slice):
            start, stop, step = which.indices(len(self))
            if step != 1:
                raise ValueError(f"read takes slices of step 1, got {which}")
            return self._read(start, max(start, stop))
        if not -len(self) <= which < len(self):
            raise IndexError(f"activation store {self.path} has samples 0 to {len(self) - 1}, got {which}")
        (sample,) = self._read(which % len(self), which % len(self) + 1)
        return sample

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        """The index and the activations of each sample that is there, in order, read a chunk at a time."""
        per_chunk = self.identity.samples_per_chunk
        there = self.tokens() > 0
        for first in range(0, len(self), per_chunk):
            # All samples of a chunk are there, or none.
            if there[first]:
                yield from enumerate(self._read(first, min(first + per_chunk, len(self))), first)

    def _read(self, start: int, stop: int) -> list[np.ndarray]:
        tokens = self._tokens[start:stop].read()
        values = self._activations[start:stop].read()
        what = f"samples {start} to {stop - 1} cannot be read"
        counts = self._tried(what, tokens.result)
        if not counts.all():
            raise LookupError(
                f"activation store {self.path} does not have sample {start + int(np.argmin(counts > 0))} yet"
            )
        padded = self._tried(what, values.result)
        # Copies: a view would keep the padding, and the other samples.
        return [sample[:, :count].copy() for sample, count in zip(padded, counts, strict=True)]

    def write(self, done: BatchActivations) -> None:
        """Start to write the samples of a batch; waits while `in_flight` chunks are being written.

        The batch's rows, without rows of padding, must be whole chunks; the last chunk of a store may be smaller.
        `done.values` must not change until it is written. A sample that is there already is replaced.

        Raises `ValueError`, before anything is written, for rows, shapes and dtypes that the store does not take, and
        `StoreError` if an earlier write failed; the other chunks under way are still written.
        """
        if not self._in_flight:
            raise StoreError(f"activation store {self.path} was opened to be read: write with create_or_open")
        self._check_takes(done)
        chunks = self._chunks(done.batch)
        self._pool = self._pool or ThreadPoolExecutor(self._in_flight, "activation-store")
        for first, rows in chunks:
            while len(self._writing) >= self._in_flight:
                self._writing.popleft().result()
            self._writing.append(self._pool.submit(self._write, first, rows, done.values, done.batch.lengths))

    def wait(self) -> None:
        """Wait until everything is written. Raises `StoreError` if some of it could not be."""
        errors = []
        while self._writing:
            try:
                self._writing.popleft().result()
            except StoreError as error:
                errors.append(error)
        if errors:
            for other in errors[1:]:
                errors[0].add_note(str(other))
            raise errors[0]

    def close(self) -> None:
        """`wait`, and end the threads that write."""
        try:
            self.wait()
        finally:
            if self._pool is not None:
                self._pool.shutdown()
                self._pool = None

    def __enter__(self) -> Self:
        """The store itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close. A failed write does not replace an `error` that is under way: it becomes its note."""
        try:
            self.close()
        except StoreError as failed:
            if error is None:
                raise
            error.add_note(str(failed))

    def _check_takes(self, done: BatchActivations) -> None:
        """Raise `ValueError` for shapes, dtypes and lengths that are not the store's."""
        identity, batch = self.identity, done.batch
        shape = len(batch.rows), len(identity.layers), batch.mask.shape[1], identity.config.hidden_size
        if done.values.shape != shape or done.values.dtype.name != identity.config.activation_dtype:
            raise ValueError(
                f"activation store {self.path} takes {identity.config.activation_dtype} of shape {shape}, got "
                f"{done.values.dtype} of shape {done.values.shape}"
            )
        lengths = batch.lengths[batch.rows]
        if lengths.size and not 1 <= lengths.min() <= lengths.max() <= identity.length:
            raise ValueError(
                f"activation store {self.path} holds samples of 1 to {identity.length} tokens, got "
                f"{lengths.min()} to {lengths.max()}"
            )

    def _chunks(self, batch: Batch) -> list[tuple[int, np.ndarray]]:
        """Each chunk's first sample, and the batch's rows that hold its samples."""
        per_chunk, samples = self.identity.samples_per_chunk, self.identity.samples
        rows = np.flatnonzero(batch.rows)
        indices = batch.indices[rows].tolist()
        chunks = []
        at = 0
        while at < len(rows):
            first = indices[at]
            stop = min(first + per_chunk, samples)
            chunk = slice(at, at + stop - first)
            if first % per_chunk or not 0 <= first < stop or indices[chunk] != list(range(first, stop)):
                raise ValueError(
                    f"activation store {self.path} is written in whole chunks of {per_chunk} of its {samples} samples, "
                    f"got the samples {indices}"
                )
            chunks.append((first, rows[chunk]))
            at = chunk.stop
        return chunks

    def _write(self, first: int, rows: np.ndarray, values: np.ndarray, lengths: np.ndarray) -> None:
        """In a thread: write a chunk, and when it is on the disk its tokens."""
        stop = first + len(rows)

        def write() -> None:
            chunk = self._padded(first, rows, values, lengths)
            self._activations[first:stop].write(chunk, can_reference_source_data_indefinitely=True).result()
            self._tokens[first:stop].write(lengths[rows]).result()

        self._tried(f"samples {first} to {stop - 1} could not be written, what was written before is there", write)

    def _padded(self, first: int, rows: np.ndarray, values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        identity = self.identity
        shape = len(rows), len(identity.layers), identity.length, identity.config.hidden_size
        # This dtype is one of ml_dtypes, which tensorstore and jax share.
        chunk = np.zeros(shape, self._activations.dtype.numpy_dtype)
        for place, row in enumerate(rows):
            real = values[row, :, : lengths[row]]
            with np.errstate(over="ignore", invalid="ignore"):
                chunk[place, :, : lengths[row]] = real
            if chunk.dtype != values.dtype and np.any(
                np.isfinite(real) & ~np.isfinite(chunk[place, :, : lengths[row]])
            ):
                raise StoreError(
                    f"sample {first + place} has activations up to {np.abs(real).max()}, beyond {identity.dtype}: "
                    "store them in another dtype"
                )
        return chunk

    def _tried(self, what: str, work: Callable[[], T]) -> T:
        return tried(f"activation store {self.path}: {what}", work)
