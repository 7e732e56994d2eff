"""The closing lines of a session: how many metrics have which verdict, and why some of them are open.

Their number depends on the verdicts that there are, never on how many metrics have them.
"""

import collections
import textwrap
from collections.abc import Callable, Iterable, Sequence

from perfsuite.gate.verdict import Gate, Verdict
from perfsuite.measure.words import change, plural
from perfsuite.report import text
from perfsuite.report.terminal.metric_table import relative_change
from perfsuite.report.terminal.output import clipped

Line = tuple[str, dict[str, bool]]
"""A line, and pytest's markup of it."""

COLORS: dict[Verdict, dict[str, bool]] = {
    "fail": {"red": True},
    "missing": {"red": True},
    "inconclusive": {"yellow": True},
    "improved": {"green": True},
    "not comparable": {"yellow": True},
    "new": {"cyan": True},
    "recorded": {"cyan": True},
}

_ORDER: tuple[Verdict, ...] = (
    "fail", "missing", "inconclusive", "not comparable", "improved", "new", "recorded", "pass", "info"
)  # fmt: skip
"""Of two gates of one metric the verdict counts that comes first here."""

_COUNTED: tuple[Verdict, ...] = (
    "fail", "missing", "pass", "improved", "new", "inconclusive", "not comparable", "info"
)  # fmt: skip

_LONGEST_NAME = 40

_REASONS = 2
"""How many reasons a line names, the commonest first."""


def overview(gates: Sequence[Gate], gone: Sequence[Gate], *, saving: bool, width: int) -> list[Line]:
    """The lines, none longer than `width`. `gone` are the gates of recorded metrics whose tests are gone."""
    verdicts: dict[tuple[str, str], Verdict] = {}
    for gate in gates:
        key = gate.test, gate.metric.title
        verdicts[key] = min(gate.verdict, verdicts.get(key, gate.verdict), key=_ORDER.index)
    counts = collections.Counter(verdicts.values())
    said = f"{plural(len(verdicts), 'metric')} of {plural(len({test for test, _ in verdicts}), 'test')}"
    if verdicts and not saving:
        said += ": " + ", ".join(f"{counts[each]:,} {each}" for each in _COUNTED if counts[each])
    lines: list[Line] = [(said, {})]
    lines += _open("inconclusive", gates, text.why_open)
    if not saving:
        lines += _open("not comparable", gates, lambda gate: gate.incomparable)
        lines += _to_record([gate for gate in gates if gate.verdict == "improved"], counts["new"])
        lines += _moved([gate for gate in gates if gate.recorded_as])
    lines += _gone(gone)
    return [(_wrapped(line, width), markup) for line, markup in lines]


def explanations(gates: Iterable[Gate]) -> list[Line]:
    """For -v: what is known of metrics that failed beside their change, and the reasons of the open ones."""
    explained = [
        gate
        for gate in gates
        if gate.verdict in ("inconclusive", "not comparable")
        or (gate.failed and (gate.grown or gate.versions or text.cause(gate) or gate.program or gate.strict))
    ]
    explained.sort(key=lambda gate: _ORDER.index(gate.verdict))
    return [
        (f"{gate.verdict}: {gate.test}{gate.where and f' at {gate.where}'}: {text.in_full(gate)}", COLORS[gate.verdict])
        for gate in explained
    ]


def _open(verdict: Verdict, gates: Sequence[Gate], why: Callable[[Gate], str]) -> list[Line]:
    """How many metrics have an open verdict and why; an example of the commonest reason, and what would settle it."""
    by_metric = {(gate.test, gate.metric.title): gate for gate in reversed(gates) if gate.verdict == verdict}
    found = list(reversed(by_metric.values()))
    if not found:
        return []
    reasons = collections.Counter(map(why, found)).most_common()
    named = [f"{count:,} {reason}" for reason, count in reasons[:_REASONS]]
    others = sum(count for _, count in reasons[_REASONS:])
    lines = [f"{verdict}: {'; '.join(named)}{f'; {others:,} others' if others else ''}"]
    example = next(gate for gate in found if why(gate) == reasons[0][0])
    if settles := text.to_settle(example):
        lines.append(f"  {clipped(example.metric.title, _LONGEST_NAME)}: {settles}")
    return [(line, COLORS[verdict]) for line in lines]


def _to_record(improved: Sequence[Gate], new: int) -> list[Line]:
    """What a save would record: improvements with the largest of them, and metrics without a baseline."""
    lines: list[Line] = []
    if improved:
        best = max(improved, key=lambda gate: abs(relative_change(gate) or 0.0))
        by = f" ({change(relative_change(best), 3)})" if relative_change(best) else ""
        more = f", and {len(improved) - 1:,} more" if improved[1:] else ""
        lines.append((f"improved: {best.metric.title}{by}{more}: pytest --perf-save records it", COLORS["improved"]))
    if new:
        lines.append((f"new: {text.without_baseline(new)}", COLORS["new"]))
    return lines


def _moved(moved: Sequence[Gate]) -> list[Line]:
    """Calls that changed places: the first of them, with the other's name."""
    if not moved:
        return []
    more = f" ({len(moved) - 1:,} more)" if moved[1:] else ""
    return [(f"moved: {moved[0].test}: {moved[0].metric.title} {text.moved(moved[0])}{more}", {"yellow": True})]


def _gone(gone: Sequence[Gate]) -> list[Line]:
    """The first test that is gone with its metrics, and how many more are."""
    if not gone:
        return []
    tests = list(dict.fromkeys(gate.test for gate in gone))
    more = f"; {plural(len(tests) - 1, 'more test')} too" if tests[1:] else ""
    said = text.of_a_test_gone(tests[0], [gate for gate in gone if gate.test == tests[0]])
    return [(f"missing: {said}{more}", COLORS["missing"])]


def _wrapped(line: str, width: int) -> str:
    """The line in two lines at most, none longer than `width`."""
    return textwrap.fill(
        line,
        width,
        subsequent_indent="  ",
        max_lines=2,
        placeholder=" ...",
        break_on_hyphens=False,
        drop_whitespace=True,
        replace_whitespace=False,
    )
