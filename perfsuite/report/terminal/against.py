"""The terminal's tables of `perfsuite against`: what changed, place by place."""

from collections import Counter
from collections.abc import Iterator, Sequence

from perfsuite.against.changes import smallest_seen
from perfsuite.against.found import ERROR, PLACES, Called, Check, MetricChange
from perfsuite.measure.words import number, percent, plural
from perfsuite.report.terminal.output import Paint, Style, by_test, clipped, uncolored
from perfsuite.report.text import growth

_STYLES: dict[Called, Style] = {
    "worse": "red",
    "better": "green",
    "undecided": "yellow",
    "not comparable": "yellow",
    "new": "cyan",
    "gone": "yellow",
}
_QUIET: tuple[Called, ...] = ("no change seen", "undecided")
"""These are counted, and listed only on request."""


def check_lines(check: Check, *, everything: bool = False, paint: Paint = uncolored) -> list[str]:
    """The lines. `everything` also lists the metrics that did not change."""
    sides = {"before": check.before, "after": check.after}
    lines = [f"{side}: {' '.join(made.specs) or 'the present packages'}" for side, made in sides.items()]
    lines.append(f"what differs: {', '.join(check.versions) or 'nothing: all packages are the same'}")
    for side, made in sides.items():
        lines += [f"{side}, conflict with a package's requirements: {line}" for line in made.contradictions]
    lines += [paint(f"note: {note}", "yellow") for note in check.notes]
    lines += _tests(check, paint)
    for where in PLACES:
        here = [change for change in check.changes if change.where == where]
        shown = here if everything else [change for change in here if change.called not in _QUIET]
        if here:
            lines += ["", f"{where}: {_counted(here)}", *(_table(shown, paint) if shown else [])]
    return [*lines, "", *_foot(check, paint)]


def _tests(check: Check, paint: Paint) -> Iterator[str]:
    if check.tests:
        yield ""
        yield "tests that did not pass on both sides:"
    for test in check.tests:
        text = f"  {test.test}: {test.before} -> {test.after}"
        yield paint(text, "red") if test.worse else text
        if test.reason:
            yield f"    {test.reason}"


def _table(changes: Sequence[MetricChange], paint: Paint) -> Iterator[str]:
    rows = [
        (
            f"  {clipped(change.metric)}",
            _value(change.before, change.unit),
            _value(change.after, change.unit),
            _relative(change),
            change.called,
        )
        for change in changes
    ]
    head, lines = by_test(("metric", "before", "after", "change", "called"), rows, [change.test for change in changes])
    yield head
    for line, index in lines:
        if index is None:
            yield line
            continue
        style = _STYLES.get(changes[index].called)
        yield paint(line, style) if style else line
        if changes[index].reason:
            yield f"      {changes[index].reason}"
        if changes[index].grown:
            yield f"      {growth(changes[index].grown, changes[index].unit)}"


def _foot(check: Check, paint: Paint) -> Iterator[str]:
    timed = [change for change in check.changes if change.processes > 1]
    if timed:
        yield (
            f"times: {plural(len(timed), 'metric')} from {sum(check.windows)} processes on each side, in random order; "
            f"the probability that any of their verdicts is wrong is at most {ERROR:.0%}"
        )
        seen = smallest_seen(timed)
        if seen is not None:
            yield f"half of them would show a change of {seen:.1%}: use more --rounds for smaller changes"
    yield (
        f"{plural(len(check.changes), 'metric')}: {_counted(check.changes)}"
        if check.changes
        else "no metric was made with both sets of packages"
    )
    lost = sum(test.worse for test in check.tests)
    if check.worse:
        tests = f" and {plural(lost, 'test')} no longer {'passes' if lost == 1 else 'pass'}" if lost else ""
        worse = sum(change.called == "worse" for change in check.changes)
        yield paint(f"worse: {plural(worse, 'metric')}{tests}", "red")
    elif check.compared:
        open_ = sum(change.called == "undecided" for change in check.changes)
        yield paint(f"nothing is known to be worse: {open_} undecided" if open_ else "nothing is worse", "green")


def _counted(changes: Sequence[MetricChange]) -> str:
    counts = Counter(change.called for change in changes)
    return ", ".join(f"{count} {called}" for called, count in counts.most_common())


def _value(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{number(value)} {unit}"


def _relative(change: MetricChange) -> str:
    """`+12 % [+8 %, +17 %]`; the plain difference where a count begins at 0."""
    if change.ratio is None:
        if change.before is None or change.after is None:
            return ""
        more = change.after - change.before
        return f"{'+' if more > 0 else ''}{number(more)}"
    ratio = percent(change.ratio - 1)
    if change.interval is None:
        return "no interval" if change.processes > 1 else ratio
    return f"{ratio} [{percent(change.interval.low - 1)}, {percent(change.interval.high - 1)}]"
