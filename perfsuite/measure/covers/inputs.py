"""The inputs of `perf.covers`: specs, arguments or a data loader, walked one by one; and a key by which they repeat."""

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from perfsuite.measure.call import Call, label_of
from perfsuite.measure.compiles.callsite import Statics
from perfsuite.measure.compiles.warmup import function_of
from perfsuite.measure.private.bound import calls_the_same

MOST_INPUTS = 1_000_000
"""Of a loader that does not end, without `limit=`."""

Arguments = tuple[tuple, dict[str, Any]]

_ARRAY = "array"
_NUMBERS = (bool, int, float, complex)
_TEXTS = (str, bytes)


class Walk:
    """A walk over the arguments of every input: a tuple has the positional ones, a `call` keywords too, and anything
    else is the only argument. `inputs` counts them; `ended` says whether there are no more.

    Raises `TypeError` or `ValueError` for what is no list of inputs and no loader, for a `limit` that is no number,
    where there is no input, for a call of another function, and after a million inputs without a `limit`.
    """

    def __init__(self, step: Callable, inputs: Any, limit: int | None):
        self._who = f"perf.covers({label_of(step)}, inputs)"
        wanted = f"{self._who}: inputs must be a list of arguments or a data loader"
        if isinstance(inputs, Call):
            raise TypeError(f"{wanted}; got one call: [call(...)]")
        if isinstance(inputs, str | bytes | Mapping | jax.Array | np.ndarray) or not isinstance(inputs, Iterable):
            raise TypeError(f"{wanted}; got {type(inputs).__name__}")
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise ValueError(f"{self._who}: limit={limit!r} must be an int of 1 or more")
        self._step, self._entries, self._limit = step, iter(inputs), limit
        self.inputs, self.ended = 0, False

    def __iter__(self) -> Iterator[Arguments]:
        while self.inputs != self._limit:
            try:
                entry = next(self._entries)
            except StopIteration:
                self.ended = True
                break
            if self._limit is None and self.inputs == MOST_INPUTS:
                raise ValueError(
                    f"{self._who}: the loader has given {MOST_INPUTS:,} inputs and goes on. Say how many show all of "
                    "its signatures: perf.covers(step, loader, limit=10_000)"
                )
            yield self._arguments(entry)
            self.inputs += 1
        if not self.inputs:
            raise ValueError(f"{self._who}: there are no inputs; a generator that was walked before is empty")

    def _arguments(self, entry: Any) -> Arguments:
        if not isinstance(entry, Call):
            # A named tuple is one batch, as in `perf.warm`.
            return entry if type(entry) is tuple else (entry,), {}
        if not calls_the_same(function_of(entry.fn), function_of(self._step)):
            raise ValueError(f"{self._who}: input {self.inputs} is a call of another function, {entry.label}")
        return entry.args, entry.kwargs


class Keys:
    """A key for the arguments of an input: those with one key make the same signatures.

    `statics` are the arguments that a jitted function compares by value. Without them (None) the function is Python's
    own: it may look at each number and text, and at any object. Arrays count by what JAX knows of them.
    """

    def __init__(self, statics: Statics | None):
        self._statics = statics
        self._last: list[tuple[Any, Hashable]] = []
        """The leaves of the last input, with their keys: a model's arrays are the same objects in every input."""

    def of(self, args: tuple, kwargs: dict[str, Any]) -> Hashable | None:
        """The key; None where nobody can tell, so that the input has to be looked at."""
        named = [(f"args[{n}]", value) for n, value in enumerate(args)]
        named += [(f"kwargs[{name!r}]", kwargs[name]) for name in sorted(kwargs)]
        try:
            if any(isinstance(value, Iterator) for _, value in named):
                return None
            parts, leaves = [], []
            for path, value in named:
                below, tree = jax.tree.flatten(value)
                by_value = self._statics is None or path in self._statics
                parts.append((path, tree))
                leaves += [(leaf, by_value) for leaf in below]
            keys = self._leaf_keys(leaves)
            hash(key := (tuple(parts), tuple(keys)))
        except Exception:  # An object that has no hash, is deleted, or raises.
            return None
        return key

    def _leaf_keys(self, leaves: list[tuple[Any, bool]]) -> list[Hashable]:
        last = itertools.chain(self._last, itertools.repeat((None, None)))
        self._last = [
            (leaf, key if leaf is before and _is_of_array(key) else self._leaf_key(leaf, by_value))
            for (leaf, by_value), (before, key) in zip(leaves, last, strict=False)
        ]
        return [key for _, key in self._last]

    def _leaf_key(self, leaf: Any, by_value: bool) -> Hashable:
        if isinstance(leaf, np.ndarray):
            return "numpy", leaf.shape, leaf.dtype
        if isinstance(leaf, jax.Array):
            array: Any = leaf
            placed = array.format if array.committed else array.format.layout
            return _ARRAY, leaf.shape, leaf.dtype, array.weak_type, array.committed, placed
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return "spec", leaf.shape, leaf.dtype, leaf.weak_type, leaf.sharding
        if isinstance(leaf, (np.generic, *_NUMBERS, *_TEXTS)):
            return type(leaf), leaf if by_value or isinstance(leaf, _TEXTS) else None
        if not by_value or self._statics is None:
            raise TypeError("JAX does not compare it by value")
        return type(leaf), leaf


def _is_of_array(key: Hashable) -> bool:
    return isinstance(key, tuple) and key[0] is _ARRAY
