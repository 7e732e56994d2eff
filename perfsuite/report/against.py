"""What every report of `perfsuite against` says in words, and the Markdown for a pull request's comment."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from perfsuite.against.changes import ERROR, Check, MetricChange, TestChange, smallest_seen
from perfsuite.gate.messages import growth
from perfsuite.measure.words import number, percent, plural
from perfsuite.report.markdown import block, code, escaped, folded, table


def markdown(check: Check) -> str:
    """The text of a pull request's comment, or of a job's summary: regressions first, what did not change folded."""
    by_kind = {kind: [change for change in check.changes if change.called == kind] for kind in ("worse", "better")}
    rest = [change for change in check.changes if change.called not in by_kind]
    parts = [f"## perfsuite: {escaped(verdict(check) or 'nothing was compared')}"]
    parts += [f"**{escaped(note)}**" for note in check.notes]
    for kind, changes in by_kind.items():
        if changes:
            parts += [f"### {len(changes)} {kind}", _table(changes)]
    causes = ["\n  ".join([f"{each.test}: {each.metric}", *why(each)]) for each in by_kind["worse"] if why(each)]
    if causes:
        parts.append(folded("why", block("\n\n".join(causes))))
    if check.tests:
        parts += [f"### {plural(len(check.tests), 'test')} did not pass on both sides", _tests(check.tests)]
    if rest:
        parts.append(folded(escaped(counted(rest)), _table(rest)))
    how = [*sides(check), *summary(check)]
    parts.append(folded("what was compared, and how", "\n".join(f"- {escaped(line)}" for line in how)))
    return "\n\n".join(parts) + "\n"


def _table(changes: Iterable[MetricChange]) -> str:
    rows = [
        (
            f"{code(change.test, in_table=True)}<br>{code(change.metric, in_table=True)}",
            escaped(value(change.base, change.unit)),
            escaped(value(change.head, change.unit)),
            escaped(relative(change) or change.called),
        )
        for change in changes
    ]
    return table(("benchmark", "base", "head", "change"), rows)


def _tests(tests: Iterable[TestChange]) -> str:
    rows = [
        (code(test.test, in_table=True), escaped(test.base), escaped(test.head), escaped(test.reason)) for test in tests
    ]
    return table(("test", "base", "head", "why"), rows)


def quiet(change: MetricChange) -> bool:
    """Whether a change is only counted, and listed on request: none was seen, or a time is undecided, as many are."""
    return change.called == "no change seen" or (change.called == "undecided" and change.processes > 1)


def value(amount: float | None, unit: str) -> str:
    """A value with its unit; `-` for none."""
    return "-" if amount is None else f"{number(amount)} {unit}"


def relative(change: MetricChange) -> str:
    """`+12 % [+8 %, +17 %]`; the plain difference where a count begins at 0."""
    if change.ratio is None:
        if change.base is None or change.head is None:
            return ""
        more = change.head - change.base
        return f"{'+' if more > 0 else ''}{number(more)}"
    ratio = percent(change.ratio - 1)
    if change.interval is None:
        return "no interval" if change.processes > 1 else ratio
    return f"{ratio} [{percent(change.interval.low - 1)}, {percent(change.interval.high - 1)}]"


def why(change: MetricChange) -> list[str]:
    """What explains a change: a reason, the parts that grew, what else changed in the test, and where it is made."""
    lines = [change.reason] if change.reason else []
    if change.grown:
        lines.append(growth(change.grown, change.unit))
    if change.called == "worse":
        if change.metric.partition(" @ ")[0].endswith(" alias bytes"):
            lines.append("lost donation: fewer bytes of donated arguments are reused for outputs")
        if change.changed:
            lines.append(f"changed in this test: {', '.join(change.changed)}")
        elif change.processes > 1 and change.unit != "s":
            lines.append("cause unknown: nothing that is exact changed in this test")
        if change.line:
            lines.append(f"measured at {change.line}")
    return lines


def sides(check: Check) -> list[str]:
    """What is compared: the two sides, and the packages that differ or contradict each other."""
    both = (check.base, check.head)
    lines = [f"{side.name}: {side.title}" for side in both]
    lines.append(f"packages that differ: {', '.join(check.versions) or 'none'}")
    return lines + [f"{side.name}, conflict: {line}" for side in both for line in side.packages.conflicts]


def summary(check: Check) -> Iterator[str]:
    """How the times were taken, and how many metrics there are of each kind."""
    timed = [change for change in check.changes if change.processes > 1]
    if timed:
        yield (
            f"times: {plural(len(timed), 'metric')} of {plural(check.timed, 'test')} from {check.processes} processes "
            "on each side, in random order; the probability that any of their verdicts is wrong is at most "
            f"{ERROR:.0%}"
        )
        if (seen := smallest_seen(timed)) is not None:
            yield f"half of them would show a change of {seen:.1%}: more --minutes show smaller ones"
    if check.untimed:
        yield f"not timed, because they run what they ran: {plural(check.untimed, 'test')}"
    if check.changes:
        yield f"{plural(len(check.changes), 'metric')}: {counted(check.changes)}"
    else:
        yield "no metric was made on both sides"


def verdict(check: Check) -> str:
    """The last line; empty where nothing was compared."""
    lost = sum(test.worse for test in check.tests)
    if check.worse:
        tests = f" and {plural(lost, 'test')} no longer {'passes' if lost == 1 else 'pass'}" if lost else ""
        worse = sum(change.called == "worse" for change in check.changes)
        return f"worse: {plural(worse, 'metric')}{tests}"
    if check.compared:
        undecided = sum(change.called == "undecided" for change in check.changes)
        return f"nothing is known to be worse: {undecided} undecided" if undecided else "nothing is worse"
    return "all tests are new: nothing to compare" if check.only_new else ""


def counted(changes: Sequence[MetricChange]) -> str:
    """How many changes there are of each kind: `3 worse, 12 no change seen`."""
    counts = Counter(change.called for change in changes)
    return ", ".join(f"{count} {called}" for called, count in counts.most_common())
