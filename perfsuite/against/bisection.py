"""Since which commit, or which release of which package, a metric is worse: the ends, the steps between, the answer.

Git chooses the commits: `git bisect` runs in a worktree of its own, and is told what each commit is. For packages the
steps are a list, from the good versions to the bad ones, one release and one package at a time; it is halved.
"""

import contextlib
import dataclasses
import math
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from perfsuite.against.changes import (
    ERROR,
    judge,
    metrics_changed,
    pytest_id,
    rows,
    versions_changed,
)
from perfsuite.against.notes import Place
from perfsuite.against.runs import Effort, Run, Say, Tests, Window, share, timed_windows, tree_here
from perfsuite.against.sides import Side, SideFailed, releases, side_of_commit, side_of_tree, worktree
from perfsuite.gate.baseline import Entry, name_of
from perfsuite.gate.verdict import Result, Verdict
from perfsuite.git import GitError, Repository
from perfsuite.measure.metric import Interval, title
from perfsuite.measure.targets.target_available import ANY_VERSION
from perfsuite.measure.timing.shift import rank_sum_interval
from perfsuite.measure.words import number, printable

End = Literal["good", "bad", "skipped"]
"""The end that a step is like; neither of a step that was not judged."""

_LISTED = 12
_TELLING = (Verdict.FAIL, Verdict.IMPROVED, Verdict.NEW, Verdict.MISSING)


