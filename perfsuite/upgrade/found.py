"""What a check found: the changes, each with its place, and the tests that can no longer be compared."""

import dataclasses
from typing import Any, Literal

from perfsuite.gate.verdict import Part
from perfsuite.measure.measurement import Interval
from perfsuite.upgrade.environments import Made

Where = Literal["trace", "lower", "compile", "dispatch", "host calls", "program", "device"]
Called = Literal["worse", "better", "no change seen", "undecided", "new", "gone", "not comparable"]

PLACES: tuple[Where, ...] = ("trace", "lower", "compile", "dispatch", "host calls", "program", "device")

ERROR = 0.05
"""Chance that any change of a time is called in a whole check where there is none."""


@dataclasses.dataclass(frozen=True)
class Change:
    """One metric of one test in both environments, and what is called of it.

    `before` and `after` are in `unit`; for a time the medians over the processes, and `ratio` is after / before with
    `interval`, which holds over all times of the check together with probability 1 - `ERROR`. `reason` says in words
    why a change is not called, or may not hold, `grown` are the parts of the metric that got worse. `processes` is the
    number on each side.
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
class Check:
    """What a check found. `windows` are the sizes of those that were whole, `notes` what is to be known beside it."""

    before: Made
    after: Made
    tests: tuple["TestChange", ...]
    changes: tuple[Change, ...]
    windows: tuple[int, ...]
    notes: tuple[str, ...]

    @property
    def worse(self) -> bool:
        """Whether anything is."""
        return any(change.called == "worse" for change in self.changes) or any(test.worse for test in self.tests)

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
            "tests": [dataclasses.asdict(test) for test in self.tests],
            "changes": [dataclasses.asdict(change) for change in self.changes],
        }


@dataclasses.dataclass(frozen=True)
class TestChange:
    """A test that did not pass in both environments: how it ended in each, and in what words."""

    __test__ = False

    test: str
    before: str
    after: str
    reason: str

    @property
    def worse(self) -> bool:
        """Whether it can no longer be run, or fails where it passed."""
        return self.before in ("passed", "collected") and self.after != self.before
