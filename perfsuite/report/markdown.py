"""The report as GitHub's Markdown: a table of what changed, regressions first; the rest is folded below it.

Names and messages come from users. A name stands in a code span and a message in a code block, where nothing in it is
Markdown, HTML or a mention; the fences are longer than any run of backticks inside.
"""

import collections
import re
from collections.abc import Iterable, Iterator, Sequence

from perfsuite.gate.verdict import Verdict
from perfsuite.measure.metric import span
from perfsuite.measure.words import change, number, plural, printable
from perfsuite.report.model import Report, Row, SavedFile

LONG_LINES = 8
LONG_CHARACTERS = 1200
"""A longer message is folded behind its first line."""

_RECORDS = "`pytest --perf-save` records"


def markdown(report: Report) -> str:
    """The report. Needs only this package."""
    parts = [
        *_summary(report),
        *_changed(report),
        *_failures(report),
        *_undecided(report),
        *_rest(report),
        *(part for file in report.saved for part in _saved(file)),
        *_all_metrics(report),
    ]
    return "\n\n".join(parts) + "\n"


def code(text: str, *, in_table: bool = False) -> str:
    """A code span that shows `text` as it is, on one line."""
    shown = _printable(" ".join(text.split())) or " "
    if in_table:
        shown = shown.replace("|", "\\|")
    fence = "`" * (_longest_run(shown) + 1)
    pad = " " if shown[0] == "`" or shown[-1] == "`" else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def escaped(text: str) -> str:
    """`text` on one line, with nothing in it that is Markdown or HTML."""
    return re.sub(r"([\\`*_{}\[\]<>#|~$&@!])", r"\\\1", _printable(" ".join(text.split())))


def block(text: str) -> str:
    """A code block that shows `text` as it is."""
    lines = [_printable(line.expandtabs(4)) for line in text.splitlines()]
    fence = "`" * max(3, max(map(_longest_run, lines), default=0) + 1)
    return "\n".join([f"{fence}text", *lines, fence])


def folded(title: str, content: str) -> str:
    """`content` behind a line to click on; `title` is plain text in Markdown."""
    return f"<details>\n<summary>{title}</summary>\n\n{content}\n\n</details>"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; its cells are Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [columns, ["---"] * len(columns), *rows])


def _summary(report: Report) -> Iterator[str]:
    tests, failures = plural(len(report.tests), "test"), len(report.failures)
    yield f"## perfsuite: {f'{failures} of {tests} failed' if failures else f'{tests}, none failed'}"
    counts = ", ".join(f"{count} {verdict}" for verdict, count in report.counts.items())
    metrics = plural(len(report.metrics), "metric")
    header, machine = report.header, report.header.environment
    device = f"{machine.device_count} x {machine.device_kind} ({machine.processor})"
    where = f"{escaped(device)}; {escaped(header.versions)}; size {escaped(header.size)}"
    yield f"{metrics}{': ' if counts else ''}{counts}. {where}."
    for note in report.notes:
        yield f"**{escaped(note)}**"


def _changed(report: Report) -> Iterator[str]:
    """The metrics that got worse, then those that got better: at the base, and now."""
    worse, better = report.of_verdict(Verdict.FAIL), report.of_verdict(Verdict.IMPROVED)
    rows = [
        (code(test.id, in_table=True), code(row.title, in_table=True), *_base_and_head(row))
        for test, row in [*worse, *better]
    ]
    if rows:
        yield f"### {len(worse)} worse, {len(better)} better{f': {_RECORDS} what is better' if better else ''}"
        yield table(("test", "metric", "base", "head", "change"), rows)


def _base_and_head(row: Row) -> tuple[str, str, str]:
    """What a metric was or may be, what it is, and by how much that is more; in bold where it fails."""
    by_budget = row.source == "budget" and row.limit is not None
    base = row.limit if by_budget else row.baseline
    share = row.value / base - 1 if base and base > 0 else None
    changed = change(share, 3) if share else ""
    return (
        "" if base is None else f"{number(base)}{' (budget)' if by_budget else ''}",
        escaped(f"{span(row.value, row.interval)} {row.unit}"),
        f"**{changed or 'worse'}**" if row.verdict == Verdict.FAIL else changed,
    )


