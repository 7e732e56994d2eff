"""What Equinox and Flax NNX do differently from `jax.jit`, without importing either.

Most of it needs their public names alone: a library that the process has not imported cannot have made any of the
objects asked about. Where Flax moves a private one, a message names less of an object.
"""

import dataclasses
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any

import jax

from perfsuite.measure.private.capabilities import FLAX
from perfsuite.measure.private.names import Attribute, Functions

_NNX = FLAX.needs(Functions("flax.nnx"))
_JITTED = FLAX.needs(Attribute("flax.nnx.transforms.compilation", "jitted_fn"))
_OWN = FLAX.needs(Attribute("flax.nnx.pytreelib", "_pytree__"))
"""The names of NNX's own attributes begin with it: which attributes of an object are data, and the like."""
_NODES = FLAX.needs(Attribute("flax.nnx.graphlib", "nodes"))
_ATTRIBUTES = FLAX.needs(Attribute("flax.nnx.graphlib", "attributes"))
"""Of a `GraphDef`: its nodes, and the attributes of all of them. Both go depth first."""
_TYPE = FLAX.needs(Attribute("flax.nnx.graphlib", "type"))
_COUNT = FLAX.needs(Attribute("flax.nnx.graphlib", "num_attributes"))
"""Of a node."""
_VALUE = FLAX.needs(Attribute("flax.nnx.graphlib", "value"))
"""Of an attribute that is static."""

_NO_VALUE = object()


def wraps_jit(value: Any) -> bool:
    """Whether `value` is an object around a jitted function: of `filter_jit`, `nnx.jit`, or made in the same way."""
    # Not `inspect.isroutine`: these objects have a `__get__` and so pass for method descriptors.
    if isinstance(value, types.FunctionType | types.MethodType):
        return False
    return hasattr(type(value), "__wrapped__") or "__wrapped__" in getattr(value, "__dict__", ())


def is_filter_jit(value: Any) -> bool:
    """Whether `filter_jit` returned `value`: an Equinox module around a function.

    It takes every argument that is not an array as static, and compares the function by equality.
    """
    return _is_of("equinox", value, "Module") and wraps_jit(value) and not is_bound_method(value)


def is_bound_method(value: Any) -> bool:
    """Whether `value` is a bound method of an Equinox module, which is a module itself."""
    return _is_of("equinox", value, "Module") and hasattr(value, "__func__") and hasattr(value, "__self__")


def is_partial(value: Any) -> bool:
    """Whether `value` is Equinox's partial, which is what it binds a method with that `filter_jit` made."""
    return _is_of("equinox", value, "Partial")


def bound_by_filter_jit(wrapper: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """The arguments as `filter_jit` hands them to JAX: it makes keywords positional where it can."""
    try:
        bound = inspect.signature(wrapper.__wrapped__).bind(*args, **kwargs)
    except (TypeError, ValueError):  # The call itself is about to fail, or the callable has no signature.
        return args, kwargs
    return bound.args, bound.kwargs


def graph_children(value: Any) -> dict[str, Any] | None:
    """The attributes of an NNX module that is no pytree (`pytree=False`): `nnx.jit` looks into such a module too."""
    if not _is_of("flax.nnx", value, "Module"):
        return None
    return {name: child for name, child in sorted(vars(value).items()) if not is_own(name)}


def is_nnx_jit(wrapper: Any) -> bool:
    """Whether `nnx.jit` returned `wrapper`: it makes another program where two places of its arguments hold one object
    of NNX's.
    """
    return wraps_jit(wrapper) and is_nnx(wrapper)


def is_nnx(value: Any) -> bool:
    """Whether the class of `value` is NNX's."""
    return _NNX.has(f"{type(value).__module__}:{type(value).__qualname__}")


def jitted_in(wrapper: Any) -> Any:
    """The function that `jax.jit` returned, in what `nnx.jit` returned; None for other objects."""
    return _JITTED.of(wrapper)


def is_own(attribute: str) -> bool:
    """Whether an attribute of an object is NNX's own, not the user's."""
    return attribute.startswith(_OWN.name)


def is_graph_node(value: Any) -> bool:
    """Whether `value` is an NNX variable or module: NNX knows these by identity."""
    return _is_of("flax.nnx", value, "Pytree", "Variable")


def record_fields(value: Any) -> dict[str, Any]:
    """The parts, by name, of a static value that JAX compares as a whole; empty where it is no record.

    The parts are the attributes of a dataclass, so of a Linen module; those of a named tuple, so of an Optax optimizer;
    and the static attributes of the modules in an NNX graph, by path.
    """
    if _is_of("flax.nnx", value, "GraphDef"):
        return {} if FLAX.lost() else dict(_statics(iter(_NODES.of(value, ())), iter(_ATTRIBUTES.of(value, ())), ""))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value) if field.compare}
    return {}


def copy_arrays(args: tuple) -> tuple:
    """The same arguments with arrays of their own: with the same signature, and nothing that a donation could delete.

    NNX itself takes its modules apart and puts them together: they may share variables, and a copy of each place would
    be another graph and so another program.
    """
    if any(map(is_graph_node, jax.tree.leaves(args, is_leaf=is_graph_node))):
        nnx = sys.modules["flax.nnx"]
        structure, state = nnx.split(args)
        return nnx.merge(structure, jax.tree.map(_array_copy, state))
    return jax.tree.map(_array_copy, args)


def _array_copy(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array):
        return leaf
    # `device_put` keeps weak type, committedness and sharding, so the copy compiles the same program. An array with
    # parts in other processes is always committed, and needs its sharding as the destination.
    return jax.device_put(leaf, None if leaf.is_fully_addressable else leaf.sharding, may_alias=False)


def _is_of(module: str, value: Any, *classes: str) -> bool:
    """Whether `value` is an instance of one of these classes of a module that the process may not have imported."""
    library = sys.modules.get(module)
    # `()` stands for a class that the library has no more: nothing is an instance of it.
    return library is not None and isinstance(value, tuple(getattr(library, name, ()) for name in classes))


def _statics(nodes: Iterator[Any], attributes: Iterator[Any], path: str) -> Iterator[tuple[str, Any]]:
    """The type of the next node, its static attributes and those of the nodes below it."""
    node = next(nodes, None)
    yield f"{path}(type)", _TYPE.of(node, "a reference to an earlier node")
    for _ in range(_COUNT.of(node, 0)):
        name, attribute = next(attributes)
        below = f"{path}.{name}" if path else str(name)
        value = _VALUE.of(attribute, _NO_VALUE)
        if is_own(str(name)):
            if value is _NO_VALUE:
                next(nodes, None)
        elif value is not _NO_VALUE:
            yield below, value
        else:
            yield from _statics(nodes, attributes, below)
