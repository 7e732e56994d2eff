"""What became of one test, from what pytest says of it: passed, failed, skipped or error, why, and the line to look at.

The line is in the project: where a metric grew, else where the test failed.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from perfsuite.gate.budget import BudgetExceeded
from perfsuite.gate.messages import by_weight
from perfsuite.gate.verdict import Result

REQUEST = pytest.StashKey[pytest.FixtureRequest]()
"""In the stash of a test: what its fixture `perf` can ask for other fixtures."""

LONGEST = 20_000
"""Characters of a message: an assertion over two long texts can be of any length."""

_SAYING_ALL = (pytest.fail.Exception, pytest.skip.Exception, BudgetExceeded)
"""Exceptions whose name would add nothing to their message."""


class Lost(pytest.skip.Exception):  # type: ignore[name-defined]
    """Ends a test that asks for what does not work with the libraries that are installed. `sentence` says it."""

    def __init__(self, sentence: str, details: str = ""):
        super().__init__(f"{sentence} ({details})" if details else sentence)
        self.sentence = sentence


class Deferred(pytest.skip.Exception):  # type: ignore[name-defined]
    """Ends a test in a worker of pytest-xdist, which the main process runs when the workers have ended."""

    def __init__(self, why: str):
        super().__init__(f"{why}: other processes share the machine under pytest-xdist; run it with `-n 0`")


_MODULE = re.compile(r"\A(?:\w+\.)+(?=\w+(?::|\Z))")


def test_id(item: pytest.Item) -> str:
    """The id of a test, without the group that pytest-xdist's workers put behind it with `--dist=loadgroup`."""
    own = item.nodeid if item.parent is None else f"{item.parent.nodeid}::{item.name}"
    return own if item.nodeid.startswith(f"{own}@") else item.nodeid


def outcome_of(report: pytest.TestReport) -> str:
    """passed, failed or skipped; error for a test that failed before its body, or after it."""
    if report.failed and report.when != "call":
        return "error"
    # pytest-rerunfailures has outcomes of its own, of tests that failed.
    return report.outcome if report.outcome in ("passed", "failed", "skipped") else "failed"


def message_of(report: pytest.TestReport, call: pytest.CallInfo[Any]) -> str:
    """Why a test failed or was skipped; empty where it passed."""
    if report.passed:
        return ""
    if reason := getattr(report, "wasxfail", ""):
        return f"xfail: {reason}"
    if call.excinfo is None:  # a strict xfail that passed
        return report.longreprtext[:LONGEST]
    if isinstance(call.excinfo.value, _SAYING_ALL):
        return str(call.excinfo.value)[:LONGEST]
    return _MODULE.sub("", call.excinfo.exconly(tryshort=True))[:LONGEST]


def facts_of(report: pytest.TestReport, call: pytest.CallInfo[Any]) -> dict[str, Any]:
    """The fields of a `TestRecord` that do not depend on what was measured."""
    file, line, _ = report.location
    error = None if call.excinfo is None else call.excinfo.value
    return {
        "outcome": outcome_of(report),
        "message": message_of(report, call),
        "lost": error.sentence if isinstance(error, Lost) else "",
        "file": file.replace("\\", "/"),
        "line": 0 if line is None else line + 1,
        "seconds": report.duration,
    }


_LIBRARIES = {"site-packages", "dist-packages"}

Line = tuple[str, int]
"""A file, seen from the root and with forward slashes, and a line of it, from 1."""

_PLACE = re.compile(r"(?:^|\s)(?P<file>[^\s:]+\.\w+):(?P<line>[0-9]+)\b")
"""As a part of a metric has it: "models/model.py:42 in attention", "while at model.py:42". Some have no folder."""


def blamed(results: Sequence[Result], call: pytest.CallInfo[Any], root: Path) -> Line | None:
    """The first line in the project that the failed gates name, the gravest first; else the innermost one that the
    exception passed.

    None where neither is in the project.
    """
    if call.excinfo is None:
        return None
    failed = by_weight(result for result in results if result.failed)
    named = (part.place for result in failed for part in result.grown)
    called = (result.where for result in failed)
    shown = call.excinfo.traceback.filter(call.excinfo)
    passed = (f"{entry.path}:{entry.lineno + 1}" for entry in reversed(shown))
    return next(_in_the_project((*named, *called, *passed), root), None)


def _in_the_project(places: Iterable[str], root: Path) -> Iterator[Line]:
    for place in places:
        for match in _PLACE.finditer(place):
            files = {Path(match["file"]).absolute(), *_imported(match["file"])}
            inside = [file for file in files if file.is_relative_to(root) and _LIBRARIES.isdisjoint(file.parts)]
            existing = [file for file in inside if file.is_file()]
            if len(existing) == 1:
                yield existing[0].relative_to(root).as_posix(), int(match["line"])


def _imported(name: str) -> Iterator[Path]:
    """The files of imported modules that have this name."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and os.path.basename(file) == name:
            yield Path(file)
