"""The tests of one function with different parameters, as one table: the same metric of each, side by side.

Metrics are the same when their titles are the same, apart from the parameters in them: "filter_jit/list ratio" of
test_tax[filter_jit] and "dict/list ratio" of test_tax[dict] are both ".../list ratio".
"""

import collections
import dataclasses
import re
from collections.abc import Iterable, Sequence

from perfsuite.report.model import VERDICTS, Row, Test

PARAMETER = "\N{HORIZONTAL ELLIPSIS}"
"""Stands for the parameter in the name of a metric."""

_SAYS_NOTHING = re.compile(r"|None|True|False")
_NUMBER = re.compile(r"[\d.e+-]+")


@dataclasses.dataclass(frozen=True)
class MetricOfVariants:
    """One metric: `cells` has it for each variant, None for a variant without it."""

    name: str
    unit: str
    kind: str
    cells: tuple[Row | None, ...]


@dataclasses.dataclass(frozen=True)
class Variants:
    """The tests of one function, in order, and the metrics that at least two of them have."""

    function: str
    tests: tuple[Test, ...]
    metrics: tuple[MetricOfVariants, ...]


def variants_of(tests: Iterable[Test]) -> list[Variants]:
    """The functions of several tests with metrics, in the order of the session."""
    by_function: dict[str, list[Test]] = {}
    for test in tests:
        if test.metrics and test.parameters:
            by_function.setdefault(test.function, []).append(test)
    made = [Variants(name, tuple(each), _metrics(each)) for name, each in by_function.items() if len(each) > 1]
    return [each for each in made if each.metrics]


def _metrics(tests: Sequence[Test]) -> tuple[MetricOfVariants, ...]:
    having: collections.Counter[tuple[str, str]] = collections.Counter()
    for test in tests:
        having.update({(name, metric.unit) for metric in test.metrics for name in _names(metric, test.parameters)})
    found: dict[tuple[str, str], dict[str, Row]] = {}
    for test in tests:
        for metric in test.metrics:
            # The name that most tests have; of several, the one with the fewest replacements.
            name = max(_names(metric, test.parameters), key=lambda name: having[name, metric.unit])
            of_test = found.setdefault((name, metric.unit), {})
            of_test[test.id] = worse(of_test.get(test.id), metric)
    return tuple(
        MetricOfVariants(name, unit, next(iter(of.values())).kind, tuple(of.get(test.id) for test in tests))
        for (name, unit), of in found.items()
        if len(of) > 1
    )


def worse(one: Row | None, other: Row) -> Row:
    """Of two gates of one metric, the one that a reader wants first."""
    if one is None or VERDICTS.index(other.verdict) < VERDICTS.index(one.verdict):
        return other
    return one


def _names(metric: Row, parameters: str) -> list[str]:
    """The candidates for a metric's name: as it is, without the words of the parameters, also without their numbers."""
    name = metric.name if metric.target and metric.target in parameters else metric.title
    parts = sorted({parameters, *parameters.split("-")}, key=len, reverse=True)
    names = [name]
    for numbers in (False, True):
        for part in parts:
            if not _SAYS_NOTHING.fullmatch(part) and bool(_NUMBER.fullmatch(part)) == numbers:
                name = re.sub(rf"(?<![\w.]){re.escape(part)}(?![\w.])", PARAMETER, name)
        names.append(name)
    return names
