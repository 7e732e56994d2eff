"""`warm(fn, over=[...])`: compile and run a function for every signature that it will be called with."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax

from perfsuite.measure import progress
from perfsuite.measure.call import Call, label_of
from perfsuite.measure.compat.frameworks import copy_arrays
from perfsuite.measure.compiles import callsite, compiles, explanation
from perfsuite.measure.compiles.causes import (
    HISTORY,
    Sighting,
    config_changes,
    config_now,
    key_of,
    relevant,
    sighting_of,
)
from perfsuite.measure.compiles.signature import Change, Signature, differences, distance, signature_of, with_parameters
from perfsuite.measure.errors import MeasurementError, RecompilationError, UnwarmedSignatureError

_MOST_RUNS = 3


@dataclasses.dataclass(frozen=True, eq=False)
class Warm:
    """A function, compiled and run once for every one of `signatures`. Calling it calls `fn`, which is the function.

    `compile_seconds` is the time that JAX took to trace, lower and compile, `compiles` the backend compiles it took.
    Attributes that it has not itself, such as `lower`, are those of `fn`.
    """

    fn: Callable
    signatures: tuple[Signature, ...]
    compile_seconds: float
    compiles: int
    _config: tuple[tuple[str, str], ...] = dataclasses.field(repr=False)

    def __call__(self, *args, **kwargs):
        __tracebackhide__ = True
        if not compiles.forbidden():
            return self.fn(*args, **kwargs)
        try:
            return self.fn(*args, **kwargs)
        except RecompilationError as error:
            # Not before the call: JAX alone knows whether a difference makes it compile. It says so before it does,
            # and a call that it answers from its cache should not pay for a description of its arguments.
            where = f" at {callsite.location(sys._getframe(1))}"
            unwarmed = self._unwarmed(args, kwargs, error, where)
            if unwarmed is None or isinstance(error, UnwarmedSignatureError):
                raise
            raise unwarmed from None

    def __getattr__(self, name: str) -> Any:
        if name == "fn":  # A copy that is still empty has nobody to ask.
            raise AttributeError(name)
        return getattr(self.fn, name)

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
        config = config_changes(self._config, config_now())
        found: tuple[Change, ...] | None = None
        for known in reversed(self.signatures):
            changes = (*relevant(differences(known, signature), site.statics), *config)
            if found is None or distance(changes) < distance(found):
                found = changes
        if not found:
            return None
        stage, compiled = "", ""
        if cause is not None:
            stage = cause.stage
            compiled = cause.function
        name, warmed = self.__name__, len(self.signatures)
        found = with_parameters(found, site.function)
        message = explanation.unwarmed(name, signature, found, warmed, where=where, compiled=compiled)
        return UnwarmedSignatureError(message, function=name, stage=stage, changes=tuple(map(str, found)))


def warm(fn: Callable, over: Iterable[tuple | Call]) -> Warm:
    """Compile and run `fn` for every entry of `over`, wait for the results, and return the function, warm.

    An entry is a tuple of positional arguments, or a `call` of `fn`. Tuples run on copies of their arrays, so that a
    function that donates its arguments leaves the caller's alone; this needs the memory for one copy at a time. Calls
    run as they are. One that carries runs twice or three times, until a run compiles nothing, and moves on by that.

    Raises `TypeError` or `ValueError` for an `over` that is empty or holds something else, and `MeasurementError` for
    arguments that were donated before and for a carrying call that compiles in every run.
    """
    __tracebackhide__ = True
    if isinstance(fn, Warm):
        fn = fn.fn
    if not callable(fn):
        raise TypeError(f"warm(fn, over=[...]): fn must be callable, got {type(fn).__name__}")
    entries = _entries(fn, over)
    warmed = _Warmed(fn)
    for place, entry in enumerate(entries):
        where = f"warm({label_of(fn)}, over=[...]): entry {place}"
        if isinstance(entry, tuple):
            _check_alive(entry, {}, where)
            warmed.run(copy_arrays(entry), {})
        else:
            _warm_call(warmed, entry, where)
    return Warm(fn, tuple(warmed.signatures), warmed.seconds, warmed.compiles, config_now())


@contextlib.contextmanager
def borrowed(call: Call) -> Iterator[Call]:
    """A call to run in the place of `call`: of its function itself where that is `Warm`, with the same arguments.

    `call` gets the arguments that were carried last when the context closes, however it does.
    """
    fn = call.fn.fn if isinstance(call.fn, Warm) else call.fn
    subject = Call(fn, call.args, call.kwargs, call.carry)
    try:
        yield subject
    finally:
        call.args = subject.args


class _Warmed:
    """What the runs so far have compiled."""

    def __init__(self, fn: Callable):
        self.fn = fn
        self.signatures: dict[Signature, None] = {}
        self.seconds = 0.0
        self.compiles = 0

    def run(self, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, bool]:
        """Run once and wait. Gives the outputs, and whether anything was traced, lowered or compiled."""
        __tracebackhide__ = True
        site = callsite.of_function(self.fn, args, kwargs)
        sighting: Sighting = sighting_of(site)
        # Nothing is timed here, and on a device of its own the first run may compile for minutes.
        with progress.waiting(f"warming {label_of(self.fn)}"), compiles.count() as counted:
            outputs = self.fn(*args, **kwargs)
            _wait((outputs, args, kwargs))
        # Also where nothing compiled, because it had before perfsuite watched.
        HISTORY.remember(key_of(site), sighting)
        self.signatures[sighting.signature] = None
        self.seconds += counted.seconds
        self.compiles += counted.compiles
        return outputs, bool(counted.events)


def _warm_call(warmed: _Warmed, entry: Call, where: str) -> None:
    __tracebackhide__ = True
    _check_alive(entry.args, entry.kwargs, where)
    if not entry.carry:
        warmed.run(entry.args, entry.kwargs)
        if donated := _deleted(entry.args, entry.kwargs):
            raise MeasurementError(
                f"{where}: {entry.label} donates {donated}, so the call cannot run again. "
                f"Carry what it returns in its place: call({entry.label}, ..., carry=n)"
            )
        return
    for run in range(_MOST_RUNS):
        before = signature_of(entry.args, entry.kwargs)
        outputs, compiled = warmed.run(entry.args, entry.kwargs)
        entry.carry_on(outputs)
        if donated := _deleted(entry.args, entry.kwargs):
            raise MeasurementError(
                f"{where}: {entry.label} donates {donated}, which carry={entry.carry} does not replace. "
                "Carry more outputs, or do not donate it"
            )
        if run and not compiled:
            return
    changes = differences(before, signature_of(entry.args, entry.kwargs))
    raise MeasurementError(_unsettled(f"{where}: {entry.label}", changes))


def _unsettled(who: str, changes: tuple[Change, ...]) -> str:
    lines = [f"{who} compiled in each of {_MOST_RUNS} runs"]
    if changes:
        lines.append("  what it returns is unlike the argument that it replaces in the next run:")
        lines += [f"  {change}" for change in changes[:6]]
        lines.append("  Return every carried output with the shape, dtype, weak type and sharding of its argument.")
    else:
        lines.append("  the signature of its arguments stays the same, so it makes a new jitted function in every run,")
        lines.append("  or eager operations of new shapes. A run inside perf.no_compiles() says which.")
    return "\n".join(lines)


def _entries(fn: Callable, over: Any) -> list[tuple | Call]:
    name = label_of(fn)
    wanted = f"warm({name}, over=[...]): over must be a list of argument tuples or call(...)s"
    if isinstance(over, Call):
        raise TypeError(f"{wanted}; got one call: over=[call(...)]")
    if isinstance(over, str | bytes | dict) or not isinstance(over, Iterable) or isinstance(over, jax.Array):
        raise TypeError(f"{wanted}; got {type(over).__name__}")
    entries = list(over)
    if not entries:
        raise ValueError(f"{wanted}; it is empty")
    for place, entry in enumerate(entries):
        if isinstance(entry, Call):
            called = entry.fn.fn if isinstance(entry.fn, Warm) else entry.fn
            if called is not fn:
                raise ValueError(f"{wanted}; entry {place} is a call of another function, {entry.label}")
        elif type(entry) is not tuple:
            hint = "make the list a tuple" if isinstance(entry, list) else "one argument alone is (x,)"
            raise TypeError(f"{wanted}; entry {place} is {type(entry).__name__}: {hint}")
    return entries


def _wait(tree: Any) -> None:
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array) and not leaf.is_deleted():
            leaf.block_until_ready()


def _check_alive(args: tuple, kwargs: dict[str, Any], where: str) -> None:
    if donated := _deleted(args, kwargs):
        raise MeasurementError(
            f"{where}: {donated} was deleted, because an earlier call donated it. Pass a fresh array, "
            "or use call(fn, ..., carry=n), which moves on to what the function returns"
        )


def _deleted(args: tuple, kwargs: dict[str, Any]) -> str:
    """The paths of arguments whose arrays are deleted, as text; empty if there are none."""
    paths = list(_deleted_paths(args, kwargs))
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")


def _deleted_paths(args: tuple, kwargs: dict[str, Any]) -> Iterator[str]:
    for name, tree in (("args", args), ("kwargs", kwargs)):
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            if isinstance(leaf, jax.Array) and leaf.is_deleted():
                yield f"{name}{jax.tree_util.keystr(path)}"
