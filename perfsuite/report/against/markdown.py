"""The report of `perfsuite against` as GitHub's Markdown: regressions first, what did not change folded."""

from collections.abc import Iterable, Iterator

from perfsuite.against.found import Check, MetricChange, TestChange
from perfsuite.report.against import text
from perfsuite.report.markdown import block, code, escaped, folded, table


def markdown(check: Check) -> str:
    """The text of a pull request's comment, or of a job's summary."""
    lost = [test for test in check.tests if test.worse]
    others = [test for test in check.tests if not test.worse]
    by_kind = {kind: [change for change in check.changes if change.called == kind] for kind in ("worse", "better")}
    rest = [change for change in check.changes if change.called not in by_kind]
    parts = [f"## perfsuite: {escaped(text.verdict(check) or 'nothing was compared')}"]
    parts += [f"**{escaped(note)}**" for note in check.notes]
    for kind, changes in by_kind.items():
        if changes:
            parts += [f"### {len(changes)} {kind}", _table(changes)]
    if causes := list(_causes(by_kind["worse"])):
        parts.append(folded("why", block("\n\n".join(causes))))
    if lost:
        parts += [f"### {len(lost)} no longer pass", _tests(lost)]
    if others:
        parts.append(folded(f"{len(others)} other tests that did not pass on both sides", _tests(others)))
    if rest:
        parts.append(folded(escaped(text.counted(rest)), _table(rest)))
    parts.append(folded("what was compared, and how", "\n".join(f"- {escaped(line)}" for line in _how(check))))
    return "\n\n".join(parts) + "\n"


def _how(check: Check) -> list[str]:
    return [*text.sides(check), *text.summary(check)]


def _table(changes: Iterable[MetricChange]) -> str:
    rows = [
        (
            f"{code(change.test, in_table=True)}<br>{code(change.metric, in_table=True)}",
            escaped(text.value(change.base, change.unit)),
            escaped(text.value(change.head, change.unit)),
            escaped(text.relative(change) or change.called),
        )
        for change in changes
    ]
    return table(("benchmark", "base", "head", "change"), rows)


def _causes(changes: Iterable[MetricChange]) -> Iterator[str]:
    for change in changes:
        if lines := text.why(change):
            yield "\n".join([f"{change.test}: {change.metric}", *(f"  {line}" for line in lines)])


def _tests(tests: Iterable[TestChange]) -> str:
    rows = [
        (code(test.test, in_table=True), escaped(test.base), escaped(test.head), escaped(test.reason)) for test in tests
    ]
    return table(("test", "base", "head", "why"), rows)
