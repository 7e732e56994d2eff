"""What to do about host calls, by the function of a library that the user's code calls.

It imports neither jax nor NumPy: `perfsuite diff` prints it too.
"""

from perfsuite.measure.private import libraries
from perfsuite.measure.private.names import Functions

TELLING = 0.1
"""A message has advice on a function that makes this share of the host calls in question."""

_ADVICE: tuple[tuple[tuple[Functions | str, ...], str], ...] = (
    (libraries.JITTING, "It jits a function on every call: create the jitted function once, outside the loop."),
    (
        libraries.NNX_JITTED,
        "nnx.jit walks the module's graph on every call: nnx.cached_partial(step, model, ...) keeps the graph, or "
        "nnx.split once and jax.jit over the state.",
    ),
    (
        libraries.FILTER_JITTED,
        "filter_jit takes its arguments apart on every call, and waits for the device: eqx.partition once, before the "
        "loop, and jax.jit the step over the arrays.",
    ),
    (
        libraries.PARTITIONING,
        "It takes the model apart or puts it together on every call: eqx.partition once, before the loop, carry the "
        "arrays, and eqx.combine inside the jitted function.",
    ),
    (libraries.TREE_AT, "It takes the whole tree apart on every call: do it inside the jitted function."),
    (
        libraries.TRANSFORMATIONS,
        "A transformation outside jit traces its function again on every call: jit the transformed function, once.",
    ),
    (libraries.WAITING, "It waits for the device on every call: return the array, and read it some steps later."),
    (
        ("numpy:asarray", "numpy:array"),
        "Of an array of JAX it waits for the device on every call: return the array, and read it some steps later.",
    ),
    (
        libraries.PLACING,
        "It places an array on the device on every call: place it once, before the loop, or a step ahead.",
    ),
    (
        libraries.REGISTERING,
        "JAX takes the objects of a class apart in Python, each time that a jitted function gets them: "
        "jax.tree_util.register_dataclass does it without Python; or close over those that never change.",
    ),
    (
        (*libraries.TREES, "optax.tree_utils"),
        "It passes over every leaf of the tree on every call: do it inside the jitted function, or once, before the "
        "loop.",
    ),
    (
        ("dataclasses:", "flax.struct:", "flax.core.frozen_dict:", "copy:"),
        "It builds a new state object on every call: replace the field inside the jitted function.",
    ),
    (
        (*libraries.MODULES, "generated:"),
        "Modules are built or taken apart in Python on every call: carry their arrays through the loop, and build the "
        "module inside the jitted function.",
    ),
    (
        libraries.STATES_FLATTENED,
        "JAX takes an nnx.State apart in Python on every call, a variable at a time: jax.tree.flatten it once, before "
        "the loop, carry its leaves, and jax.tree.unflatten them inside the jitted function.",
    ),
    (
        ("flax.nnx.",),
        "It walks the module's graph on every call: nnx.split once, before the loop, carry the state, and nnx.merge "
        "inside the jitted function.",
    ),
    (("optax.",), "Optax runs outside jit, an operation at a time: call it inside the jitted step."),
    (("flax.",), "Flax runs outside jit, an operation at a time: call it inside the jitted step."),
    (
        libraries.KEYS_RETURNED,
        "JAX makes each typed key that a jitted function returns in Python: keep one key, and fold the number of the "
        "step into it inside the jitted function.",
    ),
    (libraries.KEYS, "It makes keys outside jit on every call: split the key inside the jitted step, and carry it."),
    (
        libraries.SLOW_PATH,
        "JAX's fast path does not take a jitted function, which then runs through Python on every call: "
        "perf.fast_path says why.",
    ),
    (
        ("jax.", "jaxlib.", "equinox."),
        "It runs an operation outside jit, by itself, on every call: move it into the jitted function.",
    ),
    (
        ("builtins:", "list:", "dict:", "str:"),
        "It is the user's own Python, run on every call: do it once, before the loop.",
    ),
)


_HASHED = (
    "JAX calls __hash__ and __eq__ of a static argument on every call: compute the hash once, when the object is made, "
    "or pass it as an array."
)
_LISTED = "JAX takes a list apart in Python, item by item: jnp.array(np.array(values)), or jnp.stack of arrays."
_BY_REASON = {" in __hash__": _HASHED, " in __eq__": _HASHED, libraries.OF_LIST: _LISTED}
"""By what a host call's text contains: this is what makes the calls, whatever function the code calls."""

SELECTED = (
    "where a select took the place of the conditional, all branches run: jax.vmap makes one where it maps the "
    "predicate. Keep the predicate out of the mapped arguments, or loop with lax.map"
)
"""Why a program has fewer conditionals."""


def advice_on(function: str) -> str:
    """What to do about the host calls of "module:function", or of that "at file:line in function"; "" if unknown."""
    by_reason = (words for part, words in _BY_REASON.items() if part in function)
    by_function = (words for functions, words in _ADVICE if libraries.one_of(function, functions))
    return (*by_reason, *by_function, "")[0]
