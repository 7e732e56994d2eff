"""Runs of `perfsuite against` that are only made up, for the tests of `perfsuite.against`."""

import argparse
import dataclasses
import zipfile
from pathlib import Path

from perfsuite.against.environments import VirtualEnvironment
from perfsuite.against.found import Check, MetricChange
from perfsuite.against.notes import Notes, Place, StageNote, TimeNote
from perfsuite.against.runs import Run
from perfsuite.against.sides import Side
from perfsuite.commands import against
from perfsuite.gate.environment import Environment

ENVIRONMENT = Environment("cpu", 1, "a processor", "3.11.7", "0.10.0", "0.10.0")
TEST = "test_a.py::test_step"


def notes(times=None, stages=(), tests=None, uncollected=None):
    """The notes of a process: `times` by name in microseconds, all of one test."""
    return Notes(
        tests={TEST: ("passed", "")} if tests is None else tests,
        uncollected=uncollected or {},
        stages=[StageNote(TEST, *stage) for stage in stages],
        times=[TimeNote(TEST, name, us, "us") for name, us in (times or {}).items()],
        device="cpu",
        places={TEST: {"f to return": Place("test_a.py:3", sampled=True)}},
    )


def side(name, version=1):
    """A side with a package `lib` of a version."""
    environment = VirtualEnvironment(Path(), (f"lib=={version}",), {"lib": str(version), "jax": "1"}, ())
    return Side(name, environment, Path(), title=f"the code of the {name}")


def check(*changes, tests=(), notes=()):
    """What a check of two versions of `lib` found."""
    return Check(side("base", 1), side("head", 2), tests, changes, (5, 5), notes, timed=1)


def change(where, called, **more):
    """A change of a time `f` by 12 %."""
    values = {"metric": "f", "unit": "us", "base": 100.0, "head": 112.0, "ratio": 1.12}
    return MetricChange(where=where, called=called, test=TEST, **{**values, **more})


def wheel(folder, name, version, source, requires=()):
    """Write a wheel of one module."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Provides-Extra: {line.partition('extra == ')[2][1:-1]}\n" for line in requires if ";" in line)
    metadata += "".join(f"Requires-Dist: {line}\n" for line in requires)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name}.py", source)
        file.writestr(f"{info}/METADATA", metadata)
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", "")
    return path


def command(*arguments):
    """The command with these arguments: its exit status."""
    parser = argparse.ArgumentParser()
    against.add_arguments(parser)
    return against.run(parser.parse_args(arguments))


@dataclasses.dataclass
class FakeTests:
    """In the place of `Tests`: what ran in which order; `metrics` and `times` by the name of the side."""

    first: dict
    times_of: object = None
    ran: list = dataclasses.field(default_factory=list)
    only: frozenset | None = None

    def metrics(self, *sides):
        self.ran += [side.name for side in sides]
        return [self.first[side.name] for side in sides]

    def times(self, side, *, seconds, limit):
        self.ran.append(side.name)
        return self.times_of(side.name) if self.times_of else Run(notes({"f to return": 1.0}), 1.0)
