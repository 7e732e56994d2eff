"""What a check found: the changes, each with its place, and the tests that can no longer be compared."""

import dataclasses
import typing
from typing import Any, Literal

from perfsuite.against.environments import VirtualEnvironment
from perfsuite.gate.verdict import Part
from perfsuite.measure.metric import Interval
from perfsuite.measure.serialise import plain

Where = Literal["trace", "lower", "compile", "dispatch", "host calls", "program", "device"]
Called = Literal["worse", "better", "no change seen", "undecided", "new", "gone", "not comparable"]

PLACES: tuple[Where, ...] = typing.get_args(Where)

ERROR = 0.05
"""The probability that a whole check calls any change of a time where there is none."""


@dataclasses.dataclass(frozen=True)
class MetricChange:
    """One metric of one test in both environments, and what the check calls its change.

    `before` and `after` are in `unit`; for a time they are the medians over the processes, and `ratio` is after /
    before with `interval`, which holds over all times of the check together with probability 1 - `ERROR`. `reason`
    says why a change is not called, or may not hold; `grown` are the parts of the metric that got worse. `processes`
    is the number on each side.
    """

    where: Where
    test: str
    metric: str
    unit: str
    before: float | None
    after: float | None
    called: Called
    reason: str = ""
    ratio: float | None = None
    interval: Interval | None = None
    processes: int = 1
    grown: tuple[Part, ...] = ()


@dataclasses.dataclass(frozen=True)
class TestChange:
    """A test that did not pass in both environments: how it ended in each, and why."""

    __test__ = False

    test: str
    before: str
    after: str
    reason: str

    @property
    def worse(self) -> bool:
        """Whether it can no longer be run, or fails where it passed."""
        return self.before in ("passed", "collected") and self.after != self.before


@dataclasses.dataclass(frozen=True)
class Check:
    """What a check found. `windows` are the sizes of the complete windows, `notes` sentences for the reader."""

    before: VirtualEnvironment
    after: VirtualEnvironment
    tests: tuple[TestChange, ...]
    changes: tuple[MetricChange, ...]
    windows: tuple[int, ...]
    notes: tuple[str, ...]

    @property
    def worse(self) -> bool:
        """Whether anything is."""
        return any(change.called == "worse" for change in self.changes) or any(test.worse for test in self.tests)

    @property
    def compared(self) -> bool:
        """Whether any metric was made with both sets of packages and could be compared."""
        return any(change.called not in ("new", "gone", "not comparable") for change in self.changes)

    @property
    def versions(self) -> list[str]:
        """The packages that differ: `["jax 0.10.0 -> 0.10.2"]`."""
        old, new = self.before.packages, self.after.packages
        return [
            f"{name} {old.get(name, 'absent')} -> {new.get(name, 'absent')}"
            for name in sorted({*old, *new})
            if old.get(name) != new.get(name)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, for --json."""
        return {
            "schema": 1,
            "before": {"specs": list(self.before.specs), "packages": dict(self.before.packages)},
            "after": {"specs": list(self.after.specs), "packages": dict(self.after.packages)},
            "changed packages": self.versions,
            "worse": self.worse,
            "windows": list(self.windows),
            "notes": list(self.notes),
            "tests": plain(self.tests),
            "changes": plain(self.changes),
        }
