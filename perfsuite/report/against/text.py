"""What every report of `perfsuite against` says in words: values, changes, causes and the last line."""

from collections import Counter
from collections.abc import Iterator, Sequence

from perfsuite.against.found import ERROR, Check, MetricChange
from perfsuite.against.times import smallest_seen
from perfsuite.measure.words import number, percent, plural
from perfsuite.report.text import growth


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
    """The lines below a change: its reason, its grown parts, what else changed in the test, and where it is made."""
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
    for side in both:
        broken = side.environment.contradictions
        lines += [f"{side.name}, conflict with a package's requirements: {line}" for line in broken]
    return lines


def summary(check: Check) -> Iterator[str]:
    """How the times were taken, and how many metrics there are of each kind."""
    timed = [change for change in check.changes if change.processes > 1]
    if timed:
        yield (
            f"times: {plural(len(timed), 'metric')} of {plural(check.timed, 'test')} from {sum(check.windows)} "
            "processes on each side, in random order; the probability that any of their verdicts is wrong is at most "
            f"{ERROR:.0%}"
        )
        seen = smallest_seen(timed)
        if seen is not None:
            yield f"half of them would show a change of {seen:.1%}: more --rounds and --minutes show smaller ones"
    if check.untimed:
        yield f"not timed: {plural(check.untimed, 'test')}{'' if timed or check.timed else ' with times'}"
    yield (
        f"{plural(len(check.changes), 'metric')}: {counted(check.changes)}"
        if check.changes
        else "no metric was made on both sides"
    )


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
