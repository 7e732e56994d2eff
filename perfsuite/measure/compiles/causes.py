"""Why a compile happened: what the call has different from the nearest one before, and the message that says so.

Compiles are remembered while any context counts, forbids or observes them, as descriptions that keep no array alive.
JAX's own `jax.explain_cache_misses` would not do: it is silent where only committedness or the device differ, reports
after the trace, and needs an option of the whole process.
"""

import collections
import dataclasses
import functools
import threading
import types
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from perfsuite.measure.compiles.callsite import CallSite, Statics, code_of, innermost
from perfsuite.measure.compiles.signature import (
    TRACER,
    Changes,
    Item,
    Leaf,
    Node,
    Signature,
    SignatureChange,
    Value,
    changes_between,
    describe,
    distance,
    held_by,
    identity_of,
    signature_of,
    signature_of_named,
    text_of,
    with_parameters,
)
from perfsuite.measure.private import jax_stack
from perfsuite.measure.words import leaf_lines, plural

_MOST_FUNCTIONS = 512
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
    arguments that `jax.jit` was told are static, `options` its other options.
    """

    signature: Signature
    function: Value | Item | None
    config: Config = dataclasses.field(repr=False)
    held: Signature | None = dataclasses.field(default=None, compare=False, repr=False)
    statics: Statics | None = None
    options: Config = ()


@dataclasses.dataclass(frozen=True)
class Cause:
    """What compiled, where, and why. `changes` are from the nearest of `earlier` calls, and empty where it has none.

    `function` is the name that JAX gives it, `stage` the first one that was heard.
    The earlier calls are those of the same function object, where there are any. `transformed` says that it was
    called under a transformation such as `jax.grad`. `eager` is an operation of JAX's own that ran by itself, `through`
    the library's function that it came from, and `inside` the user's function around it where that was jitted before.
    `caller` is the user's function at `location`, `via` the line of a library that it called and that compiled.
    `maker` is what made or traces the function, where the user's jit does not: a library, or "jax.checkpoint".
    `problem` says why nothing else is known.
    """

    function: str
    stage: str
    location: str
    changes: Changes = ()
    earlier: int = 0
    transformed: bool = False
    eager: bool = False
    through: str = ""
    inside: str = ""
    caller: str = ""
    via: str = ""
    maker: str = ""
    problem: str = ""


class CompileHistory:
    """The calls that compiled, a bounded number of them by function. Safe to use from several threads."""

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
            while len(self._calls) > _MOST_FUNCTIONS:
                self._calls.popitem(last=False)

    def calls(self, key: tuple[str, ...]) -> tuple[Sighting, ...]:
        with self._lock:
            return tuple(self._calls.get(key, ()))

    def has(self, code: str) -> bool:
        """Whether a function with its code at this `file:line` compiled before."""
        with self._lock:
            return any(key[0] == code for key in self._calls)

    def forget(self) -> None:
        with self._lock:
            self._calls.clear()


HISTORY = CompileHistory()


def history_key(site: CallSite, name: str = "") -> tuple[str, ...]:
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
            held = signature_of_named(held_by(site.function))
    options = tuple((name, text_of(value)) for name, value in site.options.items())
    return Sighting(signature, function, config_now(), held, site.statics, options)


def recompile_cause(cause: Cause, site: CallSite, sighting: Sighting, key: tuple[str, ...]) -> Cause:
    """`cause` with what `sighting`, which describes `site`, has different from the nearest call with this key."""
    earlier = HISTORY.calls(key)
    inside = site.caller[0] if site.eager and HISTORY.has(site.caller[1]) else ""
    same = tuple(other for other in earlier if other.function == sighting.function)
    changes = _nearest_changes(site, sighting, earlier, same) if earlier else ()
    through_api = site.named is not None and site.statics == Statics()
    transformed = through_api or any(leaf.source == TRACER for _, leaf in sighting.signature.leaves)
    return dataclasses.replace(
        cause, changes=changes, earlier=len(same or earlier), transformed=transformed, inside=inside
    )


def _nearest_changes(
    site: CallSite, sighting: Sighting, earlier: tuple[Sighting, ...], same: tuple[Sighting, ...]
) -> Changes:
    """The changes from the nearest call, the latest of equals. `same` are those of `earlier` of the same function."""
    if not same and isinstance(sighting.function, Value) and not site.eager:
        # JAX compiles every new function object, whatever its arguments. What it holds is built into its program.
        held = min((_held_changes(other, sighting) for other in reversed(earlier)), key=distance)
        return _another_function(site, held), *held
    # The same function may be jitted in several ways.
    for alike in (lambda other: other.statics == sighting.statics, lambda other: other.options == sighting.options):
        same = tuple(filter(alike, same)) or same or earlier
    changes = min((_sighting_changes(other, sighting, site) for other in reversed(same)), key=distance)
    return changes if site.named else with_parameters(changes, site.function)


def config_now() -> Config:
    """The options and contexts in force in this thread that a program may depend on."""
    values = jax.config.values.items()
    config = {name: text_of(value) for name, value in values if not any(part in name for part in _UNRELATED)}
    for name, context in (("mesh", jax.sharding.get_mesh), ("abstract mesh", jax.sharding.get_abstract_mesh)):
        try:
            config[name] = text_of(context())
        except Exception:  # JAX raises when it is asked while it traces.
            continue
    config |= {name: text_of(value) for name, value in jax_stack.context_values().items()}
    return tuple(config.items())


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
    changes: list[SignatureChange] = []
    if isinstance(before.function, Leaf | Node) and isinstance(after.function, Leaf | Node):
        old, new = Signature((("fn", before.function),)), Signature((("fn", after.function),))
        changes += (_another_function(site) if change.path == "fn" else change for change in changes_between(old, new))
    if before.statics != after.statics and not site.eager:
        sides = _listing(before.statics), _listing(after.statics)
        changes.append(SignatureChange("options", "static arguments", *sides))
    if before.options and after.options and not site.eager:
        was, now = dict(before.options), dict(after.options)
        for name in dict.fromkeys([*was, *now]):
            if (one := was.get(name, "()")) != (other := now.get(name, "()")):
                changes.append(SignatureChange("options", name, one, other, variant="jit", hint=name))
    changes += relevant(changes_between(before.signature, after.signature), site.statics)
    return (*changes, *config_changes(before.config, after.config))


def _held_changes(before: Sighting, after: Sighting) -> Changes:
    if before.held is None or after.held is None:
        return ()
    return relevant(changes_between(before.held, after.held), Statics(all=True))


def _listing(statics: Statics | None) -> str:
    return "unknown" if statics is None else ", ".join(statics.paths) or "none"


def _another_function(site: CallSite, held: Changes = ()) -> SignatureChange:
    kind = _kind_without_def(site.function)
    now = f"another of the same code ({code_of(site.function)}){kind and f', a {kind} made anew'}"
    # No argument could stand for such an object.
    objects = ("function", "closure", "method", "optimizer", "class", "identity", "equality")
    variant, hint = ("held", held[0].path.rpartition(" ")[2]) if held and held[0].variant not in objects else (kind, "")
    if site.maker:
        variant, hint = "library", site.maker
    return SignatureChange("function", "function", "an earlier object", now, variant=variant, hint=hint)


def _kind_without_def(function: Any) -> str:
    """What kind of function object it is, for those that are created without a `def`."""
    if not isinstance(function, types.FunctionType | types.MethodType | functools.partial):
        *_, function = innermost(function)  # Behind an object of nnx.jit's.
    if any(isinstance(each, functools.partial) for each in innermost(function)):
        return "functools.partial"
    if isinstance(function, types.MethodType):
        return "bound method"
    if hasattr(function, "__wrapped__"):
        return "wrapped function"
    return "lambda" if getattr(function, "__name__", "") == "<lambda>" else ""


_VERBS = {"trace": "was traced", "lower": "was lowered", "compile": "was compiled"}
_REUSED = {"trace": "", "lower": " (its trace was reused)", "compile": " (its trace and lowering were reused)"}
_SHOWN = 6

_REMEDIES = {
    "function": "Create the jitted function once, outside the loop{more}, and warm it: {warm}",
    "options": "Jit it once, with the same static_argnums and static_argnames, and warm it: {warm}",
    "config": "Set it once, before warming, or warm under this setting too: {warm}",
    "structure": "Pass the same tree in the same way in every call,",
    "static value": "Pass it as an array if it changes, or warm every value: {warm}",
    "number": "Pass it as an array if it changes, or warm every value: {warm}",
    "dtype": "Cast it before the call, or in the step that returns it, with x.astype('{was}'),",
    "weak type": "Give it a dtype where it is made, as in jnp.asarray(0, {hint}),",
    "shape": "Pad to a declared shape,",
    "sharding": "Place it with jax.device_put(x, sharding) as in the warm call,",
    "committed": "Pass it through jax.device_put(x, device), which commits it, in every call or in none.",
    "layout": "Give it one layout, with jax.device_put(x, Format(Layout(...), sharding)),",
    "device": "Keep it on the device that was warmed, with jax.device_put(x, device),",
}
"""By kind of change, the most telling kind first: a new function object compiles whatever the arguments are.

