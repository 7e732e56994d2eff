"""Why a compile happened: what the call has different from the nearest one that compiled before.

Compiles are remembered for as long as somebody counts, forbids or observes them, as descriptions that keep no array
alive. JAX's own `jax.explain_cache_misses` is not asked: it is silent where only committedness or the device differ,
speaks after the trace, and must be configured for the whole process.
"""

import collections
import dataclasses
import threading
from collections.abc import Iterable

import jax

from perfsuite.measure.callsite import CallSite, Statics, code_of
from perfsuite.measure.description import Item, Leaf, Node, describe
from perfsuite.measure.signature import Change, Signature, differences, distance, signature_of, signature_of_named
from perfsuite.measure.values import Value, identity_of, text_of

STAGES = ("trace", "lower", "compile")

_FUNCTIONS = 512
_CALLS_EACH = 32
"""What is remembered at most. The signature of 600 arrays takes 0.6 MB, and most functions are seen once."""

_UNRELATED = ("log", "explain", "persistent", "compilation_cache", "traceback", "dump", "leak", "pgle", "distributed")
"""Parts of the names of options that no program depends on."""


@dataclasses.dataclass(frozen=True)
class Sighting:
    """A call seen compiling: its signature, the function object and the configuration that it compiled under."""

    signature: Signature
    function: Value | Item | None
    config: tuple[tuple[str, str], ...] = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class Cause:
    """Why a call compiled. `changes` are from the nearest of `known` calls, and empty where none was found."""

    changes: tuple[Change, ...]
    known: int


class History:
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
            del calls[:-_CALLS_EACH]
            while len(self._calls) > _FUNCTIONS:
                self._calls.popitem(last=False)

    def known(self, key: tuple[str, ...]) -> tuple[Sighting, ...]:
        with self._lock:
            return tuple(self._calls.get(key, ()))

    def forget(self) -> None:
        with self._lock:
            self._calls.clear()


HISTORY = History()


def key_of(site: CallSite, name: str = "") -> tuple[str, ...]:
    """What calls have in common that may be compared: the function's code or `name`, and how it was reached."""
    code = name if site.function is None else code_of(site.function)
    return code, "by equality" if site.compared else "by identity", site.through


def sighting_of(site: CallSite) -> Sighting:
    """Describe a call that is compiling, or about to."""
    named = site.named
    signature = signature_of(site.args, site.kwargs) if named is None else signature_of_named(named)
    function: Value | Item | None = None
    if site.function is not None:
        function = describe(site.function) if site.compared else identity_of(site.function)
    return Sighting(signature, function, config_now())


def cause_of(sighting: Sighting, known: Iterable[Sighting], site: CallSite) -> Cause:
    """What `sighting` has different from the nearest of the calls in `known`; the latest of equals."""
    known = tuple(known)
    if not known:
        return Cause((), 0)
    same = [other for other in known if other.function == sighting.function]
    if not same and isinstance(sighting.function, Value):
        # JAX compiles every new function object, whatever its arguments.
        return Cause((_another_function(site),), len(known))
    nearest = min(reversed(same or known), key=lambda other: distance(_changes(other, sighting, site)))
    return Cause(_changes(nearest, sighting, site), len(known))


def config_now() -> tuple[tuple[str, str], ...]:
    """The options and contexts in force in this thread that a program may depend on, with their values as text."""
    found = {
        name: text_of(value)
        for name, value in jax.config.values.items()
        if not any(part in name for part in _UNRELATED)
    }
    for name, context in (("mesh", jax.sharding.get_mesh), ("abstract mesh", jax.sharding.get_abstract_mesh)):
        try:
            found[name] = text_of(context())
        except Exception:  # Not to be asked while JAX is tracing.
            found[name] = "unknown while tracing"
    return tuple(found.items())


def relevant(changes: Iterable[Change], statics: Statics | None) -> tuple[Change, ...]:
    """The changes that make JAX compile. A Python number's value does where it is static.

    Where nobody can tell whether it is (`statics` is `None`), it counts if nothing else differs.
    """
    changes = tuple(changes)
    numbers = {change.path for change in changes if change.kind == "number"}
    if statics is None:
        return tuple(change for change in changes if change.kind != "number") or changes
    # Of a static number the value says it all; of another the dtype and weak type do.
    return tuple(
        change
        for change in changes
        if (change.path not in numbers) or ((change.kind == "number") == (change.path in statics))
    )


def config_changes(before: tuple[tuple[str, str], ...], after: tuple[tuple[str, str], ...]) -> tuple[Change, ...]:
    """The options and contexts whose values differ."""
    old, new = dict(before), dict(after)
    names = [name for name in new if name in old and old[name] != new[name]]
    return tuple(Change("config", name, old[name], new[name]) for name in names)


def _changes(before: Sighting, after: Sighting, site: CallSite) -> tuple[Change, ...]:
    found: list[Change] = []
    if isinstance(before.function, Leaf | Node) and isinstance(after.function, Leaf | Node):
        old, new = Signature((("fn", before.function),)), Signature((("fn", after.function),))
        found += (_another_function(site) if change.path == "fn" else change for change in differences(old, new))
    found += relevant(differences(before.signature, after.signature), site.statics)
    found += config_changes(before.config, after.config)
    return tuple(found)


def _another_function(site: CallSite) -> Change:
    return Change("function", "function", "an earlier object", f"another of the same code ({code_of(site.function)})")
