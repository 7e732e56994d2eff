"""The report as GitHub's Markdown: a table of what changed, regressions first; the rest is folded below it.

Names and messages come from users. A name stands in a code span and a message in a code block, where nothing in it is
Markdown, HTML or a mention; the fences are longer than any run of backticks inside.
"""

import collections
import re
from collections.abc import Iterable, Iterator, Sequence

from perfsuite.gate import messages
from perfsuite.gate.baseline_file import SaveResult
from perfsuite.gate.messages import verdict_counts
from perfsuite.gate.verdict import Result, Verdict
from perfsuite.measure.metric import span
from perfsuite.measure.words import change, number, plural, printable
from perfsuite.report.model import Report, why

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


def code(content: str, *, in_table: bool = False) -> str:
    """A code span that shows `content` as it is, on one line."""
    shown = _printable(" ".join(content.split())) or " "
    if in_table:
        shown = shown.replace("|", "\\|")
    fence = "`" * (_longest_run(shown) + 1)
    pad = " " if shown[0] == "`" or shown[-1] == "`" else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def escaped(content: str) -> str:
    """`content` on one line, with nothing in it that is Markdown or HTML."""
    return re.sub(r"([\\`*_{}\[\]<>#|~$&@!])", r"\\\1", _printable(" ".join(content.split())))


def block(content: str) -> str:
    """A code block that shows `content` as it is."""
    lines = [_printable(line.expandtabs(4)) for line in content.splitlines()]
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
    counts = verdict_counts(result.verdict for result in report.results)
    metrics = plural(len(report.results), "metric")
    header, machine = report.header, report.header.environment
    device = f"{machine.device_count} x {machine.device_kind} ({machine.processor})"
    where = f"{escaped(device)}; {escaped(header.versions)}; size {escaped(header.size)}"
    yield f"{metrics}{': ' if counts else ''}{counts}. {where}."
    for note in report.notes:
        yield f"**{escaped(note)}**"


def _changed(report: Report) -> Iterator[str]:
    """The metrics that got worse, then those that got better."""
    worse, better = report.of_verdict(Verdict.FAIL), report.of_verdict(Verdict.IMPROVED)
    if worse or better:
        yield f"### {len(worse)} fail, {len(better)} improved{f': {_RECORDS} what improved' if better else ''}"
        yield changes_table([*worse, *better])


def changes_table(results: Iterable[Result]) -> str:
    """What each metric was or may be, what it is, and by how much that is more; in bold where it fails."""
    rows = [
        (code(result.test, in_table=True), code(result.metric.title, in_table=True), *_base_and_head(result))
        for result in results
    ]
    return table(("test", "metric", "base", "head", "change"), rows)


def _base_and_head(result: Result) -> tuple[str, str, str]:
    metric, base, changed = result.metric, result.baseline, messages.change_in_words(result)
    by_budget = result.source == "budget" and result.limit is not None
    if by_budget:
        base = result.limit
        changed = change(metric.value / base - 1, 3) if base and base > 0 else ""
    changed = escaped(changed or str(result.verdict))
    missing = result.verdict == Verdict.MISSING
    return (
        "" if base is None else f"{number(base)}{' (budget)' if by_budget else ''}",
        "" if missing else escaped(f"{span(metric.value, metric.interval)} {metric.unit}"),
        f"**{changed}**" if result.verdict == Verdict.FAIL else changed,
    )


def _failures(report: Report) -> Iterator[str]:
    """The messages of failed tests: folded where the table has what failed, or where they are long."""
    if report.failures:
        yield "### Failed"
    for test in report.failures:
        where = f" ({code(f'{test.file}:{test.line}')})" if test.line else ""
        message = why(test)
        yield f"{code(test.test)}{where}"
        if any(result.verdict == Verdict.FAIL for result in test.results):
            yield folded("why", block(message))
        elif (lines := len(message.splitlines())) > LONG_LINES or len(message) > LONG_CHARACTERS:
            yield block(_first_line(message))
            yield folded(f"all {plural(lines, 'line')}", block(message))
        else:
            yield block(message)


def _undecided(report: Report) -> Iterator[str]:
    titles = {
        Verdict.INCONCLUSIVE: "inconclusive: nothing failed, nothing is sure",
        Verdict.NOT_COMPARABLE: "not comparable with the baseline",
    }
    for verdict, title in titles.items():
        lines = []
        for result in report.of_verdict(verdict):
            reason = "<br>".join(map(escaped, messages.reason(result).splitlines()))
            lines.append(f"- {code(result.test)}: {reason or code(result.metric.title)}")
        if lines:
            yield folded(f"{len(lines)} {title}", "\n".join(lines))


def _rest(report: Report) -> Iterator[str]:
    """What is new, and what was skipped."""
    if new := collections.Counter(result.test for result in report.of_verdict(Verdict.NEW)):
        lines = [f"- {code(test)}: {plural(count, 'metric')} without a baseline" for test, count in new.items()]
        yield folded(f"{new.total()} new: pytest --perf-save records", "\n".join(lines))
    if skipped := collections.Counter(_first_line(test.message) for test in report.tests if test.outcome == "skipped"):
        lines = [f"- {plural(count, 'test')}: {escaped(reason)}" for reason, count in skipped.items()]
        yield folded(f"{skipped.total()} skipped", "\n".join(lines))


def _saved(file: SaveResult) -> Iterator[str]:
    yield f"### {code(file.path.as_posix())} {messages.save_summary(file)}"
    rows = [
        (
            code(each.test, in_table=True),
            code(each.name, in_table=True),
            number(each.old.value),
            "removed" if each.new is None else number(each.new.value),
            escaped((each.new or each.old).unit),
            escaped("" if each.new is None else each.direction),
            escaped(", ".join(each.versions)),
        )
        for each in file.changes
        if each.old is not None and each.action != "keep"
    ]
    if rows:
        columns = ("test", "metric", "before", "now", "unit", "which is", "versions")
        yield folded(plural(len(rows), "change"), table(columns, rows))


def _all_metrics(report: Report) -> Iterator[str]:
    rows, above = [], None
    for result in report.results:
        rows.append((code(result.test, in_table=True) if result.test != above else "", *_cells(result)))
        above = result.test
    if rows:
        columns = ("test", "metric", "value", "unit", "limit", "from", "baseline", "change", "verdict")
        yield folded(f"all {plural(len(rows), 'metric')}", table(columns, rows))


def _cells(result: Result) -> tuple[str, ...]:
    metric = result.metric
    return (
        code(metric.title, in_table=True),
        escaped(span(metric.value, metric.interval)),
        escaped(metric.unit),
        "" if result.limit is None else number(result.limit),
        result.source or "",
        "" if result.baseline is None else number(result.baseline),
        escaped(messages.change_in_words(result)),
        f"**{result.verdict}**" if result.verdict == Verdict.FAIL else str(result.verdict),
    )


def _first_line(content: str) -> str:
    line = content.partition("\n")[0]
    return line if len(line) <= LONG_CHARACTERS else f"{line[: LONG_CHARACTERS - 4]} ..."


def _printable(content: str) -> str:
    return printable(content, "\N{REPLACEMENT CHARACTER}")


def _longest_run(content: str) -> int:
    return max(map(len, re.findall("`+", content)), default=0)
