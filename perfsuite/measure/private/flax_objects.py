"""What NNX's objects are made of. It does not import Flax.

Where Flax moves these names, a message names less of an object.
"""

from collections.abc import Iterator
from typing import Any

from perfsuite.measure.private.names import Attribute, Functions

_NNX = Functions("flax.nnx")
_JITTED = Attribute("flax.nnx.transforms.compilation", "jitted_fn")
_OWN = Attribute("flax.nnx.pytreelib", "_pytree__")
"""The names of NNX's own attributes begin with it: which attributes of an object are data, and the like."""
_NODES = Attribute("flax.nnx.graphlib", "nodes")
_ATTRIBUTES = Attribute("flax.nnx.graphlib", "attributes")
"""Of a `GraphDef`: its nodes, and the attributes of all of them. Both go depth first."""
_TYPE = Attribute("flax.nnx.graphlib", "type")
_COUNT = Attribute("flax.nnx.graphlib", "num_attributes")
"""Of a node."""
_VALUE = Attribute("flax.nnx.graphlib", "value")
"""Of an attribute that is static."""

_NO_VALUE = object()


def is_nnx(value: Any) -> bool:
    """Whether the class of `value` is NNX's."""
    return _NNX.has(f"{type(value).__module__}:{type(value).__qualname__}")


def jitted_in(wrapper: Any) -> Any:
    """The function that `jax.jit` returned, in what `nnx.jit` returned; None for other objects."""
    return _JITTED.of(wrapper)


def is_own(attribute: str) -> bool:
    """Whether an attribute of an object is NNX's own, not the user's."""
    return attribute.startswith(_OWN.name)


def static_attributes(graph: Any) -> dict[str, Any]:
    """The types and static attributes of the modules in a `GraphDef`, by path."""
    return dict(_statics(iter(_NODES.of(graph, ())), iter(_ATTRIBUTES.of(graph, ())), ""))


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