def _failures(report: Report) -> Iterator[str]:
    """The messages of failed tests: folded where the table has what failed, or where they are long."""
    if report.failures:
        yield "### Failed"
    for test in report.failures:
        where = f" ({code(f'{test.file}:{test.line}')})" if test.line else ""
        yield f"{code(test.id)}{where}"
        if Verdict.FAIL in test.counts:
            yield folded("why", block(test.why))
        elif (lines := len(test.why.splitlines())) > LONG_LINES or len(test.why) > LONG_CHARACTERS:
            yield block(_first_line(test.why))
            yield folded(f"all {plural(lines, 'line')}", block(test.why))
        else:
            yield block(test.why)


def _undecided(report: Report) -> Iterator[str]:
    titles = {
        Verdict.INCONCLUSIVE: "inconclusive: nothing failed, nothing is sure",
        Verdict.NOT_COMPARABLE: "not comparable with the baseline",
    }
    for verdict, title in titles.items():
        lines = []
        for test, row in report.of_verdict(verdict):
            reason = "<br>".join(map(escaped, row.reason.splitlines()))
            lines.append(f"- {code(test.id)}: {reason or code(row.title)}")
        if lines:
            yield folded(f"{len(lines)} {title}", "\n".join(lines))


def _rest(report: Report) -> Iterator[str]:
    """What is new, what is gone and what was skipped."""
    if new := collections.Counter(test.id for test, _ in report.of_verdict(Verdict.NEW)):
        lines = [f"- {code(test)}: {plural(count, 'metric')} without a baseline" for test, count in new.items()]
        yield folded(f"{new.total()} new: pytest --perf-save records", "\n".join(lines))
    if report.missing:
        lines = [f"- {code(missing.test)}: {code(missing.title)}" for missing in report.missing]
        yield folded(f"{len(lines)} not measured, but in the baselines: pytest --perf-save removes", "\n".join(lines))
    if skipped := collections.Counter(_first_line(test.message) for test in report.tests if test.outcome == "skipped"):
        lines = [f"- {plural(count, 'test')}: {escaped(reason)}" for reason, count in skipped.items()]
        yield folded(f"{skipped.total()} skipped", "\n".join(lines))


def _saved(file: SavedFile) -> Iterator[str]:
    yield f"### {code(file.path)} {file.summary}"
    rows = [
        (
            code(each.test, in_table=True),
            code(each.name, in_table=True),
            number(each.old),
            "removed" if each.new is None else number(each.new),
            escaped(each.unit),
            escaped("" if each.new is None else each.direction),
            escaped(", ".join(each.versions)),
        )
        for each in file.changes
        if each.old is not None
    ]
    if rows:
        columns = ("test", "metric", "before", "now", "unit", "which is", "versions")
        yield folded(plural(len(rows), "change"), table(columns, rows))


def _all_metrics(report: Report) -> Iterator[str]:
    rows, above = [], None
    for test, metric in report.metrics:
        rows.append((code(test.id, in_table=True) if test.id != above else "", *_cells(metric)))
        above = test.id
    if rows:
        columns = ("test", "metric", "value", "unit", "limit", "from", "baseline", "change", "verdict")
        yield folded(f"all {plural(len(rows), 'metric')}", table(columns, rows))


def _cells(metric: Row) -> tuple[str, ...]:
    return (
        code(metric.title, in_table=True),
        escaped(span(metric.value, metric.interval)),
        escaped(metric.unit),
        "" if metric.limit is None else number(metric.limit),
        metric.source or "",
        "" if metric.baseline is None else number(metric.baseline),
        change(metric.change, 3) if metric.change else "",
        f"**{metric.verdict}**" if metric.verdict == Verdict.FAIL else str(metric.verdict),
    )


def _first_line(text: str) -> str:
    line = text.partition("\n")[0]
    return line if len(line) <= LONG_CHARACTERS else f"{line[: LONG_CHARACTERS - 4]} ..."


def _printable(text: str) -> str:
    return printable(text, "\N{REPLACEMENT CHARACTER}")


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
