"""`perfsuite against` and `perfsuite bisect` for people: the sentences, the terminal's tables, and the Markdown.

The Markdown is for a pull request's comment.
"""

from collections.abc import Iterable, Iterator

from perfsuite.against.bisection import Bisection, Step
from perfsuite.against.changes import ERROR, Check, TestChange, smallest_change
from perfsuite.gate.messages import evidence_lines, verdict_counts
from perfsuite.gate.verdict import Result, Verdict
from perfsuite.measure.words import number, percent, plural
from perfsuite.report.markdown import block, changes_table, code, escaped, folded, table
from perfsuite.report.tables import Paint, aligned, clipped, result_lines, uncolored

_BISECT_STYLES = {"good": "green", "bad": "red", "skipped": "yellow"}
_LONGEST_NAME = 70
_CHANGES_SHOWN = 12


def check_lines(check: Check, *, everything: bool = False, paint: Paint = uncolored) -> list[str]:
    """The lines. `everything` also lists the metrics that did not change."""
    lines = [*_sides(check), *(paint(f"note: {note}", "yellow") for note in check.notes)]
    if check.tests:
        lines += ["", "not compared, because they did not pass on both sides:"]
    for test in check.tests:
        line = f"  {test.test}: {test.base} -> {test.head}"
        lines += [paint(line, "red") if test.worse else line, *([f"    {test.reason}"] if test.reason else [])]
    shown = [change for change in check.changes if everything or not _quiet(change)]
    if shown:
        lines += ["", *result_lines(shown, paint)]
    lines += ["", *_summary(check)]
    last = _conclusion(check)
    return [*lines, paint(last, "red" if check.worse else "green")] if last else lines


def bisection_lines(bisection: Bisection, paint: Paint = uncolored) -> Iterator[str]:
    """The lines: the steps in the order in which they were tried, and then the answer."""
    yield paint(f"{bisection.test}::{bisection.metric}", "bold")
    rows = [(f"  {clipped(step.name, _LONGEST_NAME)}", _step_value(step), step.verdict) for step in bisection.steps]
    head, *body = aligned([("  step", "value", "verdict"), *rows])
    yield head
    for line, step in zip(body, bisection.steps, strict=True):
        yield paint(line, _BISECT_STYLES[step.verdict])
        if step.reason:
            yield f"      {step.reason}"
    yield ""
    if len(bisection.suspects) > 1:
        yield paint(f"the first {bisection.first} step is one of these: what could not be tried hides it", "yellow")
        yield from (f"  {name}" for name in bisection.suspects)
        return
    yield paint(
        f"the first {bisection.first} step: {bisection.suspects[0]}", "red" if bisection.first == "bad" else "green"
    )
    yield from (f"  {line}" for line in bisection.about)
    if bisection.packages:
        yield f"  packages that differ: {', '.join(bisection.packages)}"
    if bisection.changes:
        yield "what changed in this test, from the better step to the worse one:"
        yield from result_lines(bisection.changes[:_CHANGES_SHOWN], paint)
    if bisection.changes[_CHANGES_SHOWN:]:
        yield f"  and {len(bisection.changes) - _CHANGES_SHOWN} more: --json"


def _step_value(step: Step) -> str:
    if step.interval is not None:
        low, high = step.interval.low, step.interval.high
        return f"{percent((low * high) ** 0.5 - 1)} [{percent(low - 1)}, {percent(high - 1)}]"
    return "-" if step.value is None else f"{number(step.value)} {step.unit}"


def against_markdown(check: Check) -> str:
    """The text of a pull request's comment, or of a job's summary: regressions first, what did not change folded."""
    first = (Verdict.FAIL, Verdict.IMPROVED)
    by_verdict = {verdict: [change for change in check.changes if change.verdict == verdict] for verdict in first}
    rest = [change for change in check.changes if change.verdict not in first]
    parts = [f"## perfsuite: {escaped(_conclusion(check) or 'nothing was compared')}"]
    parts += [f"**{escaped(note)}**" for note in check.notes]
    for verdict, changes in by_verdict.items():
        if changes:
            parts += [f"### {len(changes)} {verdict}", changes_table(changes)]
    causes = [
        "\n  ".join([f"{each.test}: {each.metric.title}", *evidence_lines(each)])
        for each in by_verdict[Verdict.FAIL]
        if evidence_lines(each)
    ]
    if causes:
        parts.append(folded("why", block("\n\n".join(causes))))
    if check.tests:
        parts += [f"### {plural(len(check.tests), 'test')} did not pass on both sides", _tests(check.tests)]
    if rest:
        parts.append(folded(escaped(verdict_counts(change.verdict for change in rest)), changes_table(rest)))
    how = [*_sides(check), *_summary(check)]
    parts.append(folded("what was compared, and how", "\n".join(f"- {escaped(line)}" for line in how)))
    return "\n\n".join(parts) + "\n"


def _tests(tests: Iterable[TestChange]) -> str:
    rows = [
        (code(test.test, in_table=True), escaped(test.base), escaped(test.head), escaped(test.reason)) for test in tests
    ]
    return table(("test", "base", "head", "why"), rows)


def _quiet(change: Result) -> bool:
    """Whether a change is only counted, and listed on request: none was seen, or a time is undecided, as many are."""
    return change.verdict == Verdict.PASS or (change.verdict == Verdict.INCONCLUSIVE and change.ratio is not None)


def _sides(check: Check) -> list[str]:
    """What is compared: the two sides, and the packages that differ or contradict each other."""
    both = (check.base, check.head)
    lines = [f"{side.name}: {side.title}" for side in both]
    lines.append(f"packages that differ: {', '.join(check.versions) or 'none'}")
    return lines + [f"{side.name}, conflict: {line}" for side in both for line in side.packages.conflicts]


def _summary(check: Check) -> Iterator[str]:
    """How the times were taken, and how many metrics there are of each kind."""
    timed = [change for change in check.changes if change.ratio is not None]
    if timed:
        yield (
            f"times: {plural(len(timed), 'metric')} of {plural(check.timed, 'test')} from {check.processes} processes "
            "on each side, in random order; the probability that any of their verdicts is wrong is at most "
            f"{ERROR:.0%}"
        )
        if (smallest := smallest_change(timed)) is not None:
            yield f"half of them would show a change of {smallest:.1%}: more --minutes show smaller ones"
    if check.untimed:
        yield f"not timed, because they run what they ran: {plural(check.untimed, 'test')}"
    if check.changes:
        yield f"{plural(len(check.changes), 'metric')}: {verdict_counts(change.verdict for change in check.changes)}"
    else:
        yield "no metric was made on both sides"


def _conclusion(check: Check) -> str:
    """The last line; empty where nothing was compared."""
    skipped = sum(test.skipped for test in check.tests)
    beside = f"; not compared, because skipped on both sides: {plural(skipped, 'test')}" if skipped else ""
    return (verdict := _verdict(check)) and f"{verdict}{beside}"


def _verdict(check: Check) -> str:
    lost = sum(test.worse for test in check.tests)
    if check.worse:
        tests = f" and {plural(lost, 'test')} no longer {'passes' if lost == 1 else 'pass'}" if lost else ""
        worse = sum(change.verdict == Verdict.FAIL for change in check.changes)
        return f"worse: {plural(worse, 'metric')}{tests}"
    if check.compared:
        undecided = sum(change.verdict == Verdict.INCONCLUSIVE for change in check.changes)
        return f"nothing is known to be worse: {undecided} inconclusive" if undecided else "nothing is worse"
    return "all tests are new: nothing to compare" if check.only_new else ""
