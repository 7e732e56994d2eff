"""`covers(step, inputs)`: which signatures the inputs bring that were not warmed, and which were warmed for nothing."""

import dataclasses
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import jax

from perfsuite.measure.call import label_of
from perfsuite.measure.compiles import callsite, causes, explanation
from perfsuite.measure.compiles.callsite import Statics
from perfsuite.measure.compiles.description import Item, Leaf
from perfsuite.measure.compiles.signature import (
    Changes,
    Signature,
    SignatureChange,
    changes_between,
    distance,
    with_parameters,
)
from perfsuite.measure.compiles.values import untyped
from perfsuite.measure.compiles.warmup import Warm, function_of
from perfsuite.measure.covers.calls import JittedCall, Seen, Warmed, is_jitted, of_jitted, of_python
from perfsuite.measure.covers.inputs import Keys, Walk
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.metric import Metric
from perfsuite.measure.private import jax_stack
from perfsuite.measure.private.bound import behind_bound
from perfsuite.measure.words import plural

SUFFIXES = (" uncovered signatures", " unused signatures")
_SHOWN = 5
_PLACES = ("committed", "sharding", "device", "layout")


@dataclasses.dataclass(frozen=True)
class Uncovered:
    """A signature that was not warmed. `first` is the place of the first input that makes it, `inputs` their number.

    `changes` are the differences from the nearest of `warmed` signatures of the function, each a readable line.
    `location` is the line of the call; empty where the step itself is the jitted function.
    """

    function: str
    first: int
    inputs: int
    changes: tuple[str, ...]
    warmed: int
    location: str
    text: str = dataclasses.field(repr=False)

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True)
class Coverage:
    """What `inputs` inputs bring: `signatures` different ones, of which `uncovered` were not warmed.

    `unused` are signatures that were warmed and that no input makes, by function. `eager` are operations outside any
    jitted function that the step runs, each with its line; they are not compared. `ended` says whether the loader came
    to its end before `limit`.
    """

    label: str
    inputs: int
    signatures: int
    uncovered: tuple[Uncovered, ...]
    unused: tuple[tuple[str, Signature], ...]
    eager: tuple[str, ...]
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
        shown = [*map(str, self.uncovered[:_SHOWN]), *([f"and {more:,} more"] if more > 0 else [])]
        return "\n".join([*shown, *self._eager_in_words()])

    def __str__(self) -> str:
        of = f"{plural(self.signatures, 'signature')} of {plural(self.inputs, 'input')}"
        lines = [f"{of}: {len(self.uncovered):,} uncovered"]
        lines += [self.in_words()] if self.uncovered else self._eager_in_words()
        lines += [f"warmed and not used: `{function}` {signature}" for function, signature in self.unused[:_SHOWN]]
        return "\n".join(lines)

    def _eager_in_words(self) -> list[str]:
        more = len(self.eager) - _SHOWN
        shown = "; ".join(self.eager[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
        what = f"operations outside any jitted function, which compile for each new shape: {shown}"
        return [what] if shown else []


def covers(step: Callable, inputs: Iterable[Any], *, limit: int | None = None, every: bool = False) -> Coverage:
    """Compare the signatures that `inputs` bring to jitted functions with those that are warm. Runs no program.

    `step` is what `warm` returned, a jitted function, or a Python function that calls some; of these it is run, without
    programs, for every input that is unlike the others, or for each where `every`. An input is a tuple of positional
    arguments, a `call` of `step`, or the only argument. An iterator is consumed, up to `limit` inputs.

    Raises `MeasurementError` where the step reads what a program would compute, or calls no jitted function.
    """
    if not callable(step) or isinstance(step, jax.stages.Compiled):
        raise TypeError(f"perf.covers(step, inputs): step must be a function, jitted or not, got {type(step).__name__}")
    fn = function_of(step)
    jitted = is_jitted(fn)
    keys = _keys_of(fn, jitted, every)
    # What is bound to a jitted function is the same for every input, and moves the places of the other arguments.
    bound = (None,) * len(behind_bound(fn)[1]) if jitted else ()
    ledger, walk = _Ledger(), Walk(step, inputs, limit)
    for place, (args, kwargs) in enumerate(walk):
        key = keys.of((*bound, *args), kwargs) if keys else None
        if not ledger.repeats(key):
            seen = of_jitted(step, args, kwargs) if jitted else of_python(fn, args, kwargs, place)
            ledger.add(seen, key, place)
    if not ledger.groups:
        raise MeasurementError(
            f"perf.covers({label_of(step)}, inputs): it calls no jitted function, so there is no signature to compare"
        )
    return ledger.coverage(label_of(step), walk.inputs, walk.ended)


def _keys_of(fn: Callable, jitted: bool, every: bool) -> Keys | None:
    if not jitted:
        return None if every else Keys(None)
    statics = callsite.of_function(fn, (), {}).statics
    argnums, _ = jax_stack.static_arguments(behind_bound(fn)[0]) or ((), ())
    # From the end is counted with the arguments, whose number may differ.
    return None if statics is None or any(n < 0 for n in argnums) else Keys(statics)


@dataclasses.dataclass(eq=False)
class _Group:
    """The calls of one function with one signature. `changes` is None where it was warmed."""

    call: JittedCall
    first: int
    changes: Changes | None
    inputs: int = 0

    def as_uncovered(self) -> Uncovered:
        call, changes = self.call, self.changes or ()
        function, warmed = label_of(call.function), len({each.signature for each in call.warmed})
        text = explanation.uncovered(
            function,
            call.sighting.signature,
            changes,
            warmed,
            where=call.location,
            first=self.first,
            inputs=self.inputs,
            forgotten=call.forgotten,
        )
        said = tuple(map(str, changes))
        return Uncovered(function, self.first, self.inputs, said, warmed, call.location, text)


class _Ledger:
    """What the inputs have brought so far."""

    def __init__(self) -> None:
        self.groups: dict[Hashable, _Group] = {}
        self._by_input: dict[Hashable, tuple[_Group, ...]] = {}
        self._warms: dict[int, Warm] = {}
        self._used: set[tuple[int, Signature]] = set()
        self._eager: dict[str, None] = {}

    def repeats(self, key: Hashable | None) -> bool:
        """Count an input with the key of an earlier one; False where there was none."""
        groups = None if key is None else self._by_input.get(key)
        for group in groups or ():
            group.inputs += 1
        return groups is not None

    def add(self, seen: Seen, key: Hashable | None, place: int) -> None:
        """Take what a new input led to."""
        groups = tuple(dict.fromkeys(self._group_of(call, place) for call in seen.calls))
        for group in groups:
            group.inputs += 1
        if key is not None:
            self._by_input[key] = groups
        self._eager |= dict.fromkeys(seen.eager)

    def coverage(self, label: str, inputs: int, ended: bool) -> Coverage:
        uncovered = tuple(each.as_uncovered() for each in self.groups.values() if each.changes is not None)
        unused = tuple(
            (label_of(warm), signature)
            for warm in self._warms.values()
            for signature in warm.signatures
            if (id(warm), signature) not in self._used
        )
        return Coverage(label, inputs, len(self.groups), uncovered, unused, tuple(self._eager), ended)

    def _group_of(self, call: JittedCall, place: int) -> _Group:
        seen = call.sighting
        # A function that is made anew for every input is another object each time, and one mistake.
        function = None if call.otherwise else seen.function
        essential = _essential(seen.signature, seen.statics)
        key = call.key, function, seen.statics, seen.options, seen.config, essential, call.traced
        if key not in self.groups:
            self.groups[key] = _Group(call, place, self._changes_of(call))
        return self.groups[key]

    def _changes_of(self, call: JittedCall) -> Changes | None:
        """The changes from the nearest warmed signature; None where it is one of these."""
        self._warms |= {id(each.of): each.of for each in call.warmed if each.of}
        compared = [(each, _changes_from(each, call)) for each in call.warmed]
        if alike := [each for each, changes in compared if not changes]:
            self._used |= {(id(each.of), each.signature) for each in alike}
            return None
        nearest = min((changes for _, changes in compared), key=distance, default=call.otherwise)
        return with_parameters(nearest, call.function)


def _changes_from(warmed: Warmed, call: JittedCall) -> tuple[SignatureChange, ...]:
    seen = call.sighting
    changes = causes.relevant(changes_between(warmed.signature, seen.signature), seen.statics)
    known = (each for each in changes if not (each.kind in _PLACES and each.path in call.traced))
    return (*known, *causes.config_changes(warmed.config, seen.config))


def _essential(signature: Signature, statics: Statics | None) -> Signature:
    """The signature, equal to another where one program serves both."""
    if statics is None:
        return signature
    return Signature(tuple((path, _essential_item(path, item, statics)) for path, item in signature.parts))


def _essential_item(path: str, item: Item, statics: Statics) -> Item:
    if statics.all:
        return _with_leaves(item, _of_filter_jit)
    if path not in statics:
        return _with_leaves(item, _without_value)
    # Of a static argument itself the type counts, of what is inside it does not.
    return item if isinstance(item, Leaf) else _with_leaves(item, _without_type)


def _without_value(leaf: Leaf) -> Leaf:
    """A program takes the values of numbers that are not static as it takes arrays."""
    return leaf if leaf.kind == "static" else dataclasses.replace(leaf, kind="array", value=None)


def _of_filter_jit(leaf: Leaf) -> Leaf:
    """`filter_jit` takes NumPy's numbers for arrays."""
    return dataclasses.replace(leaf, value=None) if leaf.kind == "array" else _without_type(leaf)


def _without_type(leaf: Leaf) -> Leaf:
    return dataclasses.replace(leaf, dtype="", weak_type=False, value=leaf.value and untyped(leaf.value))


def _with_leaves(item: Item, change: Callable[[Leaf], Leaf]) -> Item:
    if isinstance(item, Leaf):
        return change(item)
    children = tuple((suffix, _with_leaves(child, change)) for suffix, child in item.children)
    return dataclasses.replace(item, children=children)
