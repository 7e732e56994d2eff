"""Whole sessions of pytest in which one private name is missing: `python -m tests.support.sessions_without`.

Reads requests, a JSON object a line, and answers each with one. All sessions are of this process: JAX and the test's
programs are warm from the second on, which then takes a third of a second.

    {"names": [{"capability": "traces", "place": 3, "variable": ""}], "arguments": ["--perf", ...], "folder": "/tmp/..."}
    {"status": 0, "tests": {"test_plain": ["passed", ""], ...}, "lost": {"traces": "..."}, "output": "..."}

`place` is that of the name among those of the capability, `variable` a local variable of a frame.
"""

import contextlib
import gc
import io
import json
import os
import sys
import traceback
from typing import Any

import pytest

from perfsuite.measure.private import capabilities
from perfsuite.measure.private.capabilities import CAPABILITIES
from tests.support.private_names import taken_away

_WITHOUT = [f"-pno:{name}" for name in ("cacheprovider", "asyncio", "hypothesispytest", "pytest_cov", "timeout")]


class _Outcomes:
    """How each test ended, and why."""

    def __init__(self) -> None:
        self.tests: dict[str, tuple[str, str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.rpartition("::")[2]
        if report.when == "call" or report.outcome != "passed":
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
            self.tests[name] = report.outcome, reason


def session(request: dict[str, Any]) -> dict[str, Any]:
    """Run one session in this process."""
    os.chdir(request["folder"])
    outcomes, output = _Outcomes(), io.StringIO()
    capabilities.forget()
    by_name = {each.name: each for each in CAPABILITIES}
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(output))
        for each in request["names"]:
            stack.enter_context(taken_away(by_name[each["capability"]].names()[each["place"]], each["variable"]))
        status = pytest.main([*_WITHOUT, *request["arguments"]], plugins=[outcomes])
        lost = {name: by_name[name].lost() for name in {each["capability"] for each in request["names"]}}
    return {"status": int(status), "tests": outcomes.tests, "lost": lost, "output": output.getvalue()}


def serve() -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a session writes there is no answer
    for line in sys.stdin:
        try:
            answer = session(json.loads(line))
        except BaseException:
            answer = {"status": -1, "tests": {}, "lost": {}, "output": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)
        # Each timing collects first, and what JAX and pytest made is most of what there is to look at.
        gc.freeze()


if __name__ == "__main__":
    serve()
