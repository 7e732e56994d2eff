"""The table of `pytest --perf -v`: every metric with its baseline, change and verdict, as wide as the terminal."""

from collections.abc import Sequence

from perfsuite.gate.verdict import Gate
from perfsuite.measure.metric import title
from perfsuite.measure.words import change, number, span
from perfsuite.report.terminal.output import by_test, clipped
from perfsuite.report.text import unit_of

_NARROWEST_NAME = 24
"""Characters. Where less is left for the names, the table has no intervals."""

_GAP = 2
"""Characters between two columns, and before a name."""

_COLUMNS = ("metric", "value", "against", "change", "verdict")

_NO_CHANGE = 0.0005
"""A smaller relative change is not shown."""


def metric_table(gates: Sequence[Gate], width: int) -> list[tuple[str, Gate | None]]:
    """The lines of the table, each with its gate; those of its head and of the tests' ids have none.

    No line is longer than `width` characters, where the values leave room for the names: names are cut in the middle.
    """
    with_intervals, without = ([_COLUMNS, *(_cells(gate, intervals=each) for gate in gates)] for each in (True, False))
    head, *rows = with_intervals if _left(with_intervals, width) >= _NARROWEST_NAME else without
    longest = max(_left([head, *rows], width), _NARROWEST_NAME // 2)
    said = _tests_that_say_their_target(gates)
    named = [
        (" " * _GAP + _named(gate, longest, with_target=gate.test not in said), *row[1:])
        for gate, row in zip(gates, rows, strict=True)
    ]
    top, lines = by_test(head, named, [gate.test for gate in gates])
    return [(top, None)] + [
        (clipped(line, width), None) if index is None else (line, gates[index]) for line, index in lines
    ]


def relative_change(gate: Gate) -> float | None:
    """How much the metric differs from its baseline: 0.02 is 2 % more. None where that has no meaning."""
    return gate.metric.value / gate.baseline - 1 if gate.baseline is not None and gate.baseline > 0 else None


def _cells(gate: Gate, *, intervals: bool) -> tuple[str, ...]:
    """A row of the table, as yet without the name."""
    metric, share = gate.metric, relative_change(gate)
    against = "" if gate.baseline is None else number(gate.baseline)
    if gate.source == "budget" and gate.limit is not None:
        against = f"{number(gate.limit)} (budget)"
    return (
        "",
        f"{span(metric.value, metric.interval if intervals else None)} {unit_of(metric.value, metric)}",
        against,
        change(share, 3) if share and abs(share) >= _NO_CHANGE else "",
        gate.verdict,
    )


def _left(rows: Sequence[Sequence[str]], width: int) -> int:
    """The characters that the other columns leave for the names."""
    return width - _GAP - sum(max(map(len, cells)) + _GAP for cells in list(zip(*rows, strict=True))[1:])


def _tests_that_say_their_target(gates: Sequence[Gate]) -> set[str]:
    """The ids that name, in their brackets, the one target that all metrics of the test are of."""
    targets: dict[str, set[str | None]] = {}
    for gate in gates:
        targets.setdefault(gate.test, set()).add(gate.metric.target)
    return {
        test
        for test, (target, *others) in targets.items()
        if target is not None and not others and target in test.partition("[")[2]
    }


def _named(gate: Gate, most: int, *, with_target: bool) -> str:
    metric = gate.metric
    target = "" if metric.target is None or not with_target else title("", metric.target)
    return clipped(metric.name, max(most - len(target), _NARROWEST_NAME // 3)) + target
