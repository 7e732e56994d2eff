"""The report as GitHub's Markdown: what needs a look comes first, and the table of all metrics is folded away.

Names and messages come from users. A name stands in a code span and a message in a code block, where nothing in it is
Markdown, HTML or a mention; the fences are longer than any run of backticks inside.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from perfsuite.measure.words import number, span
from perfsuite.report.model import Report, Row, Test

LONG_LINES = 8
"""A message of more lines than this is folded after its first line."""

LONG_CHARACTERS = 1200

MOST_TIMES = 10

RECORDS = "`pytest --perf-save` records"

_COLUMNS = ("test", "metric", "value", "unit", "limit", "from", "baseline", "change", "verdict")


def markdown(report: Report) -> str:
    """The report. Needs nothing but this package."""
    parts = [
        *_summary(report),
        *_failures(report),
        *_undecided(report),
        *_improved(report),
        *_new(report),
        *_missing(report),
        *_saved(report),
        *_skipped(report),
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


def plain(text: str) -> str:
    """`text` on one line, with nothing in it that is Markdown or HTML."""
    return re.sub(r"([\\`*_{}\[\]<>#|~$&@!])", r"\\\1", _printable(" ".join(text.split())))


def block(text: str) -> str:
    """A code block that shows `text` as it is."""
    lines = [_printable(line.expandtabs(4)) for line in text.splitlines()]
    fence = "`" * max(3, max(map(_longest_run, lines), default=0) + 1)
    return "\n".join([f"{fence}text", *lines, fence])


def folded(title: str, content: str) -> str:
    """`content` behind a line to click on; `title` is Markdown's plain text."""
    return f"<details>\n<summary>{title}</summary>\n\n{content}\n\n</details>"


def _summary(report: Report) -> Iterator[str]:
    tests, failures = len(report.tests), len(report.failures)
    said = f"{failures} of {_many(tests, 'test')} failed" if failures else f"{_many(tests, 'test')}, none failed"
    yield f"## perfsuite: {said}"
    counts = ", ".join(f"{count} {verdict}" for verdict, count in report.counts.items())
    metrics = _many(len(report.metrics), "metric")
    header = report.header
    versions = ", ".join(f"{name} {version}" for name, version in header.versions.items())
    device = f"{header.device_count} x {header.device_kind} ({header.processor})"
    yield f"{metrics}{': ' if counts else ''}{counts}. {plain(device)}; {plain(versions)}; size {plain(header.size)}."
    for note in report.notes:
        yield f"**{plain(note)}**"


def _failures(report: Report) -> Iterator[str]:
    if report.failures:
        yield "### Failed"
    for test in report.failures:
        where = f" ({code(f'{test.file}:{test.line}')})" if test.line else ""
        yield f"{code(test.id)}{where}"
        yield from _message(test.message or "no message")
        reasons = [metric.reason for metric in test.metrics if metric.verdict == "fail" and metric.reason]
        if any(reason not in test.message for reason in reasons):
            yield folded("every metric that failed", block("\n\n".join(reasons)))


def _message(text: str) -> Iterator[str]:
    lines = text.splitlines()
    if len(lines) <= LONG_LINES and len(text) <= LONG_CHARACTERS:
        yield block(text)
        return
    yield block(_clipped(lines[0]))
    yield folded(f"all {_many(len(lines), 'line')}", block(text))


def _undecided(report: Report) -> Iterator[str]:
    for verdict, title in (("inconclusive", "Inconclusive: nothing failed, nothing is sure"), ("not comparable", "")):
        found = _of(report, verdict)
        if found:
            yield f"### {title or 'Not comparable with what is on file'}"
            yield "\n".join(f"- {code(test.id)}: {_said(metric)}" for test, metric in found)


def _improved(report: Report) -> Iterator[str]:
    found = _of(report, "improved")
    if found:
        yield f"### Improved: {RECORDS} {'it' if len(found) == 1 else 'them'}"
        yield "\n".join(f"- {code(test.id)}: {code(metric.title)}{_change_in_words(metric)}" for test, metric in found)


