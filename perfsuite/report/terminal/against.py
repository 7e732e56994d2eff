"""The terminal's tables of `perfsuite against`: what changed, place by place."""

from collections.abc import Iterator, Sequence

from perfsuite.against.found import PLACES, Called, Check, MetricChange
from perfsuite.report.against import text
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
    lines = [*text.sides(check), *(paint(f"note: {note}", "yellow") for note in check.notes), *_tests(check, paint)]
    for where in PLACES:
        here = [change for change in check.changes if change.where == where]
        shown = here if everything else [change for change in here if not text.quiet(change)]
        if here:
            lines += ["", f"{where}: {text.counted(here)}", *(_table(shown, paint) if shown else [])]
    lines += ["", *text.summary(check)]
    last = text.verdict(check)
    return [*lines, paint(last, "red" if check.worse else "green")] if last else lines


def _tests(check: Check, paint: Paint) -> Iterator[str]:
    new = [test for test in check.tests if test.only_at_head]
    for title, tests in (
        ("tests that did not pass on both sides:", [test for test in check.tests if test not in new]),
        ("tests that only the head passes, so that there is nothing to compare:", new),
    ):
        if tests:
            yield ""
            yield title
        for test in tests:
            line = f"  {test.test}: {test.base} -> {test.head}"
            yield paint(line, "red") if test.worse else line
            if test.reason:
                yield f"    {test.reason}"


def _table(changes: Sequence[MetricChange], paint: Paint) -> Iterator[str]:
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
        if index is None:
            yield line
            continue
        style = _STYLES.get(changes[index].called)
        yield paint(line, style) if style else line
        yield from (f"      {each}" for each in text.why(changes[index]))
