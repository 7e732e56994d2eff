"""What Equinox and Flax NNX do differently from `jax.jit`, found out without importing either.

A library that the process has not imported cannot have made any of the objects asked about.
"""

import dataclasses
import inspect
import sys
import types
from collections.abc import Iterator
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


def looks_at_identity(wrapper: Any) -> bool:
    """Whether `wrapper` makes another program where two places of its arguments hold one NNX object: as `nnx.jit`."""
    return wraps_jit(wrapper) and type(wrapper).__module__.startswith("flax.nnx.")


def is_graph_node(value: Any) -> bool:
    """Whether `value` is an NNX variable or module: what NNX knows by identity."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(value, nnx.Pytree | nnx.Variable)


def record_fields(value: Any) -> dict[str, Any]:
    """What a static value that is compared as a whole consists of, by name; empty where it is no record.

    The attributes of a dataclass, so of a Linen module; of a named tuple, so of an Optax optimizer; and the static ones
    of the modules in an NNX graph, by path.
    """
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(value, nnx.GraphDef):
        return dict(_graph_statics(iter(value.nodes), iter(value.attributes), ""))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value) if field.compare}
    return {}


def _graph_statics(nodes: Iterator[Any], attributes: Iterator[Any], path: str) -> Iterator[tuple[str, Any]]:
    """The type of the next node, its static attributes and those of the nodes below it: both lists go depth first."""
    node = next(nodes)
    yield f"{path}(type)", getattr(node, "type", "a reference to a node that is named before")
    for _ in range(getattr(node, "num_attributes", 0)):
        name, attribute = next(attributes)
        below = f"{path}.{name}" if path else str(name)
        if str(name).startswith("_pytree__"):  # NNX's own: which attributes are data
            if not hasattr(attribute, "value"):
                next(nodes)
        elif hasattr(attribute, "value"):
            yield below, attribute.value
        else:
            yield from _graph_statics(nodes, attributes, below)


def copy_arrays(args: tuple) -> tuple:
    """The same arguments with arrays of their own: the same signature, and nothing that a donation could delete.

    NNX modules are taken apart and put together by NNX itself, because they may share variables, and a copy of each
    place would be another graph and so another program.
    """
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and _has_nnx(args):
        structure, state = nnx.split(args)
        return nnx.merge(structure, jax.tree.map(_copy, state))
    return jax.tree.map(_copy, args)


def _copy(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array):
        return leaf
    # `device_put` keeps the weak type, committedness and sharding, so the copy compiles the same program. An array that
    # other processes have parts of is always committed, and has to be told where it goes.
    return jax.device_put(leaf, None if leaf.is_fully_addressable else leaf.sharding, may_alias=False)


def _has_nnx(args: tuple) -> bool:
    return any(map(is_graph_node, jax.tree.leaves(args, is_leaf=is_graph_node)))
