"""In GitHub Actions: a failed perf test is an annotation at its line, and the step summary has the report.

A step annotates by commands in its output, see
https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions.
"""

import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import pytest

from perfsuite.gate import messages
from perfsuite.gate.verdict import Verdict
from perfsuite.measure.words import plural
from perfsuite.report.markdown import markdown
from perfsuite.report.model import Report
from perfsuite.session.records import TestRecord

MOST_BYTES = 1_000_000
"""GitHub refuses the whole summary of a step when it exceeds 1 MiB."""

MOST_ANNOTATIONS = 10
"""GitHub shows ten errors and ten notices a step, and drops the others silently."""

_ANNOTATES_TOO = "pytest_github_actions_annotate_failures"
_TOO_LARGE = "**The report is larger than the 1 MiB of a step summary:** `pytest --perf-report=DIR` writes it.\n"
_LONGEST = 4000

Level = Literal["error", "notice"]


@dataclasses.dataclass(frozen=True)
class Actions:
    """Where the step runs. `workspace` is the repository's folder, `summary` the file of the step summary."""

    workspace: Path | None
    summary: Path | None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Actions | None":
        """The step that the environment describes; None outside of GitHub Actions."""
        if environment.get("GITHUB_ACTIONS") != "true":
            return None
        workspace, summary = (environment.get(f"GITHUB_{name}") for name in ("WORKSPACE", "STEP_SUMMARY"))
        return cls(Path(workspace) if workspace else None, Path(summary) if summary else None)


class ActionsHooks:
    """Writes the summary and the annotations when the session has ended. `report` makes the report of a session."""

    def __init__(self, actions: Actions, rootpath: Path, report: Callable[[pytest.Session], Report]):
        self.actions = actions
        self.rootpath = rootpath
        self.report = report
        self.lines: list[str] = []
        self.problem = ""

    @pytest.hookimpl(trylast=True)  # after the baselines were saved, which the report mentions
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        report = self.report(session)
        if not report.tests:
            return
        failures = not session.config.pluginmanager.hasplugin(_ANNOTATES_TOO)
        self.lines = list(annotations(report, self.rootpath, self.actions.workspace, failures=failures))
        if self.actions.summary is not None:
            try:
                append_summary(self.actions.summary, markdown(report))
            except OSError as error:
                why = error.strerror or type(error).__name__
                self.problem = f"perfsuite: the step summary {self.actions.summary} cannot be written ({why})"

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self.lines:
            terminalreporter.write_line(line)
        if self.problem:
            terminalreporter.write_line(self.problem, yellow=True)


def register_actions(config: pytest.Config, report: Callable[[pytest.Session], Report]) -> None:
    """Register the hooks, if this is a step of GitHub Actions."""
    actions = Actions.of(os.environ)
    if actions is not None:
        config.pluginmanager.register(ActionsHooks(actions, config.rootpath, report), "perfsuite-github")


def annotations(report: Report, rootpath: Path, workspace: Path | None, *, failures: bool = True) -> Iterator[str]:
    """A command for each failed test (unless another plugin annotates them), and for each inconclusive test.

    A failed test is annotated at the line that it blames, so on what the pull request changed where that did it.
    It has the first line of the message: the log, which has the command too, and the step summary have all of it.
    """
    groups: list[tuple[Level, str, list[tuple[TestRecord, str]]]] = []
    if failures:
        groups.append(("error", "failed", [(test, test.message.partition("\n")[0]) for test in report.failures]))
    open_tests = {result.test for result in report.of_verdict(Verdict.INCONCLUSIVE)}
    undecided = [test for test in report.tests if test.test in open_tests and test not in report.failures]
    groups.append(("notice", "left undecided", [(test, _undecided(test)) for test in undecided]))
    for level, what, tests in groups:
        shown = tests if len(tests) <= MOST_ANNOTATIONS else tests[: MOST_ANNOTATIONS - 1]
        for test, message in shown:
            blamed, line = test.blamed or (test.file, test.line)
            file = _seen_from(workspace, rootpath, blamed)
            title = f"perfsuite: {test.test.rpartition('::')[2] or test.test} {what}"
            yield workflow_command(level, message or f"{test.test} {what}", file=file, line=line, title=title)
        if left := tests[len(shown) :]:
            title = f"perfsuite: {plural(len(left), 'more test')} {what}"
            yield workflow_command(level, "\n".join(test.test for test, _ in left), title=title)


def _undecided(test: TestRecord) -> str:
    undecided = [result for result in test.results if result.verdict == Verdict.INCONCLUSIVE]
    return "\n".join(messages.reason(result) or result.metric.title for result in undecided)


def workflow_command(level: Level, message: str, *, title: str, file: str = "", line: int = 0) -> str:
    """A workflow command that annotates a line of a file, or the run as a whole."""
    named = {"file": file, "line": str(line) if file and line else "", "title": title}
    texts = {name: _escaped(value).replace(":", "%3A").replace(",", "%2C") for name, value in named.items() if value}
    properties = ",".join(f"{name}={text}" for name, text in texts.items())
    if len(message) > _LONGEST:
        message = f"{message[:_LONGEST]} ..."
    return f"::{level} {properties}::{_escaped(message)}"


def _escaped(text: str) -> str:
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    # The log would interpret other control characters, such as an escape sequence of a colour.
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f\x85\u2028\u2029]", "\N{REPLACEMENT CHARACTER}", text)


def _seen_from(workspace: Path | None, rootpath: Path, file: str) -> str:
    """A file of the project as GitHub names it: relative to the repository's folder, with forward slashes."""
    if not file:
        return ""
    path = Path(os.path.normpath(rootpath / file))
    if workspace is not None:
        for root in (workspace, Path(os.path.realpath(workspace))):
            if path.is_relative_to(root):
                return path.relative_to(root).as_posix()
    return path.as_posix()


def append_summary(path: Path, text: str) -> None:
    """Append to the step summary; where GitHub would refuse all of it, a line that says so. Raises `OSError`."""
    taken = path.stat().st_size if path.exists() else 0
    separator = "\n" if taken else ""
    content = f"{separator}{text}".encode("utf-8", "replace")
    if taken + len(content) > MOST_BYTES:
        content = f"{separator}{_TOO_LARGE}".encode()
    with path.open("ab") as file:
        file.write(content)
