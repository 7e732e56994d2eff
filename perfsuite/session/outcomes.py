"""What became of one test, from what pytest says of it: passed, failed, skipped or error, why, and where it is."""

import re
from typing import Any

import pytest

from perfsuite.gate.budget import BudgetExceeded

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
