"""Searches whose steps are only made up: what the test would record at each of them, and whether it runs at all."""

import argparse
import contextlib
import dataclasses
from pathlib import Path

from perfsuite.against.environments import EnvironmentFailed, VirtualEnvironment
from perfsuite.against.runs import Effort, FirstRun, Run
from perfsuite.against.sides import Side
from perfsuite.bisecting.kept import Kept
from perfsuite.bisecting.metric import Wanted
from perfsuite.bisecting.trying import Trials
from perfsuite.commands import bisect
from perfsuite.gate.baseline import Baselines, Entry
from support.against import ENVIRONMENT, notes
from support.against import TEST as TEST

CALLS = "step host calls"


def command(*arguments):
    """The command with these arguments: its exit status."""
    parser = argparse.ArgumentParser()
    bisect.add_arguments(parser)
    return bisect.run(parser.parse_args(arguments))


def count(value, **parts):
    """A count with its parts."""
    return Entry(value, "calls", "count", "measured", ENVIRONMENT, detail=parts or None)


def time(us):
    """A plain time."""
    return Entry(us, "us", "time", "measured", ENVIRONMENT)


def first_run(entries, test=TEST):
    """The first run of a test with these entries by name; or of one that ended otherwise, with a reason."""
    if isinstance(entries, tuple):
        return FirstRun(Run(notes(tests={test: entries}), 1.0), {})
    return FirstRun(Run(notes(tests={test: ("passed", "")}), 1.0), {"cpu": Baselines("cpu", {test: dict(entries)})})


@dataclasses.dataclass
class MadeUp:
    """In the place of both `Steps` and `Tests`: `at` has what is recorded at each step, or the words of a failure.

    `times` gives the microseconds of one process at a step.
    """

    at: dict
    times_at: object = None
    ran: list = dataclasses.field(default_factory=list)
    open: set = dataclasses.field(default_factory=set)
    folder: Path = Path("nowhere")

    @contextlib.contextmanager
    def side(self, id):
        self.recorded = self.at[id]
        if isinstance(self.recorded, str):
            raise EnvironmentFailed(self.recorded)
        self.open.add(id)
        try:
            yield Side(id, VirtualEnvironment(Path("nowhere"), (), {"python": "3"}, ()), Path())
        finally:
            self.open.discard(id)

    def name(self, id):
        return f"step {id}"

    def addresses(self, side):
        return {}

    def metrics(self, *sides):
        self.ran += [side.name for side in sides]
        return [first_run(self.recorded) for _ in sides]

    def facts(self, side):
        return self.folder / side.name

    def times(self, side, *, seconds, limit):
        return Run(notes({"step to return": self.times_at(side.name)}), 1.0)


def trials(made_up, folder, metric=CALLS, question=None, rounds=10):
    """The trials of steps that are made up."""
    kept = Kept(folder, question or {"good": "good", "bad": "bad"})
    return Trials(made_up, made_up, Wanted(TEST, metric), kept, Effort(rounds, None, 0.1), lambda text: None)
