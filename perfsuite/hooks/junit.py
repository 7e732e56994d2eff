"""The metrics of a perf test as properties of its test case, in the file that pytest's --junitxml writes.

They are pytest's `user_properties`, which other reports (pytest-reportlog, pytest-json-report) have too, and which
pytest-xdist sends to the main process.
"""

from collections.abc import Sequence

import pytest

from perfsuite.gate.verdict import Gate
from perfsuite.measure.words import number, span


def add_properties(item: pytest.Item, gates: Sequence[Gate]) -> None:
    """Add one property a metric to what pytest will report of the test: its title, and what `in_words` says."""
    by_title: dict[str, list[Gate]] = {}
    for gate in gates:
        by_title.setdefault(gate.metric.title, []).append(gate)
    item.user_properties += [(title, in_words(of_metric)) for title, of_metric in by_title.items()]


def in_words(gates: Sequence[Gate]) -> str:
    """A metric with its interval, unit and verdicts: `1.062 [1.055, 1.07] x, pass (budget 1.1), fail (baseline 1)`.

    A metric with a budget and a baseline has a gate, and so a verdict, of each; `gates` are those of one metric.
    """
    made = gates[0].metric
    verdicts = ", ".join(f"{gate.verdict}{_held_against(gate)}" for gate in gates)
    return f"{span(made.value, made.interval)} {made.unit}, {verdicts}"


def _held_against(gate: Gate) -> str:
    if gate.source == "budget" and gate.limit is not None:
        return f" (budget {number(gate.limit)})"
    return "" if gate.baseline is None else f" (baseline {number(gate.baseline)})"
