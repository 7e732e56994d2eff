"""Why a compile happened: what the call has different from the nearest one that compiled before.

Compiles are remembered while any context counts, forbids or observes them, as descriptions that keep no array alive.
JAX's own `jax.explain_cache_misses` would not do: it is silent where only committedness or the device differ, reports
after the trace, and needs an option of the whole process.
"""

import collections
import dataclasses
import functools
import threading
import types
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from perfsuite.measure.compiles.callsite import CallSite, Statics, code_of, innermost
from perfsuite.measure.compiles.description import Item, Leaf, Node, describe, is_traced, shared_places
from perfsuite.measure.compiles.signature import (
    Changes,
    Signature,
    SignatureChange,
    changes_between,
    distance,
    signature_of,
    signature_of_named,
    with_parameters,
)
from perfsuite.measure.compiles.values import Value, held_by, identity_of, text_of
from perfsuite.measure.private import jax_stack
from perfsuite.measure.private.frameworks import is_nnx_jit

_FUNCTIONS = 512
CALLS_EACH = 32
"""The most that is remembered. The signature of 600 arrays takes 0.6 MB, and most functions are seen once."""

_UNRELATED = ("log", "explain", "persistent", "compilation_cache", "traceback", "dump", "leak", "pgle", "distributed")
"""Parts of the names of options that no program depends on."""

Config = tuple[tuple[str, str], ...]
"""Options and contexts by name, with their values as text."""


@dataclasses.dataclass(frozen=True)
class Sighting:
    """A call seen compiling: its signature, the function object and the configuration that it compiled under.

    `held` is what the function object brings with it, for one that JAX compares by identity. `statics` are the
    arguments that `jax.jit` was told are static, `options` its other options. `shared` are the places of one and the
    same NNX object, where the function makes another program of them (`shared_places`).
    """

    signature: Signature
    function: Value | Item | None
    config: Config = dataclasses.field(repr=False)
    held: Signature | None = dataclasses.field(default=None, compare=False, repr=False)
    statics: Statics | None = None
    shared: tuple[tuple[str, str], ...] = ()
    options: Config = ()


@dataclasses.dataclass(frozen=True)
class Cause:
    """What compiled, where, and why. `changes` are from the nearest of `known` calls, and empty where none was found.

    `function` is the name that JAX gives it, `stage` the first one that was heard.
    Of `known` calls all are of the same function object, where one of these is known. `transformed` says that it was
    called under a transformation such as `jax.grad`. `eager` is an operation of JAX's own that ran by itself, `through`
    the library's function that it came from, and `inside` the user's function around it where that was jitted before.
    `caller` is the user's function at `location`, `via` the line of a library that it called and that compiled.
    `problem` says why nothing else is known.
    """

    function: str
    stage: str
    location: str
    changes: Changes = ()
    known: int = 0
    transformed: bool = False
    eager: bool = False
    through: str = ""
    inside: str = ""
    caller: str = ""
    via: str = ""
    problem: str = ""


class CompileHistory:
    """The calls seen compiling, a bounded number of them by function. Safe to use from several threads."""

    def __init__(self) -> None:
        self._calls: collections.OrderedDict[tuple[str, ...], list[Sighting]] = collections.OrderedDict()
        self._lock = threading.Lock()

    def remember(self, key: tuple[str, ...], sighting: Sighting) -> None:
        with self._lock:
            calls = self._calls.setdefault(key, [])
            self._calls.move_to_end(key)
            if sighting in calls:
                calls.remove(sighting)
            calls.append(sighting)
            del calls[:-CALLS_EACH]
            while len(self._calls) > _FUNCTIONS:
                self._calls.popitem(last=False)

    def known(self, key: tuple[str, ...]) -> tuple[Sighting, ...]:
        with self._lock:
            return tuple(self._calls.get(key, ()))

    def has(self, code: str) -> bool:
        """Whether a function with its code at this `file:line` was seen compiling."""
        with self._lock:
            return any(key[0] == code for key in self._calls)

    def forget(self) -> None:
        with self._lock:
            self._calls.clear()


