"""The equations of a trace."""

from collections.abc import Iterator
from typing import Any


def equations(jaxpr: Any) -> Iterator[Any]:
    """Every equation of a jaxpr, also of those inside loops, branches and jitted functions."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)
