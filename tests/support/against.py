"""Fingerprint of `perfsuite against` and `bisect` that are only made up, and packages that uv installs without a network."""

import dataclasses
import zipfile
from types import ModuleType

from perfsuite.against import runs
from perfsuite.against.changes import Check
from perfsuite.against.notes import Notes, Place, StageNote, TimeNote
from perfsuite.against.runs import Run
from perfsuite.against.sides import Packages, Side
from perfsuite.commands import read_arguments
from perfsuite.gate.baseline import Baselines, Entry
from perfsuite.gate.environment import Environment
from perfsuite.gate.verdict import Result
from perfsuite.measure.metric import Estimate, Metric

ENVIRONMENT = Environment("cpu", 1, "a processor", "3.11.7", "0.10.0", "0.10.0")
TEST = "test_a.py::test_step"


def notes(times=None, stages=(), tests=None):
    """The notes of a process: `times` by name in microseconds, all of one test."""
    return Notes(
        tests={TEST: ("passed", "")} if tests is None else tests,
        stages=[StageNote(TEST, *stage) for stage in stages],
        times=[TimeNote(TEST, name, us, "us") for name, us in (times or {}).items()],
        device="cpu",
        places={TEST: {"f to return": Place("test_a.py:3", sampled=True)}},
    )


def count(value, **parts):
    """A count with its parts."""
    return Entry(value, "calls", "count", "measured", ENVIRONMENT, detail=parts or None)


def first_run(entries=None, test=TEST, **noted):
    """The first run of a side: its entries by name."""
    baselines = {"cpu": Baselines("cpu", {test: entries})} if entries else {}
    return Run(notes(**noted), 1.0, baselines=baselines)


def side(name, version=1, folder=None):
    """A side with a package `lib` of a version."""
    packages = Packages({"lib": str(version), "jax": "1"}, (f"lib=={version}",))
    return Side(name, packages, folder, title=f"the code of the {name}")


def check(*changes, tests=(), notes=()):
    """What a check of two versions of `lib` found."""
    return Check(side("base", 1), side("head", 2), tests, changes, notes, processes=10, timed=1)


def change(verdict, name="f", unit="us", base=100.0, head=112.0, interval=None, **more):
    """A metric on two sides; with `interval`, a time of many processes, over that of the base."""
    kind = {"us": "time", "bytes": "size"}.get(unit, "count")
    ratio = Estimate(head / base, interval) if interval else None
    return Result(TEST, Metric(name, head, unit, kind), verdict, "baseline", baseline=base, ratio=ratio, **more)


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


def wheels_for_uv(tmp_path, monkeypatch):
    """A folder where uv looks for wheels, and nowhere else."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, value in {
        "UV_OFFLINE": "1",
        "UV_FIND_LINKS": folder,
        "UV_CACHE_DIR": tmp_path / "uv",
        "UV_NO_CONFIG": "1",
    }.items():
        monkeypatch.setenv(name, str(value))
    return folder


def run_command(module: ModuleType, *arguments):
    """A command with these arguments: its exit status."""
    return module.run(read_arguments([module.__name__.rpartition(".")[2], *arguments]))


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


def small_windows(monkeypatch, processes=1):
    """Fewer processes in each window than a check takes."""
    monkeypatch.setattr(runs, "WINDOW", processes)
