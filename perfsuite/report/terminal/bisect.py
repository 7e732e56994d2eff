"""The terminal's table of `perfsuite bisect`: what was tried, what was seen, and what did it."""

from collections.abc import Iterator, Sequence

from perfsuite.against.found import MetricChange
from perfsuite.bisecting.found import About, Answer, Bisection, Step
from perfsuite.measure.words import number, percent, plural
from perfsuite.report.terminal.output import Paint, Style, aligned, clipped, uncolored
from perfsuite.report.text import growth

_STYLES: dict[str, Style] = {"good": "green", "bad": "red", "skipped": "yellow"}
_LONGEST_NAME = 70
_CHANGES_SHOWN = 12
_SUSPECTS_SHOWN = 20


def bisection_lines(found: Bisection, paint: Paint = uncolored) -> list[str]:
    """The lines: the steps in the order in which they were tried, and then the answers."""
    lines = [paint(f"{found.test}::{found.metric}", "bold"), *_steps(found, paint)]
    lines += [paint(f"note: {note}", "yellow") for note in found.notes]
    if not found.made:
        lines.append(f"every step was tried before, and kept in {found.kept}: --again tries them again")
    elif len(found.made) < len(found.steps):
        kept = plural(len(found.steps) - len(found.made), "step")
        lines.append(f"{kept} tried before, kept in {found.kept}: --again tries all again")
    for answer in found.answers:
        lines += ["", *_answer(found, answer, paint)]
    return lines


def _steps(found: Bisection, paint: Paint) -> Iterator[str]:
    rows = [
        (f"  {_name(found, step)}", _value(step, found), step.verdict, f"{step.seconds:.0f} s") for step in found.steps
    ]
    head, *body = aligned([("  step", "value", "verdict", "took"), *rows])
    yield head
    for line, step in zip(body, found.steps, strict=True):
        yield paint(line, _STYLES[step.verdict])
        if step.reason:
            yield f"      {step.reason}"


def _name(found: Bisection, step: Step) -> str:
    end = {found.good: " (good end)", found.bad: " (bad end)"}.get(step.id, "")
    return f"{clipped(found.names[step.id], _LONGEST_NAME)}{end}"


def _value(step: Step, found: Bisection) -> str:
    if step.interval is not None:
        low, high = step.interval.low, step.interval.high
        return f"{percent((low * high) ** 0.5 - 1)} [{percent(low - 1)}, {percent(high - 1)}]"
    return "-" if step.value is None else f"{number(step.value)} {step.unit}"


def _answer(found: Bisection, answer: Answer, paint: Paint) -> Iterator[str]:
    what = f"release of {answer.package}" if answer.package else "commit"
    which = f"the first {answer.first} {what}"
    if len(answer.suspects) > 1:
        skipped = "what could not be tried hides it"
        yield paint(f"{which} is one of {len(answer.suspects)} ({skipped}):", "yellow")
        for about in answer.about[:_SUSPECTS_SHOWN]:
            yield f"  {about.title}"
        if answer.about[_SUSPECTS_SHOWN:]:
            yield f"  and {len(answer.about) - _SUSPECTS_SHOWN} more"
        return
    (about,) = answer.about
    style: Style = "red" if answer.first == "bad" else "green"
    yield paint(f"{which} is {about.title}", style)
    yield from _about(about)
    yield from _seen(found, answer, about)
    if answer.grown:
        where = "" if answer.first == "bad" else "the step before it has "
        yield f"  {where}{growth(answer.grown, found.step(found.good).unit)}"
    if answer.program:
        yield "  how the program differs:"
        yield from (f"    {line}" for line in answer.program)
    yield from _changes([change for change in answer.changes if change.metric != found.metric])


def _about(about: About) -> Iterator[str]:
    if about.author:
        yield f"  {about.author}, {about.day}"
    for line in about.message.splitlines():
        yield f"    {line}".rstrip()
    yield from about.stat
    if about.packages:
        yield f"  what differs from the release before: {', '.join(about.packages)}"
    if about.address:
        yield f"  what is new in it: {about.address}"


def _seen(found: Bisection, answer: Answer, about: About) -> Iterator[str]:
    """The metric before it and with it; and at the newer end, where it moved again after that."""
    if not answer.before or found.looks != "exact":
        return
    before, here = found.step(answer.before), found.step(answer.suspects[0])
    if before.value is None or here.value is None:
        return
    yield f"  {found.metric}: {number(before.value)} -> {number(here.value)} {here.unit}"
    end = found.step(found.bad if answer.first == "bad" else found.good)
    if end.value is not None and end.value != here.value:
        step = about.title.split()[-1] if answer.package else answer.suspects[0][:12]
        option = f"--{'good' if answer.first == 'bad' else 'bad'} {step}"
        on = f"search on with {f'--package {answer.package} ' if answer.package else ''}{option}"
        yield f"  the {answer.first} end has {number(end.value)}: it moved again after this step; {on}"


def _changes(changes: Sequence[MetricChange]) -> Iterator[str]:
    if not changes:
        return
    yield "  what else changed in this test:"
    rows = [
        (
            f"    {clipped(change.metric)}",
            _amount(change.base),
            "->",
            _amount(change.head),
            change.unit,
            change.called,
        )
        for change in changes[:_CHANGES_SHOWN]
    ]
    yield from aligned(rows)
    if changes[_CHANGES_SHOWN:]:
        yield f"    and {len(changes) - _CHANGES_SHOWN} more: --json"


def _amount(value: float | None) -> str:
    return "-" if value is None else number(value)
