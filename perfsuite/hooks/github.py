"""In GitHub Actions: a failed perf test is an annotation at its line, and the step summary has the report.

Annotations are commands that a step writes to its output, see
https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions.
"""

import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Literal

import pytest

from perfsuite.report.markdown import markdown
from perfsuite.report.model import Report, Test

MOST_BYTES = 1_000_000
"""GitHub refuses a summary of more than 1 MiB a step as a whole."""

MOST_ANNOTATIONS = 10
"""GitHub shows ten errors and ten notices a step, and drops the others without a word."""

_ANNOTATES_TOO = "pytest_github_actions_annotate_failures"
_CUT = "**The report was cut here: a step summary can hold 1 MiB.** `pytest --perf-report=DIR` writes it whole."
_LONGEST = 4000

Level = Literal["error", "notice"]


@dataclasses.dataclass(frozen=True)
class Actions:
    """Where the step runs. `workspace` is the repository's folder, `summary` the file of the step summary."""

    workspace: Path | None
    summary: Path | None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Actions | None":
        """What the environment says of a step; None outside of GitHub Actions."""
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

    @pytest.hookimpl(trylast=True)  # after baselines were saved, which is part of the report
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


def start(config: pytest.Config, report: Callable[[pytest.Session], Report]) -> None:
    """Register the hooks, where this is a step of GitHub Actions."""
    actions = Actions.of(os.environ)
    if actions is not None:
        config.pluginmanager.register(ActionsHooks(actions, config.rootpath, report), "perfsuite-github")


def annotations(report: Report, rootpath: Path, workspace: Path | None, *, failures: bool = True) -> Iterator[str]:
    """One command for each test that failed (unless another plugin does that), and for each that was left undecided."""
    if failures:
        yield from _at_most(report.failures, "error", "failed", rootpath, workspace, lambda test: test.message)
    undecided = [test for test in report.tests if not test.failed and "inconclusive" in test.counts]
    yield from _at_most(undecided, "notice", "left undecided", rootpath, workspace, _undecided)


def _at_most(
    tests: list[Test],
    level: Level,
    what: str,
    rootpath: Path,
    workspace: Path | None,
    message: Callable[[Test], str],
) -> Iterator[str]:
    shown = tests if len(tests) <= MOST_ANNOTATIONS else tests[: MOST_ANNOTATIONS - 1]
    for test in shown:
        file = _seen_from(workspace, rootpath, test.file)
        yield command(level, message(test) or f"{test.id} {what}", file=file, line=test.line, title=_title(test, what))
    if left := tests[len(shown) :]:
        names = "\n".join(test.id for test in left)
        yield command(level, names, title=f"perfsuite: {len(left)} more tests {what}")


def _title(test: Test, what: str) -> str:
    return f"perfsuite: {test.id.rpartition('::')[2] or test.id} {what}"


def _undecided(test: Test) -> str:
    return "\n".join(metric.reason or metric.title for metric in test.metrics if metric.verdict == "inconclusive")


def command(level: Level, message: str, *, title: str, file: str = "", line: int = 0) -> str:
    """A workflow command that annotates a line of a file, or the run as a whole."""
    named = {"file": file, "line": str(line) if file and line else "", "title": title}
    properties = ",".join(f"{name}={_escaped_property(value)}" for name, value in named.items() if value)
    if len(message) > _LONGEST:
        message = f"{message[:_LONGEST]} ..."
    return f"::{level} {properties}::{_escaped(message)}"


def _escaped(text: str) -> str:
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    # What is left of control characters, an escape sequence of a colour say, would be written to the log.
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f\x85\u2028\u2029]", "\N{REPLACEMENT CHARACTER}", text)


def _escaped_property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")


def _seen_from(workspace: Path | None, rootpath: Path, file: str) -> str:
    """A file of the project, named as GitHub wants it: from the repository's folder, with forward slashes."""
    if not file:
        return ""
    path = Path(os.path.normpath(rootpath / file))
    if workspace is not None:
        for root in (workspace, Path(os.path.realpath(workspace))):
            if path.is_relative_to(root):
                return PurePosixPath(path.relative_to(root)).as_posix()
    return PurePosixPath(path).as_posix()


def append_summary(path: Path, text: str) -> None:
    """Append to the step summary, cut so that GitHub takes it. Raises `OSError` where it cannot be written."""
    try:
        taken = path.stat().st_size
    except FileNotFoundError:
        taken = 0
    content = ("\n" if taken else "") + text
    with path.open("ab") as file:
        file.write(cut(content, MOST_BYTES - taken).encode("utf-8", "replace"))


def cut(text: str, most_bytes: int) -> str:
    """The first lines of a Markdown text, complete in themselves, and a line that says that there were more.

    Whole where it is no longer than `most_bytes` of UTF-8, empty where there is no room for anything.
    """
    if len(text.encode("utf-8", "replace")) <= most_bytes:
        return text
    kept: list[str] = []
    fence, open_details = "", 0
    # Of the end: what closes a block and two foldings at most, and the line that says so.
    left = most_bytes - len(_CUT.encode()) - 100
    best: tuple[int, str, int] = (0, "", 0)
    for line in text.splitlines(keepends=True):
        left -= len(line.encode("utf-8", "replace"))
        if left < 0:
            break
        kept.append(line)
        bare = line.strip()
        if fence:
            fence = "" if bare == fence else fence
        elif found := re.match(r"`{3,}", bare):
            fence = found[0]
            left -= len(fence)
        elif bare == "<details>":
            open_details += 1
        elif bare == "</details>":
            open_details -= 1
        best = (len(kept), fence, open_details)
    count, fence, open_details = best
    if not count:
        return _CUT + "\n" if most_bytes > len(_CUT) else ""
    closing = (f"{fence}\n" if fence else "") + "\n</details>\n" * open_details
    return f"{''.join(kept[:count])}{closing}\n{_CUT}\n"