A remedy that ends in a comma goes on with "or warm this one too".
"""

_FUNCTION_ONCE = "Make the function once, at module level: JAX compares it by identity, and a new one compiles."
_MODE = "Each value of a static argument has a program of its own. Warm every value: {warm}"

_OBJECTS = {
    "function": _FUNCTION_ONCE,
    "closure": f"{_FUNCTION_ONCE} What it has built in ({{hint}}) can be an argument.",
    "method": "Take the method of one object: a method of another one is equal only where the objects are.",
    "optimizer": "Make the optimizer or schedule once, outside the loop: every call such as optax.adam(...) makes new "
    "functions, which JAX compares by identity.",
    "class": "Define the class once, at module level: one that is defined again is another class.",
    "identity": "It is compared by identity: make it once, or give its class __eq__ and __hash__, as "
    "@dataclass(frozen=True) does.",
    "equality": "The two look the same but are unequal: repair the __eq__ and __hash__ of its class, or make it once.",
    "mode": _MODE,
}

_OUTSIDE_JIT = "Outside jit, {hint} has JAX trace every function that is made anew: jax.jit the function that calls it."

_FINER = {
    ("options", "jit"): "Jit it once, with one {hint}, and warm it: {warm}",
    ("structure", "argument"): "Pass it in every call or in none (without it the signature differs, even where the "
    "default is the same),",
    ("structure", "keyword"): "Pass it in the same way in every call (JAX does not match keywords to positions),",
    ("structure", "None"): "None is part of the tree, not an array. Pass the same tree in the same way in every call,",
    ("dtype", "key"): "Make keys in one way, with jax.random.key(seed) and one impl, not also with jax.random.PRNGKey,",
    ("dtype", "number"): "Pass {hint}(x) in every call, not a Python number,",
    ("weak type", "number"): "Pass {hint}(x) in every call, not a Python number,",
    ("shape", "key"): "Pass one key in every call, as keys[0] of jax.random.split(key),",
    ("number", "mode"): _MODE,
    ("sharding", "mesh"): "Make the mesh once, and place it there with jax.device_put(x, NamedSharding(mesh, spec)),",
    ("committed", "many"): "Place it in every call with jax.device_put(x, sharding): a state as the step returns it, a "
    "batch as the other batches,",
    ("function", "library"): _OUTSIDE_JIT,
    **{(kind, variant): text for kind in ("static value", "structure") for variant, text in _OBJECTS.items()},
}
"""By kind and variant, where the variant has better advice than the kind."""

_FUNCTIONS = {
    "held": ", with {hint} as an argument (what a function holds is built into its program)",
    "functools.partial": " (every functools.partial(...) is a new function)",
    "bound method": " (every obj.method is a new object)",
    "wrapped function": " (jax.grad, jax.vmap and decorators return a new function each time)",
    "lambda": " (every lambda is a new function)",
}

_AFTERWARDS = {
    "ragged": "\n  Where the last batch is smaller: pad it and mask the rest, or drop it.",
    "grows": "\n  Where a length grows: write into a buffer of fixed length, with jax.lax.dynamic_update_slice.",
}

_DROPPED = """\
  JAX dropped its program (clear_cache(), jax.clear_caches(), a full cache), or this depends on what perfsuite does not
  compare, such as which places of an NNX model hold one object: it is one of {signatures}, with the same tree, shapes,
  dtypes, weak types, static values, shardings, layouts, devices, function object, options of jax.jit, configuration."""
_TRANSFORMED = """\
  It is called under a transformation (jax.grad, jax.vmap and their like) with one of {signatures}: JAX compiles
  another program for each transformation, its options, and each order of them (or it dropped this program). jax.jit
  the function that transforms it."""

_ADVICE = {
    "__iter__": "  Iterating over a jax.Array takes it apart: iterate over np.asarray(x), or use jax.lax.scan.",
    "shard_map": "  Outside jit, jax.shard_map runs each operation by itself, on all devices: jax.jit what it returns.",
}
"""By the function of the library that eager operations came through."""
_MOVE = (
    "  Move it into the jitted function, or use NumPy.",
    "  Build inputs before this context, or inside its .building_inputs().",
)
_LINES_SHOWN = 12

_LOOP = "Put it inside jax.jit, or define its body once, at module level."
_LOOPS = ("scan", "while", "cond", "while_loop", "fori_loop", "map", "associative_scan", "switch")


def recompilation_message(cause: Cause) -> str:
    """The message for a function that compiled."""
    if cause.eager or cause.through in _LOOPS:
        return _eager_operation(cause)
    again = " again" if cause.earlier else ""
    begun = f"`{cause.function}` {_VERBS[cause.stage]}{again}"
    lines = [f"{begun} at {cause.location}{_inside(cause)}{_REUSED[cause.stage]}"]
    signatures = plural(cause.earlier, "known signature")
    if cause.problem:
        lines.append(f"  {cause.problem}")
    elif not cause.earlier and cause.maker:
        lines.append(f"  {_OUTSIDE_JIT.format(hint=cause.maker)}")
    elif not cause.earlier:
        lines.append("  no earlier call is known: this is the first, or it compiled before perfsuite watched.")
        lines.append(f"  Warm it first: {_warm(cause.function)}")
    elif cause.changes:
        lines += [*_listed(cause.changes), f"  nearest of {signatures}. {_remedy(cause.changes, cause.function)}"]
    else:
        lines.append((_TRANSFORMED if cause.transformed else _DROPPED).format(signatures=signatures))
    return "\n".join(lines)


def runs_alone(cause: Cause) -> bool:
    """Whether it is an operation that runs by itself and is soon compiled, unlike a loop."""
    return cause.eager and not _is_loop(cause)


def operations_message(causes: Sequence[Cause]) -> str:
    """The message for all operations of one context that ran by themselves, by the line that leads to them."""
    if len(causes) == 1:
        return _eager_operation(causes[0])
    lines: dict[tuple[str, str], collections.Counter[str]] = {}
    for each in causes:
        lines.setdefault((each.caller, each.location), collections.Counter())[f"`{each.function}`{_way(each)}"] += 1
    shown = [
        f"  in `{caller}` at {location}: "
        + ", ".join(name if count == 1 else f"{name} x {count}" for name, count in operations.items())
        for (caller, location), operations in lines.items()
    ]
    head = f"{len(causes)} eager operations ran outside any jitted function and were compiled, each for its shapes"
    more = [f"  and at {plural(len(shown) - _LINES_SHOWN, 'more line')}"] if len(shown) > _LINES_SHOWN else []
    advice = [_ADVICE[through] for through in dict.fromkeys(each.through for each in causes) if through in _ADVICE]
    return "\n".join([head, *shown[:_LINES_SHOWN], *more, *advice, *_MOVE])


def _is_loop(cause: Cause) -> bool:
    return cause.function in _LOOPS or cause.through in _LOOPS


def _way(cause: Cause) -> str:
    """Through which function of the library an operation came, and from which line of another one."""
    if cause.through == "__iter__":
        return " (iterating over a jax.Array)"
    if cause.through in ("", cause.function):
        return _inside(cause)
    return f" (in `{cause.through}`{cause.via and f', {cause.via}'})"


def _inside(cause: Cause) -> str:
    """The line of an installed package that the user's line led to."""
    return cause.via and f" (in {cause.via})"