HISTORY = CompileHistory()


def key_of(site: CallSite, name: str = "") -> tuple[str, ...]:
    """What two calls must have in common to be compared: the function's code or `name`, and how it was reached."""
    code = name if site.function is None else code_of(site.function)
    return code, "by equality" if site.compared else "by identity", site.through


def sighting_of(site: CallSite) -> Sighting:
    """Describe a call that compiles now, or is about to."""
    signature = signature_of(site.args, site.kwargs) if site.named is None else signature_of_named(site.named)
    function: Value | Item | None = None
    held: Signature | None = None
    if site.compared:
        function = describe(site.function)
    elif site.function is not None:
        function = identity_of(site.function)
        if not site.eager:
            held = signature_of_named(_held_with_text(site.function))
    shared = is_nnx_jit(site.function) and shared_places({"args": site.args, "kwargs": site.kwargs})
    options = tuple((name, text_of(value)) for name, value in site.options.items())
    return Sighting(
        signature, function, config_now(), held, site.statics, tuple(shared.items()) if shared else (), options
    )


def recompile_cause(cause: Cause, site: CallSite, sighting: Sighting, key: tuple[str, ...]) -> Cause:
    """`cause` with what `sighting`, which describes `site`, has different from the nearest call with this key."""
    known = HISTORY.known(key)
    inside = site.caller[0] if site.eager and HISTORY.has(site.caller[1]) else ""
    same = tuple(other for other in known if other.function == sighting.function)
    changes = _nearest_changes(site, sighting, known, same) if known else ()
    through_api = site.named is not None and site.statics == Statics()
    transformed = through_api or any(is_traced(leaf) for _, leaf in sighting.signature.leaves)
    return dataclasses.replace(cause, changes=changes, known=len(same or known), transformed=transformed, inside=inside)


def _nearest_changes(
    site: CallSite, sighting: Sighting, known: tuple[Sighting, ...], same: tuple[Sighting, ...]
) -> Changes:
    """The changes from the nearest call, the latest of equals. `same` are those of `known` of the same function."""
    if not same and isinstance(sighting.function, Value) and not site.eager:
        # JAX compiles every new function object, whatever its arguments. What it holds is built into its program.
        held = min((_held_changes(other, sighting) for other in reversed(known)), key=distance)
        return _another_function(site, held), *held
    # The same function may be jitted in several ways.
    for alike in (lambda other: other.statics == sighting.statics, lambda other: other.options == sighting.options):
        same = tuple(filter(alike, same)) or same or known
    changes = min((_sighting_changes(other, sighting, site) for other in reversed(same)), key=distance)
    return changes if site.named else with_parameters(changes, site.function)


def config_now() -> Config:
    """The options and contexts in force in this thread that a program may depend on."""
    values = jax.config.values.items()
    found = {name: text_of(value) for name, value in values if not any(part in name for part in _UNRELATED)}
    for name, context in (("mesh", jax.sharding.get_mesh), ("abstract mesh", jax.sharding.get_abstract_mesh)):
        try:
            found[name] = text_of(context())
        except Exception:  # JAX raises when it is asked while it traces.
            continue
    found |= {name: text_of(value) for name, value in jax_stack.context_values().items()}
    return tuple(found.items())


def relevant(changes: Iterable[SignatureChange], statics: Statics | None) -> Changes:
    """The changes that make JAX compile. A Python number's value does where it is static.

    Where nobody can tell whether it is (`statics` is `None`), it counts if nothing else differs.
    """
    changes = tuple(changes)
    if statics is None or statics.all:
        # A NumPy number is an array for `filter_jit`, and most often where nobody can tell.
        changes = tuple(change for change in changes if (change.kind, change.variant) != ("number", "numpy"))
    if statics is None:
        return tuple(change for change in changes if change.kind != "number") or changes
    numbers = {change.path for change in changes if change.kind == "number"}
    return tuple(change for change in changes if _counts(change, numbers, statics))


