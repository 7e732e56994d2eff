"""What a search tried, and what it found."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from perfsuite.against.found import MetricChange
from perfsuite.gate.verdict import Part
from perfsuite.measure.metric import Interval
from perfsuite.measure.serialise import plain

Verdict = Literal["good", "bad", "skipped"]

Looks = Literal["exact", "timed"]
"""One run says what the metric is; or processes in random order say how its time differs from the good end's."""


class BisectFailed(Exception):  # noqa: N818  (a report, not a fault of this process)
    """There is nothing to search. The message names the argument, and says what to do."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One step that was tried: a commit's hash, or packages with their versions.

    `value` is the metric in `unit`; of a time `interval` holds what it is over that of the good end. `reason` says why
    a step was skipped, or what to know of one that was not. `packages` are those installed, `addresses` where named
    packages tell what is new. `baselines` has all metrics of the test there, by device, in the text of a baseline file.
    """

    id: str
    verdict: Verdict
    value: float | None = None
    unit: str = ""
    reason: str = ""
    seconds: float = 0.0
    interval: Interval | None = None
    device: str = ""
    packages: dict[str, str] = dataclasses.field(default_factory=dict)
    addresses: dict[str, str] = dataclasses.field(default_factory=dict)
    baselines: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class About:
    """What is known of the step that did it: a commit's message, author, day and diff stat; a release's address."""

    title: str
    author: str = ""
    day: str = ""
    message: str = ""
    stat: tuple[str, ...] = ()
    address: str = ""
    packages: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Answer:
    """Since when it is so: the first step that is like the newer end is one of `suspects`, oldest first.

    `package` is the one whose releases they are, empty for commits. `first` says what the newer end is. The changes are
    those of the test's other metrics too, from the step before to the step found; `grown` are the parts of the metric
    that is asked for: what the worse side of the two has more of. `program` says how its program differs, where both
    steps were tried in this process. There are none where `suspects` are several.
    """

    package: str
    suspects: tuple[str, ...]
    first: Literal["good", "bad"]
    about: tuple[About, ...]
    before: str = ""
    changes: tuple[MetricChange, ...] = ()
    grown: tuple[Part, ...] = ()
    program: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Bisection:
    """A finished search: the answers (several, where it takes several packages), and what was seen on the way.

    `made` are the ids of the steps that were tried now; the others were kept from an earlier search. `names` are what
    people call the steps. `kept` is the file that they are kept in.
    """

    test: str
    metric: str
    looks: Looks
    good: str
    bad: str
    steps: tuple[Step, ...]
    made: frozenset[str]
    names: Mapping[str, str]
    answers: tuple[Answer, ...]
    kept: str
    notes: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether there is one step for each answer."""
        return all(len(answer.suspects) == 1 for answer in self.answers)

    def step(self, id: str) -> Step:
        """The step of an id."""
        return next(step for step in self.steps if step.id == id)

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, for --json."""
        told = {field: plain(getattr(self, field)) for field in ("test", "metric", "looks", "good", "bad", "notes")}
        steps = [{name: each for name, each in plain(step).items() if name != "baselines"} for step in self.steps]
        names = [self.names.get(step.id, step.id) for step in self.steps]
        return {
            "schema": 1,
            **told,
            "exact": self.exact,
            "answers": plain(self.answers),
            "steps": [{**step, "name": name} for step, name in zip(steps, names, strict=True)],
        }
