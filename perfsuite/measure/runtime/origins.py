"""Where host calls come from: what the user's code called, and the line that called it.

One `jax.tree.map` over a model is hundreds of calls of `isinstance`, `tree_flatten` and lambdas. All of them count for
the call that a user can change: the outermost function of a library, and the user's line.
"""

import collections
import dataclasses
import os
import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any, TypeVar

from perfsuite.measure.compiles.callsite import LIBRARIES
from perfsuite.measure.private import jax_stack

_ELSEWHERE = LIBRARIES | {"jaxlib", "numpy", "scipy", "ml_dtypes"} | sys.stdlib_module_names
_TRANSPARENT = frozenset({"contextlib", "functools", "jaxtyping", "beartype", "typeguard"})
"""Packages that run the user's functions in frames of their own."""

_HARNESS = "perfsuite.measure"

ORIGINS_NAMED = 3

T = TypeVar("T")


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
        # By function, by the Python function that is responsible for the call, and by origin.
        self._calls: collections.Counter[tuple[str, str, CallOrigin]] = collections.Counter()
        self._depth = 0  # of Python frames below the library's function that the user's code called
        self._origin = CallOrigin("")

    @property
    def total(self) -> int:
        return self.python_calls + self.c_calls

    def __call__(self, frame: FrameType, event: str, callee: Any) -> None:
        if event == "call":
            self.python_calls += 1
            name = _name(frame)
            if self._depth:
                self._depth += 1
            else:
                self._origin = CallOrigin(jax_stack.behind_filter(frame) or name, _caller(frame.f_back))
                self._depth = int(_is_elsewhere(frame))
            self._calls[name, name, self._origin] += 1
        elif event == "c_call":
            self.c_calls += 1
            name = _c_name(callee)
            by = name if _is_harness(_module(frame)) else _name(frame)
            self._calls[name, by, self._origin if self._depth else CallOrigin(name, _caller(frame))] += 1
        elif event == "return" and self._depth:
            self._depth -= 1

    def forget_last(self, function: str) -> None:
        """Take out a call of a C function that the harness made."""
        self.c_calls -= 1
        self._calls[function, function, CallOrigin(function)] -= 1

    def by_function(self) -> dict[str, int]:
        """Calls of each function, the busiest first and equals in order of their names."""
        return _busiest((name, calls) for (name, _, _), calls in self._calls.items())

    def by_responsible(self) -> dict[str, int]:
        """Calls of each Python function and of the C functions that it calls: 500 of `check`, not of `isinstance`."""
        return _busiest((by, calls) for (_, by, _), calls in self._calls.items())

    def by_origin(self) -> dict[CallOrigin, int]:
        """Calls made below each call in the user's code."""
        return _busiest((origin, calls) for (_, _, origin), calls in self._calls.items())

    def origins_of(self) -> dict[str, tuple[CallOrigin, ...]]:
        """The origins of most calls of each function of `by_responsible`; its own call where it makes no others."""
        sums = _busiest(((by, origin), calls) for (_, by, origin), calls in self._calls.items())
        found: dict[str, list[CallOrigin]] = {by: [] for by, _ in sums}
        for by, origin in sums:
            if origin.location:
                found[by].append(origin)
        return {by: tuple(origins[:ORIGINS_NAMED]) or (CallOrigin(by),) for by, origins in found.items()}


def _busiest(counts: Iterable[tuple[T, int]]) -> dict[T, int]:
    sums: collections.Counter[T] = collections.Counter()
    for key, calls in counts:
        sums[key] += calls
    ordered = sorted(sums.items(), key=lambda item: (-item[1], str(item[0])))
    return {key: calls for key, calls in ordered if calls > 0}


def _caller(frame: FrameType | None) -> str:
    """The user's line and function, in `frame` or around it; "" if the harness called."""
    while frame is not None and (module := _module(frame)).partition(".")[0] in _TRANSPARENT:
        frame = frame.f_back
    if frame is None or _is_harness(module):
        return ""
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_name}"


def _is_elsewhere(frame: FrameType) -> bool:
    # The code that Equinox generates to flatten modules has no module, that of a named tuple has one of its own.
    top = _module(frame).partition(".")[0]
    return top == "?" or top.startswith("namedtuple_") or (top in _ELSEWHERE and top not in _TRANSPARENT)


def _is_harness(module: str) -> bool:
    return module == _HARNESS or module.startswith(f"{_HARNESS}.")


def _name(frame: FrameType) -> str:
    return f"{_module(frame)}:{frame.f_code.co_qualname}"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__") or "?")


def _c_name(callee: Any) -> str:
    module = getattr(callee, "__module__", None) or type(getattr(callee, "__self__", callee)).__name__
    return f"{module}:{getattr(callee, '__qualname__', getattr(callee, '__name__', '?'))}"
