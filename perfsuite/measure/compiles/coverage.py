"""`covers(warmed, inputs)`: which signatures the inputs bring that were not warmed, and which were warmed for nothing.

No program runs: the arguments of each input are described, and compared with the signatures that `warm` has.
"""

import dataclasses
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from perfsuite.measure.call import Call, label_of
from perfsuite.measure.compiles import callsite, causes, explanation
from perfsuite.measure.compiles.signature import (
    Changes,
    Signature,
    changes_between,
    distance,
    signature_of,
    with_parameters,
)
from perfsuite.measure.compiles.warmup import Warm, function_of
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.metric import Metric
from perfsuite.measure.private.bound import calls_the_same
from perfsuite.measure.words import plural

SUFFIXES = (" uncovered signatures", " unused signatures")
MOST_INPUTS = 1_000_000
"""Of a loader that does not end, without `limit=`."""

_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Uncovered:
    """A signature that was not warmed. `first` is the place of the first input that brings it, `inputs` their number.

    `changes` are the differences from the nearest warm signature, each a readable line.
    """

    signature: Signature
    first: int
    inputs: int
    changes: tuple[str, ...]
    text: str = dataclasses.field(repr=False)

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True)
class Coverage:
    """What `inputs` inputs bring: `signatures` different ones, of which `uncovered` were not warmed.

    `unused` are signatures that were warmed and that no input brings. `ended` says whether the loader came to its end.
    """

    label: str
    inputs: int
    signatures: int
    uncovered: tuple[Uncovered, ...]
    unused: tuple[Signature, ...]
    ended: bool

    def metrics(self, name: str) -> list[Metric]:
        """The uncovered signatures as a count, the unused ones as info."""
        uncovered, unused = (f"{name}{suffix}" for suffix in SUFFIXES)
        return [
            Metric(uncovered, len(self.uncovered), "signatures", "count"),
            Metric(unused, len(self.unused), "signatures", "info"),
        ]

    def in_words(self) -> str:
        """A paragraph for each uncovered signature."""
        more = len(self.uncovered) - _SHOWN
        return "\n".join([*map(str, self.uncovered[:_SHOWN]), *([f"and {more:,} more"] if more > 0 else [])])

    def __str__(self) -> str:
        of = f"{plural(self.signatures, 'signature')} of {plural(self.inputs, 'input')}"
        lines = [f"{of}: {len(self.uncovered):,} uncovered", *([self.in_words()] if self.uncovered else [])]
        lines += [f"warmed and not used: `{self.label}` {signature}" for signature in self.unused[:_SHOWN]]
        return "\n".join(lines)


def covers(warmed: Warm, inputs: Iterable[Any], *, limit: int | None = None) -> Coverage:
    """Compare the signatures that `inputs` bring with those that are warm. Runs no program.

    `warmed` is what `warm` returned for a jitted function. An input is a tuple of positional arguments, a `call` of the
    function, or the only argument. An iterator is consumed, up to `limit` inputs.

    Raises `TypeError` or `ValueError` for what is no list of inputs and no loader, for a `limit` that is no number,
    where there is no input, for a call of another function, and after a million inputs without a `limit`;
    `MeasurementError` for a function that is not jitted, whose arguments are not those of its programs.
    """
    if not isinstance(warmed, Warm):
        raise TypeError(f"perf.covers(warmed, inputs): give what perf.warm returned, got {type(warmed).__name__}")
    who = f"perf.covers({label_of(warmed)}, inputs)"
    _check(who, inputs, limit)
    if (statics := callsite.of_function(warmed.fn, (), {}).statics) is None:
        raise MeasurementError(
            f"{who}: {label_of(warmed)} is not jitted, so its arguments are not those of its programs. Warm the jitted "
            "function that it calls, and give the inputs that this gets"
        )
    by_value = statics.all or bool(statics.paths)
    ledger, entries = _Ledger(warmed), iter(inputs)
    count, ended = 0, False
    while count != limit:
        try:
            args, kwargs = _arguments(who, warmed, next(entries), count)
        except StopIteration:
            ended = True
            break
        if limit is None and count == MOST_INPUTS:
            raise ValueError(
                f"{who}: the loader has given {MOST_INPUTS:,} inputs and goes on. Say how many show all of its "
                "signatures: perf.covers(warmed, loader, limit=10_000)"
            )
        ledger.add(args, kwargs, count, _key(args, kwargs, by_value))
        count += 1
    if not count:
        raise ValueError(f"{who}: there are no inputs; a generator that was walked before is empty")
    return ledger.coverage(count, ended)


