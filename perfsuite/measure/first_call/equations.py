"""The equations of a jaxpr and the constants in it, by the user's line that makes them."""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from perfsuite.measure.first_call.users_code import UserLine, is_users
from perfsuite.measure.private import compile_events
from perfsuite.measure.program.lowering import inner_jaxprs

Equations = Counter[tuple[UserLine | None, str]]
"""Equations by the user's line that makes them and by primitive. The line is None where no code of the user does."""


@dataclasses.dataclass(frozen=True)
class Constant:
    """An array that a program contains: `array` is "float32[1000,10000]", `line` the user's line that uses it first."""

    array: str
    bytes: int
    line: UserLine | None

    def __str__(self) -> str:
        return f"{self.array} of {self.bytes:,} bytes{f' at {self.line.place}' if self.line else ''}"


class Jaxprs:
    """Counts equations and finds constants, and looks at what is in several jaxprs once."""

    def __init__(self) -> None:
        self._counted: dict[int, tuple[Any, Equations]] = {}  # with the jaxpr, so that its identity stays its own
        self._lines: dict[Any, UserLine | None] = {}

    def equations(self, jaxpr: Any) -> Equations:
        """Every equation, also of those inside loops, branches and jitted functions, as often as it is there."""
        plain = _plain(jaxpr)
        if id(plain) in self._counted:
            return self._counted[id(plain)][1]
        found: Equations = Counter()
        for equation in plain.eqns:
            line = self._line_of(equation)
            found[line, equation.primitive.name] += 1
            for inner in inner_jaxprs(equation):
                for (inner_line, primitive), count in self.equations(inner).items():
                    # Of what a library traced by itself no line is the user's, but the line that called it is.
                    found[inner_line or line, primitive] += count
        self._counted[id(plain)] = plain, found
        return found

    def constants(self, jaxpr: Any) -> list[Constant]:
        """Every array in a closed jaxpr, once, the largest first. Single numbers are not counted."""
        found: dict[int, Constant] = {}
        for array, line in self._arrays(jaxpr, None, set()):
            known = found.get(id(array))
            if known is None or known.line is None:
                found[id(array)] = Constant(_described(array), _bytes_of(array), line)
        return sorted(found.values(), key=lambda each: (-each.bytes, each.array, each.line or ()))

    def _arrays(self, jaxpr: Any, outer: UserLine | None, seen: set[int]) -> Iterator[tuple[Any, UserLine | None]]:
        """Each array of a jaxpr and those inside it, with the line; one may come several times."""
        plain = _plain(jaxpr)
        if id(plain) in seen:
            return
        seen.add(id(plain))
        for variable, array in zip(plain.constvars, getattr(jaxpr, "consts", ()), strict=False):
            if _is_array(array):
                yield array, self._line_that_uses(plain, variable) or outer
        for equation in plain.eqns:
            line = self._line_of(equation) or outer
            for operand in equation.invars:
                if _is_array(array := getattr(operand, "val", None)):
                    yield array, line
            for inner in inner_jaxprs(equation):
                yield from self._arrays(inner, line, seen)

    def _line_that_uses(self, jaxpr: Any, variable: Any) -> UserLine | None:
        """The user's line of the first equation that has a variable; inside of it where that runs a jaxpr."""
        for equation in jaxpr.eqns:
            for place, operand in enumerate(equation.invars):
                if operand is variable:
                    return self._line_inside(equation, place) or self._line_of(equation)
        return None

    def _line_inside(self, equation: Any, place: int) -> UserLine | None:
        inner = [_plain(each) for each in inner_jaxprs(equation)]
        if len(inner) != 1 or len(inner[0].invars) != len(equation.invars):
            return None
        return self._line_that_uses(inner[0], inner[0].invars[place])

    def _line_of(self, equation: Any) -> UserLine | None:
        key = compile_events.traceback_of(equation)
        if key not in self._lines:
            users = (UserLine(*each) for each in compile_events.frames_of(equation) if is_users(each[0]))
            self._lines[key] = next(users, None)
        return self._lines[key]


def _plain(jaxpr: Any) -> Any:
    return getattr(jaxpr, "jaxpr", jaxpr)


def _is_array(value: Any) -> bool:
    return len(getattr(value, "shape", None) or ()) > 0


def _described(array: Any) -> str:
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"


def _bytes_of(array: Any) -> int:
    return math.prod(array.shape) * array.dtype.itemsize
