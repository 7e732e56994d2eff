"""What Equinox and Flax NNX do differently from `jax.jit`, found out without importing either.

A library that the process has not imported cannot have made any of the objects asked about.
"""

import inspect
import sys
import types
from typing import Any

import jax


def wraps_jit(value: Any) -> bool:
    """Whether `value` is an object around a jitted function: of `filter_jit`, `nnx.jit`, or made in the same way."""
    # Not `inspect.isroutine`: these objects have a `__get__` and so pass for method descriptors.
    if isinstance(value, types.FunctionType | types.MethodType):
        return False
    return hasattr(type(value), "__wrapped__") or "__wrapped__" in getattr(value, "__dict__", ())


def is_filter_jit(value: Any) -> bool:
    """Whether `value` is what `filter_jit` returns: an Equinox module around a function.

    It holds every argument that is not an array static, and compares the function by equality.
    """
    equinox = sys.modules.get("equinox")
    return equinox is not None and isinstance(value, equinox.Module) and wraps_jit(value)


def as_passed_on(wrapper: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """The arguments as the wrapper hands them to JAX: `filter_jit` makes keywords positional where it can."""
    if is_filter_jit(wrapper):
        try:
            bound = inspect.signature(wrapper.__wrapped__).bind(*args, **kwargs)
        except (TypeError, ValueError):  # The call itself is about to fail, or the callable has no signature.
            return args, kwargs
        return bound.args, bound.kwargs
    return args, kwargs


def graph_children(value: Any) -> dict[str, Any] | None:
    """The attributes of an NNX module that is no pytree (`pytree=False`), which `nnx.jit` looks into all the same."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None or not isinstance(value, nnx.Module):
        return None
    return {name: child for name, child in sorted(vars(value).items()) if not name.startswith("_pytree__")}


def copy_arrays(args: tuple) -> tuple:
    """The same arguments with arrays of their own: the same signature, and nothing that a donation could delete.

    NNX modules are taken apart and put together by NNX itself, because they may share variables, and a copy of each
    place would be another graph and so another program.
    """
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and _has_nnx(nnx, args):
        structure, state = nnx.split(args)
        return nnx.merge(structure, jax.tree.map(_copy, state))
    return jax.tree.map(_copy, args)


def _copy(leaf: Any) -> Any:
    # `device_put` keeps the weak type, committedness and sharding, so the copy compiles the same program.
    return jax.device_put(leaf, may_alias=False) if isinstance(leaf, jax.Array) else leaf


def _has_nnx(nnx: Any, args: tuple) -> bool:
    kinds = (nnx.Pytree, nnx.Variable)
    leaves = jax.tree.leaves(args, is_leaf=lambda node: isinstance(node, kinds))
    return any(isinstance(leaf, kinds) for leaf in leaves)
