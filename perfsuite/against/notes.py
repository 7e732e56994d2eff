"""What a check and the pytest processes that it starts exchange: a request and, when pytest has ended, its notes."""

import dataclasses
from typing import Literal

OPTION = "--perf-side"
NOTES_FILE = "notes.json"
REQUEST_FILE = "request.json"

Stage = Literal["trace", "lower", "compile"]
Task = Literal["metrics", "times"]


@dataclasses.dataclass(frozen=True)
class SideRequest:
    """What one process does: record metrics, or only take times.

    `seconds` is the most time for one timing, None leaves it to the options. `cache` is the folder for the facts of
    programs, which only processes of the same environment share. `only` are the tests to run, None means all.
    """

    task: Task
    seconds: float | None
    cache: str
    only: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class StageNote:
    """How often one function went through one stage of compiling in one test, and the seconds of all of them."""

    test: str
    function: str
    stage: Stage
    count: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class TimeNote:
    """One time, or one ratio of times, of one test."""

    test: str
    name: str
    value: float
    unit: str


@dataclasses.dataclass
class Notes:
    """What one process noted.

    `tests` has the outcome of every test and its reason, `uncollected` the reason why a file could not be collected.
    `device` is the name of the present device's baseline file.
    """

    tests: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    uncollected: dict[str, str] = dataclasses.field(default_factory=dict)
    stages: list[StageNote] = dataclasses.field(default_factory=list)
    times: list[TimeNote] = dataclasses.field(default_factory=list)
    device: str = ""

    @property
    def passed(self) -> set[str]:
        """The tests that passed."""
        return {test for test, (outcome, _) in self.tests.items() if outcome == "passed"}

    def counts(self, test: str, stage: Stage) -> dict[str, int]:
        """How often each function went through `stage` in `test`."""
        return {note.function: note.count for note in self.stages if (note.test, note.stage) == (test, stage)}
