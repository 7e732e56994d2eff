"""The arguments of `@pytest.mark.perf`."""

import math
import reprlib
from typing import Any

import pytest

MARKER_ARGUMENTS = ("seconds", "tolerance")


def marker_arguments(item: pytest.Item) -> dict[str, float]:
    """The keyword arguments of `@pytest.mark.perf`, the closest marker first. Raises `pytest.UsageError` if bad."""
    arguments: dict[str, float] = {}
    for marker in reversed(list(item.iter_markers("perf"))):
        if marker.args:
            raise pytest.UsageError(
                f"{item.nodeid}: @pytest.mark.perf takes keyword arguments only, got {_shown(marker.args)}"
            )
        for name, value in marker.kwargs.items():
            if name not in MARKER_ARGUMENTS:
                raise pytest.UsageError(
                    f"{item.nodeid}: @pytest.mark.perf has no argument {name!r}; it takes {', '.join(MARKER_ARGUMENTS)}"
                )
            if not _is_positive(value):
                raise pytest.UsageError(
                    f"{item.nodeid}: @pytest.mark.perf({name}=...) must be a number above zero, got {_shown(value)}"
                )
            arguments[name] = float(value)
    return arguments


def _is_positive(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value) and value > 0
    except OverflowError:  # a whole number that no float can hold
        return False


def _shown(value: Any) -> str:
    """An argument as a message shows it: not too long, and whatever its `repr` does."""
    try:
        return reprlib.repr(value)
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"
