"""`warm(fn, over=[...])`: compile and run a function for every signature that it will be called with."""

import contextlib
import dataclasses
import functools
import itertools
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax

from perfsuite.measure import progress
from perfsuite.measure.arguments import leaves_with_paths
from perfsuite.measure.call import Call, label_of, refuse_ended, refuse_not_begun
from perfsuite.measure.compiles import callsite, causes, compiles, explanation
from perfsuite.measure.compiles.description import Leaf, describe, leaves_below
from perfsuite.measure.compiles.signature import (
    Changes,
    Signature,
    changes_between,
    distance,
    signature_of,
    with_parameters,
)
from perfsuite.measure.compiles.tally import TRACING_ON_PURPOSE
from perfsuite.measure.errors import (
    MeasurementError,
    RecompilationError,
    SignatureWarning,
    UnwarmedSignatureError,
)
from perfsuite.measure.private.bound import calls_the_same
from perfsuite.measure.private.frameworks import copy_arrays

_MOST_RUNS = 3

_donors: dict[int, tuple["weakref.ref[jax.Array]", str]] = {}
"""By the identity of a donated array: the label of the call that donated it."""


@dataclasses.dataclass(frozen=True)
class Run:
    """The signature of one run, its static arguments, what compiled in it, and the leaves of what it returned."""

    signature: Signature
    statics: callsite.Statics | None
    counted: compiles.Compiles
    returned: frozenset[Leaf]


@dataclasses.dataclass(frozen=True, eq=False)
class Warm:
    """A function, compiled and run once for every one of `signatures`. Calling it calls the function, `fn`.

    `compile_seconds` is the time that JAX took to trace, lower and compile, `compiles` the number of backend compiles.
    `doubled` has the changes between signatures that differ only in weak types, or in what is committed to a device
    though no run returned it so: most often one was meant, and two are compiled. `config` is what was in force then.
    Other attributes, such as `lower`, are those of `fn`.
    """

    fn: Callable
    signatures: tuple[Signature, ...]
    compile_seconds: float
    compiles: int
    doubled: tuple[Changes, ...]
    config: causes.Config = dataclasses.field(repr=False)

    def __call__(self, *args, **kwargs):
        __tracebackhide__ = True
        if not compiles.forbidden():
            return self.fn(*args, **kwargs)
        before = compiles.eager_operations()
        try:
            outputs = self.fn(*args, **kwargs)
        except UnwarmedSignatureError:
            raise
        except RecompilationError as error:
            # Not before the call: JAX alone knows whether a difference makes it compile, and says so before it does. A
            # call that its cache answers should not pay for a description of its arguments.
            unwarmed = self._unwarmed(args, kwargs, error, callsite.location(sys._getframe(1)))
            if unwarmed is None:
                raise
            raise unwarmed from None
        if compiles.eager_operations() == before:
            return outputs
        if (unwarmed := self._unwarmed(args, kwargs, where=callsite.location(sys._getframe(1)))) is not None:
            raise unwarmed
        return outputs

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

    def check(self, args: tuple, kwargs: dict[str, Any] | None = None) -> None:
        """Raise `UnwarmedSignatureError` if a call with these arguments has a signature that was not warmed."""
        if (error := self._unwarmed(args, kwargs or {})) is not None:
            raise error

    def _unwarmed(
        self, args: tuple, kwargs: dict, cause: RecompilationError | None = None, where: str = ""
    ) -> UnwarmedSignatureError | None:
        site = callsite.of_function(self.fn, args, kwargs)
        signature = signature_of(site.args, site.kwargs)
        config = causes.config_changes(self.config, causes.config_now())
        each = (causes.relevant(changes_between(known, signature), site.statics) for known in reversed(self.signatures))
        found = with_parameters((*min(each, key=distance), *config), site.function)
        if not found:
            return None
        stage, compiled = (cause.stage, cause.function) if cause else ("", "")
        warmed = len(self.signatures)
        message = explanation.unwarmed(self.__name__, signature, found, warmed, where=where, compiled=compiled)
        return UnwarmedSignatureError(message, function=self.__name__, stage=stage, changes=tuple(map(str, found)))


