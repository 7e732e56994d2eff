"""The terminal's table of `perfsuite bisect`: what was tried, what was seen, and what did it."""

from collections.abc import Iterator

from perfsuite.against.bisection import Bisection, Step
from perfsuite.measure.words import number, percent
from perfsuite.report.terminal.against import changes_table
from perfsuite.report.terminal.output import Paint, Style, aligned, clipped, uncolored

_STYLES: dict[str, Style] = {"good": "green", "bad": "red", "skipped": "yellow"}
_LONGEST_NAME = 70
_CHANGES_SHOWN = 12


def bisection_lines(found: Bisection, paint: Paint = uncolored) -> Iterator[str]:
    """The lines: the steps in the order in which they were tried, and then the answer."""
    yield paint(f"{found.test}::{found.metric}", "bold")
    rows = [(f"  {clipped(step.name, _LONGEST_NAME)}", _value(step), step.verdict) for step in found.steps]
    head, *body = aligned([("  step", "value", "verdict"), *rows])
    yield head
    for line, step in zip(body, found.steps, strict=True):
        yield paint(line, _STYLES[step.verdict])
        if step.reason:
            yield f"      {step.reason}"
    yield ""
    if len(found.suspects) > 1:
        yield paint(f"the first {found.first} step is one of these: what could not be tried hides it", "yellow")
        yield from (f"  {name}" for name in found.suspects)
        return
    yield paint(f"the first {found.first} step: {found.suspects[0]}", "red" if found.first == "bad" else "green")
    yield from (f"  {line}" for line in found.about)
    if found.packages:
        yield f"  packages that differ: {', '.join(found.packages)}"
    if found.changes:
        yield "what changed in this test, from the better step to the worse one:"
        yield from changes_table(found.changes[:_CHANGES_SHOWN], paint)
    if found.changes[_CHANGES_SHOWN:]:
        yield f"  and {len(found.changes) - _CHANGES_SHOWN} more: --json"


def _value(step: Step) -> str:
    if step.interval is not None:
        low, high = step.interval.low, step.interval.high
        return f"{percent((low * high) ** 0.5 - 1)} [{percent(low - 1)}, {percent(high - 1)}]"
    return "-" if step.value is None else f"{number(step.value)} {step.unit}"
