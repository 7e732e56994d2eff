"""What a recompilation error says: what compiled and where, what was different, and the one thing to do."""

from collections.abc import Sequence

from perfsuite.measure.causes import Cause
from perfsuite.measure.signature import Change, Signature

VERBS = {"trace": "was traced", "lower": "was lowered", "compile": "was compiled"}
_REUSED = {"trace": "", "lower": " (its trace was reused)", "compile": " (its trace and lowering were reused)"}
_SHOWN = 6

_REMEDIES = {
    "function": "Create the jitted function once, outside the loop, and warm it: {warm}",
    "config": "Set it once, before warming, or warm under this setting too: {warm}",
    "structure": "Pass the same tree in the same way in every call, or warm this one too: {warm}",
    "static value": "Pass it as an array if it changes, or warm every value: {warm}",
    "number": "Pass it as an array if it changes, or warm every value: {warm}",
    "dtype": "Cast it before the call, as in x.astype({was}), or warm this one too: {warm}",
    "weak type": "Wrap Python numbers in jnp.asarray(x, dtype) in every call, or warm this one too: {warm}",
    "shape": "Pad to a declared shape, or warm this one too: {warm}",
    "sharding": "Place it with jax.device_put(x, sharding) as in the warm call, or warm this one too: {warm}",
    "committed": "Pass it through jax.device_put(x, device), which commits it, in every call or in none.",
    "device": "Keep it on the device that was warmed, with jax.device_put(x, device), or warm each: {warm}",
}
"""By kind of change, the most telling kind first: a new function object compiles whatever the arguments are."""


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
            "  static values, shardings, devices, function object and configuration. What was compiled may have been",
            "  dropped (jax.clear_caches(), a full cache), or depend on a layout or a context that is not compared.",
        ]
    else:
        lines += _listed(cause.changes)
        lines.append(f"  nearest of {_signatures(cause.known)}. {remedy(cause.changes, warm)}")
    return "\n".join(lines)


def eager_operation(function: str, stage: str, location: str, through: str) -> str:
    """The message for an operation of JAX's own that ran, and compiled, by itself."""
    via = f" (in `{through}`)" if through and through != function else ""
    return (
        f"`{function}` {VERBS[stage]} at {location}{via}\n"
        "  an eager operation: it runs outside any jitted function and compiles for every new shape.\n"
        "  Build inputs before this context, or inside its .building_inputs()."
    )


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
            return text.format(warm=warm, was=kinds[kind].was)
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
