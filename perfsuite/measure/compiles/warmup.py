"""Making a call ready: `warm` for every signature that a function will be called with, `settle` for one call."""

import contextlib
import dataclasses
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from perfsuite.measure import progress
from perfsuite.measure.arguments import leaves_with_paths
from perfsuite.measure.call import Call, label_of, refuse_ended
from perfsuite.measure.compiles import callsite, causes, compiles, explanation
from perfsuite.measure.compiles.description import text_of_array
from perfsuite.measure.compiles.signature import Signature, changes_between, distance, signature_of, with_parameters
from perfsuite.measure.errors import (
    MeasurementError,
    RecompilationError,
    SignatureWarning,
    UnwarmedSignatureError,
)
from perfsuite.measure.private.bound import calls_the_same
from perfsuite.measure.private.frameworks import copy_arrays

_MOST_RUNS = 3


@dataclasses.dataclass(frozen=True, eq=False)
class Warm:
    """A function, compiled and run once for every one of `signatures`. Calling it calls the function, `fn`.

    `compile_seconds` is the time that JAX took to trace, lower and compile, `compiles` the number of backend compiles.
    `config` is what was in force then. Other attributes, such as `lower`, are those of `fn`.
    """

    fn: Callable
    signatures: tuple[Signature, ...]
    compile_seconds: float
    compiles: int
    config: causes.Config = dataclasses.field(repr=False)

    def __call__(self, *args, **kwargs):
        __tracebackhide__ = True
        try:
            return self.fn(*args, **kwargs)
        except UnwarmedSignatureError:
            raise
        except RecompilationError as error:
            # Not before the call: JAX alone knows whether a difference makes it compile, and says so before it does. A
            # call that its cache answers should not pay for a description of its arguments.
            unwarmed = self._unwarmed(args, kwargs, error, callsite.location(sys._getframe(1)))
            raise unwarmed or error from None

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
        name, stage, inner = self.__name__, cause.stage if cause else "", ""
        if cause and cause.function != name:
            inner = f" (it compiled `{cause.function}`)"
        begins = f"`{name}` was called{where and f' at {where}'} with a signature that was not warmed{inner}"
        message = explanation.unwarmed(begins, name, signature, found, len(self.signatures))
        return UnwarmedSignatureError(message, function=name, stage=stage, changes=tuple(map(str, found)))


def warm(fn: Callable, over: Iterable[tuple | Call]) -> Warm:
    """Compile and run `fn` for every entry of `over`, wait for the results, and return the function, warm.

    An entry is a tuple of positional arguments, or a `call` of `fn`. Tuples run on copies of their arrays, so that a
    function that donates its arguments leaves the caller's alone; this needs the memory for one copy at a time. Calls
    run on their own arrays. A call that carries runs two or three times, until a run compiles nothing, and moves on.

    Raises `TypeError` or `ValueError` for an `over` that is empty or holds something else, and `MeasurementError` for
    arguments that were donated before and for a carrying call that compiles in every run.
    """
    __tracebackhide__ = True
    fn = function_of(fn)
    if not callable(fn):
        raise TypeError(f"warm(fn, over=[...]): fn must be callable, got {type(fn).__name__}")
    sightings: list[tuple[tuple[str, ...], causes.Sighting]] = []

    def describe(subject: Call) -> None:
        site = callsite.of_function(fn, subject.args, subject.kwargs)
        sightings.append((causes.key_of(site), causes.sighting_of(site)))

    runs: list[compiles.Compiles] = []
    for place, entry in enumerate(_checked_entries(fn, over)):
        where = f"warm({label_of(fn)}, over=[...]): entry {place}: "
        if isinstance(entry, Call):
            runs += settle(entry, where, describe)
        else:
            refuse_deleted(Call(fn, entry, {}, 0), where)
            subject = Call(fn, copy_arrays(entry), {}, 0)
            describe(subject)
            runs.append(_run(subject))
    for key, sighting in sightings:  # also where nothing compiled now, because it did before perfsuite watched
        causes.HISTORY.remember(key, sighting)
    signatures = tuple(dict.fromkeys(sighting.signature for _, sighting in sightings))
    seconds, count = sum(run.seconds for run in runs), sum(run.compiles for run in runs)
    return Warm(fn, signatures, seconds, count, causes.config_now())


