"""What to do about host calls, by the function of a library that the user's code calls and that makes them.

The functions have the interpreter's names, "module:qualified.name" (jax 0.10.2, equinox 0.13.8, flax 0.12.8, optax
0.2.8). Where a library moves one of them, a message loses its advice; it still names the function and the line.
"""

_READS = ("__float__", "__int__", "__bool__", "__complex__", "__index__", "__array__", "item", "tolist", "__repr__")

_WAITING = (
    "jax._src.api:block_until_ready",
    "jax._src.api:device_get",
    *(f"jax._src.array:ArrayImpl.{name}" for name in _READS),
)

_TRANSFORMATIONS = (
    "equinox._ad:",
    "equinox._vmap_pmap:",
    *(f"jax._src.api:{name}" for name in ("grad", "value_and_grad", "vmap", "vjp", "jvp", "linearize", "jac", "hess")),
    "flax.nnx.transforms.autodiff:",
    "flax.nnx.transforms.iteration:",
)

_ADVICE: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("jax._src.api:jit", "equinox._jit:filter_jit", "flax.nnx.transforms.compilation:jit"),
        "It jits a function on every call: create the jitted function once, outside the loop.",
    ),
    (
        ("flax.nnx.transforms.compilation:", "flax.nnx.transforms.general:"),
        "nnx.jit walks the module's graph on every call: nnx.cached_partial(step, model, ...) keeps the graph, or "
        "nnx.split once and jax.jit over the state.",
    ),
    (
        ("equinox._jit:",),
        "filter_jit takes its arguments apart on every call, and waits for the device: eqx.partition once, before the "
        "loop, and jax.jit the step over the arrays.",
    ),
    (
        ("equinox._filters:",),
        "It takes the model apart or puts it together on every call: eqx.partition once, before the loop, carry the "
        "arrays, and eqx.combine inside the jitted function.",
    ),
    (("equinox._tree:",), "It takes the whole tree apart on every call: do it inside the jitted function."),
    (
        _TRANSFORMATIONS,
        "A transformation outside jit traces its function again on every call: jit the transformed function, once.",
    ),
    (
        _WAITING,
        "It waits for the device on every call: return the array, and read it some steps later.",
    ),
    (
        ("numpy:asarray", "numpy:array"),
        "Of an array of JAX it waits for the device on every call: return the array, and read it some steps later.",
    ),
    (
        ("jax._src.api:device_put", "jax._src.numpy.array_constructors:"),
        "It places an array on the device on every call: place it once, before the loop, or a step ahead.",
    ),
    (
        ("jax._src.tree_util:register_", "jax._src.tree_util:_register_"),
        "JAX takes the objects of a class apart in Python, each time that a jitted function gets them: "
        "jax.tree_util.register_dataclass does it without Python; or close over those that never change.",
    ),
    (
        ("jax._src.tree:", "jax._src.tree_util:", "optax.tree_utils"),
        "It passes over every leaf of the tree on every call: do it inside the jitted function, or once, before the "
        "loop.",
    ),
    (
        ("dataclasses:", "flax.struct:", "flax.core.frozen_dict:", "copy:"),
        "It builds a new state object on every call: replace the field inside the jitted function.",
    ),
    (
        ("equinox._module", "?:"),
        "Modules are built or taken apart in Python on every call: carry their arrays through the loop, and build the "
        "module inside the jitted function.",
    ),
    (
        ("flax.nnx.",),
        "It walks the module's graph on every call: nnx.split once, before the loop, carry the state, and nnx.merge "
        "inside the jitted function.",
    ),
    (
        ("optax.",),
        "Optax runs outside jit, an operation at a time: call it inside the jitted step.",
    ),
    (
        ("flax.",),
        "Flax runs outside jit, an operation at a time: call it inside the jitted step.",
    ),
    (
        ("jax._src.random.prng:prngkeyarray_",),
        "JAX makes each typed key that a jitted function returns in Python: keep one key, and fold the number of the "
        "step into it inside the jitted function.",
    ),
    (
        ("jax._src.random",),
        "It makes keys outside jit on every call: split the key inside the jitted step, and carry it.",
    ),
    (
        ("jax._src.pjit:_cpp_pjit",),
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


def advice_on(function: str) -> str:
    """What to do about the host calls that "module:function" makes; empty for a function that is not known."""
    return next((words for prefixes, words in _ADVICE if function.startswith(prefixes)), "")


def waits(function: str) -> bool:
    """Whether "module:function" is known to wait for the device."""
    return function.startswith((*_WAITING, "equinox._jit:_JitWrapper"))
