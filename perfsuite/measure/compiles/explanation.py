"""What a recompilation error says: what compiled and where, what was different, and the one thing to do."""

from collections.abc import Sequence

from perfsuite.measure.compiles.causes import Cause
from perfsuite.measure.compiles.signature import Change, Signature

VERBS = {"trace": "was traced", "lower": "was lowered", "compile": "was compiled"}
_REUSED = {"trace": "", "lower": " (its trace was reused)", "compile": " (its trace and lowering were reused)"}
_SHOWN = 6

_REMEDIES = {
    "function": "Create the jitted function once, outside the loop{more}, and warm it: {warm}",
    "options": "Jit it once, with the same static_argnums and static_argnames, and warm it: {warm}",
    "config": "Set it once, before warming, or warm under this setting too: {warm}",
    "structure": "Pass the same tree in the same way in every call, or warm this one too: {warm}",
    "static value": "Pass it as an array if it changes, or warm every value: {warm}",
    "number": "Pass it as an array if it changes, or warm every value: {warm}",
    "dtype": "Cast it before the call, or in the step that returns it, with x.astype('{was}'), or warm it: {warm}",
    "weak type": "Give it a dtype where it is made, as in jnp.asarray(0, {hint}), or warm this one too: {warm}",
    "shape": "Pad to a declared shape, or warm this one too: {warm}",
    "sharding": "Place it with jax.device_put(x, sharding) as in the warm call, or warm this one too: {warm}",
    "committed": "Pass it through jax.device_put(x, device), which commits it, in every call or in none.",
    "device": "Keep it on the device that was warmed, with jax.device_put(x, device), or warm each: {warm}",
}
"""By kind of change, the most telling kind first: a new function object compiles whatever the arguments are."""

_OBJECTS = {
    "function": "Make the function once, at module level: JAX compares it by identity, and a new one compiles.",
    "closure": "Make the function once, at module level: JAX compares it by identity, and a new one compiles. What it "
    "has built in ({hint}) can be an argument.",
    "method": "Take the method of one object: a method of another one is equal only where the objects are.",
    "optimizer": "Make the optimizer or schedule once, outside the loop: every call such as optax.adam(...) makes new "
    "functions, which JAX compares by identity.",
    "class": "Define the class once, at module level: one that is defined again is another class.",
    "identity": "It is compared by identity: make it once, or give its class __eq__ and __hash__, as "
    "@dataclass(frozen=True) does.",
    "equality": "The two look the same but are unequal: repair the __eq__ and __hash__ of its class, or make it once.",
    "mode": "Every value of a static argument is a program of its own. Warm every value: {warm}",
}

_FINER = {
    ("structure", "argument"): "Pass it in every call or in none: an argument that is left out is another signature, "
    "also where the default is the same. Or warm this one too: {warm}",
    ("structure", "keyword"): "Pass it in the same way in every call: JAX does not match keywords to positions. "
    "Or warm this one too: {warm}",
    ("structure", "None"): "None is part of the tree, not an array. Pass the same tree in the same way in every call, "
    "or warm this one too: {warm}",
    ("structure", "shared"): "NNX makes another program where other places of a model hold one variable or module: tie "
    "or untie them before the first call, or warm this one too: {warm}",
    ("dtype", "key"): "Make keys in one way, with jax.random.key(seed) and one impl: not also with "
    "jax.random.PRNGKey. Or warm this one too: {warm}",
    ("dtype", "number"): "Pass {hint}(x) in every call, not a Python number, or warm this one too: {warm}",
    ("weak type", "number"): "Pass {hint}(x) in every call, not a Python number, or warm this one too: {warm}",
    ("shape", "key"): "Pass one key in every call, as keys[0] of jax.random.split(key), or warm this one too: {warm}",
    ("number", "mode"): _OBJECTS["mode"],
    ("sharding", "mesh"): "Make the mesh once, and place it there with jax.device_put(x, NamedSharding(mesh, spec)), "
    "or warm this one too: {warm}",
    ("committed", "many"): "Place it before the first call as the step returns it, with jax.device_put(x, sharding), "
    "or warm both: {warm}",
    ("function", "library"): "{hint} makes it anew whenever its code runs outside jit, and JAX traces it anew each "
    "time: jax.jit the function that calls it.",
    **{(kind, variant): text for kind in ("static value", "structure") for variant, text in _OBJECTS.items()},
}
"""By kind and variant, where there is more to be said than of the kind."""

_FUNCTIONS = {
    "held": ", with {hint} as an argument (what a function holds is built into its program)",
    "functools.partial": " (every functools.partial(...) is a new function)",
    "bound method": " (every obj.method is a new object)",
    "wrapped function": " (jax.grad, jax.vmap and decorators return a new function each time)",
    "lambda": " (every lambda is a new function)",
}