def settle(call: Call, where: str = "", before: Callable[[Call], None] = lambda _: None) -> list[compiles.Compiles]:
    """Run a call until a run compiles nothing, and wait: once, or two or three times where it carries, and moves on.

    Gives what compiled in each run; `before` gets the call before each of them. Raises `MeasurementError` for arguments
    that were donated before or cannot be used again, and for a carrying call that compiles in every run.
    """
    __tracebackhide__ = True
    refuse_deleted(call, where)
    arrays = _carried_arrays(call)
    runs: list[compiles.Compiles] = []
    while len(runs) < _MOST_RUNS:
        last = _carried_arrays(call)
        before(call)
        runs.append(_run(call))
        if donated := _deleted(call):
            why = f"so the call cannot run again. Carry what it returns in its place: call({call.label}, ..., carry=n)"
            if call.carry:
                why = f"which carry={call.carry} does not replace. Carry more outputs, or do not donate it"
            raise MeasurementError(f"{where}{call.label} donates {donated}, {why}")
        compiled = runs[-1].compiles if compiles.TRACING_ON_PURPOSE.get() else runs[-1].events
        if not call.carry or (len(runs) > 1 and not compiled):
            if last != arrays:
                _warn_of_another_carry(call, arrays, last)
            return runs
    raise MeasurementError(f"{where}{call.label} compiled in each of {_MOST_RUNS} runs{_what_compiles(call)}")


def _run(call: Call) -> compiles.Compiles:
    """Run once and wait. Gives what compiled."""
    __tracebackhide__ = True
    # Nothing is timed here, and on an accelerator the first run may compile for minutes.
    with progress.waiting(f"warming {call.label}"), compiles.counting() as counted:
        args = call.args
        outputs = call.run()
        refuse_ended((), dict(leaves_with_paths(args, call.kwargs)), call.label)
        arrays = (leaf for leaf in jax.tree.leaves((outputs, args, call.kwargs)) if isinstance(leaf, jax.Array))
        jax.block_until_ready([array for array in arrays if not array.is_deleted()])
    return counted


def _what_compiles(call: Call) -> str:
    """What stops a further run that may not compile, in its own words: which function, where, and why."""
    try:
        with compiles.forbid():
            call.run()
    except RecompilationError as error:
        return f":\n{error}"
    except Exception:  # a run that was stopped half-way may stop elsewhere
        return ""
    return ""


def _carried_arrays(call: Call) -> dict[str, str]:
    """Shape and dtype of the arrays that the next run takes from the last one, by path."""
    leaves = leaves_with_paths(call.args[: call.carry])
    return {path: text_of_array(leaf) for path, leaf in leaves if isinstance(leaf, jax.Array | np.ndarray)}


def _warn_of_another_carry(call: Call, first: dict[str, str], last: dict[str, str]) -> None:
    """Warn where a carried argument has another shape or dtype than in the first run: another call is measured."""
    changes = [f"  {path} was {first[path]}, is {text}" for path, text in last.items() if first.get(path, text) != text]
    if changes:
        lines = [f"call({call.label}, ..., carry={call.carry}): from the second run on it has other arguments:"]
        lines += [*changes[:6], f"  Are the first {call.carry} outputs to replace the first {call.carry} arguments?"]
        warnings.warn("\n".join(lines), SignatureWarning, stacklevel=3)


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


def refuse_deleted(call: Call, where: str = "") -> None:
    """Raise `MeasurementError` where arrays of a call are deleted."""
    if donated := _deleted(call):
        raise MeasurementError(
            f"{where}call({call.label}, ...) cannot run: {donated} was deleted, because an earlier call donated it. "
            f"Make the state anew for each call, call({call.label}, *make_state(), ...), or let one call carry it, "
            "call(fn, ..., carry=n)"
        )


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
