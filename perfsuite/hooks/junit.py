"""The metrics of a perf test as properties of its test case, in the file that pytest's --junitxml writes.

They are pytest's `user_properties`: pytest-reportlog and pytest-json-report have them, too, and pytest-xdist sends them
to the main process.
"""

from collections.abc import Sequence

import pytest

from perfsuite.gate.verdict import Result
from perfsuite.measure.metric import span
from perfsuite.measure.words import number


def add_properties(item: pytest.Item, results: Sequence[Result]) -> None:
    """Add one property for each metric: its title, and `property_value` of its gates."""
    by_title: dict[str, list[Result]] = {}
    for result in results:
        by_title.setdefault(result.metric.title, []).append(result)
    item.user_properties += [(title, property_value(of_metric)) for title, of_metric in by_title.items()]


def property_value(results: Sequence[Result]) -> str:
    """A metric with its interval, unit and verdicts: `1.062 [1.055, 1.07] x, pass (budget 1.1), fail (baseline 1)`.

    `results` are those of one metric: one with a budget and a baseline has two.
    """
    metric = results[0].metric
    verdicts = []
    for result in results:
        limit = "" if result.baseline is None else f" (baseline {number(result.baseline)})"
        if result.source == "budget" and result.limit is not None:
            limit = f" (budget {number(result.limit)})"
        verdicts.append(f"{result.verdict}{limit}")
    return f"{span(metric.value, metric.interval)} {metric.unit}, {', '.join(verdicts)}"