def _eager_operation(cause: Cause) -> str:
    """The message for an operation of JAX's own that ran, and compiled, by itself."""
    lines = [f"`{cause.function}` {_VERBS[cause.stage]} at {cause.location}{_way(cause)}"]
    if _is_loop(cause):
        package = cause.via.partition("/")[0].partition(".")[0]
        of_package = f"It is {package}'s: put the call of {package} in `{cause.caller}` inside jax.jit."
        lines.append("  a loop outside any jitted function: it compiles for every new body function, length and shape.")
        lines.append(f"  {of_package if package else _LOOP}")
        return "\n".join(lines)
    lines.append("  an eager operation: it runs outside any jitted function and compiles for every new shape.")
    lines += _listed(cause.changes[:2] if cause.through != "__iter__" else ())
    if cause.inside:
        lines.append(
            f"  `{cause.inside}` was jitted before: leave jax.disable_jit(), or call the jitted function, "
            "or call it inside a jitted function."
        )
    lines += [_ADVICE[cause.through]] if cause.through in _ADVICE else []
    lines += _MOVE
    return "\n".join(lines)


def unwarmed_message(
    begins: str, function: str, signature: Signature, changes: Sequence[SignatureChange], warmed: int
) -> str:
    """The message for a signature of `function` that is none of the `warmed`; `begins` says who brings it."""
    # A model's signature is hundreds of lines; the lines below name what differs in it.
    shown = f": {signature}" if len(signature.leaves) <= 4 else ""
    return "\n".join(
        [f"{begins}{shown}", *_listed(changes), f"  nearest of {warmed} warmed. {_remedy(changes, function)}"]
    )


def _remedy(changes: Sequence[SignatureChange], function: str) -> str:
    """What to do about these changes: the advice for the most telling one."""
    warm = _warm(function)
    by_kind = {change.kind: change for change in reversed(changes)}
    for kind in _REMEDIES:
        if (change := by_kind.get(kind)) is not None:
            more = _FUNCTIONS.get(change.variant, "").format(hint=change.hint)
            text = _FINER.get((kind, change.variant), _REMEDIES[kind])
            text += " or warm this one too: {warm}" if text.endswith(",") else ""
            afterwards = _AFTERWARDS.get(change.variant, "") if kind == "shape" else ""
            return text.format(warm=warm, was=change.was, hint=change.hint, more=more) + afterwards
    return f"Warm this one too: {warm}"


def _listed(changes: Sequence[SignatureChange]) -> list[str]:
    lines = [f"  {place}: {what}" for place, what in leaf_lines((change.path, change.difference) for change in changes)]
    more = [f"  and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return lines[:_SHOWN] + more


def _warm(function: str) -> str:
    return f"perf.warm({function if function.isidentifier() else 'fn'}, over=[...])"
