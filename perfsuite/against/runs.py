"""Run the tests on the sides: once for their metrics, then in many processes in random order for the times."""

import contextlib
import dataclasses
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from perfsuite.against.notes import NOTES_FILE, OPTION, REQUEST_FILE, Notes, Place, SideRequest, Task
from perfsuite.against.sides import Side, SideFailed
from perfsuite.gate.baseline import Baselines
from perfsuite.gate.baseline_file import BaselineError, load
from perfsuite.measure.io import user_cache
from perfsuite.measure.serialise import from_json, plain
from perfsuite.processes.rerun import running

WINDOW = 5
"""Processes of each side in a window. Two windows of five can show a change at an error of 1 in 31752, ten separate
pairs only at 1 in 512."""

FIRST_SECONDS = 3600.0
"""The most that the first run of the tests on a side may take: their duration is not known yet."""

_STARTING_SECONDS = 120.0
_SLACK = 4.0
_OUTPUT_SHOWN = 400
_OUTPUT = "output.txt"

Say = Callable[[str], None]
"""Called with what begins."""


@dataclasses.dataclass(frozen=True)
class Effort:
    """How long a check takes times: for about `minutes` in all, and one timing for `seconds`."""

    minutes: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class Run:
    """The notes of one process, and what went wrong. A process that did not end by itself has no notes."""

    notes: Notes
    seconds: float
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class FirstRun:
    """The first run on one side, and the metrics that it recorded, by device."""

    run: Run
    baselines: Mapping[str, Baselines]

    @property
    def notes(self) -> Notes:
        """What the process noted."""
        return self.run.notes

    def place(self, test: str, metric: str) -> Place | None:
        """The place of a metric, by its title; None for one that the test did not make."""
        return self.notes.places.get(test, {}).get(metric)


@dataclasses.dataclass(frozen=True)
class Window:
    """Processes of both sides that ran in random order, equally many of each."""

    base: tuple[Run, ...]
    head: tuple[Run, ...]

    @property
    def sides(self) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
        return self.base, self.head

    @property
    def problems(self) -> list[str]:
        """Why processes have no notes. Then the order of the others is no longer random: the window does not count."""
        return [run.problem for run in (*self.base, *self.head) if run.problem]


