"""The table of `pytest --perf -v`: every metric with its baseline, change and verdict, as wide as the terminal."""

from collections.abc import Sequence

from perfsuite.gate.messages import unit_of
from perfsuite.gate.verdict import Result
from perfsuite.measure.metric import span, title
from perfsuite.measure.words import change, number
from perfsuite.report.terminal.output import by_test, clipped

_NARROWEST_NAME = 24
"""Characters. Where less is left for the names, the table has no intervals."""

_GAP = 2
"""Characters between two columns, and before a name."""

_COLUMNS = ("metric", "value", "against", "change", "verdict")

_NO_CHANGE = 0.0005
"""A smaller relative change is not shown."""


def metric_table(results: Sequence[Result], width: int) -> list[tuple[str, Result | None]]:
    """The lines of the table, each with its gate; those of its head and of the tests' ids have none.

    No line is longer than `width` characters, where the values leave room for the names: names are cut in the middle.
    """
    with_intervals, without = (
        [_COLUMNS, *(_cells(result, intervals=each) for result in results)] for each in (True, False)
    )
    head, *rows = with_intervals if _left(with_intervals, width) >= _NARROWEST_NAME else without
    longest = max(_left([head, *rows], width), _NARROWEST_NAME // 2)
    said = _tests_that_say_their_target(results)
    named = [
        (" " * _GAP + _named(result, longest, with_target=result.test not in said), *row[1:])
        for result, row in zip(results, rows, strict=True)
    ]
    top, lines = by_test(head, named, [result.test for result in results])
    return [(top, None)] + [
        (clipped(line, width), None) if index is None else (line, results[index]) for line, index in lines
    ]


def relative_change(result: Result) -> float | None:
    """How much the metric differs from its baseline: 0.02 is 2 % more. None where that has no meaning."""
    return result.metric.value / result.baseline - 1 if result.baseline is not None and result.baseline > 0 else None


def _cells(result: Result, *, intervals: bool) -> tuple[str, ...]:
    """A row of the table, as yet without the name."""
    metric, share = result.metric, relative_change(result)
    against = "" if result.baseline is None else number(result.baseline)
    if result.source == "budget" and result.limit is not None:
        against = f"{number(result.limit)} (budget)"
    return (
        "",
        f"{span(metric.value, metric.interval if intervals else None)} {unit_of(metric.value, metric)}",
        against,
        change(share, 3) if share and abs(share) >= _NO_CHANGE else "",
        str(result.verdict),
    )


def _left(rows: Sequence[Sequence[str]], width: int) -> int:
    """The characters that the other columns leave for the names."""
    return width - _GAP - sum(max(map(len, cells)) + _GAP for cells in list(zip(*rows, strict=True))[1:])


def _tests_that_say_their_target(results: Sequence[Result]) -> set[str]:
    """The ids that name, in their brackets, the one target that all metrics of the test are of."""
    targets: dict[str, set[str | None]] = {}
    for result in results:
        targets.setdefault(result.test, set()).add(result.metric.target)
    return {
        test
        for test, (target, *others) in targets.items()
        if target is not None and not others and target in test.partition("[")[2]
    }


def _named(result: Result, most: int, *, with_target: bool) -> str:
    metric = result.metric
    target = "" if metric.target is None or not with_target else title("", metric.target)
    return clipped(metric.name, max(most - len(target), _NARROWEST_NAME // 3)) + target
