"""Run the tests on the sides: once for their metrics, then in many processes in random order for the times."""

import contextlib
import dataclasses
import json
import os
import random
import time
from collections import ChainMap
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path

from perfsuite.against.notes import NOTES_FILE, OPTION, REQUEST_FILE, Notes, Place, SideRequest, Task
from perfsuite.against.sides import Side, SideFailed
from perfsuite.gate.baseline import Baselines, Entry
from perfsuite.gate.baseline_file import BaselineError, load
from perfsuite.measure.io import user_cache
from perfsuite.measure.serialise import from_json, plain
from perfsuite.processes.rerun import running

WINDOW = 5
"""Processes of each side in a window. Two windows of five can show a change at an error of 1 in 31752, ten separate
pairs only at 1 in 512."""

FIRST_SECONDS = 3600.0
"""The most that the first run of the tests in an environment may take: their duration is not known yet."""

PARTS = 4
"""The most processes of a side that share its tests, where both sides run at once."""

FILES = 4
"""The fewest files of tests for each of them: each imports jax and the project anew."""

_POLL = 0.1
_STARTING_SECONDS = 120.0
_SLACK = 4.0
_OUTPUT_SHOWN = 400
_OUTPUT = "output.txt"

Say = Callable[[str], None]
"""Called with what begins."""


@dataclasses.dataclass(frozen=True)
class Effort:
    """How long a check takes times: `rounds` processes of each side at most, for about `minutes` in all.

    One timing takes `seconds` at most. None for the minutes does not end it.
    """

    rounds: int
    minutes: float | None
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

    def place(self, test: str, metric: str) -> Place | None:
        """The place of a metric, by its title; None for one that the test did not make."""
        return self.run.notes.places.get(test, {}).get(metric)


@dataclasses.dataclass(frozen=True)
class Window:
    """Processes of both sides that ran in random order, equally many of each."""

    base: tuple[Run, ...]
    head: tuple[Run, ...]

    @property
    def sides(self) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
        return self.base, self.head

    @property
    def complete(self) -> bool:
        """Whether every process has notes: without some of them the order is no longer random."""
        return not any(run.problem for run in (*self.base, *self.head))


