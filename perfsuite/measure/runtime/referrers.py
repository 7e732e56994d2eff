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
_MOST_WALKS = 30
"""How often the heap is walked for one value, which takes up to a tenth of a second each time."""


def holders_of(value: Any, ignored: Collection[int] = ()) -> list[str]:
    """What refers to `value`, as phrases, without frames and without objects whose `id` is in `ignored`.

    The collector no longer sees what `gc.freeze()` has frozen.
    """
    search = _Search()
    found: list[str] = []
    holders = search.referrers(value, ignored)
    ignored = {*ignored, id(holders)}
    for holder in holders:
        if (phrase := search.phrase(holder, value, {*ignored, id(holder)})) and phrase not in found:
            found.append(phrase)
    return found


class _Search:
    """One search for the holders of a value. What it has not found after so many walks stays without a name."""

    def __init__(self) -> None:
        self._modules = {
            id(vars(module)): name for name, module in list(sys.modules.items()) if hasattr(module, "__dict__")
        }
        self._walks = _MOST_WALKS
        self._followed: set[int] = set()

    def phrase(self, holder: Any, value: Any, ignored: set[int], levels: int = _LEVELS) -> str:
        if name := self._named(holder, value):
            return name
        if not isinstance(holder, _CONTAINERS):
            return f"an object of type {type(holder).__qualname__}"
        container = f"a {type(holder).__name__} of length {len(holder)}"
        # A global first: it is what somebody can look up, whatever else refers to the container.
        above = sorted(self.referrers(holder, ignored), key=lambda one: id(one) not in self._modules)
        for one in above:
            if name := self._named(one, holder):
                return f"{container}, {name}"
        owners = [type(one).__qualname__ for one in above if not isinstance(one, _CONTAINERS)]
        if owners:
            return f"{container}, held by an object of type {owners[0]}"
        ignored = {*ignored, id(above)}
        outer = [one for one in above if isinstance(one, _CONTAINERS) and id(one) not in self._followed]
        outer = outer[: _MOST_CONTAINERS if levels else 0]
        ignored.add(id(outer))
        self._followed.update(map(id, outer))
        for one in outer:  # a comprehension would hold `holder` in a cell, which refers to it
            phrase = self.phrase(one, holder, {*ignored, id(one)}, levels - 1)
            if "," in phrase:
                return f"{container} in {phrase}"
        return container

    def referrers(self, value: Any, ignored: Collection[int]) -> list[Any]:
        mine = (types.FrameType, types.GeneratorType)
        found = [one for one in self._walked(value) if not isinstance(one, mine) and id(one) not in ignored]
        return found[:_MOST_REFERRERS]

    def _walked(self, value: Any) -> list[Any]:
        self._walks -= 1
        return gc.get_referrers(value) if self._walks >= 0 else []

    def _named(self, holder: Any, value: Any) -> str:
        """The name under which `holder` has `value`: a module global, in a closure, an attribute; "" if it has none."""
        if isinstance(holder, types.CellType):
            for function in self._closures_with(holder):
                cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
                name = next(name for name, cell in cells if cell is holder)
                return f"`{name}` in the closure of {function.__qualname__}"
            return "a variable of a function that is still running"
        if isinstance(holder, dict):
            key = next((key for key, held in holder.items() if held is value), None)
            if id(holder) in self._modules:
                return f"module global `{self._modules[id(holder)]}.{key}`"
            owner = next((one for one in self._walked(holder) if getattr(one, "__dict__", None) is holder), None)
            return f"attribute `{key}` of {type(owner).__qualname__}" if owner is not None else ""
        # An instance has no dict of its attributes until somebody asks for its `__dict__`.
        attributes = None if isinstance(holder, _CONTAINERS) else getattr(holder, "__dict__", None)
        if isinstance(attributes, dict):
            key = next((key for key, held in attributes.items() if held is value), None)
            return f"attribute `{key}` of {type(holder).__qualname__}" if key is not None else ""
        return ""

    def _closures_with(self, cell: types.CellType) -> Iterator[types.FunctionType]:
        for closure in self._walked(cell):
            if isinstance(closure, tuple):
                for function in self._walked(closure):
                    if isinstance(function, types.FunctionType) and function.__closure__ is closure:
                        yield function
