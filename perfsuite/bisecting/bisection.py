"""The whole search: the ends, the steps between them, and what did it."""

import dataclasses
import math
import platform
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from perfsuite.against import environments
from perfsuite.against.following import Say
from perfsuite.against.runs import Effort, Tests
from perfsuite.against.sides import SideFailed
from perfsuite.against.tree import Tree, tree_here
from perfsuite.bisecting import metric, packages, releases
from perfsuite.bisecting.commits import Commits
from perfsuite.bisecting.explaining import changes_between, grown_between, program_between
from perfsuite.bisecting.found import About, Answer, BisectFailed, Bisection, Verdict
from perfsuite.bisecting.graph import Graph
from perfsuite.bisecting.kept import Kept, digest
from perfsuite.bisecting.metric import Wanted
from perfsuite.bisecting.releases import Package
from perfsuite.bisecting.search import Side, search
from perfsuite.bisecting.steps import CommitSteps, PackageSteps, step_id
from perfsuite.bisecting.trying import Trials
from perfsuite.git import GitError, Repository
from perfsuite.measure.words import plural


@dataclasses.dataclass(frozen=True)
class Request:
    """What the command line asks for. `arguments` are pytest's, `scratch` is a folder that nobody else uses.

    `keep` is a folder for environments and steps; None keeps the steps alone, among the user's caches. `again` tries
    steps again that were kept.
    """

    wanted: Wanted
    arguments: tuple[str, ...]
    effort: Effort
    scratch: Path
    keep: Path | None
    folder: Path
    again: bool
    say: Say

    def tests(self) -> Tests:
        """The test alone. One process measures its times: of a time that is asked for many processes are compared."""
        given = self.arguments or (self.wanted.node,)
        tests = Tests(["--perf-processes=1", *given], self.scratch / "runs", say=self.say)
        tests.only = frozenset({self.wanted.node})
        return tests

    def kept(self, good: str, bad: str, files: Iterable[Path]) -> Kept:
        """The steps that were kept of this search: all that they depend on is the same, the content of `files` too."""
        question = {
            "good": good,
            "bad": bad,
            "test": self.wanted.node,
            "metric": self.wanted.metric,
            "arguments": list(self.arguments),
            "effort": [self.effort.rounds, self.effort.seconds],
            "folder": str(Path.cwd()),
            "files": digest(files),
            "python": platform.python_version(),
            "present": dict(environments.present().packages),
        }
        return Kept(self.folder, question, again=self.again)


def over_commits(request: Request, good: str, bad: str) -> Bisection:
    """Find the commit. Raises `BisectFailed`."""
    try:
        commits = Commits(Repository(Path.cwd()), good, bad)
        tests = request.tests()
        request.say("the perf tests of the working tree")
        tree = tree_here(tests.arguments)
    except GitError as error:
        raise BisectFailed(str(error)) from None
    except SideFailed as error:
        raise BisectFailed(f"{request.wanted.node}: {error}") from None
    steps = CommitSteps(tree, commits, scratch=request.scratch, keep=request.keep)
    kept = request.kept(commits.good, commits.bad, _files_of_tests(tree))
    with Trials(steps, tests, request.wanted, kept, request.effort, request.say) as trials:
        trials.ends(commits.good, commits.bad)
        suspects, notes = _first_commits(trials, commits)
        one = len(suspects) == 1
        about = tuple(commits.about(each) if one else About(commits.name(each)) for each in suspects)
        answer = Answer("", tuple(suspects), _first(commits.bad_is_newer), about)
        before = (commits.parents(suspects[0]) or [""])[0]
        return _found(request, trials, [_explained(trials, answer, before, suspects[0])], notes)


def _files_of_tests(tree: Tree) -> Iterator[Path]:
    """What runs at every commit: a change of the tests makes another search of it."""
    yield from (tree.root / path for path in tree.single_files())
    for folder in tree.folders_of_tests():
        yield from (tree.root / folder).rglob("*.py")


def _first_commits(trials: Trials, commits: Commits) -> tuple[list[str], list[str]]:
    """The commits of which one did it, and what to know of the search."""
    suspects = _search(trials, commits.graph(), commits.newer, commits.bad_is_newer)
    if len(suspects) > 1 or not (wrong := _parent_that_is_new(trials, commits, suspects[0])):
        return suspects, []
    note = (
        f"{commits.name(wrong)}, which is older, is {_first(commits.bad_is_newer)} too: "
        f"only commits that come after {commits.name(commits.older)} are searched"
    )
    return _search(trials, commits.graph(descendants=True), commits.newer, commits.bad_is_newer), [note]


def over_packages(request: Request, named: Sequence[Package], *, pre: bool) -> Bisection:
    """Find the package, where there are several, and its release. Raises `BisectFailed`."""
    versions = {each.name: releases.between(each, pre=pre) for each in named}
    steps = PackageSteps([each.name for each in named], scratch=request.scratch, keep=request.keep)
    good, bad = ({each.name: getattr(each, end) for each in named} for end in ("good", "bad"))
    kept = request.kept(step_id(good), step_id(bad), _files_here())
    with Trials(steps, request.tests(), request.wanted, kept, request.effort, request.say) as trials:
        trials.ends(step_id(good), step_id(bad))

        def tried(names: Collection[str]) -> Verdict:
            id = step_id({name: (bad if name in names else good)[name] for name in good})
            request.say(
                f"with {' and '.join(f'{name} {bad[name]}' for name in names)}, and all others as at the good end"
            )
            return trials.verdict(id)

        chosen = packages.responsible([each.name for each in named], tried)
        answers = [
            _release(trials, each, versions[each.name], {**good, **{name: bad[name] for name in chosen}})
            for each in named
            if each.name in chosen
        ]
        return _found(request, trials, answers, _together(chosen))


