"""`PerfSession`: one pytest session with --perf. What its tests measured, and what they may ask of it."""

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

import pytest

from perfsuite.measure.private.capabilities import CapabilityLost
from perfsuite.options import Options
from perfsuite.session.judge import CollectedTests, Judge
from perfsuite.session.modes import Mode
from perfsuite.session.outcomes import Deferred, Lost
from perfsuite.session.records import TestRecord

if TYPE_CHECKING:  # few sessions are of several processes
    from perfsuite.session.group import Group

Need = Literal["quiet", "alone", "processes"]
"""What an instrument may need of a session."""


@dataclasses.dataclass
class PerfSession:
    """There is one a session, with --perf.

    `in_worker` is for a worker of pytest-xdist, where nothing can be timed. `cache` is the folder where the facts of
    programs are kept, `target_cache` the one for what compilers for absent devices say; None keeps none. `group` are
    the processes that measure together, None where this one is alone.
    """

    judge: Judge
    mode: Mode
    in_worker: bool = False
    cache: Path | None = None
    target_cache: Path | None = None
    group: "Group | None" = None
    collected: CollectedTests = dataclasses.field(default_factory=CollectedTests)
    records: list[TestRecord] = dataclasses.field(default_factory=list)
    unmeasured: list[TestRecord] = dataclasses.field(default_factory=list)
    """Perf tests that failed or were skipped before their body, or failed after it: for reports alone."""

    @property
    def options(self) -> Options:
        return self.judge.options

    def unavailable(self, reason: str) -> NoReturn:
        """End the test, for something that this machine lacks: skipped, but failed under --perf-strict."""
        __tracebackhide__ = True
        if "new" in self.options.strict:
            pytest.fail(f"{reason} (--perf-strict)", pytrace=False)
        pytest.skip(reason)

    def end_without(self, lost: CapabilityLost, *, in_full: bool) -> NoReturn:
        """The same for something that does not work with the libraries that are installed; `in_full` with the cause."""
        if "new" in self.options.strict:
            self.unavailable(f"{lost} ({lost.details})" if in_full and lost.details else str(lost))
        raise Lost(str(lost), lost.details if in_full else "")

    def check(self, instrument: str, needs: Collection[Need]) -> None:
        """End the test where the session lacks what an instrument needs. Raises `Deferred` in a worker of pytest-xdist.

        "quiet" is a machine that no other test shares. "alone" is a process that measures by itself: where several
        measure together, the instrument would stop in each by its own clock. "processes" are others like this one: a
        worker of pytest-xdist does not know the command line.
        """
        __tracebackhide__ = True
        if self.in_worker and not {"quiet", "processes"}.isdisjoint(needs):
            raise Deferred(instrument)
        if "alone" in needs and self.group is not None:
            self.unavailable(f"{instrument} measures one process alone, and {self.group.count} measure together here")
