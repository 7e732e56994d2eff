"""Run the tests in the environments: once for their metrics, then in many processes in random order for the times."""

import dataclasses
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from perfsuite.gate.baseline import Baselines
from perfsuite.gate.baseline_file import BaselineError, load
from perfsuite.hooks.upgrade_child import NOTES, OPTION, REQUEST, Mode, Notes, Request
from perfsuite.processes.rerun import run_bounded
from perfsuite.upgrade.environments import Made

WINDOW = 5
"""Processes of each side in a window. Two windows of five can show a change at an error of 1 in 31752, ten pairs on
their own at 1 in 512 only."""

FIRST_SECONDS = 3600.0
"""Most that the first run of the tests in an environment may take: nothing is known of it yet."""

_STARTING_SECONDS = 120.0
_SLACK = 4.0
_LAST_WORDS = 400
_OUTPUT = "output.txt"

Say = Callable[[str], None]
"""Is told what begins."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One process: its notes, or why there are none in a sentence. `output` is the end of what it wrote."""

    notes: Notes | None
    seconds: float
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class Metrics:
    """The first run in one environment: what the process noted, and the metrics that it recorded, by device."""

    run: Run
    baselines: Mapping[str, Baselines]


@dataclasses.dataclass(frozen=True)
class Window:
    """Processes of both sides that ran in random order, as many of each."""

    before: tuple[Run, ...]
    after: tuple[Run, ...]

    @property
    def whole(self) -> bool:
        """Whether every process has notes: else their order is no longer one drawn by lot."""
        return all(run.notes is not None for run in (*self.before, *self.after))


class Tests:
    """The tests of one project, to be run with the packages of an environment.

    `arguments` are pytest's, as on its command line, `folder` is scratch.
    """

    __test__ = False

    def __init__(self, arguments: Sequence[str], folder: Path, *, directory: Path):
        self.arguments = tuple(arguments)
        self.folder = folder
        self.directory = directory
        self._made = 0

    def metrics(self, made: Made, name: str) -> Metrics:
        """Run the tests as `pytest --perf-save` does, with the baselines in a folder of their own."""
        baselines = self.folder / f"baselines-{name}"
        baselines.mkdir(parents=True)
        run = self._run(made, "metrics", name, None, baselines, FIRST_SECONDS)
        found = {}
        for path in sorted(baselines.glob("*.json")):
            try:
                found[path.stem] = load(path)
            except BaselineError as error:
                run = dataclasses.replace(run, problem=str(error))
        return Metrics(run, found)

    def times(self, made: Made, name: str, *, seconds: float, limit: float) -> Run:
        """Time every call of the tests for at most `seconds`, in a process that may take `limit` seconds."""
        empty = self.folder / "no-baselines"
        empty.mkdir(parents=True, exist_ok=True)
        return self._run(made, "times", name, seconds, empty, limit)

    def _run(self, made: Made, mode: Mode, name: str, seconds: float | None, baselines: Path, limit: float) -> Run:
        self._made += 1
        folder = self.folder / f"run-{self._made}-{name}"
        folder.mkdir(parents=True)
        request = Request(mode, seconds, str(self.folder / f"facts-{name}"))
        (folder / REQUEST).write_text(json.dumps(dataclasses.asdict(request)), encoding="utf-8")
        command = [str(made.python), "-P", "-m", "pytest", *self._arguments(folder, baselines, seconds)]
        started = time.monotonic()
        try:
            ended = run_bounded(
                command,
                directory=self.directory,
                environment=_variables(made),
                output=folder / _OUTPUT,
                seconds=limit,
            )
        except OSError as error:
            return Run(None, 0.0, f"it could not be started ({error})")
        took = time.monotonic() - started
        notes = _read(folder / NOTES)
        if notes is not None:
            return Run(notes, took)
        how = "its time was up" if ended is None else f"it ended with status {ended}"
        return Run(None, took, f"{how}; the last that it wrote: {_last_words(folder / _OUTPUT)}")

    def _arguments(self, folder: Path, baselines: Path, seconds: float | None) -> list[str]:
        # Those that must hold come last, for argparse takes the last.
        first = ["-p", "perfsuite.hooks.upgrade_child", f"{OPTION}={folder}"]
        last = ["--perf-only", f"--perf-baselines={baselines}", "--override-ini=perf_strict=false", "--capture=no"]
        if seconds is not None:
            last.append(f"--perf-seconds={seconds:g}")
        given = list(self.arguments)
        end = given.index("--") if "--" in given else len(given)
        return [*first, *given[:end], *last, *given[end:]]


def windows(
    tests: Tests,
    before: Made,
    after: Made,
    *,
    rounds: int,
    minutes: float | None,
    seconds: float,
    limit: float,
    say: Say,
    order: random.Random | None = None,
) -> Iterator[Window]:
    """Windows of processes, until there were so many rounds or the minutes are over, but one in any case.

    What is chosen once a process (where its memory came to lie) and the machine's drift thereby fall on both sides
    alike: each order of a window's processes is as likely as any other.
    """
    order = order or random.Random()
    started = time.monotonic()
    done = 0
    for size in sizes(rounds):
        began = time.monotonic()
        sides: tuple[list[Run], list[Run]] = ([], [])
        turns = [0, 1] * size
        order.shuffle(turns)
        for place, side in enumerate(turns):
            say(f"times: process {2 * done + place + 1} of {2 * rounds}")
            made, name = ((before, "before"), (after, "after"))[side]
            sides[side].append(tests.times(made, name, seconds=seconds, limit=limit))
        done += size
        yield Window(tuple(sides[0]), tuple(sides[1]))
        now = time.monotonic()
        if minutes is not None and now - started + (now - began) > 60 * minutes:
            return


def sizes(rounds: int) -> list[int]:
    """The sizes of the windows that make so many rounds: as equal as can be, none above `WINDOW`."""
    number = -(-rounds // WINDOW)
    return [rounds // number + (place < rounds % number) for place in range(number)] if rounds else []


def allowed_seconds(first: Sequence[Metrics]) -> float:
    """How long a process may take that only times: the first ones did more, but the machine may be busier then."""
    return _STARTING_SECONDS + _SLACK * max(each.run.seconds for each in first)


def _variables(made: Made) -> dict[str, str]:
    # What the persistent cache answers has not been compiled.
    return {**made.variables(os.environ), "JAX_ENABLE_COMPILATION_CACHE": "false"}


def _read(path: Path) -> Notes | None:
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return Notes(
        tests={test: (ended, message) for test, (ended, message) in values["tests"].items()},
        uncollected=values["uncollected"],
        stages=[tuple(row) for row in values["stages"]],
        times=[tuple(row) for row in values["times"]],
        environment=values["environment"],
    )


def _last_words(path: Path) -> str:
    written = path.read_bytes()[-4 * _LAST_WORDS :].decode(errors="replace")
    return " ".join(written.split())[-_LAST_WORDS:] or "nothing"