def warm(fn: Callable, over: Iterable[tuple | Call]) -> Warm:
    """Compile and run `fn` for every entry of `over`, wait for the results, and return the function, warm.

    An entry is a tuple of positional arguments, or a `call` of `fn`. Tuples run on copies of their arrays, so that a
    function that donates its arguments leaves the caller's alone; this needs the memory for one copy at a time. Calls
    run on their own arrays. A call that carries runs two or three times, until a run compiles nothing, and moves on.

    Raises `TypeError` or `ValueError` for an `over` that is empty or holds something else, and `MeasurementError` for
    arguments that were donated before and for a carrying call that compiles in every run.
    """
    __tracebackhide__ = True
    if isinstance(fn, Warm):
        fn = fn.fn
    if not callable(fn):
        raise TypeError(f"warm(fn, over=[...]): fn must be callable, got {type(fn).__name__}")
    runs: list[Run] = []
    for place, entry in enumerate(_checked_entries(fn, over)):
        runs += _run_entry(fn, entry, f"warm({label_of(fn)}, over=[...]): entry {place}")
    signatures = tuple(dict.fromkeys(run.signature for run in runs))
    seconds, count = sum(run.counted.seconds for run in runs), sum(run.counted.compiles for run in runs)
    return Warm(fn, signatures, seconds, count, tuple(_doubled(runs, signatures)), causes.config_now())


def _doubled(runs: list[Run], signatures: tuple[Signature, ...]) -> Iterator[Changes]:
    """The changes between each two signatures that differ only in weak types and in what is committed."""
    returned = {_placed(leaf) for run in runs for leaf in run.returned}
    for before, after in itertools.combinations(signatures, 2):
        changes = causes.relevant(changes_between(before, after), runs[0].statics)
        if not changes or any(change.kind not in ("weak type", "committed") for change in changes):
            continue
        # A step commits what it returns, where its batch is committed. Fed back, that is a second signature by intent.
        committed = {path: leaf for side in (before, after) for path, leaf in side.leaves if leaf.devices}
        meant = {path for path, leaf in committed.items() if _placed(leaf) in returned}
        if found := tuple(each for each in changes if each.kind == "weak type" or each.path not in meant):
            yield found


def _placed(leaf: Leaf) -> tuple:
    return leaf.shape, leaf.dtype, leaf.sharding, leaf.devices


@contextlib.contextmanager
def borrowed(call: Call) -> Iterator[Call]:
    """A call to run in place of `call`, with the same arguments. Where its function is `Warm`, the call is of `.fn`.

    When the context closes, also after an error, `call` gets the arguments that were carried last.
    """
    subject = Call(function_of(call.fn), call.args, call.kwargs, call.carry)
    try:
        yield subject
    finally:
        call.args = subject.args


def function_of(fn: Callable) -> Callable:
    """The function itself, where `fn` is `Warm`."""
    return fn.fn if isinstance(fn, Warm) else fn


def _run(fn: Callable, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, Run]:
    """Run once and wait. Gives the outputs, the signature and what compiled."""
    __tracebackhide__ = True
    site = callsite.of_function(fn, args, kwargs)
    sighting = causes.sighting_of(site)
    # Nothing is timed here, and on an accelerator the first run may compile for minutes.
    with progress.waiting(f"warming {label_of(fn)}"), compiles.counting() as counted:
        outputs = fn(*args, **kwargs)
        refuse_not_begun(outputs, label_of(fn))
        refuse_ended((), dict(leaves_with_paths(args, kwargs)), label_of(fn))
        arrays = (leaf for leaf in jax.tree.leaves((outputs, args, kwargs)) if isinstance(leaf, jax.Array))
        jax.block_until_ready([array for array in arrays if not array.is_deleted()])
    # Also where nothing compiled now, because it did before perfsuite watched.
    causes.HISTORY.remember(causes.key_of(site), sighting)
    returned = frozenset(leaf for each in jax.tree.leaves(outputs) for _, leaf in leaves_below("", describe(each)))
    return outputs, Run(sighting.signature, sighting.statics, counted, returned)


def _run_entry(fn: Callable, entry: tuple | Call, where: str) -> list[Run]:
    """Run a tuple once, on copies; a call once, or until nothing compiles where it carries."""
    __tracebackhide__ = True
    refuse_deleted(entry if isinstance(entry, Call) else Call(fn, entry, {}, 0), f"{where}: ")
    if isinstance(entry, tuple):
        return [_run(fn, copy_arrays(entry), {})[1]]
    who = f"{where}: {entry.label}"
    runs: list[Run] = []
    for _ in range(_MOST_RUNS if entry.carry else 1):
        arrays = [leaf for leaf in jax.tree.leaves((entry.args, entry.kwargs)) if isinstance(leaf, jax.Array)]
        outputs, run = _run(fn, entry.args, entry.kwargs)
        _remember_donated(arrays, entry.label)
        del arrays
        runs.append(run)
        entry.carry_on(outputs)
        if donated := _deleted(entry):
            why = f"so the call cannot run again. Carry what it returns in its place: call({entry.label}, ..., carry=n)"
            if entry.carry:
                why = f"which carry={entry.carry} does not replace. Carry more outputs, or do not donate it"
            raise MeasurementError(f"{who} donates {donated}, {why}")
        moved = run.counted.compiles if TRACING_ON_PURPOSE.get() else run.counted.events
        if not entry.carry:
            return runs
        if len(runs) > 1 and not moved:
            _warn_of_another_carry(entry, runs[0].signature, run.signature)
            return runs
    next_one = causes.sighting_of(callsite.of_function(fn, entry.args, entry.kwargs)).signature
    changes = changes_between(run.signature, next_one)
    raise MeasurementError(_unsettled(who, changes, "" if changes else _what_compiles(fn, entry)))


