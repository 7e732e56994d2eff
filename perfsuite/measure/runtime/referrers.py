"""Who keeps an object alive, one or two levels up: "a list of length 12, module global `train.history`"."""

import collections
import gc
import sys
import types
from collections.abc import Collection, Iterator
from typing import Any

_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
_MOST_REFERRERS = 50
_MOST_CONTAINERS = 3
_LEVELS = 4
"""Containers in each other, such as a list of dicts, that are followed up to one with a name."""


def holders_of(value: Any, ignored: Collection[int] = ()) -> list[str]:
    """What refers to `value`, as phrases, without frames and without objects whose `id` is in `ignored`.

    The collector no longer sees what `gc.freeze()` has frozen.
    """
    modules = {id(vars(module)): name for name, module in list(sys.modules.items()) if hasattr(module, "__dict__")}
    found: list[str] = []
    holders = _referrers(value, ignored)
    ignored = {*ignored, id(holders)}
    for holder in holders:
        if (phrase := _phrase(holder, value, modules, {*ignored, id(holder)})) and phrase not in found:
            found.append(phrase)
    return found


def _phrase(holder: Any, value: Any, modules: dict[int, str], ignored: set[int], levels: int = _LEVELS) -> str:
    if name := _named(holder, value, modules):
        return name
    if not isinstance(holder, _CONTAINERS):
        return f"an object of type {type(holder).__qualname__}"
    container = f"a {type(holder).__name__} of length {len(holder)}"
    # A global first: it is what somebody can look up, whatever else refers to the container.
    above = sorted(_referrers(holder, ignored), key=lambda one: id(one) not in modules)
    for one in above:
        if name := _named(one, holder, modules):
            return f"{container}, {name}"
    owners = [type(one).__qualname__ for one in above if not isinstance(one, _CONTAINERS)]
    if owners:
        return f"{container}, held by an object of type {owners[0]}"
    ignored = {*ignored, id(above)}
    outer = [one for one in above if isinstance(one, _CONTAINERS)][: _MOST_CONTAINERS if levels else 0]
    ignored.add(id(outer))
    for one in outer:  # a comprehension would hold `holder` in a cell, which refers to it
        phrase = _phrase(one, holder, modules, {*ignored, id(one)}, levels - 1)
        if "," in phrase:
            return f"{container} in {phrase}"
    return container


def _named(holder: Any, value: Any, modules: dict[int, str]) -> str:
    """The name under which `holder` has `value`: a module global, in a closure, an attribute; "" if there is none."""
    if isinstance(holder, types.CellType):
        for function in _closures_with(holder):
            cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
            name = next(name for name, cell in cells if cell is holder)
            return f"`{name}` in the closure of {function.__qualname__}"
        return "a variable of a function that is still running"
    if isinstance(holder, dict):
        key = next((key for key, held in holder.items() if held is value), None)
        if id(holder) in modules:
            return f"module global `{modules[id(holder)]}.{key}`"
        owner = next((o for o in gc.get_referrers(holder) if getattr(o, "__dict__", None) is holder), None)
        return f"attribute `{key}` of {type(owner).__qualname__}" if owner is not None else ""
    # An instance has no dict of its attributes until somebody asks for its `__dict__`.
    if not isinstance(holder, _CONTAINERS) and isinstance(attributes := getattr(holder, "__dict__", None), dict):
        key = next((key for key, held in attributes.items() if held is value), None)
        return f"attribute `{key}` of {type(holder).__qualname__}" if key is not None else ""
    return ""


def _closures_with(cell: types.CellType) -> Iterator[types.FunctionType]:
    for closure in gc.get_referrers(cell):
        if isinstance(closure, tuple):
            for function in gc.get_referrers(closure):
                if isinstance(function, types.FunctionType) and function.__closure__ is closure:
                    yield function


def _referrers(value: Any, ignored: Collection[int]) -> list[Any]:
    found = gc.get_referrers(value)
    mine = (types.FrameType, types.GeneratorType)
    return [one for one in found if not isinstance(one, mine) and id(one) not in ignored][:_MOST_REFERRERS]