_AFTERWARDS = {
    "ragged": "  Where the last batch is smaller: pad it and mask the rest, or drop it.",
    "grows": "  Where a length grows: write into a buffer of fixed length, with jax.lax.dynamic_update_slice.",
}

_LOOPS = ("scan", "while", "cond", "while_loop", "fori_loop", "map", "associative_scan", "switch")


def recompilation(function: str, stage: str, location: str, cause: Cause) -> str:
    """The message for a user's jitted function that compiled."""
    again = " again" if cause.known else ""
    lines = [f"`{function}` {VERBS[stage]}{again} at {location}{_REUSED[stage]}"]
    warm = f"perf.warm({_as_name(function)}, over=[...])"
    if not cause.known:
        lines.append("  no earlier call is known: this is the first, or it compiled before perfsuite watched.")
        lines.append(f"  Warm it before: {warm}")
    elif not cause.changes:
        lines += [
            f"  nothing differs from one of {_signatures(cause.known)}, in tree structure, shapes, dtypes, weak types,",
            "  static values, shardings, devices, function object and configuration. It may have been jitted again",
            "  with other options (donate_argnums, out_shardings: jit it once), what was compiled may have been",
            "  dropped (jax.clear_caches(), a full cache), or it depends on what is not compared: a layout, or a",
            "  context such as `with mesh:` (use jax.set_mesh).",
        ]
    else:
        lines += _listed(cause.changes)
        lines.append(f"  nearest of {_signatures(cause.known)}. {remedy(cause.changes, warm)}")
    return "\n".join(lines)


def eager_operation(function: str, stage: str, location: str, through: str, cause: Cause, inside: str = "") -> str:
    """The message for an operation of JAX's own that ran, and compiled, by itself.

    `inside` is the user's function that it ran in, where that was jitted before.
    """
    via = f" (in `{through}`)" if through and through != function else ""
    lines = [f"`{function}` {VERBS[stage]} at {location}{via}"]
    if function in _LOOPS or through in _LOOPS:
        lines += [
            "  a loop outside any jitted function: it compiles for every new body function, length and shape.",
            "  Put it inside jax.jit, or define its body once, at module level.",
        ]
    else:
        lines.append("  an eager operation: it runs outside any jitted function and compiles for every new shape.")
        lines += _listed(cause.changes[:2])
        if inside:
            lines.append(
                f"  `{inside}` was jitted before: leave jax.disable_jit(), or call the jitted function, "
                "or call it inside a jitted function."
            )
        lines += [
            "  Move it into the jitted function, or use NumPy.",
            "  Build inputs before this context, or inside its .building_inputs().",
        ]
    return "\n".join(lines)


def unwarmed(
    function: str, signature: Signature, changes: Sequence[Change], warmed: int, *, where: str = "", compiled: str = ""
) -> str:
    """The message for a call whose signature is not one that was warmed; `compiled` is what it made JAX compile."""
    inner = f" (it compiled `{compiled}`)" if compiled not in ("", function) else ""
    # A model's signature is hundreds of lines; what differs in it is below.
    shown = f": {signature}" if len(signature.leaves) <= 4 else ""
    lines = [f"`{function}` was called{where} with a signature that was not warmed{inner}{shown}"]
    lines += _listed(changes)
    lines.append(f"  nearest of {warmed} warmed. {remedy(changes, f'perf.warm({_as_name(function)}, over=[...])')}")
    return "\n".join(lines)


def remedy(changes: Sequence[Change], warm: str) -> str:
    """The one thing to do about these changes."""
    kinds = {change.kind: change for change in reversed(changes)}
    for kind, text in _REMEDIES.items():
        if kind in kinds:
            change = kinds[kind]
            more = _FUNCTIONS.get(change.variant, "").format(hint=change.hint)
            said = _FINER.get((kind, change.variant), text)
            said = said.format(warm=warm, was=change.was, hint=change.hint, more=more)
            after = _AFTERWARDS.get(change.variant, "") if kind == "shape" else ""
            return f"{said}\n{after}" if after else said
    return f"Warm this one too: {warm}"


def _listed(changes: Sequence[Change]) -> list[str]:
    lines = [f"  {change}" for change in changes[:_SHOWN]]
    if len(changes) > _SHOWN:
        lines.append(f"  and {len(changes) - _SHOWN} more")
    return lines


def _signatures(count: int) -> str:
    return f"{count} known signature{'s' if count > 1 else ''}"


def _as_name(function: str) -> str:
    return function if function.isidentifier() else "fn"
