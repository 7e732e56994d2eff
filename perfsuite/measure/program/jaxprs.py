"""The equations of a trace."""

from collections.abc import Iterator
from typing import Any


def equations(jaxpr: Any) -> Iterator[Any]:
    """Every equation of a jaxpr, also of those inside loops, branches and jitted functions."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in inner_jaxprs(equation):
            yield from equations(getattr(inner, "jaxpr", inner))


def inner_jaxprs(equation: Any) -> Iterator[Any]:
    """The jaxprs in the parameters of an equation, closed or not: the body of a loop, the branches of a conditional."""
    for value in equation.params.values():
        for inner in value if isinstance(value, tuple | list) else (value,):
            if hasattr(getattr(inner, "jaxpr", inner), "eqns"):
                yield inner