class BisectFailed(Exception):  # noqa: N818  (a report, not a fault of this process)
    """There is nothing to search. The message names the argument, and says what to do."""


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A test as pytest knows it, and the title of one of its metrics as `perfsuite show` prints it."""

    test: str
    metric: str

    @classmethod
    def read(cls, text: str) -> "Wanted":
        """`tests/test_a.py::test_step::step host calls`. Raises `BisectFailed`."""
        test, _, metric = (part.strip() for part in text.rpartition("::"))
        if "::" not in test or not metric or re.fullmatch(r"test\w*(\[.*)?|.*\]", metric):
            raise BisectFailed(
                f'"{text}" names no metric of a test: give "tests/test_a.py::test_step::step host calls", as '
                "`perfsuite show` prints them"
            )
        return cls(pytest_id(test), metric)


@dataclasses.dataclass(frozen=True)
class Step:
    """One step that was tried: a commit, or packages with their versions.

    `value` is the metric in `unit`; of a time `interval` holds what it is over that of the good end. `reason` says why
    a step was skipped, or what to know of one that was not.
    """

    name: str
    verdict: End
    value: float | None = None
    unit: str = ""
    interval: Interval | None = None
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Bisection:
    """A finished search.

    `suspects` are the names of the steps of which one is the first that is like the newer end, which is `first`; they
    are several where steps that could not be tried hide which. `about` are lines on a single one. `changes` are the
    metrics of the test that changed there, from the better step to the worse one, where both were tried, and `packages`
    those that differ.
    """

    test: str
    metric: str
    steps: tuple[Step, ...]
    first: End
    suspects: tuple[str, ...]
    about: tuple[str, ...] = ()
    changes: tuple[Result, ...] = ()
    packages: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Package:
    """A package, and its version at either end."""

    name: str
    good: str
    bad: str

    @classmethod
    def read(cls, text: str) -> "Package":
        """`jax==0.10.0..0.10.2`, good to bad. Raises `BisectFailed`."""
        name, _, ends = text.partition("==")
        good, _, bad = ends.partition("..")
        try:
            package = cls(canonicalize_name(Requirement(name).name), str(Version(good)), str(Version(bad)))
        except (InvalidRequirement, InvalidVersion) as error:
            why = str(error).splitlines()[0]
            raise BisectFailed(f"--package {text}: {why}; write jax==0.10.0..0.10.2, from good to bad") from None
        if Version(good) == Version(bad):
            raise BisectFailed(f"--package {text}: good and bad are the same version")
        return package

    def versions(self) -> list[str]:
        """The releases from the good end to the bad one. Raises `SideFailed`."""
        older, newer = sorted((self.good, self.bad), key=Version)
        versions = [newer, *releases(self.name, older, newer), older]
        return versions if newer == self.good else versions[::-1]


class Trials:
    """Tries the steps of one search: runs the test once for what is exact, and for a time beside the good end.

    `side_of` makes the side of a step by its id, `name_of` says what people call it.
    """

    def __init__(
        self,
        side_of: Callable[[str], contextlib.AbstractContextManager[Side]],
        name_of: Callable[[str], str],
        wanted: Wanted,
        tests: Tests,
        effort: Effort,
        say: Say,
    ):
        self.wanted, self.tests, self.effort, self.say = wanted, tests, effort, say
        self.steps: dict[str, Step] = {}
        self.runs: dict[str, Run] = {}
        self.versions: dict[str, dict[str, str]] = {}
        self._side_of, self._name_of = side_of, name_of
        self._good: Entry | None = None
        self._good_side: Side | None = None
        self._good_id = ""
        self._moved = math.inf
        self._timed = 0
        tests.only = frozenset({wanted.test})

    @contextlib.contextmanager
    def between(self, good: str, bad: str) -> Iterator[None]:
        """Try both ends; the good one stays until the end of the block. Raises `BisectFailed`."""
        self._good_id = good
        with contextlib.ExitStack() as stack:
            try:
                side = stack.enter_context(self._side_of(good))
                self.runs[good] = self._ran(good, side)
                self._good = self._entry(good)
            except (SideFailed, GitError) as error:
                raise BisectFailed(f"the good end, {self._name_of(good)}, says nothing: {error}") from None
            if (self._good.kind == "info" and not self._is_sampled()) or self.wanted.metric.endswith(" p99"):
                raise BisectFailed(f'"{self.wanted.metric}" gates nothing: name a count, a size, a ratio or a time')
            self._good_side = side
            self.steps[good] = Step(self._name_of(good), "good", self._good.value, self._good.unit)
            verdict = self.verdict(bad)
            step = self.steps[bad]
            if verdict == "skipped":
                raise BisectFailed(f"the bad end, {step.name}, says nothing: {step.reason}")
            if verdict == "good":
                both = f"{_value(self.steps[good])}, then {_value(step)}"
                raise BisectFailed(
                    f"{self.wanted.metric} is not worse at the bad end ({both}): swap --good and --bad if it is better "
                    "there, or name another metric"
                )
            if step.interval is not None:
                self._moved = math.log(step.interval.low * step.interval.high) / 2
            yield

    def verdict(self, id: str) -> End:
        """Good, bad, or skipped with a reason: of a step that was tried before, what it was."""
        if id not in self.steps:
            self.say(f"{self._name_of(id)}: the test, once")
            try:
                with self._side_of(id) as side:
                    self.runs[id] = self._ran(id, side)
                    step = self._judged(id, side)
                    reasons = filter(None, [step.reason, *side.packages.conflicts])
                    step = dataclasses.replace(step, reason="; ".join(reasons))
            except (SideFailed, GitError) as error:
                step = Step(self._name_of(id), "skipped", reason=str(error))
            self.steps[id] = step
            self.say(" ".join(filter(None, [step.verdict, _value(step), step.reason])))
        return self.steps[id].verdict

    def answer(self, pair: tuple[str, str], suspects: Sequence[str], first: End, about: Sequence[str]) -> Bisection:
        """The answer. `pair` are the better and the worse step between which it changed, if there is one suspect."""
        changes: list[Result] = []
        packages: list[str] = []
        if len(suspects) == 1 and all(id in self.runs for id in pair):
            changes = metrics_changed(*(self.runs[id] for id in pair))
            packages = versions_changed(*(self.versions[id] for id in pair))
        shown = [each for each in changes if each.verdict in _TELLING]
        return Bisection(
            self.wanted.test,
            self.wanted.metric,
            tuple(self.steps.values()),
            first,
            tuple(map(self._name_of, suspects)),
            tuple(about) if len(suspects) == 1 else (),
            tuple(sorted(shown, key=lambda change: change.metric.title != self.wanted.metric)),
            tuple(packages),
        )

    def _ran(self, id: str, side: Side) -> Run:
        [first] = self.tests.metrics(side)
        self.versions[id] = dict(side.packages.versions)
        if first.problem:
            raise SideFailed(first.problem)
        outcome, why = first.notes.tests.get(self.wanted.test, ("not found", "perfsuite show prints the ids of tests"))
        if outcome == "passed":
            return first
        not_collected = "; ".join(reason for what, reason in first.notes.tests.values() if what == "not collected")
        raise SideFailed(f"the test: {outcome}, {not_collected or why}")

    def _entry(self, id: str) -> Entry:
        """The metric at a step. Raises `SideFailed` where the test does not make it."""
        run = self.runs[id]
        entries = {
            title(name_of(key, entry), None if device == run.notes.device else device): entry
            for device, each in run.baselines.items()
            for test, metrics in each.metrics.items()
            for key, entry in metrics.items()
            if pytest_id(test) == self.wanted.test
        }
        if self.wanted.metric not in entries:
            listed = ", ".join(f'"{name}"' for name in sorted(entries)[:_LISTED])
            raise SideFailed(f'the test makes no "{self.wanted.metric}" there, but {listed or "no metric"}')
        return entries[self.wanted.metric]

    def _judged(self, id: str, side: Side) -> Step:
        assert self._good is not None
        entry = self._entry(id)
        step = Step(self._name_of(id), "good", entry.value, entry.unit)
        if self._is_sampled():
            return self._compared(step, side)
        change = judge(self.wanted.test, self.wanted.metric, self._good, entry, Place())
        if change.verdict == Verdict.NOT_COMPARABLE:
            return dataclasses.replace(step, verdict="skipped", reason=change.incomparable)
        return dataclasses.replace(step, verdict="bad" if change.verdict == Verdict.FAIL else "good")

    def _is_sampled(self) -> bool:
        place = self.runs[self._good_id].place(self.wanted.test, self.wanted.metric)
        return place is not None and place.sampled

    def _compared(self, step: Step, side: Side) -> Step:
        """Take the time beside the good end until it is clear on which side of half of the way to the bad end it lies.

        The bad end itself is bad where it is above the good one. All steps share the error, as all looks at one do.
        """
        assert self._good_side is not None
        self._timed += 1
        half = self._moved / 2 if math.isfinite(self._moved) else 0.0
        taken: list[Window] = []
        logs = Interval(-math.inf, math.inf)
        sides = (self._good_side, side)
        for window in timed_windows(self.tests, sides, self.effort, first=[self.runs[self._good_id]], say=self.say):
            taken.append(window)
            of_test = rows(taken, {self.wanted.test})
            error = ERROR * share(self._timed) * share(max(1, len(taken) - 1))
            for (_, name, _), times in of_test.items():
                if name == self.wanted.metric:
                    logs = rank_sum_interval(times, error)
            if len(taken) > 1 and (logs.low > half or logs.high < half):
                break
        if not math.isfinite(logs.high):
            problems = [problem for window in taken for problem in window.problems]
            raise SideFailed(problems[0] if problems else "too few processes gave the time: allow more --minutes")
        over = Interval(math.exp(logs.low), math.exp(logs.high))
        if logs.low > half:
            return dataclasses.replace(step, verdict="bad", interval=over)
        if logs.high < half or not math.isfinite(self._moved):
            return dataclasses.replace(step, verdict="good", interval=over)
        return dataclasses.replace(step, verdict="skipped", interval=over, reason="undecided: allow more --minutes")


def over_commits(
    wanted: Wanted, good: str, bad: str, arguments: Sequence[str], effort: Effort, scratch: Path, say: Say
) -> Bisection:
    """Find the commit by `git bisect`. Raises `BisectFailed`."""
    try:
        repository = Repository(Path.cwd())
        ends = {name: repository.commit_id(name) for name in (good, bad)}
        if unknown := [name for name, id in ends.items() if id is None]:
            raise BisectFailed(f"{unknown[0]}: git knows no such commit: give a commit, a branch or a tag")
        good, bad = (str(ends[name]) for name in (good, bad))
        say("the perf tests of the working tree")
        tree = tree_here(arguments)
        bad_is_newer = repository.run("merge-base", good, bad).strip() != bad
    except (GitError, SideFailed) as error:
        raise BisectFailed(f"{wanted.test}: {error}") from None

    def side_of(id: str) -> contextlib.AbstractContextManager[Side]:
        return side_of_commit(tree, id, id[:12], scratch=scratch)

    def name_of(id: str) -> str:
        return repository.title(id)

    trials = Trials(side_of, name_of, wanted, Tests(arguments, scratch / "runs"), effort, say)
    newer, older = (bad, good) if bad_is_newer else (good, bad)
    terms = {"bad": "new" if bad_is_newer else "old", "good": "old" if bad_is_newer else "new", "skipped": "skip"}
    with trials.between(good, bad), worktree(repository, newer, scratch / "bisect") as place:
        inside = Repository(place)
        _git_bisect(inside, "start", "--no-checkout", "--term-old=old", "--term-new=new", newer, older)
        while not (suspects := _suspects(inside)):
            commit = str(inside.commit_id("BISECT_HEAD"))
            _git_bisect(inside, terms[trials.verdict(commit)], commit)
        shown = repository.run("show", "--stat=100", "--format=%an, %as%n%B", suspects[-1])
        about = [printable(line, " ").rstrip() for line in shown.splitlines() if line]
        before = repository.commit_id(f"{suspects[-1]}^1") or ""
        pair = (before, suspects[-1]) if bad_is_newer else (suspects[-1], before)
        return trials.answer(pair, suspects, "bad" if bad_is_newer else "good", about)


def _git_bisect(repository: Repository, *arguments: str) -> None:
    """Raises `BisectFailed` with git's own words, but for commits that are left because they were skipped."""
    try:
        repository.run("bisect", *arguments)
    except GitError as error:
        if not _suspects(repository):
            raise BisectFailed(str(error)) from None