def _new(report: Report) -> Iterator[str]:
    found = _of(report, "new")
    if found:
        tests = list(dict.fromkeys(test.id for test, _ in found))
        yield f"### New: {RECORDS} {'it' if len(found) == 1 else 'them'}"
        counts = [(name, sum(test.id == name for test, _ in found)) for name in tests]
        yield "\n".join(f"- {code(name)}: {_many(count, 'metric')} without a baseline" for name, count in counts)


def _missing(report: Report) -> Iterator[str]:
    if report.missing:
        yield "### On file, but not measured: `pytest --perf-save` trims"
        yield "\n".join(f"- {code(missing.test)}: {code(missing.title)}" for missing in report.missing)


def _saved(report: Report) -> Iterator[str]:
    for file in report.saved:
        state = "saved" if file.written else "unchanged"
        yield (
            f"### {code(file.path)} {state}: {file.created} created, {file.updated} updated, {file.trimmed} trimmed, "
            f"{file.kept} kept"
        )
        updated = [change for change in file.changes if change.old is not None]
        if updated:
            rows = [
                (
                    code(change.test, in_table=True),
                    code(change.name, in_table=True),
                    "" if change.old is None else number(change.old),
                    "trimmed" if change.new is None else number(change.new),
                    plain(change.unit),
                    plain("" if change.new is None else change.direction),
                    plain(", ".join(change.versions)),
                )
                for change in updated
            ]
            yield folded(
                f"{_many(len(updated), 'change')}",
                _table(("test", "metric", "before", "now", "unit", "which is", "versions"), rows),
            )


def _skipped(report: Report) -> Iterator[str]:
    by_reason: dict[str, list[Test]] = {}
    for test in report.tests:
        if test.outcome == "skipped":
            by_reason.setdefault(test.message, []).append(test)
    if by_reason:
        yield "### Skipped"
        yield "\n".join(
            f"- {_many(len(tests), 'test')}: {plain(_clipped(why.partition(chr(10))[0]))}"
            for why, tests in by_reason.items()
        )


def _all_metrics(report: Report) -> Iterator[str]:
    rows, above = [], None
    for test, metric in report.metrics:
        rows.append((code(test.id, in_table=True) if test.id != above else "", *_row(metric)))
        above = test.id
    if rows:
        yield folded(f"all {_many(len(rows), 'metric')}", _table(_COLUMNS, rows))


def _row(metric: Row) -> tuple[str, ...]:
    return (
        code(metric.title, in_table=True),
        plain(span(metric.value, metric.interval)),
        plain(metric.unit),
        "" if metric.limit is None else number(metric.limit),
        metric.source or "",
        "" if metric.baseline is None else number(metric.baseline),
        _change(metric),
        f"**{metric.verdict}**" if metric.verdict == "fail" else metric.verdict,
    )


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _said(metric: Row) -> str:
    reason = "<br>".join(plain(line) for line in metric.reason.splitlines())
    return reason or code(metric.title)


def _change_in_words(metric: Row) -> str:
    if metric.baseline is None:
        return ""
    change = _change(metric)
    arrow = f" {number(metric.baseline)} → {number(metric.value)} {plain(metric.unit)}"
    return f"{arrow} ({change})" if change else arrow


def _change(metric: Row) -> str:
    """Against the baseline: `+12.50%`, and `x 46` where percentages say less."""
    if not metric.change:
        return ""
    times = metric.change + 1
    return f"{metric.change:+.2%}" if 0 < times < MOST_TIMES else f"x {times:.3g}"


def _of(report: Report, verdict: str) -> list[tuple[Test, Row]]:
    return [(test, metric) for test, metric in report.metrics if metric.verdict == verdict]


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _clipped(text: str) -> str:
    return text if len(text) <= LONG_CHARACTERS else f"{text[: LONG_CHARACTERS - 4]} ..."


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
