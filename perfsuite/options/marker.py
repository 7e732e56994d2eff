"""The arguments of `@pytest.mark.perf`."""

import math
import reprlib
from collections.abc import Callable
from typing import Any, TypedDict, cast

import pytest

_MOST_SHOWN = 100


class MarkerArguments(TypedDict, total=False):
    """What `@pytest.mark.perf` takes. Those that no marker gives are missing."""

    quiet: bool
    seconds: float
    tolerance: float


def marker_arguments(item: pytest.Item) -> MarkerArguments:
    """The keyword arguments of `@pytest.mark.perf`, the closest marker first. Raises `pytest.UsageError` if bad."""
    arguments: dict[str, Any] = {}
    for marker in reversed(list(item.iter_markers("perf"))):
        if marker.args:
            raise pytest.UsageError(
                f"{item.nodeid}: @pytest.mark.perf takes keyword arguments only, got {_shown(marker.args)}"
            )
        for name, value in marker.kwargs.items():
            if name not in _KINDS:
                raise pytest.UsageError(
                    f"{item.nodeid}: @pytest.mark.perf has no argument {name!r}; it takes {', '.join(_KINDS)}"
                )
            fits, wanted, made = _KINDS[name]
            if not fits(value):
                raise pytest.UsageError(
                    f"{item.nodeid}: @pytest.mark.perf({name}=...) must be {wanted}, got {_shown(value)}"
                )
            arguments[name] = made(value)
    return cast(MarkerArguments, arguments)


def _is_positive(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value) and value > 0
    except OverflowError:  # a whole number that no float can hold
        return False


_NUMBER = _is_positive, "a number above zero", float
_KINDS: dict[str, tuple[Callable[[Any], bool], str, Callable[[Any], Any]]] = {
    "quiet": (lambda value: isinstance(value, bool), "True or False", bool),
    "seconds": _NUMBER,
    "tolerance": _NUMBER,
}
"""By argument: whether a value is one, what it must be, and what makes it one."""


def _shown(value: Any) -> str:
    """An argument as a message shows it: not too long, and whatever its `repr` does."""
    try:
        shown = reprlib.repr(value)
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[: _MOST_SHOWN - 3]}..."  # nested ones come out long
