"""Run the tests on the sides: once for their metrics, then in many processes in random order for the times."""

import contextlib
import dataclasses
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from perfsuite.against.notes import NOTES_FILE, OPTION, REQUEST_FILE, Notes, Place, SideRequest, Task
from perfsuite.against.sides import Side, SideFailed, Tree, present_packages, side_of_commit, side_of_tree
from perfsuite.gate.baseline import Baselines
from perfsuite.gate.baseline_file import BaselineError, load
from perfsuite.git import SHALLOW, GitError, Repository
from perfsuite.measure.io import user_cache
from perfsuite.measure.serialise import from_json, plain
from perfsuite.processes import running

WINDOW = 5
"""Processes of each side in a window. Two windows of five can show a change at an error of 1 in 31752, ten separate
pairs only at 1 in 512."""

FIRST_SECONDS = 3600.0
"""The most that the first run of the tests on a side may take: their duration is not known yet."""

_STARTING_SECONDS = 120.0
_SLACK = 4.0
_OUTPUT_SHOWN = 400
_OUTPUT = "output.txt"

BRANCHES = ("main", "master", "origin/HEAD", "origin/main", "origin/master")
"""The first of these that is there is what a branch is compared with by default: its merge base with it."""

_INSTALLED = {"site-packages", "dist-packages"}

Say = Callable[[str], None]
"""Called with what begins."""


@dataclasses.dataclass(frozen=True)
class Effort:
    """How long a check takes times: for about `minutes` in all, and one timing for `seconds`."""

    minutes: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class Run:
    """The notes of one process, what went wrong, and the metrics that it recorded, by device.

    A process that did not end by itself has no notes.
    """

    notes: Notes
    seconds: float
    problem: str = ""
    baselines: Mapping[str, Baselines] = dataclasses.field(default_factory=dict)

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

    def metrics(self, *sides: Side) -> list[Run]:
        """Run the tests for what is exact, and record it as `pytest --perf-save` does, in a folder for each side.

        The sides run at once where `at_once` says that they can: what is exact is the same beside other work.
        """
        ran: list[Run] = []
        for group in [sides] if at_once() else [[side] for side in sides]:
            folders = [self.folder / f"baselines-{self._started}-{side.name}" for side in group]
            with contextlib.ExitStack() as stack:
                begun = [
                    self._begin(stack, side, self._request("metrics", side), folder, FIRST_SECONDS)
                    for side, folder in zip(group, folders, strict=True)
                ]
                ended = [end() for end in begun]
            ran += [_with_baselines(run, folder) for run, folder in zip(ended, folders, strict=True)]
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
        arguments = side.arguments(self.arguments)
        end = arguments.index("--") if "--" in arguments else len(arguments)
        # Of an option that is given twice, argparse takes the last.
        return [*first, *arguments[:end], *last, *arguments[end:]]


def at_once() -> bool:
    """Whether the tests can run on two sides at the same time: with two cores, and no accelerator.

    A process holds an accelerator, or most of its memory, for itself. JAX_PLATFORMS=cpu says that there is none.
    """
    return os.environ.get("JAX_PLATFORMS") == "cpu" and (os.cpu_count() or 1) > 1


def _with_baselines(run: Run, folder: Path) -> Run:
    baselines, problem = {}, run.problem
    for path in sorted(folder.glob("*.json")):
        try:
            baselines[path.stem] = load(path)
        except BaselineError as error:
            problem = str(error)
    return dataclasses.replace(run, baselines=baselines, problem=problem)


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


def timed_windows(
    tests: Tests,
    sides: tuple[Side, Side],
    effort: Effort,
    *,
    first: Sequence[Run],
    say: Say,
    order: random.Random | None = None,
) -> Iterator[Window]:
    """Windows of processes, until the minutes are over, but at least two. Who takes them may stop before.

    Each order of a window's processes is equally likely. So what differs between processes (where their memory lies)
    and the machine's drift affect both sides alike. A process may take four times as long as the `first` ones, which
    did more, but the machine may be busier then.
    """
    order = order or random.Random()
    limit = _STARTING_SECONDS + _SLACK * max(each.seconds for each in first)
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


def tree_here(arguments: Sequence[str]) -> Tree:
    """The working tree around the current directory, with the perf tests that pytest collects with `arguments`.

    Raises `GitError` without git or outside a repository, and `SideFailed` where there is no perf test.
    """
    here = Path.cwd().resolve()
    root = Path(Repository(here).run("rev-parse", "--show-toplevel").removesuffix("\n")).resolve()
    with tempfile.TemporaryDirectory(prefix="perfsuite-against-", ignore_cleanup_errors=True) as scratch:
        collected = Tests(arguments, Path(scratch)).collected(Side("the working tree", present_packages(), here))
    notes = collected.notes
    if collected.problem:
        raise SideFailed(f"in the working tree, {collected.problem}")
    tests = [Path(file) for file in notes.files if Path(file).is_relative_to(root)]
    if not tests:
        why = "; ".join(f"{file}: {reason}" for file, (_, reason) in notes.tests.items())
        raise SideFailed(f"pytest finds no perf test in the working tree{f' ({why})' if why else ''}")
    imports = dict.fromkeys(path for path in map(Path, notes.path) if _holds_code(path, root))
    return Tree(root, here, tuple(imports), tuple(tests), Path(notes.rootdir))


@contextlib.contextmanager
def both_sides(
    revision: str | None, specs: tuple[Sequence[str], Sequence[str]], arguments: Sequence[str], scratch: Path
) -> Iterator[tuple[Side, Side]]:
    """The base and the head: a commit and the working tree, or for the revision None the working tree twice.

    An empty revision is the merge base with the main branch. `specs` are the packages of the base and of the head, in
    the place of the present ones, `arguments` are pytest's, and `scratch` is a folder for what both sides need. Raises
    `SideFailed` and `GitError`.
    """
    of_base, of_head = specs
    if revision is None:
        # The head's packages first: where uv cannot install them, the user learns it at once.
        head = side_of_tree(of_head, "head", scratch=scratch)
        yield side_of_tree(of_base, "base", scratch=scratch), head
        return
    tree = tree_here(arguments)
    chosen = revision or _merge_base(tree.repository)
    head = side_of_tree(of_head, "head", scratch=scratch)
    with side_of_commit(tree, chosen, "base", scratch=scratch, specs=of_base) as base:
        yield base, head


def _merge_base(repository: Repository) -> str:
    main = next((name for name in BRANCHES if repository.commit_id(name)), None)
    if main is None:
        raise SideFailed(f"there is no branch {', '.join(BRANCHES)} to compare with: name a commit or a branch")
    try:
        return repository.run("merge-base", main, "HEAD").strip()
    except GitError:
        why = f" {SHALLOW[0].upper()}{SHALLOW[1:]}" if repository.shallow else ""
        raise SideFailed(f"HEAD and {main} have no commit in common: name a commit or a branch.{why}") from None


def _holds_code(path: Path, root: Path) -> bool:
    return path.is_dir() and path.is_relative_to(root) and not _INSTALLED & set(path.relative_to(root).parts)
