"""What a recompilation error says: what compiled and where, what was different, and the one thing to do."""

import collections
from collections.abc import Sequence

from perfsuite.measure.compiles.causes import Cause
from perfsuite.measure.compiles.signature import Signature, SignatureChange
from perfsuite.measure.words import folded, plural

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

_FINER = {
    ("options", "jit"): "Jit it once, with one {hint}, and warm it: {warm}",
    ("structure", "argument"): "Pass it in every call or in none (without it the signature differs, even where the "
    "default is the same),",
    ("structure", "keyword"): "Pass it in the same way in every call (JAX does not match keywords to positions),",
    ("structure", "None"): "None is part of the tree, not an array. Pass the same tree in the same way in every call,",
    ("structure", "shared"): "NNX compiles another program where other places of a model share a variable or module: "
    "tie or untie them before the first call,",
    ("dtype", "key"): "Make keys in one way, with jax.random.key(seed) and one impl, not also with jax.random.PRNGKey,",
    ("dtype", "number"): "Pass {hint}(x) in every call, not a Python number,",
    ("weak type", "number"): "Pass {hint}(x) in every call, not a Python number,",
    ("shape", "key"): "Pass one key in every call, as keys[0] of jax.random.split(key),",
    ("number", "mode"): _MODE,
    ("sharding", "mesh"): "Make the mesh once, and place it there with jax.device_put(x, NamedSharding(mesh, spec)),",
    ("committed", "many"): "Place it before the first call as the step returns it, with jax.device_put(x, sharding),",
    ("function", "library"): "{hint} makes it anew whenever its code runs outside jit, and JAX traces it anew each "
    "time: jax.jit the function that calls it.",
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

_NOTHING_DIFFERS = """\
  static values, shardings, layouts, devices, function object, options of jax.jit and configuration. Possible
  causes: JAX dropped its program (jax.clear_caches(), a full cache); or it depends on what is not compared,
  such as a context `with mesh:` (use jax.set_mesh)."""
_TRANSFORMED = """\
  It is called under a transformation (jax.grad, jax.vmap and their like), and JAX compiles another program
  for each of these and each order of them: jax.jit the function that transforms it."""

_ITERATES = "  Iterating over a jax.Array takes it apart: iterate over np.asarray(x), or use jax.lax.scan."
_MOVE = (
    "  Move it into the jitted function, or use NumPy.",
    "  Build inputs before this context, or inside its .building_inputs().",
)
_LINES_SHOWN = 12

_LOOP = "Put it inside jax.jit, or define its body once, at module level."
_LOOPS = ("scan", "while", "cond", "while_loop", "fori_loop", "map", "associative_scan", "switch")


def recompilation(cause: Cause) -> str:
    """The message for a function that compiled."""
    if cause.eager or cause.through in _LOOPS:
        return _eager_operation(cause)
    again = " again" if cause.known else ""
    begun = f"`{cause.function}` {_VERBS[cause.stage]}{again}"
    lines = [f"{begun} at {cause.location}{_inside(cause)}{_REUSED[cause.stage]}"]
    known = plural(cause.known, "known signature")
    if cause.problem:
        lines.append(f"  {cause.problem}")
    elif not cause.known:
        lines.append("  no earlier call is known: this is the first, or it compiled before perfsuite watched.")
        lines.append(f"  Warm it first: {_warm(cause.function)}")
    elif cause.changes:
        lines += [*_listed(cause.changes), f"  nearest of {known}. {_remedy(cause.changes, cause.function)}"]
    else:
        lines.append(f"  nothing differs from one of {known}, in tree structure, shapes, dtypes, weak types,")
        lines.append(_NOTHING_DIFFERS)
        lines += [_TRANSFORMED] if cause.transformed else []
    return "\n".join(lines)


def runs_alone(cause: Cause) -> bool:
    """Whether it is an operation that runs by itself and is soon compiled, unlike a loop."""
    return cause.eager and not _is_loop(cause)


def eager_operations(causes: Sequence[Cause]) -> str:
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
    iterates = [_ITERATES] if any(each.through == "__iter__" for each in causes) else []
    return "\n".join([head, *shown[:_LINES_SHOWN], *more, *iterates, *_MOVE])


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
    lines += [_ITERATES] if cause.through == "__iter__" else []
    lines += _MOVE
    return "\n".join(lines)


def unwarmed(begins: str, function: str, signature: Signature, changes: Sequence[SignatureChange], warmed: int) -> str:
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
    lines = [f"  {place}: {what}" for place, what in folded((change.path, change.difference) for change in changes)]
    more = [f"  and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return lines[:_SHOWN] + more


def _warm(function: str) -> str:
    return f"perf.warm({function if function.isidentifier() else 'fn'}, over=[...])"