@dataclasses.dataclass(eq=False)
class _Group:
    """The inputs with one signature. `changes` is empty where it is warm."""

    signature: Signature
    first: int
    changes: Changes
    inputs: int = 0


class _Ledger:
    """What the inputs have brought so far."""

    def __init__(self, warmed: Warm) -> None:
        self._warmed = warmed
        self._config = causes.config_changes(warmed.config, causes.config_now())
        self._by_key: dict[Hashable, _Group] = {}
        self._groups: list[_Group] = []
        self._used: set[Signature] = set()

    def add(self, args: tuple, kwargs: dict[str, Any], place: int, key: Hashable | None) -> None:
        """Count an input. Those with an equal key have one signature."""
        group = None if key is None else self._by_key.get(key)
        if group is None:
            group = self._group_of(args, kwargs, place)
        if key is not None:
            self._by_key[key] = group
        group.inputs += 1

    def coverage(self, inputs: int, ended: bool) -> Coverage:
        uncovered = tuple(map(self._uncovered, (each for each in self._groups if each.changes)))
        unused = tuple(each for each in self._warmed.signatures if each not in self._used)
        return Coverage(label_of(self._warmed), inputs, len(self._groups), uncovered, unused, ended)

    def _group_of(self, args: tuple, kwargs: dict[str, Any], place: int) -> _Group:
        site = callsite.of_function(self._warmed.fn, args, kwargs)
        signature = signature_of(site.args, site.kwargs)

        def changes_from(known: Signature) -> Changes:
            return causes.relevant(changes_between(known, signature), site.statics)

        known = {each: (*changes_from(each), *self._config) for each in reversed(self._warmed.signatures)}
        self._used |= {each for each, changes in known.items() if not changes}
        nearest = min(known.values(), key=distance)
        same = (each for each in self._groups if bool(each.changes) == bool(nearest))
        group = next((each for each in same if not changes_from(each.signature)), None)
        if group is None:
            group = _Group(signature, place, with_parameters(nearest, site.function))
            self._groups.append(group)
        return group

    def _uncovered(self, group: _Group) -> Uncovered:
        name, first = label_of(self._warmed), f"input {group.first}"
        who = f"{first} brings" if group.inputs == 1 else f"{group.inputs:,} inputs, the first is {first}, bring"
        begins = f"{who} `{name}` a signature that was not warmed"
        text = explanation.unwarmed(begins, name, group.signature, group.changes, len(self._warmed.signatures))
        return Uncovered(group.signature, group.first, group.inputs, tuple(map(str, group.changes)), text)


def _check(who: str, inputs: Any, limit: Any) -> None:
    wanted = f"{who}: inputs must be a list of arguments or a data loader"
    if isinstance(inputs, Call):
        raise TypeError(f"{wanted}; got one call: [call(...)]")
    if isinstance(inputs, str | bytes | Mapping | jax.Array | np.ndarray) or not isinstance(inputs, Iterable):
        raise TypeError(f"{wanted}; got {type(inputs).__name__}")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ValueError(f"{who}: limit={limit!r} must be an int of 1 or more")


def _arguments(who: str, warmed: Warm, entry: Any, place: int) -> tuple[tuple, dict[str, Any]]:
    if not isinstance(entry, Call):
        # A named tuple is one batch, as in `perf.warm`.
        return entry if type(entry) is tuple else (entry,), {}
    if not calls_the_same(function_of(entry.fn), warmed.fn):
        raise ValueError(f"{who}: input {place} is a call of another function, {entry.label}")
    return entry.args, entry.kwargs


def _key(args: tuple, kwargs: dict[str, Any], by_value: bool) -> Hashable | None:
    """Equal for inputs of one signature, at a much lower cost than a description; None where only that can tell."""
    # Without `is_leaf`, JAX warns of an iterator.
    try:
        leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=lambda node: isinstance(node, Iterator))
        hash(key := (tree, *(_leaf_key(leaf, by_value) for leaf in leaves)))
    except Exception:  # An object that has no hash, is deleted, or raises.
        return None
    return key


def _leaf_key(leaf: Any, by_value: bool) -> Any:
    """Arrays count by what JAX knows of them, and numbers by their values where any argument is static."""
    if isinstance(leaf, np.ndarray):
        return leaf.shape, leaf.dtype
    if isinstance(leaf, jax.Array):
        array: Any = leaf
        return jax.typeof(leaf), array.format if array.committed else array.format.layout
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf.shape, leaf.dtype, leaf.weak_type, leaf.sharding, "spec"
    if not by_value and isinstance(leaf, bool | int | float | complex | np.generic):
        return type(leaf)
    if not by_value or isinstance(leaf, Iterator):
        raise TypeError("JAX does not compare it by value")
    return type(leaf), leaf
