"""The line of the project that a failed test points at: where a metric grew, else where the test failed."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from perfsuite.gate.verdict import Result

_LIBRARIES = {"site-packages", "dist-packages"}

Line = tuple[str, int]
"""A file, seen from the root and with forward slashes, and a line of it, from 1."""

_PLACE = re.compile(r"(?:^|\s)(?P<file>[^\s:]+\.\w+):(?P<line>[0-9]+)\b")
"""As a part of a metric has it: "models/model.py:42 in attention", "while at model.py:42". Some have no folder."""


def blamed(results: Sequence[Result], call: pytest.CallInfo[Any], root: Path) -> Line | None:
    """The first line in the project that the failed gates name; else the innermost one that the exception passed.

    None where neither is in the project.
    """
    if call.excinfo is None:
        return None
    failed = [result for result in results if result.failed]
    named = (part.place for result in failed for part in result.grown)
    called = (result.where for result in failed)
    shown = call.excinfo.traceback.filter(call.excinfo)
    passed = (f"{entry.path}:{entry.lineno + 1}" for entry in reversed(shown))
    return next(_in_the_project((*named, *called, *passed), root), None)


def _in_the_project(places: Iterable[str], root: Path) -> Iterator[Line]:
    for place in places:
        for found in _PLACE.finditer(place):
            files = {Path(found["file"]).absolute(), *_imported(found["file"])}
            inside = [file for file in files if file.is_relative_to(root) and _LIBRARIES.isdisjoint(file.parts)]
            known = [file for file in inside if file.is_file()]
            if len(known) == 1:
                yield known[0].relative_to(root).as_posix(), int(found["line"])


def _imported(name: str) -> Iterator[Path]:
    """The files of imported modules that have this name."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and os.path.basename(file) == name:
            yield Path(file)
