"""`warm` compiles a function for every signature that it will be called with; `covers` compares a loader with them.

`covers` runs no program: the arguments of each input are described, and compared with the signatures that are warm.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from perfsuite.measure.call import Call, label_of
from perfsuite.measure.compiles import callsite, causes
from perfsuite.measure.compiles.compiles import Compiles
from perfsuite.measure.compiles.settle import WarmFunction, refuse_deleted, run_once, settle, unwrapped
from perfsuite.measure.compiles.signature import (
    Changes,
    Signature,
    changes_between,
    distance,
    signature_of,
    with_parameters,
)
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.metric import Metric
from perfsuite.measure.private.frameworks import copy_arrays
from perfsuite.measure.private.jax_stack import calls_the_same
from perfsuite.measure.words import plural

SUFFIXES = (" uncovered signatures", " unused signatures")
MOST_INPUTS = 1_000_000
"""Of a loader that does not end, without `limit=`."""

_SHOWN = 5


@dataclasses.dataclass(frozen=True, eq=False)
class Warm(WarmFunction):
    """A function, compiled and run once for every one of `signatures`. Calling it calls the function, `fn`.

    `compile_seconds` is the time that JAX took to trace, lower and compile, `compiles` the number of backend compiles,
    `compiled` says of what and where. `config` is what was in force then. Other attributes are those of `fn`.
    """

    fn: Callable
    signatures: tuple[Signature, ...]
    compile_seconds: float
    compiles: int
    compiled: str
    config: causes.Config = dataclasses.field(repr=False)

    def __call__(self, *args, **kwargs):
        __tracebackhide__ = True
        return self.fn(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "fn":  # `copy.copy` asks before it sets `fn`.
            raise AttributeError(name)
        return getattr(self.fn, name)

    @property
    def __wrapped__(self) -> Callable:
        return self.fn

    @property
    def __name__(self) -> str:
        return label_of(self.fn)

    def config_changes(self) -> Changes:
        """What is in force now and was not when this was warmed."""
        return causes.config_changes(self.config, causes.config_now())


def warm(fn: Callable, over: Iterable[tuple | Call]) -> Warm:
    """Compile and run `fn` for every entry of `over`, wait for the results, and return the function, warm.

    An entry is a tuple of positional arguments, or a `call` of `fn`. Tuples run on copies of their arrays, so that a
    function that donates its arguments leaves the caller's alone; this needs the memory for one copy at a time. Calls
    run on their own arrays. A call that carries runs two or three times, until a run compiles nothing, and moves on.

    Raises `TypeError` or `ValueError` for an `over` that is empty or holds something else, and `MeasurementError` for
    arguments that were donated before and for a carrying call that compiles in every run.
    """
    __tracebackhide__ = True
    fn = unwrapped(fn)
    if not callable(fn):
        raise TypeError(f"warm(fn, over=[...]): fn must be callable, got {type(fn).__name__}")
    sightings: list[tuple[tuple[str, ...], causes.Sighting]] = []
    runs: list[Compiles] = []

    def describe(subject: Call) -> None:
        site = callsite.of_function(fn, subject.args, subject.kwargs)
        sightings.append((causes.history_key(site), causes.sighting_of(site)))

    for place, entry in enumerate(_checked_entries(fn, over)):
        where = f"warm({label_of(fn)}, over=[...]): entry {place}: "
        if isinstance(entry, Call):
            runs += settle(entry, where, describe)
        else:
            refuse_deleted(Call(fn, entry, {}, 0), where)
            subject = Call(fn, copy_arrays(entry), {}, 0)
            describe(subject)
            runs.append(run_once(subject))
    for key, sighting in sightings:  # also where nothing compiled now, because it did before perfsuite watched
        causes.HISTORY.remember(key, sighting)
    signatures = tuple(dict.fromkeys(sighting.signature for _, sighting in sightings))
    seconds = sum(run.seconds for run in runs)
    events = [event for run in runs for event in run.events if event.stage == "compile"]
    most = Counter(f"`{event.function}` at {event.location}" for event in events).most_common(_SHOWN)
    compiled = ", ".join(f"{what} ({plural(times, 'time')})" for what, times in most)
    text = f"for {plural(len(signatures), 'signature')}, above all {compiled}"
    return Warm(fn, signatures, seconds, len(events), text, causes.config_now())


def _checked_entries(fn: Callable, over: Any) -> list[tuple | Call]:
    wanted = f"warm({label_of(fn)}, over=[...]): over must be a list of argument tuples or call(...)s"
    if isinstance(over, Call):
        raise TypeError(f"{wanted}; got one call: over=[call(...)]")
    if isinstance(over, str | bytes | dict) or not isinstance(over, Iterable) or isinstance(over, jax.Array):
        raise TypeError(f"{wanted}; got {type(over).__name__}")
    entries = list(over)
    if not entries:
        raise ValueError(f"{wanted}; it is empty")
    for place, entry in enumerate(entries):
        if isinstance(entry, Call):
            if not calls_the_same(unwrapped(entry.fn), fn):
                raise ValueError(f"warm({label_of(fn)}, over=[...]): entry {place} is {_another(entry, fn)}")
        elif type(entry) is not tuple:
            hint = "make the list a tuple" if isinstance(entry, list) else "one argument alone is (x,)"
            raise TypeError(f"{wanted}; entry {place} is {type(entry).__name__}: {hint}")
    return entries


def _another(call: Call, fn: Callable) -> str:
    """What tells the function of a call from `fn`: both may have the same name."""
    called, warmed = (callsite.code_of(each) for each in (unwrapped(call.fn), fn))
    if called == warmed:
        return f"a call of another {call.label}, made anew of the same code ({called}): pass one object to both"
    return f"a call of another function: of {call.label} ({called}), not of {label_of(fn)} ({warmed})"


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
    groups = _Groups(warmed)
    entries, count, ended = iter(inputs), 0, False
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
        groups.add(args, kwargs, count, _key(args, kwargs, by_value))
        count += 1
    if not count:
        raise ValueError(f"{who}: there are no inputs; a generator that was walked before is empty")
    uncovered = tuple(_uncovered(warmed, group) for group in groups.all if group.changes)
    unused = tuple(signature for signature in warmed.signatures if signature not in groups.used)
    return Coverage(label_of(warmed), count, len(groups.all), uncovered, unused, ended)


@dataclasses.dataclass(eq=False)
class _Group:
    """The inputs with one signature. `changes` is empty where it is warm."""

    signature: Signature
    first: int
    changes: Changes
    inputs: int = 0


class _Groups:
    """The inputs so far by their signatures, and the warm signatures that they have used."""

    def __init__(self, warmed: Warm) -> None:
        self.all: list[_Group] = []
        self.used: set[Signature] = set()
        self._warmed = warmed
        self._config = warmed.config_changes()
        self._by_key: dict[Hashable, _Group] = {}

    def add(self, args: tuple, kwargs: dict[str, Any], place: int, key: Hashable | None) -> None:
        """Count an input. Those with an equal key have one signature."""
        group = None if key is None else self._by_key.get(key)
        if group is None:
            group = self._group_of(args, kwargs, place)
        if key is not None:
            self._by_key[key] = group
        group.inputs += 1

    def _group_of(self, args: tuple, kwargs: dict[str, Any], place: int) -> _Group:
        site = callsite.of_function(self._warmed.fn, args, kwargs)
        signature = signature_of(site.args, site.kwargs)
        from_each = {  # the latest first: nothing beside one of them covers it
            warm: causes.relevant(changes_between(warm, signature), site.statics)
            for warm in reversed(self._warmed.signatures)
        }
        nearest = (*min(from_each.values(), key=distance), *self._config)
        if not self._config:
            self.used |= {warm for warm, changes in from_each.items() if not changes}
        for group in self.all:
            if bool(group.changes) == bool(nearest) and not causes.relevant(
                changes_between(group.signature, signature), site.statics
            ):
                return group
        self.all.append(_Group(signature, place, with_parameters(nearest, site.function)))
        return self.all[-1]


def _uncovered(warmed: Warm, group: _Group) -> Uncovered:
    name, first = label_of(warmed), f"input {group.first}"
    who = f"{first} brings" if group.inputs == 1 else f"{group.inputs:,} inputs, the first is {first}, bring"
    begins = f"{who} `{name}` a signature that was not warmed"
    text = causes.unwarmed_message(begins, name, group.signature, group.changes, len(warmed.signatures))
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
    if not calls_the_same(unwrapped(entry.fn), warmed.fn):
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
