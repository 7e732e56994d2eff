"""Where host calls come from: what the user's code called, and the line that called it.

One `jax.tree.map` over a model is hundreds of calls of `isinstance`, `tree_flatten` and lambdas. All of them count for
the call that a user can change: the outermost function of a library, and the user's line.
"""

import collections
import dataclasses
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from perfsuite.measure.compat import jax_stack
from perfsuite.measure.compiles.callsite import LIBRARIES

_ELSEWHERE = LIBRARIES | {"jaxlib", "numpy", "scipy", "ml_dtypes"} | sys.stdlib_module_names
_TRANSPARENT = frozenset({"contextlib", "functools", "jaxtyping", "beartype", "typeguard"})
"""Packages that run the user's functions in frames of their own."""

_HARNESS = "perfsuite.measure"

T = TypeVar("T")

_Place = tuple[str, str, str, int]
"""The called function; the caller's file, function and line. Texts keep their hash, code objects do not."""


@dataclasses.dataclass(frozen=True)
class CallOrigin:
    """A call in the user's code: the "module:function" that it calls, and where ("train.py:12 in train_step").

    `location` is empty for the function under test, which the harness calls.
    """

    function: str
    location: str = ""

    def __str__(self) -> str:
        return f"{self.function} at {self.location}" if self.location else self.function


class CallProfile:
    """A function for `sys.setprofile` that counts calls by function and origin."""

    def __init__(self) -> None:
        self.python_calls = 0
        self.c_calls = 0
        self._calls: collections.Counter[tuple[str, _Place]] = collections.Counter()
        self._depth = 0  # of Python frames below the library's function that the user's code called
        self._origin: _Place = ("", "", "", 0)

    @property
    def total(self) -> int:
        return self.python_calls + self.c_calls

    def __call__(self, frame: FrameType, event: str, callee: Any) -> None:
        if event == "call":
            self.python_calls += 1
            name = f"{_module(frame)}:{frame.f_code.co_qualname}"
            if self._depth:
                self._depth += 1
            else:
                self._origin = jax_stack.behind_filter(frame) or name, *_caller(frame.f_back)
                self._depth = int(_is_elsewhere(frame))
            self._calls[name, self._origin] += 1
        elif event == "c_call":
            self.c_calls += 1
            name = _c_name(callee)
            self._calls[name, self._origin if self._depth else (name, *_caller(frame))] += 1
        elif event == "return" and self._depth:
            self._depth -= 1

    def forget_last(self, function: str) -> None:
        """Take out a call of a C function that the harness made."""
        self.c_calls -= 1
        self._calls[function, (function, "", "", 0)] -= 1

    def by_function(self) -> dict[str, int]:
        """Calls of each function, the busiest first and equals in order of their names."""
        return self._sums(lambda name, place: name)

    def by_origin(self) -> dict[CallOrigin, int]:
        """Calls made below each call in the user's code."""
        return self._sums(lambda name, place: _origin(place))

    def origin_of(self) -> dict[str, CallOrigin]:
        """The origin of most calls of each function."""
        found: dict[str, CallOrigin] = {}
        for (name, place), calls in sorted(self._calls.items(), key=lambda item: (-item[1], str(_origin(item[0][1])))):
            if calls > 0:
                found.setdefault(name, _origin(place))
        return found

    def _sums(self, key: Callable[[str, _Place], T]) -> dict[T, int]:
        sums: collections.Counter[T] = collections.Counter()
        for (name, place), calls in self._calls.items():
            sums[key(name, place)] += calls
        busiest = sorted(sums.items(), key=lambda item: (-item[1], str(item[0])))
        return {of: calls for of, calls in busiest if calls > 0}


def _origin(place: _Place) -> CallOrigin:
    function, file, caller, line = place
    return CallOrigin(function, f"{os.path.basename(file)}:{line} in {caller}" if caller else "")


def _caller(frame: FrameType | None) -> tuple[str, str, int]:
    """The user's file, function and line, in `frame` or around it."""
    while frame is not None and (module := _module(frame)).partition(".")[0] in _TRANSPARENT:
        frame = frame.f_back
    if frame is None or module == _HARNESS or module.startswith(f"{_HARNESS}."):
        return "", "", 0
    return frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno


def _is_elsewhere(frame: FrameType) -> bool:
    # The code that Equinox generates to flatten modules has no module, that of a named tuple has one of its own.
    top = _module(frame).partition(".")[0]
    return top == "?" or top.startswith("namedtuple_") or (top in _ELSEWHERE and top not in _TRANSPARENT)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__") or "?")


def _c_name(callee: Any) -> str:
    module = getattr(callee, "__module__", None) or type(getattr(callee, "__self__", callee)).__name__
    return f"{module}:{getattr(callee, '__qualname__', getattr(callee, '__name__', '?'))}"
