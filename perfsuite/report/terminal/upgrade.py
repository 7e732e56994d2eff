"""The terminal's tables of `perfsuite upgrade-check`: what changed, by where."""

from collections import Counter
from collections.abc import Iterator, Sequence

import tabulate

from perfsuite.measure.words import number
from perfsuite.report.terminal.baselines import Paint, Style, plain
from perfsuite.report.terminal.terminal import LONGEST_NAME
from perfsuite.report.text import growth
from perfsuite.upgrade.changes import smallest_seen
from perfsuite.upgrade.found import ERROR, PLACES, Called, Change, Check

_STYLES: dict[Called, Style] = {
    "worse": "red",
    "better": "green",
    "undecided": "yellow",
    "not comparable": "yellow",
    "new": "cyan",
    "gone": "yellow",
}
_QUIET: tuple[Called, ...] = ("no change seen", "undecided")
"""What is counted and not listed, unless everything is."""


def render(check: Check, *, everything: bool = False, paint: Paint = plain) -> list[str]:
    """The lines. `everything` lists the metrics too that did not change."""
    lines = list(_head(check))
    lines += [paint(f"note: {note}", "yellow") for note in check.notes]
    lines += list(_tests(check, paint))
    for where in PLACES:
        here = [change for change in check.changes if change.where == where]
        shown = here if everything else [change for change in here if change.called not in _QUIET]
        if here:
            lines += ["", f"{where}: {_counted(here)}", *_table(shown, paint)]
    return [*lines, "", *_foot(check, paint)]


def _head(check: Check) -> Iterator[str]:
    for name, made in (("before", check.before), ("after", check.after)):
        asked = " ".join(made.specs) or "the present packages"
        yield f"{name}: {asked}"
    yield f"what differs: {', '.join(check.versions) or 'nothing, every package is the same'}"
    for line in check.after.contradictions:
        yield f"after, against a package's own word: {line}"
    for line in check.before.contradictions:
        yield f"before, against a package's own word: {line}"


def _tests(check: Check, paint: Paint) -> Iterator[str]:
    if not check.tests:
        return
    yield ""
    yield "tests that did not pass with both:"
    for test in check.tests:
        text = f"  {test.test}: {test.before} -> {test.after}"
        yield paint(text, "red") if test.worse else text
        if test.reason:
            yield f"    {test.reason}"


def _table(changes: Sequence[Change], paint: Paint) -> Iterator[str]:
    if not changes:
        return
    rows = [
        (
            f"  {_clipped(change.metric)}",
            _value(change.before, change.unit),
            _value(change.after, change.unit),
            _relative(change),
            change.called,
        )
        for change in changes
    ]
    columns = ("metric", "before", "after", "change", "called")
    text = tabulate.tabulate(rows, columns, tablefmt="plain", disable_numparse=True, preserve_whitespace=True)
    head, *lines = text.splitlines()
    yield head
    test = None
    for change, line in zip(changes, lines, strict=True):
        if change.test != test:
            test = change.test
            yield test
        style = _STYLES.get(change.called)
        yield paint(line, style) if style else line
        if change.reason:
            yield f"      {change.reason}"
        if change.grown:
            yield f"      {growth(change.grown, change.unit)}"


def _foot(check: Check, paint: Paint) -> Iterator[str]:
    timed = [change for change in check.changes if change.processes > 1]
    if timed:
        rounds = sum(check.windows)
        yield (
            f"times: {len(timed)} metrics over {rounds} processes of each side, in random order; any call among them "
            f"that is wrong has a chance of {ERROR:.0%} at most"
        )
        seen = smallest_seen(timed)
        if seen is not None:
            yield f"a change of {seen:.1%} would have been called in half of them: more --rounds see smaller ones"
    counts = Counter(change.called for change in check.changes)
    said = ", ".join(f"{count} {called}" for called, count in counts.most_common())
    yield f"{len(check.changes)} metrics: {said}" if check.changes else "no metric was made with both"
    lost = sum(test.worse for test in check.tests)
    if check.worse:
        tests = f" and {lost} test{'s' * (lost > 1)} no longer pass{'es' * (lost == 1)}" if lost else ""
        yield paint(f"worse: {counts['worse']} metrics{tests}", "red")
    else:
        yield paint("nothing is worse", "green")


def _counted(changes: Sequence[Change]) -> str:
    counts = Counter(change.called for change in changes)
    return ", ".join(f"{count} {called}" for called, count in counts.most_common())


def _value(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{number(value)} {unit}"


def _relative(change: Change) -> str:
    """`+12 % [+8 %, +17 %]`; plain numbers where a count begins at nothing."""
    if change.ratio is None:
        if change.before is None or change.after is None:
            return ""
        return f"{change.after - change.before:+,.4g}"
    if change.interval is None:
        return "no interval" if change.processes > 1 else percent(change.ratio)
    return f"{percent(change.ratio)} [{percent(change.interval.low)}, {percent(change.interval.high)}]"


def percent(ratio: float) -> str:
    """A ratio as a change in per cent, three significant digits: 1.062 is `+6.2 %`, 3.5 is `+250 %`."""
    return f"{float(f'{100 * (ratio - 1):.3g}'):+g} %"


def _clipped(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."
