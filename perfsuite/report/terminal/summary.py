"""The closing summary of a session with --perf, in the terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from perfsuite.gate import messages
from perfsuite.gate.baseline_file import SaveResult
from perfsuite.gate.verdict import Result
from perfsuite.measure.io import relative
from perfsuite.measure.words import number, plural
from perfsuite.report.terminal.metric_table import metric_table
from perfsuite.report.terminal.overview import MOST_LINES, Line, explanations, fitted, overview, painted
from perfsuite.session.records import TestRecord
from perfsuite.session.session import PerfSession

if TYPE_CHECKING:  # only a save has them
    from perfsuite.report.model import SavedChange, SavedFile

_CHANGE_COLORS = {"better": {"green": True}, "worse": {"red": True}}


def session_summary(
    reporter: pytest.TerminalReporter,
    session: PerfSession,
    rootpath: Path,
    saved: Sequence[SaveResult],
    not_saved: str,
    gone: Sequence[Result] = (),
    below: int = 0,
) -> None:
    """How the gates of the session ended, in few lines; with -v a table of all before. Then what was saved.

    Failures are in pytest's own section, each once. `gone` are the gates of recorded metrics whose tests are gone.
    `below` is the number of lines that the caller has still to print.
    """
    results = [result for record in session.records for result in record.results]
    width, saving = reporter.config.get_terminal_writer().fullwidth, bool(session.options.save)
    verbose = reporter.config.get_verbosity() > 0
    lines: list[Line] = []
    lost = {record.test: record.lost for record in (*session.records, *session.unmeasured) if record.lost}
    if results or gone or lost:
        reporter.section("perfsuite", sep="=")
        if verbose:
            for line, result in metric_table(results, width) if results else ():
                reporter.line(line, **(painted(result.verdict) if result else {}))
            _write(reporter, explanations([result for record in session.records for result in _untold(record)], gone))
        lines += overview(results, gone, saving=saving, lost=list(lost.values()))
    lines += _programs(session, rootpath, every=verbose)
    _write(reporter, fitted(lines, width, None if verbose else MOST_LINES - 1 - below))
    for file in saved:
        from perfsuite.report.model import SavedFile  # see the top

        _saved(reporter, SavedFile.of(file, rootpath))
    if not_saved:
        reporter.line(not_saved, red=True, bold=True)


def _untold(record: TestRecord) -> list[Result]:
    """The gates without the one that the message of a failed test explains."""
    failed = [result for result in record.results if result.failed]
    told = messages.explained(failed) if failed and not record.passed else None
    return [result for result in record.results if result is not told]


def _write(reporter: pytest.TerminalReporter, lines: Sequence[Line]) -> None:
    for line in lines:
        reporter.line(line.text, **line.markup)


def _programs(session: PerfSession, rootpath: Path, *, every: bool) -> list[Line]:
    """How many programs were compiled, and kernels without an estimate: the first, or `every` one."""
    lines = []
    compiled = sum(record.compiled for record in session.records)
    cached = sum(record.cached for record in session.records)
    if compiled or cached:
        where = f"the cache ({relative(session.cache, rootpath)})" if session.cache else "a cache"
        said = f"{plural(compiled + cached, 'program')}: {compiled} compiled, {cached} from {where}"
        lines.append(Line(said, {}, optional=True))
    kernels = list(dict.fromkeys(kernel for record in session.records for kernel in record.unestimated))
    if every:
        return lines + [Line(messages.without_estimate([kernel]), {"yellow": True}) for kernel in kernels]
    return lines + ([Line(messages.without_estimate(kernels), {"yellow": True})] if kernels else [])


def _saved(reporter: pytest.TerminalReporter, file: "SavedFile") -> None:
    reporter.line(f"{file.path}: {file.summary}")
    worse, gone = file.changed("update", "worse"), file.changed("trim", "same")
    better, other = file.changed("update", "better"), file.changed("update", "not comparable")
    for changes, about in (
        (worse, f"{len(worse)} got worse and {'was' if len(worse) == 1 else 'were'} accepted"),
        (gone, f"{len(gone)} removed, because no test makes {'it' if len(gone) == 1 else 'them'} any more"),
        (better, f"{len(better)} better"),
        (other, f"{len(other)} replaced, because the two cannot be compared"),
    ):
        if changes:
            reporter.line(f"  {about}:", **_CHANGE_COLORS.get(changes[0].direction, {}))
            for change in changes:
                reporter.line(f"    {_in_words(change)}")


def _in_words(change: "SavedChange") -> str:
    where = f"{change.test}: {change.name}"
    if change.new is None or change.old is None:
        return where
    versions = f" ({', '.join(change.versions)})" if change.versions else ""
    return f"{where}: {number(change.old)} -> {number(change.new)} {change.unit}{versions}"
