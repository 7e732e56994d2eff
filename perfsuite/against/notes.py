"""What a check and the pytest processes that it starts exchange: a request and, when pytest has ended, its notes."""

import dataclasses
from typing import Literal

OPTION = "--perf-side"
NOTES_FILE = "notes.json"
REQUEST_FILE = "request.json"
NOT_FROM = "PERFSUITE_NOT_FROM"
"""The environment variable of a commit's side: the user's working tree, and the worktree that stands for it."""

Stage = Literal["trace", "lower", "compile"]
Task = Literal["collect", "metrics", "times"]


@dataclasses.dataclass(frozen=True)
class SideRequest:
    """What one process does: name the files of the perf tests, record metrics, or only take times.

    `seconds` is the most time for one timing, None leaves it to the options. `cache` is the folder for the facts of
    programs of one side, `target_cache` the one for what compilers for absent devices said, which all sides share.
    `only` are the tests to run, None means all.
    """

    task: Task
    seconds: float | None
    cache: str
    target_cache: str
    only: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class StageNote:
    """How often one function went through one stage of compiling in one test, and the seconds of all of them.

    `place` is the user's line that asked for the last of them.
    """

    test: str
    function: str
    stage: Stage
    count: int
    seconds: float
    place: str = ""


@dataclasses.dataclass(frozen=True)
class TimeNote:
    """One time, or one ratio of times, of one test."""

    test: str
    name: str
    value: float
    unit: str


@dataclasses.dataclass(frozen=True)
class Fingerprint:
    """What the timed calls of a metric run: hashes of the texts of their programs, and of their host calls by name.

    None is for what is not known.
    """

    programs: str | None = None
    host_calls: str | None = None

    @property
    def complete(self) -> bool:
        """Whether both are known."""
        return None not in (self.programs, self.host_calls)

    def differing(self, other: "Fingerprint") -> list[str]:
        """What differs, in the words of a message, as far as it is known of both."""
        pairs = {
            "the compiled programs": (self.programs, other.programs),
            "the host calls": (self.host_calls, other.host_calls),
        }
        return [what for what, pair in pairs.items() if None not in pair and pair[0] != pair[1]]


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a test makes a metric, `file:line`, and where the parts of the metric are, by their names.

    `sampled` says that it is a time, or a ratio of times; then `runs` is what its calls run.
    """

    line: str = ""
    parts: dict[str, str] = dataclasses.field(default_factory=dict)
    sampled: bool = False
    runs: Fingerprint = Fingerprint()


@dataclasses.dataclass
class Notes:
    """What one process noted.

    `tests` has the outcome of every test and its reason, and of every file that was "not collected". `device` is the
    name of the present device's baseline file. `files` are those of the collected tests, `rootdir` is pytest's, `path`
    has the folders where Python found modules. `foreign` names each module that a commit's side imported from the
    user's working tree, with its file. `places` are those of the metrics, by test and title.
    """

    tests: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    stages: list[StageNote] = dataclasses.field(default_factory=list)
    times: list[TimeNote] = dataclasses.field(default_factory=list)
    device: str = ""
    files: list[str] = dataclasses.field(default_factory=list)
    rootdir: str = ""
    path: list[str] = dataclasses.field(default_factory=list)
    foreign: dict[str, str] = dataclasses.field(default_factory=dict)
    places: dict[str, dict[str, Place]] = dataclasses.field(default_factory=dict)

    @property
    def passed(self) -> set[str]:
        """The tests that passed."""
        return {test for test, (outcome, _) in self.tests.items() if outcome == "passed"}