def _counts(change: SignatureChange, numbers: set[str], statics: Statics) -> bool:
    static = change.path in statics
    if change.path in numbers:  # of a static number only the value counts, of another only dtype and weak type
        return (change.kind == "number") == static
    # The numbers 1 and 1.0 are one value for `filter_jit`, and for `jax.jit` inside of a static argument, not as one.
    equal = change.variant == "equal" or (change.variant == "number" and change.kind in ("dtype", "weak type"))
    return not (static and equal) or (change.path in statics.paths and not statics.all)


def config_changes(before: Config, after: Config) -> Changes:
    """The options and contexts whose values differ."""
    old = dict(before)
    return tuple(SignatureChange("config", name, old[name], now) for name, now in after if old.get(name, now) != now)


def _sighting_changes(before: Sighting, after: Sighting, site: CallSite) -> Changes:
    found: list[SignatureChange] = []
    if isinstance(before.function, Leaf | Node) and isinstance(after.function, Leaf | Node):
        old, new = Signature((("fn", before.function),)), Signature((("fn", after.function),))
        found += (_another_function(site) if change.path == "fn" else change for change in changes_between(old, new))
    if before.statics != after.statics and not site.eager:
        found.append(SignatureChange("options", "static arguments", _listing(before.statics), _listing(after.statics)))
    if before.options and after.options and not site.eager:
        was, now = dict(before.options), dict(after.options)
        names = dict.fromkeys([*was, *now])
        sides = ((name, was.get(name, "()"), now.get(name, "()")) for name in names)
        found += [
            SignatureChange("options", *each, variant="jit", hint=each[0]) for each in sides if each[1] != each[2]
        ]
    found += relevant(changes_between(before.signature, after.signature), site.statics)
    if all(change.kind != "structure" for change in found):
        found += _sharing_changes(dict(before.shared), dict(after.shared))
    return (*found, *config_changes(before.config, after.config))


def _held_changes(before: Sighting, after: Sighting) -> Changes:
    if before.held is None or after.held is None:
        return ()
    return relevant(changes_between(before.held, after.held), Statics(all=True))


def _sharing_changes(before: dict[str, str], after: dict[str, str]) -> Iterator[SignatureChange]:
    """The places that now hold the object of another place, or no longer do."""
    for path in sorted({*before, *after}):
        firsts = (first.get(path) for first in (before, after))
        was, now = ("an object of its own" if first is None else f"the same object as {first}" for first in firsts)
        if was != now:
            yield SignatureChange("structure", path, was, now, variant="shared")


def _listing(statics: Statics | None) -> str:
    return "unknown" if statics is None else ", ".join(statics.paths) or "none"


def _another_function(site: CallSite, held: Changes = ()) -> SignatureChange:
    made = _made_without_def(site.function)
    now = f"another of the same code ({code_of(site.function)}){made and f', a {made} made anew'}"
    # No argument could stand for such an object.
    objects = ("function", "closure", "method", "optimizer", "class", "identity", "equality")
    variant, hint = ("held", held[0].path.rpartition(" ")[2]) if held and held[0].variant not in objects else (made, "")
    if site.maker:
        variant, hint = "library", site.maker
    return SignatureChange("function", "function", "an earlier object", now, variant=variant, hint=hint)


def _made_without_def(function: Any) -> str:
    """What kind of function object it is, for those that are created without a `def`."""
    if not isinstance(function, types.FunctionType | types.MethodType | functools.partial):
        *_, function = innermost(function)  # Behind an object of nnx.jit's.
    if isinstance(function, functools.partial):
        return "functools.partial"
    if isinstance(function, types.MethodType):
        return "bound method"
    if hasattr(function, "__wrapped__"):
        return "wrapped function"
    return "lambda" if getattr(function, "__name__", "") == "<lambda>" else ""


def _held_with_text(function: Any) -> dict[str, Any]:
    """What a function object brings with it and a message can show without a `__repr__` that may read arrays."""
    shown = (bool, int, float, complex, str, bytes, np.generic, jax.Array, np.ndarray, tuple, list, dict, type(None))
    return {
        name: value
        for name, value in held_by(function).items()
        if isinstance(value, shown) or callable(value) or type(value).__repr__ is object.__repr__
    }
