"""The closing lines of a session: how many metrics have which verdict, and why some of them are open.

A green session closes with `MOST_LINES` at most, whatever its metrics. So each kind of note is one entry, with what to
do early in it: where the entries are too many, `fitted` cuts them from the last on, and then leaves out those that need
no action. -v has all of them.
"""

import collections
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from perfsuite.gate import messages
from perfsuite.gate.verdict import Result, Verdict
from perfsuite.measure.words import change, plural
from perfsuite.report.terminal.metric_table import relative_change
from perfsuite.report.terminal.output import clipped

MOST_LINES = 10
"""From the title of perfsuite's section to the end of it."""

_MOST_ROWS = 2
"""Rows of the terminal for one entry, where there is room."""


class Line(NamedTuple):
    """A line, or an entry that may be wrapped into several; pytest's markup; and whether it may be left out."""

    text: str
    markup: dict[str, bool]
    optional: bool = False


_LONGEST_NAME = 30

_REASONS = 2
"""How many reasons a line names, the commonest first."""


def painted(verdict: Verdict) -> dict[str, bool]:
    """The markup of a verdict, as pytest's reporter takes it."""
    return {verdict.color: True} if verdict.color else {}


def overview(
    results: Sequence[Result], gone: Sequence[Result], *, saving: bool, lost: Sequence[str] = ()
) -> list[Line]:
    """The entries of the closing lines. `gone` are the gates of recorded metrics whose tests are gone.

    `lost` says of each test that was skipped for it what does not work with the libraries that are installed.
    """
    verdicts: dict[tuple[str, str], Verdict] = {}
    for result in results:
        key = result.test, result.metric.title
        verdicts[key] = max(result.verdict, verdicts.get(key, result.verdict))
    counts = collections.Counter(verdicts.values())
    said = f"{plural(len(verdicts), 'metric')} of {plural(len({test for test, _ in verdicts}), 'test')}"
    if verdicts and not saving:
        said += ": " + ", ".join(f"{counts[each]:,} {each}" for each in sorted(counts, reverse=True))
    lines = [Line(said, {})] if verdicts or gone else []
    lines += [*_gone(gone), *_lost(lost)]
    lines += _open(Verdict.INCONCLUSIVE, results, messages.why_open)
    if over := [result for result in results if result.open_over]:
        lines.append(Line(f"over the limit and undecided: {messages.over(over)}", painted(Verdict.INCONCLUSIVE)))
    if not saving:
        others = [result for result in results if result.incomparable not in lost]
        lines += _open(Verdict.NOT_COMPARABLE, others, lambda result: result.incomparable)
        lines += _to_record([result for result in results if result.verdict == Verdict.IMPROVED], counts[Verdict.NEW])
        lines += _moved([result for result in results if result.recorded_as])
    return lines


def fitted(lines: Sequence[Line], width: int, most: int | None) -> list[Line]:
    """The entries in rows of `width` at most; where there are more than `most`, cut, or left out if they are optional.

    Where `most` is None, all of every entry.
    """
    rows = [_wrapped(line.text, width, None if most is None else _MOST_ROWS) for line in lines]
    places = list(reversed(range(len(lines))))
    for place, allowed in [(place, 1) for place in places] + [(place, 0) for place in places if lines[place].optional]:
        if most is None or sum(map(len, rows)) <= most:
            break
        rows[place] = _wrapped(lines[place].text, width, allowed)
    return [Line(row, line.markup) for line, of_line in zip(lines, rows, strict=True) for row in of_line]


def explanations(results: Iterable[Result], gone: Sequence[Result] = ()) -> list[Line]:
    """For -v: what is known of metrics that failed beside their change, the reasons of open ones, and tests gone."""
    explained = [
        result
        for result in results
        if result.verdict in (Verdict.INCONCLUSIVE, Verdict.NOT_COMPARABLE)
        or result.recorded_as
        or (
            result.failed
            and (result.grown or result.versions or messages.cause(result) or result.program or result.strict)
        )
    ]
    explained.sort(key=lambda result: result.verdict, reverse=True)
    tests = dict.fromkeys(result.test for result in gone)
    return [
        Line(
            f"{result.verdict}: {result.test}{result.where and f' at {result.where}'}: {messages.in_full(result)}",
            painted(result.verdict),
        )
        for result in explained
    ] + [
        Line(
            f"missing: {messages.of_a_test_gone(test, [gate for gate in gone if gate.test == test])}",
            painted(Verdict.MISSING),
        )
        for test in tests
    ]


