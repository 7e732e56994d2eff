"""Where an array is, described so that two shardings are equal where one program serves both."""

import dataclasses
from typing import Any

from jax.sharding import AxisType, NamedSharding, Sharding

from perfsuite.measure.compiles.values import safely


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Placement:
    """The sharding that an array of `ndim` axes is committed to. It holds devices, and no array.

    JAX takes P("data") and P("data", None) for one, and a mesh axis of size 1 for none. On another mesh everything is
    another sharding, and where axes are explicit they belong to the type of the array.
    """

    text: str
    sharding: Sharding
    ndim: int

    def __str__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Placement):
            return NotImplemented
        if self.text == other.text:
            return True
        return self.ndim == other.ndim and safely(lambda: _alike(self.sharding, other.sharding, self.ndim), False)

    def __hash__(self) -> int:
        return hash(Placement)  # equals may have other texts


def mesh_of(placement: Placement | None) -> str:
    """The mesh of a sharding that has one, as text; "" for others."""
    mesh, found, _ = str(placement or "").partition(", spec=")
    return mesh if found else ""


def _alike(one: Any, other: Any, ndim: int) -> bool:
    if not (isinstance(one, NamedSharding) and isinstance(other, NamedSharding)) or one.mesh != other.mesh:
        return False
    implicit = all(kind == AxisType.Auto for kind in one.mesh.axis_types)
    if not implicit and _typed(one.spec) != _typed(other.spec):
        return False
    return one.is_equivalent_to(other, ndim)


def _typed(spec: Any) -> tuple[list[Any], Any, Any]:
    """What a spec says where it belongs to a type: of an axis that it leaves out it says what None says."""
    axes = list(spec)
    while axes and axes[-1] is None:
        axes.pop()
    return axes, getattr(spec, "unreduced", None), getattr(spec, "reduced", None)
