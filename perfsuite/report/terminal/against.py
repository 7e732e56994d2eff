"""The terminal's tables of `perfsuite against`."""

from collections.abc import Iterator, Sequence

from perfsuite.against.changes import Called, Check, MetricChange
from perfsuite.report import against as text
from perfsuite.report.terminal.output import Paint, Style, by_test, clipped, uncolored

_STYLES: dict[Called, Style] = {
    "worse": "red",
    "better": "green",
    "undecided": "yellow",
    "not comparable": "yellow",
    "new": "cyan",
    "gone": "yellow",
}


def check_lines(check: Check, *, everything: bool = False, paint: Paint = uncolored) -> list[str]:
    """The lines. `everything` also lists the metrics that did not change."""
    lines = [*text.sides(check), *(paint(f"note: {note}", "yellow") for note in check.notes)]
    if check.tests:
        lines += ["", "tests that did not pass on both sides:"]
    for test in check.tests:
        line = f"  {test.test}: {test.base} -> {test.head}"
        lines += [paint(line, "red") if test.worse else line, *([f"    {test.reason}"] if test.reason else [])]
    shown = [change for change in check.changes if everything or not text.quiet(change)]
    if shown:
        lines += ["", *changes_table(shown, paint)]
    lines += ["", *text.summary(check)]
    last = text.verdict(check)
    return [*lines, paint(last, "red" if check.worse else "green")] if last else lines


def changes_table(changes: Sequence[MetricChange], paint: Paint) -> Iterator[str]:
    """The lines of a table of changes, each with what explains it below."""
    rows = [
        (
            f"  {clipped(change.metric)}",
            text.value(change.base, change.unit),
            text.value(change.head, change.unit),
            text.relative(change),
            change.called,
        )
        for change in changes
    ]
    head, lines = by_test(("metric", "base", "head", "change", "called"), rows, [change.test for change in changes])
    yield head
    for line, index in lines:
        style = None if index is None else _STYLES.get(changes[index].called)
        yield paint(line, style) if style else line
        yield from (f"      {each}" for each in (text.why(changes[index]) if index is not None else ()))
