"""Where host calls come from: what the user's code called, and the line that called it.

One `jax.tree.map` over a model is hundreds of calls of `isinstance`, `tree_flatten` and lambdas. All of them are
charged to the call that a user can change: the outermost function of a library, and the user's line.
"""

import collections
import dataclasses
import os
import sys
from types import FrameType
from typing import Any

from perfsuite.measure.compat import jax_stack as _jax_internals
from perfsuite.measure.compiles.callsite import LIBRARIES

_ELSEWHERE = LIBRARIES | {"jaxlib", "numpy", "scipy", "ml_dtypes"} | sys.stdlib_module_names
_TRANSPARENT = frozenset({"contextlib", "functools", "jaxtyping", "beartype", "typeguard"})
"""They run the user's functions in frames of their own."""

_HARNESS = "perfsuite.measure"

Made = collections.Counter[tuple[str, "_Place"]]
_Place = tuple[str, str, str, int]
"""The function that was called; the caller's file, function and line. Texts keep their hash, a code object does not."""


@dataclasses.dataclass(frozen=True)
class Origin:
    """A call in the user's code: "module:function" that it calls, and where ("train.py:12 in train_step").

    `location` is empty for what the harness itself called: the function under test.
    """

    function: str
    location: str = ""

    def __str__(self) -> str:
        return f"{self.function} at {self.location}" if self.location else self.function


class Profile:
    """A function for `sys.setprofile` that counts the calls made, by function and origin."""

    def __init__(self) -> None:
        self.python_calls = 0
        self.c_calls = 0
        self.made: Made = collections.Counter()
        self._depth = 0  # of Python frames below the library's function that the user's code called
        self._origin: _Place = ("", "", "", 0)

    def __call__(self, frame: FrameType, event: str, callee: Any) -> None:
        if event == "call":
            self.python_calls += 1
            name = _python_name(frame)
            if self._depth:
                self._depth += 1
            else:
                self._origin = _jax_internals.behind_filter(frame) or name, *_caller(frame.f_back)
                self._depth = int(_is_elsewhere(frame))
            self.made[name, self._origin] += 1
        elif event == "c_call":
            self.c_calls += 1
            name = _c_name(callee)
            self.made[name, self._origin if self._depth else (name, *_caller(frame))] += 1
        elif event == "return" and self._depth:
            self._depth -= 1

    def forget_last(self, function: str) -> None:
        """Take a C function out that the harness called."""
        self.c_calls -= 1
        self.made[function, (function, "", "", 0)] -= 1

    def by_function(self) -> dict[str, int]:
        """Calls of each function, the busiest first and equals in order of their names."""
        made: collections.Counter[str] = collections.Counter()
        for (name, _), calls in self.made.items():
            made[name] += calls
        return _sorted(made)

    def by_origin(self) -> dict[Origin, int]:
        """Calls made below each call in the user's code."""
        made: collections.Counter[Origin] = collections.Counter()
        for (_, place), calls in self.made.items():
            made[_origin(place)] += calls
        return _sorted(made)

    def origin_of(self) -> dict[str, Origin]:
        """For each function the origin of most of its calls."""
        found: dict[str, Origin] = {}
        for (name, place), calls in sorted(self.made.items(), key=lambda item: (-item[1], str(_origin(item[0][1])))):
            if calls > 0:
                found.setdefault(name, _origin(place))
        return found


def _sorted(made: "collections.Counter[Any]") -> dict[Any, int]:
    return {key: calls for key, calls in sorted(made.items(), key=lambda item: (-item[1], str(item[0]))) if calls > 0}


def _origin(place: _Place) -> Origin:
    function, file, caller, line = place
    return Origin(function, f"{os.path.basename(file)}:{line} in {caller}" if caller else "")


def _caller(frame: FrameType | None) -> tuple[str, str, int]:
    """The user's file, function and line that are in `frame` or called it."""
    while frame is not None and (module := _module(frame)).partition(".")[0] in _TRANSPARENT:
        frame = frame.f_back
    if frame is None or module == _HARNESS or module.startswith(f"{_HARNESS}."):
        return "", "", 0
    return frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno


def _is_elsewhere(frame: FrameType) -> bool:
    # Code that Equinox generates to take modules apart has no module at all, that of a named tuple one of its own.
    top = _module(frame).partition(".")[0]
    return top == "?" or top.startswith("namedtuple_") or (top in _ELSEWHERE and top not in _TRANSPARENT)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__") or "?")


def _python_name(frame: FrameType) -> str:
    return f"{frame.f_globals.get('__name__', '?')}:{frame.f_code.co_qualname}"


def _c_name(callee: Any) -> str:
    module = getattr(callee, "__module__", None) or type(getattr(callee, "__self__", callee)).__name__
    return f"{module}:{getattr(callee, '__qualname__', getattr(callee, '__name__', '?'))}"