def _open(verdict: Verdict, results: Sequence[Result], why: Callable[[Result], str]) -> list[Line]:
    """How many metrics have an open verdict and why; an example of the commonest reason, and what would settle it."""
    by_metric = {
        (result.test, result.metric.title): result for result in reversed(results) if result.verdict == verdict
    }
    found = list(reversed(by_metric.values()))
    if not found:
        return []
    reasons = collections.Counter(map(why, found))
    lines = [Line(_reasons(str(verdict), reasons), painted(verdict))]
    example = next(result for result in found if why(result) == reasons.most_common(1)[0][0])
    if settles := messages.to_settle(example):
        name = clipped(example.metric.title, _LONGEST_NAME)
        lines.append(Line(f"  {name}: {settles}", painted(verdict), optional=True))
    return lines


def _reasons(what: str, counts: collections.Counter[str]) -> str:
    """The commonest reasons, each with its count: `not comparable: 12 another Python; 3 others`."""
    named = [f"{count:,} {reason}" for reason, count in counts.most_common(_REASONS)]
    others = counts.total() - sum(count for _, count in counts.most_common(_REASONS))
    return f"{what}: {'; '.join(named)}{f'; {others:,} others' if others else ''}"


def _to_record(improved: Sequence[Result], new: int) -> list[Line]:
    """What a save would record: improvements with the largest of them, and metrics without a baseline."""
    lines: list[Line] = []
    if improved:
        best = max(improved, key=lambda result: abs(relative_change(result) or 0.0))
        by = f" ({change(relative_change(best), 3)})" if relative_change(best) else ""
        more = f", and {len(improved) - 1:,} more" if improved[1:] else ""
        name = clipped(best.metric.title, _LONGEST_NAME)
        lines.append(Line(f"improved: {name}{by}{more}: pytest --perf-save records it", painted(Verdict.IMPROVED)))
    if new:
        lines.append(Line(f"new: {messages.without_baseline(new)}", painted(Verdict.NEW)))
    return lines


def _moved(moved: Sequence[Result]) -> list[Line]:
    """Calls that changed places: how many metrics, and the first of them."""
    if not moved:
        return []
    said = (
        f"{plural(len(moved), 'metric')} of calls that changed places: give each its name=, or run pytest --perf-save"
    )
    return [Line(f"moved: {said}: {moved[0].metric.title} of {moved[0].test}", {"yellow": True})]


def _gone(gone: Sequence[Result]) -> list[Line]:
    """The first test that is gone with its metrics, and how many more are."""
    if not gone:
        return []
    tests = list(dict.fromkeys(result.test for result in gone))
    more = f"; {plural(len(tests) - 1, 'more test')} too" if tests[1:] else ""
    said = messages.of_a_test_gone(tests[0], [result for result in gone if result.test == tests[0]])
    return [Line(f"missing: {said}{more}", painted(Verdict.MISSING))]


def _lost(lost: Sequence[str]) -> list[Line]:
    """How many tests were skipped for what does not work with the libraries that are installed."""
    if not lost:
        return []
    skipped = f"{plural(len(lost), 'test')} skipped"
    said = f"{skipped}: {lost[0]}" if len({*lost}) == 1 else _reasons(skipped, collections.Counter(lost))
    return [Line(said, {"yellow": True})]


def _wrapped(line: str, width: int, most: int | None) -> list[str]:
    """The line in `most` rows, none longer than `width`."""
    if most == 0:
        return []
    return textwrap.wrap(
        line,
        width,
        subsequent_indent="  ",
        max_lines=most,
        placeholder=" ...",
        break_on_hyphens=False,
        drop_whitespace=True,
        replace_whitespace=False,
    )
