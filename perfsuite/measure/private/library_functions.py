"""Functions of libraries by what they do for a user who calls them, for the advice of messages.

Where a library moves one, a message loses its advice; it still names the function and the line.
"""

from collections.abc import Iterable

from perfsuite.measure.private.names import Functions

API = Functions("jax._src.api")
"""`jax.grad`, `jax.vmap` and their like, with what they return."""

JITTING = (
    Functions("jax._src.api", "jit"),
    Functions("equinox._jit", "filter_jit"),
    Functions("flax.nnx.transforms.compilation", "jit"),
)
"""They jit a function."""

NNX_JITTED = Functions("flax.nnx.transforms.compilation"), Functions("flax.nnx.transforms.general")
"""A call of what `nnx.jit` returned."""

FILTER_JITTED = (Functions("equinox._jit"),)
"""A call of what `filter_jit` returned. It waits for the device."""

PARTITIONING = (Functions("equinox._filters"),)
"""They take a model apart, or put it together."""

TREE_AT = (Functions("equinox._tree"),)

TRANSFORMATIONS = (
    Functions("equinox._ad"),
    Functions("equinox._vmap_pmap"),
    *(
        Functions("jax._src.api", name)
        for name in ("grad", "value_and_grad", "vmap", "vjp", "jvp", "linearize", "jac", "hess")
    ),
    Functions("flax.nnx.transforms.autodiff"),
    Functions("flax.nnx.transforms.iteration"),
)

_READS = ("__float__", "__int__", "__bool__", "__complex__", "__index__", "__array__", "tolist", "__repr__")

WAITING = (
    Functions("jax._src.numpy.array_methods", "_item"),
    Functions("jax._src.api", "block_until_ready"),
    Functions("jax._src.api", "device_get"),
    *(Functions("jax._src.array", f"ArrayImpl.{name}") for name in _READS),
)

PLACING = Functions("jax._src.api", "device_put"), Functions("jax._src.numpy.array_constructors")
"""They place an array on the device."""

REGISTERING = (
    Functions("jax._src.tree_util", "register_"),
    Functions("jax._src.tree_util", "_register_", since="0.12"),  # 0.11.0 has none
)
"""What they define takes the objects of a class apart."""

TREES = Functions("jax._src.tree"), Functions("jax._src.tree_util")
"""They pass over every leaf of a tree."""

MODULES = (Functions("equinox._module"),)
"""They build a module, or take it apart."""

KEYS_RETURNED = (
    Functions("jax._src.random.prng", "prngkeyarray_", since="0.10.2"),
    Functions("jax._src.prng", "prngkeyarray_", until="0.10.2"),
)
"""They make the typed keys that a program returns."""

KEYS = (Functions("jax._src.random"),)
"""They make keys, and numbers from keys."""

SLOW_PATH = (Functions("jax._src.pjit", "_cpp_pjit"),)
"""A call of a jitted function that JAX's fast path does not take."""

_CALLED_TO_WAIT = (Functions("equinox._jit", "_JitWrapper"),)


def one_of(function: str, kinds: Iterable[Functions | str]) -> bool:
    """Whether "module:qualified.name" is one of some functions, or begins with a text among them."""
    return any(function.startswith(each) if isinstance(each, str) else each.has(function) for each in kinds)


def waits(function: str) -> bool:
    """Whether "module:qualified.name" is known to wait for the device."""
    return one_of(function, (*WAITING, *_CALLED_TO_WAIT))