def _suspects(repository: Repository) -> list[str]:
    """The commits that `git bisect` says it may be, once it is done."""
    return re.findall(r"^# (?:possible )?first new commit: \[(\w+)\]", repository.run("bisect", "log"), re.MULTILINE)


def over_packages(
    wanted: Wanted, packages: Sequence[Package], arguments: Sequence[str], effort: Effort, scratch: Path, say: Say
) -> Bisection:
    """Find the package, where there are several, and its release. Raises `BisectFailed`."""
    versions = {each.name: each.good for each in packages}
    if len(versions) < len(packages):
        raise BisectFailed("a package is named twice: give it once")
    ids, moved = [_step_id(versions)], [""]
    try:
        for package in packages:
            for version in package.versions()[1:]:
                versions[package.name] = version
                ids.append(_step_id(versions))
                moved.append(package.name)
    except SideFailed as error:
        raise BisectFailed(str(error)) from None

    @contextlib.contextmanager
    def side_of(id: str) -> Iterator[Side]:
        with tempfile.TemporaryDirectory(dir=scratch) as folder:  # one with libtpu holds some 600 MB
            side = side_of_tree(id.split(), f"step-{ids.index(id)}", scratch=Path(folder))
            yield dataclasses.replace(side, extra={ANY_VERSION: "1"})

    tests = Tests(arguments, scratch / "runs")
    trials = Trials(side_of, lambda id: id.replace("==", " "), wanted, tests, effort, say)
    with trials.between(ids[0], ids[-1]):
        low, high = halved(ids, trials.verdict)
        before, after = (dict(each.split("==") for each in ids[at].split()) for at in (low, high))
        name = moved[high]
        bad_is_newer = Version(after[name]) > Version(before[name])
        suspects = ids[low + 1 : high + 1] if bad_is_newer else ids[low:high]
        at = after[name] if bad_is_newer else before[name]
        about = [f"what is new in it: https://pypi.org/project/{name}/{at}"]
        return trials.answer((ids[low], ids[high]), suspects, "bad" if bad_is_newer else "good", about)


def halved(steps: Sequence[str], verdict: Callable[[str], End]) -> tuple[int, int]:
    """The last step that is good and the first that is bad after it. The first of `steps` is good, the last one bad.

    All between the two were skipped.
    """
    low, high = 0, len(steps) - 1
    skipped: set[int] = set()
    while untried := [at for at in range(low + 1, high) if at not in skipped]:
        middle = min(untried, key=lambda at: abs(2 * at - low - high))
        answer = verdict(steps[middle])
        if answer == "skipped":
            skipped.add(middle)
        elif answer == "bad":
            high = middle
        else:
            low = middle
    return low, high


def _step_id(versions: dict[str, str]) -> str:
    return " ".join(f"{name}=={version}" for name, version in versions.items())


def _value(step: Step) -> str:
    if step.interval is not None:
        return f"{number(step.interval.low)} to {number(step.interval.high)} times the good end's"
    return "" if step.value is None else f"{number(step.value)} {step.unit}"
