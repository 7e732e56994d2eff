"""The metrics of a perf test as properties of its test case, in the file that pytest's --junitxml writes.

They are pytest's `user_properties`: pytest-reportlog and pytest-json-report have them, too, and pytest-xdist sends them
to the main process.
"""

from collections.abc import Sequence

import pytest

from perfsuite.gate.verdict import Gate
from perfsuite.measure.words import number, span


def add_properties(item: pytest.Item, gates: Sequence[Gate]) -> None:
    """Add one property for each metric: its title, and `property_value` of its gates."""
    by_title: dict[str, list[Gate]] = {}
    for gate in gates:
        by_title.setdefault(gate.metric.title, []).append(gate)
    item.user_properties += [(title, property_value(of_metric)) for title, of_metric in by_title.items()]


def property_value(gates: Sequence[Gate]) -> str:
    """A metric with its interval, unit and verdicts: `1.062 [1.055, 1.07] x, pass (budget 1.1), fail (baseline 1)`.

    `gates` are those of one metric: one with a budget and a baseline has two.
    """
    metric = gates[0].metric
    verdicts = []
    for gate in gates:
        limit = "" if gate.baseline is None else f" (baseline {number(gate.baseline)})"
        if gate.source == "budget" and gate.limit is not None:
            limit = f" (budget {number(gate.limit)})"
        verdicts.append(f"{gate.verdict}{limit}")
    return f"{span(metric.value, metric.interval)} {metric.unit}, {', '.join(verdicts)}"