class Tests:
    """The tests of one project, to be run on each side.

    `arguments` are pytest's, as on its command line, `folder` is scratch. `only` are the tests to run, None means all.
    What compilers for absent devices say of a program is the same on any side, and on any day: it is kept for the user.
    """

    __test__ = False

    def __init__(self, arguments: Sequence[str], folder: Path):
        self.arguments = tuple(arguments)
        self.folder = folder
        self.only: frozenset[str] | None = None
        self._started = 0
        self._variables = {
            # A stage that the persistent cache answers takes no time.
            "JAX_ENABLE_COMPILATION_CACHE": "false",
            # Without bytecode each process translates pytest's plugins anew: 5.3 s for 3.5 s.
            "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        }

    def collected(self, side: Side) -> Run:
        """Only collect the tests: the notes have their files."""
        return self._run(side, self._request("collect", side), self.folder / "no-baselines", FIRST_SECONDS)

    def metrics(self, *sides: Side) -> list[FirstRun]:
        """Run the tests for what is exact, and record it as `pytest --perf-save` does, in a folder for each side.

        The sides run at once where `at_once` says that they can: what is exact is the same beside other work.
        """
        ran: list[FirstRun] = []
        for group in [sides] if at_once() else [[side] for side in sides]:
            folders = [self.folder / f"baselines-{self._started}-{side.name}" for side in group]
            with contextlib.ExitStack() as stack:
                begun = [
                    self._begin(stack, side, self._request("metrics", side), folder, FIRST_SECONDS)
                    for side, folder in zip(group, folders, strict=True)
                ]
                ended = [end() for end in begun]
            ran += [_recorded(run, folder) for run, folder in zip(ended, folders, strict=True)]
        return ran

    def times(self, side: Side, *, seconds: float, limit: float) -> Run:
        """Time every call of the tests for `seconds`, in a process that may take `limit` seconds."""
        return self._run(side, self._request("times", side, seconds), self.folder / "no-baselines", limit)

    def _request(self, task: Task, side: Side, seconds: float | None = None) -> SideRequest:
        only = None if self.only is None else tuple(sorted(self.only))
        facts = self.folder / f"facts-{side.name}"
        return SideRequest(task, seconds, str(facts), str(user_cache() / "programs"), only)

    def _run(self, side: Side, request: SideRequest, baselines: Path, limit: float) -> Run:
        with contextlib.ExitStack() as stack:
            return self._begin(stack, side, request, baselines, limit)()

    def _begin(
        self, stack: contextlib.ExitStack, side: Side, request: SideRequest, baselines: Path, limit: float
    ) -> Callable[[], Run]:
        """Start pytest on a side, to be ended with `stack` at the latest. Returns what waits for it."""
        self._started += 1
        folder = self.folder / f"run-{self._started}-{side.name}"
        folder.mkdir(parents=True)
        baselines.mkdir(exist_ok=True)
        (folder / REQUEST_FILE).write_text(json.dumps(plain(request)), encoding="utf-8")
        command = [sys.executable, "-P", "-m", "pytest", *self._arguments(side, folder, baselines, request.seconds)]
        variables = {**side.variables(os.environ), **self._variables}
        variables.pop("PYTHONDONTWRITEBYTECODE", None)  # nothing of it gets into the working tree
        started = time.monotonic()
        process = running(command, directory=side.directory, environment=variables, output=folder / _OUTPUT)
        ended = stack.enter_context(process)
        return lambda: _run_that_ended(side, folder, ended(limit), limit, time.monotonic() - started)

    def _arguments(self, side: Side, folder: Path, baselines: Path, seconds: float | None) -> list[str]:
        first = ["-p", "perfsuite.hooks.side_child", f"{OPTION}={folder}"]
        last = ["--perf-only", f"--perf-baselines={baselines}", "--override-ini=perf_strict=false", "--capture=no"]
        if seconds is not None:
            last.append(f"--perf-seconds={seconds:g}")
        given = side.arguments(self.arguments)
        end = given.index("--") if "--" in given else len(given)
        # Of an option that is given twice, argparse takes the last.
        return [*first, *given[:end], *last, *given[end:]]


def at_once() -> bool:
    """Whether the tests can run on two sides at the same time: with two cores, and no accelerator.

    A process holds an accelerator, or most of its memory, for itself. JAX_PLATFORMS=cpu says that there is none.
    """
    return os.environ.get("JAX_PLATFORMS") == "cpu" and (os.cpu_count() or 1) > 1


def _recorded(run: Run, baselines: Path) -> FirstRun:
    found = {}
    for path in sorted(baselines.glob("*.json")):
        try:
            found[path.stem] = load(path)
        except BaselineError as error:
            run = dataclasses.replace(run, problem=str(error))
    return FirstRun(run, found)


def _run_that_ended(side: Side, folder: Path, ended: int | None, limit: float, took: float) -> Run:
    """What a process left in its folder, which ended with a status, or was stopped (None) after `limit` seconds."""
    try:
        notes = from_json(Notes, (folder / NOTES_FILE).read_bytes())
    except (OSError, ValueError):
        how = f"was stopped after {limit:.0f} s" if ended is None else f"ended with status {ended}"
        text = " ".join((folder / _OUTPUT).read_text(encoding="utf-8", errors="replace").split())[-_OUTPUT_SHOWN:]
        return Run(Notes(), took, f"pytest {how}; the end of its output: {text or 'nothing'}")
    if notes.foreign:
        name, file = next(iter(notes.foreign.items()))
        raise SideFailed(
            f"{side.name} imported {name} from the working tree ({file}), so it did not run its commit's code: "
            "install the project so that its packages' folder is on sys.path (an editable install, or PYTHONPATH)"
        )
    return Run(notes, took)


def windows(
    tests: Tests,
    sides: tuple[Side, Side],
    effort: Effort,
    *,
    first: Sequence[FirstRun],
    say: Say,
    order: random.Random | None = None,
) -> Iterator[Window]:
    """Windows of processes, until the minutes are over, but at least two. Who takes them may stop before.

    Each order of a window's processes is equally likely. So what differs between processes (where their memory lies)
    and the machine's drift affect both sides alike. A process may take four times as long as the `first` ones, which
    did more, but the machine may be busier then.
    """
    order = order or random.Random()
    limit = _STARTING_SECONDS + _SLACK * max(each.run.seconds for each in first)
    started = time.monotonic()
    for number in itertools.count(1):
        began = time.monotonic()
        ran: tuple[list[Run], list[Run]] = ([], [])
        turns = [0, 1] * WINDOW
        order.shuffle(turns)
        say(f"times: window {number}, {WINDOW} processes of each side")
        for side in turns:
            ran[side].append(tests.times(sides[side], seconds=effort.seconds, limit=limit))
        yield Window(tuple(ran[0]), tuple(ran[1]))
        now = time.monotonic()
        if number > 1 and now - started + (now - began) > 60 * effort.minutes:
            return


def share(place: int) -> float:
    """The part of an error that the first, second, ... of any number of questions gets: all parts make 1 at most.

    So processes may end as soon as enough is known.
    """
    return 1 / (place * (place + 1))