class Tests:
    """The tests of one project, to be run on each side.

    `arguments` are pytest's, as on its command line, `folder` is scratch. `only` are the tests to run, None means all.
    `files` is how many files have them, where known. With `looks` the metrics have a look at what is sampled; without
    it that is only named, for `times` to take it. What compilers for absent devices say of a program is the same on any
    side and on any day: it is kept for the user.
    """

    __test__ = False

    def __init__(self, arguments: Sequence[str], folder: Path, *, files: int = 1, looks: bool = False):
        self.arguments = tuple(arguments)
        self.folder = folder
        self.parts = max(1, min(PARTS, files // FILES))
        self.looks = looks
        self.only: frozenset[str] | None = None
        self._started = 0

    def collected(self, side: Side) -> Run:
        """Only collect the tests: the notes have their files."""
        return self._run(side, self._request("collect", side), self.folder / "no-baselines", FIRST_SECONDS)

    def metrics(self, *sides: Side) -> list[FirstRun]:
        """Run the tests for what is exact, and record it as `pytest --perf-save` does.

        The sides run at once where `at_once` says that they can: what is exact is the same beside other work. Of many
        files, each of `parts` processes of a side runs some, and the two sides take these parts in opposite orders.
        What one has compiled the other reads from JAX's persistent cache, so each compiles about half.
        """
        if len(sides) != 2 or not at_once():
            return [found for side in sides for found in _together(self._in_parts(side, None, [(0, 1)]))]
        parts = [(part, self.parts) for part in range(self.parts)]
        shared = self.folder / f"programs-{self._started}" if self.parts > 1 else None
        base, head = sides
        return _together(self._in_parts(base, shared, parts), self._in_parts(head, shared, parts[::-1]))

    def _in_parts(
        self, side: Side, programs: Path | None, parts: Sequence[tuple[int, int]]
    ) -> Generator[None, None, FirstRun]:
        """Run the parts one after the other, and yield while one of them runs."""
        found = []
        for part in parts:
            request = self._request("metrics", side, part=part, programs=str(programs) if programs else "")
            folder = self.folder / f"baselines-{self._started}-{side.name}"
            with contextlib.ExitStack() as stack:
                ended = self._begin(stack, side, request, folder, FIRST_SECONDS)
                while (run := ended(_POLL)) is None:
                    yield
            found.append(_recorded(run, folder))
        return _joined(found)

    def times(self, side: Side, *, seconds: float, limit: float) -> Run:
        """Time every call of the tests for at most `seconds`, in a process that may take `limit` seconds."""
        return self._run(side, self._request("times", side, seconds), self.folder / "no-baselines", limit)

    def facts(self, side: Side) -> Path:
        """The folder for the facts of programs on a side."""
        return self.folder / f"facts-{side.name}"

    def _request(
        self,
        task: Task,
        side: Side,
        seconds: float | None = None,
        part: tuple[int, int] = (0, 1),
        programs: str = "",
    ) -> SideRequest:
        only = None if self.only is None else tuple(sorted(self.only))
        kept = str(user_cache() / "programs")
        return SideRequest(task, seconds, str(self.facts(side)), kept, only, self.looks, part, programs)

    def _run(self, side: Side, request: SideRequest, baselines: Path, limit: float) -> Run:
        with contextlib.ExitStack() as stack:
            ended = self._begin(stack, side, request, baselines, limit)
            while (run := ended(limit)) is None:
                pass
            return run

    def _begin(
        self, stack: contextlib.ExitStack, side: Side, request: SideRequest, baselines: Path, limit: float
    ) -> Callable[[float], Run | None]:
        """Start pytest on a side, to be ended with `stack` at the latest.

        Returns what waits for it, so many seconds at most: None where it may go on, up to `limit` seconds in all.
        """
        self._started += 1
        folder = self.folder / f"run-{self._started}-{side.name}"
        folder.mkdir(parents=True)
        baselines.mkdir(exist_ok=True)
        (folder / REQUEST_FILE).write_text(json.dumps(plain(request)), encoding="utf-8")
        command = [
            str(side.environment.python),
            "-P",
            "-m",
            "pytest",
            *self._arguments(side, folder, baselines, request.seconds),
        ]
        # A stage that the persistent cache answers takes no time.
        variables = {**side.variables(os.environ), "JAX_ENABLE_COMPILATION_CACHE": "false"}
        output = folder / _OUTPUT
        started = time.monotonic()
        try:
            process = running(command, directory=side.directory, environment=variables, output=output)
            ended = stack.enter_context(process)
        except OSError as error:
            failed = Run(Notes(), 0.0, f"pytest could not be started ({error})")
            return lambda seconds: failed

        def waited(seconds: float) -> Run | None:
            status = ended(max(0.0, min(seconds, started + limit - time.monotonic())))
            took = time.monotonic() - started
            return None if status is None and took < limit else _run_that_ended(side, folder, status, limit, took)

        return waited

    def _arguments(self, side: Side, folder: Path, baselines: Path, seconds: float | None) -> list[str]:
        # Another process may read a program from the cache while this one writes it: it is compiled then.
        ignored = "ignore:Error reading persistent compilation cache entry"
        first = ["-p", "perfsuite.hooks.side_child", f"{OPTION}={folder}", "-W", ignored]
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


def _together(*runs: Generator[None, None, FirstRun]) -> list[FirstRun]:
    """What each of these returns; they take turns."""
    ended: dict[int, FirstRun] = {}
    with contextlib.ExitStack() as stack:
        for run in runs:
            stack.enter_context(contextlib.closing(run))
        while len(ended) < len(runs):
            for place, run in enumerate(runs):
                try:
                    next(run)
                except StopIteration as stopped:
                    ended.setdefault(place, stopped.value)
    return [ended[place] for place in range(len(runs))]


def _joined(parts: Sequence[FirstRun]) -> FirstRun:
    """The parts of a first run as one."""
    notes = [part.run.notes for part in parts]
    problems = dict.fromkeys(part.run.problem for part in parts if part.run.problem)
    whole = Notes(
        tests=dict(ChainMap(*(each.tests for each in notes))),
        uncollected=dict(ChainMap(*(each.uncollected for each in notes))),
        stages=[stage for each in notes for stage in each.stages],
        device=next((each.device for each in notes if each.device), ""),
        places=dict(ChainMap(*(each.places for each in notes))),
    )
    saved: dict[str, dict[str, Mapping[str, Entry]]] = {}
    for part in parts:
        for device, baselines in part.baselines.items():
            saved.setdefault(device, {}).update(baselines.metrics)
    every = {device: Baselines(device, metrics) for device, metrics in saved.items()}
    return FirstRun(Run(whole, sum(part.run.seconds for part in parts), "; ".join(problems)), every)


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
    limit: float,
    say: Say,
    order: random.Random | None = None,
) -> Iterator[Window]:
    """Windows of processes, until there were so many rounds or the minutes are over, but at least one.

    Whoever takes them may stop before, where enough is known.

    Each order of a window's processes is equally likely. So what differs between processes (where their memory lies)
    and the machine's drift affect both sides alike. A process may take `limit` seconds.
    """
    order = order or random.Random()
    started = time.monotonic()
    done = 0
    for size in sizes(effort.rounds):
        began = time.monotonic()
        ran: tuple[list[Run], list[Run]] = ([], [])
        turns = [0, 1] * size
        order.shuffle(turns)
        for place, side in enumerate(turns):
            say(f"times: process {2 * done + place + 1} of {2 * effort.rounds} at most")
            ran[side].append(tests.times(sides[side], seconds=effort.seconds, limit=limit))
        done += size
        yield Window(tuple(ran[0]), tuple(ran[1]))
        now = time.monotonic()
        if effort.minutes is not None and now - started + (now - began) > 60 * effort.minutes:
            return


def sizes(rounds: int) -> list[int]:
    """The sizes of the windows that make so many rounds: as equal as possible, none above `WINDOW`."""
    number = -(-rounds // WINDOW)
    return [rounds // number + (place < rounds % number) for place in range(number)] if rounds else []


def looks(rounds: int) -> int:
    """How often it is looked whether enough is known: after each window but the first, which alone shows little."""
    return max(1, len(sizes(rounds)) - 1)


def timing_limit(first: Sequence[FirstRun]) -> float:
    """The most seconds for a process that only times: the first runs did more, but the machine may be busier then."""
    return _STARTING_SECONDS + _SLACK * max(each.run.seconds for each in first)