def _what_compiles(fn: Callable, call: Call) -> str:
    """What stops a further run that may not trace, in its own words: which function, where, and why."""
    try:
        with compiles.forbid():
            fn(*call.args, **call.kwargs)
    except RecompilationError as error:
        return str(error)
    except Exception:  # a run that was stopped half-way may stop elsewhere
        return ""
    return ""


def _warn_of_another_carry(call: Call, first: Signature, last: Signature) -> None:
    """Warn where a carried argument has another shape or dtype than in the first run: another call is measured."""
    changes = [each for each in changes_between(first, last) if each.kind in ("shape", "dtype")]
    if changes:
        warnings.warn(explanation.carried_otherwise(call.label, call.carry, changes), SignatureWarning, stacklevel=2)


def refuse_deleted(call: Call, where: str = "") -> None:
    """Raise `MeasurementError` where arrays of a call are deleted, naming the call that donated them if it is known."""
    if not (donated := _deleted(call)):
        return
    leaves = (leaf for leaf in jax.tree.leaves((call.args, call.kwargs)) if isinstance(leaf, jax.Array))
    donor = next((_donors[id(leaf)][1] for leaf in leaves if leaf.is_deleted() and id(leaf) in _donors), "")
    if not donor:
        raise MeasurementError(
            f"{where}{donated} was deleted, because an earlier call donated it. Pass a fresh array, "
            "or use call(fn, ..., carry=n), which moves on to what the function returns"
        )
    raise MeasurementError(
        f"call({call.label}, ...) cannot run: {donated} was deleted, because call({donor}, ...) holds the same "
        f"array and donates it. Make the state anew for each call: call({call.label}, *make_state(), ...)"
    )


def _remember_donated(arrays: list[jax.Array], label: str) -> None:
    for array in arrays:
        if array.is_deleted():
            _donors[id(array)] = weakref.ref(array, functools.partial(_forget_donated, id(array))), label


def _forget_donated(key: int, _: object) -> None:
    _donors.pop(key, None)


def _unsettled(who: str, changes: Changes, compiles_again: str) -> str:
    lines = [f"{who} compiled in each of {_MOST_RUNS} runs"]
    if changes:
        lines.append("  what it returns is unlike the argument that it replaces in the next run:")
        lines += [f"  {change}" for change in changes[:6]]
        lines.append("  Return every carried output with the shape, dtype, weak type and sharding of its argument.")
    else:
        lines.append("  the signature of its arguments stays the same, so it makes a new jitted function in every run,")
        lines.append("  or eager operations of new shapes:")
        lines += [f"  {line}" for line in compiles_again.splitlines()] or [
            "  a run inside perf.no_compiles() says which"
        ]
    return "\n".join(lines)


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
            if not calls_the_same(function_of(entry.fn), fn):
                raise ValueError(f"warm({label_of(fn)}, over=[...]): entry {place} is {_another(entry, fn)}")
        elif type(entry) is not tuple:
            hint = "make the list a tuple" if isinstance(entry, list) else "one argument alone is (x,)"
            raise TypeError(f"{wanted}; entry {place} is {type(entry).__name__}: {hint}")
    return entries


def _another(call: Call, fn: Callable) -> str:
    """What tells the function of a call from `fn`: both may have the same name."""
    called, warmed = (callsite.code_of(each) for each in (function_of(call.fn), fn))
    if called == warmed:
        return f"a call of another {call.label}, made anew of the same code ({called}): pass one object to both"
    return f"a call of another function: of {call.label} ({called}), not of {label_of(fn)} ({warmed})"


def _deleted(call: Call) -> str:
    """The paths of arguments whose arrays are deleted, as text; empty if there are none."""
    leaves = leaves_with_paths(call.args, call.kwargs)
    paths = [path for path, leaf in leaves if isinstance(leaf, jax.Array) and leaf.is_deleted()]
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