def _files_here() -> Iterator[Path]:
    """The code and the tests of this folder, as git lists them; without git, Python files outside hidden folders."""
    try:
        listed = Repository(Path.cwd()).run("ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.py")
    except GitError:
        here = Path.cwd().rglob("*.py")
        return (path for path in here if not any(part.startswith(".") for part in path.relative_to(Path.cwd()).parts))
    return (Path(name) for name in listed.split("\0") if name)


def _release(trials: Trials, package: Package, versions: Sequence[str], others: dict[str, str]) -> Answer:
    """The release of one package, with the `others` as they are."""
    ids = {version: step_id({**others, package.name: version}) for version in versions}
    later = versions[1:]
    suspects = _search(trials, Graph.chain([ids[each] for each in later]), ids[versions[-1]], package.bad_is_newer)
    found = [version for version in versions if ids[version] in suspects]
    step = trials.kept.steps.get(ids[found[-1]])
    before = versions[versions.index(found[0]) - 1]
    address = step.addresses.get(package.name, "") if step else ""
    about = tuple(About(f"{package.name} {version}", address=address) for version in found)
    answer = Answer(package.name, tuple(suspects), _first(package.bad_is_newer), about)
    return _explained(trials, answer, ids[before], suspects[-1])


def _search(trials: Trials, graph: Graph, newest: str, bad_is_newer: bool) -> list[str]:
    def ask(id: str, suspects: int) -> Side:
        left = plural(math.ceil(math.log2(suspects)), "step")
        trials.say(f"{trials.steps.name(id)}: one of {suspects} left, about {left} to go")
        verdict = trials.verdict(id)
        step = trials.step(id)
        value = "" if step.value is None else f", {step.value:g} {step.unit}"
        trials.say(f"{verdict}{value}{f' ({step.reason})' if step.reason else ''}")
        if verdict == "skipped":
            return "skipped"
        return "new" if (verdict == "bad") == bad_is_newer else "old"

    return search(graph, newest, ask)


def _parent_that_is_new(trials: Trials, commits: Commits, commit: str) -> str:
    """A parent that is as the newer end, though it comes before a commit that is as the older one; else empty.

    All but the parents of merges, and of commits on branches that began before the older end, were tried already.
    """
    for parent in commits.parents(commit):
        if parent in (commits.older, commits.newer):
            continue
        if (trials.verdict(parent) == "bad") == commits.bad_is_newer and trials.verdict(parent) != "skipped":
            return parent
    return ""


def _explained(trials: Trials, answer: Answer, before: str, found: str) -> Answer:
    """The answer with what changed at the step, where the step and the one before it were both tried."""
    known = trials.kept.steps
    if len(answer.suspects) > 1 or not all(id in known and known[id].baselines for id in (before, found)):
        return answer
    pair = (metric.of_step(known[before]), metric.of_step(known[found]))
    assert trials.goal is not None
    versions = _versions(known[before].packages, known[found].packages)
    about = tuple(dataclasses.replace(each, packages=versions) for each in answer.about)
    return dataclasses.replace(
        answer,
        about=about,
        before=before,
        changes=changes_between(trials.wanted.node, *pair),
        program=program_between(trials.goal.metric, *pair, (trials.facts(before), trials.facts(found))),
        grown=grown_between(trials.wanted.node, trials.goal.metric, *(pair if answer.first == "bad" else pair[::-1])),
    )


def _versions(before: dict[str, str], after: dict[str, str]) -> tuple[str, ...]:
    names = sorted({*before, *after})
    return tuple(
        f"{name} {before.get(name, 'absent')} -> {after.get(name, 'absent')}"
        for name in names
        if before.get(name) != after.get(name)
    )


def _found(request: Request, trials: Trials, answers: Sequence[Answer], notes: Sequence[str]) -> Bisection:
    assert trials.goal is not None
    ids = list(trials.kept.steps)
    good, bad = (trials.kept.question[end] for end in ("good", "bad"))
    return Bisection(
        request.wanted.node,
        trials.goal.metric,
        trials.goal.looks,
        good,
        bad,
        tuple(map(trials.step, ids)),
        frozenset(trials.kept.made),
        {id: trials.steps.name(id) for id in ids},
        tuple(answers),
        str(trials.kept.path),
        tuple(notes),
    )


def _together(chosen: Sequence[str]) -> list[str]:
    if len(chosen) == 1:
        return []
    return [
        f"none of {', '.join(chosen)} is known to be enough alone: for the releases of each, the others are as at the "
        "bad end; the table says what could not be tried"
    ]


def _first(bad_is_newer: bool) -> Literal["good", "bad"]:
    return "bad" if bad_is_newer else "good"
