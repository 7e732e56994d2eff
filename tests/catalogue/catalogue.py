"""What an entry of the catalogue is: a planted regression, its control, the words of the message, and its source."""

import dataclasses
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from perfsuite import RecompilationError
from perfsuite.measure.compiles.causes import HISTORY


@dataclasses.dataclass(frozen=True)
class Case:
    """Two calls, ready to run in a context that forbids compiles: the wrong way to write it and the right one."""

    plant: Callable[[], Any]
    control: Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Entry:
    """One cause.

    `source` is the upstream issue, the page of the documentation, or the measured fact that it comes from. `says` are
    words that the error of `build().plant()` must have: the argument's path, what it was and is, and what to do.
    `raises` is another error than ours where JAX itself refuses the call.
    """

    name: str
    source: str
    says: tuple[str, ...]
    build: Callable[[], Case]
    raises: type[Exception]

    def check(self, compile_counter: ModuleType) -> None:
        """The control is silent, the plant raises and is named, and the control is silent again."""
        HISTORY.forget()  # Entries may share a function.
        case = self.build()
        with compile_counter.forbid():
            case.control()
        with pytest.raises(self.raises) as raised, compile_counter.forbid():
            case.plant()
        message = str(raised.value)
        missing = [words for words in self.says if words not in message]
        assert not missing, f"not in the message: {missing}\n{message}"
        if isinstance(raised.value, RecompilationError):
            file = os.path.relpath(case.plant.__code__.co_filename)
            assert f" at {file}:" in message
        with compile_counter.forbid():
            case.control()


class Catalogue:
    """The entries of one file, in order."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def entry(
        self, source: str, *says: str, raises: type[Exception] = RecompilationError
    ) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
        """Enter the function below, which warms what it plants and gives both calls."""

        def enter(build: Callable[[], Case]) -> Callable[[], Case]:
            self.entries.append(Entry(build.__name__, source, says, build, raises))
            return build

        return enter

    def each(self) -> pytest.MarkDecorator:
        """Run a test for every entry."""
        return pytest.mark.parametrize("entry", self.entries, ids=[entry.name for entry in self.entries])
