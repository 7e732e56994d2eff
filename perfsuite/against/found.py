"""What a check found: the changes, each with its place, and the tests that cannot be compared."""

import dataclasses
import typing
from typing import Any, Literal

from perfsuite.against.sides import Side
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
    """One metric of one test on both sides, and what the check calls its change.

    `base` and `head` are in `unit`; for a time they are the medians over the processes, and `ratio` is head / base
    with `interval`, which holds over all times of the check together with probability 1 - `ERROR`. `reason` says why a
    change is not called, or may not hold; `grown` are the parts of the metric that got worse. `processes` is the number
    on each side, `line` where the test makes the metric. `changed` names what else differs in the test: the programs
    or the host calls of what is timed, and counts that rose.
    """

    where: Where
    test: str
    metric: str
    unit: str
    base: float | None
    head: float | None
    called: Called
    reason: str = ""
    ratio: float | None = None
    interval: Interval | None = None
    processes: int = 1
    grown: tuple[Part, ...] = ()
    line: str = ""
    changed: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class TestChange:
    """A test that did not pass on both sides: how it ended on each, and why."""

    __test__ = False

    test: str
    base: str
    head: str
    reason: str

    @property
    def worse(self) -> bool:
        """Whether it can no longer be run, or fails where it passed."""
        return self.base in ("passed", "collected") and self.head != self.base

    @property
    def only_at_head(self) -> bool:
        """Whether it is a test for what only the head has."""
        return self.head in ("passed", "collected") and self.base not in ("passed", "skipped", "collected")


@dataclasses.dataclass(frozen=True)
class Check:
    """What a check found.

    `windows` are the sizes of the complete windows, `timed` is the number of tests that were timed and `untimed` of
    those that were not because they run what they ran. `notes` are sentences for the reader.
    """

    base: Side
    head: Side
    tests: tuple[TestChange, ...]
    changes: tuple[MetricChange, ...]
    windows: tuple[int, ...]
    notes: tuple[str, ...]
    timed: int = 0
    untimed: int = 0

    @property
    def worse(self) -> bool:
        """Whether anything is."""
        return any(change.called == "worse" for change in self.changes) or any(test.worse for test in self.tests)

    @property
    def compared(self) -> bool:
        """Whether any metric was made on both sides and could be compared."""
        return any(change.called not in ("new", "gone", "not comparable") for change in self.changes)

    @property
    def only_new(self) -> bool:
        """Whether all tests are for what only the head has: then there is nothing to compare, and nothing is wrong."""
        return bool(self.tests) and all(test.only_at_head for test in self.tests)

    @property
    def versions(self) -> list[str]:
        """The packages that differ: `["jax 0.10.0 -> 0.10.2"]`."""
        base, head = self.base.environment.packages, self.head.environment.packages
        return [
            f"{name} {base.get(name, 'absent')} -> {head.get(name, 'absent')}"
            for name in sorted({*base, *head})
            if base.get(name) != head.get(name)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, for --json."""
        return {
            "schema": 1,
            **{
                side.name: {
                    "code": side.title,
                    "specs": list(side.environment.specs),
                    "packages": dict(side.environment.packages),
                }
                for side in (self.base, self.head)
            },
            "changed packages": self.versions,
            "worse": self.worse,
            "windows": list(self.windows),
            "timed": self.timed,
            "untimed": self.untimed,
            "notes": list(self.notes),
            "tests": plain(self.tests),
            "changes": plain(self.changes),
        }
