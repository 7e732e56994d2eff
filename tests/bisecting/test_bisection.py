"""Whole searches: a repository with a planted call, releases of a package, and packages that changed together."""

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest
from support.against import wheel
from support.bisecting import CALLS, TEST, MadeUp, command, count
from support.git_project import GitProject

from perfsuite.against import environments
from perfsuite.against.runs import Effort, Tests
from perfsuite.against.tree import Tree
from perfsuite.bisecting import bisection, releases
from perfsuite.bisecting.bisection import Request, over_commits, over_packages
from perfsuite.bisecting.metric import Wanted
from perfsuite.bisecting.releases import Package
from perfsuite.commands import CommandError

PERF_TEST = """
import steps

from perfsuite import call


def test_step(perf):
    perf.host_calls(call(steps.step))
"""
METRIC = "test_steps.py::test_step::step host calls"


def source(planted):
    more = "    _look()\n" if planted else ""
    return f"def _look():\n    pass\n\n\ndef step():\n    _look()\n{more}"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Where the steps are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "perfsuite"


@pytest.fixture
def project(tmp_path, monkeypatch, cache):
    """Five commits, of which the fourth makes one more call. The tests are in none, and the tree has other code."""
    made = GitProject.here(tmp_path / "project", monkeypatch)
    (made.root / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    for place in range(5):
        (made.root / "steps.py").write_text(f"{source(place >= 3)}\n# {place}\n")
        made.commit(f"Step {place}")
        made.git("tag", f"v{place}")
    (made.root / "test_steps.py").write_text(PERF_TEST)
    (made.root / "steps.py").write_text("def step():\n    pass\n")
    monkeypatch.setenv("PYTHONPATH", str(made.root))
    return made


def state(project):
    return [project.git(*each) for each in (("status", "--porcelain"), ("stash", "list"), ("worktree", "list"))]


def test_a_planted_call_is_found_and_nothing_is_left(project, capsys, tmp_path, monkeypatch):
    """Two ends, and two of the four commits after the good one."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    before = state(project)
    found = tmp_path / "found.json"
    assert command("--good", "v0", "--bad", "v4", METRIC, f"--json={found}") == 0
    first = capsys.readouterr().out
    commit = project.git("rev-parse", "v3").strip()
    assert f"the first bad commit is commit {commit}\n  Ada, 2026-01-01\n    Step 3\n steps.py | 3 ++-\n" in first
    assert "more calls of steps:_look (+1)" in first
    assert re.search(r"step host calls: \d+ -> \d+ calls", first)
    told = json.loads(found.read_text())
    assert (told["exact"], told["answers"][0]["suspects"]) == (True, [commit])
    assert [step["verdict"] for step in told["steps"]] == ["good", "bad", "good", "bad"]
    assert state(project) == before
    assert list(scratch.iterdir()) == []


def test_a_planted_slowdown_is_found_beside_the_good_end(project, capsys, tmp_path):
    """The second commit makes the step 20 times as slow; the third changes a comment."""
    for place in range(3):
        rounds = 200_000 if place else 10_000
        (project.root / "steps.py").write_text(f"def step():\n    # {place}\n    return sum(range({rounds}))\n")
        project.commit(f"Slow {place}")
        project.git("tag", f"slow{place}")
    (project.root / "test_steps.py").write_text(PERF_TEST.replace("host_calls", "time"))
    found = tmp_path / "found.json"
    timing = "--rounds=5", "--seconds=0.1", f"--json={found}"
    assert command("--good", "slow0", "--bad", "slow2", "test_steps.py::test_step::step to ready", *timing) == 0
    written = capsys.readouterr().out
    assert f"the first bad commit is commit {project.git('rev-parse', 'slow1').strip()}" in written
    told = json.loads(found.read_text())
    assert [step["verdict"] for step in told["steps"]] == ["good", "bad", "bad"]
    assert [step["interval"] is not None for step in told["steps"]] == [False, True, True]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--good", "v0", METRIC), "say where it is good and where it is worse"),
        (("--good", "v0", "--bad", "nowhere", METRIC), "--bad nowhere: git knows no such commit"),
        (("--good", "v0", "--bad", "v4", "test_steps.py"), "names no metric of a test"),
        (("--good", "v0", "--bad", "v4", "test_none.py::test_step::x"), "test_none.py"),
    ],
)
def test_bad_input_is_an_error_and_leaves_nothing(project, arguments, why):
    before = state(project)
    with pytest.raises(CommandError, match=why):
        command(*arguments)
    assert state(project) == before


def test_outside_a_repository_it_is_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(CommandError, match="not in a git repository"):
        command("--good", "a", "--bad", "b", METRIC)


def request(folder, metric=CALLS):
    return Request(Wanted(TEST, metric), (), Effort(10, None, 0.1), folder, None, folder, False, lambda text: None)


def of_packages(monkeypatch, folder, at, named, versions):
    """The search over packages at which `at(versions)` is recorded."""

    class Every(dict):
        def __missing__(self, id):
            return at(dict(each.split("==") for each in id.split()))

    made_up = MadeUp(Every())
    monkeypatch.setattr(bisection, "PackageSteps", lambda *args, **kwargs: made_up)
    monkeypatch.setattr(Request, "tests", lambda self: made_up)
    monkeypatch.setattr(releases, "between", lambda package, pre: versions[package.name])
    return over_packages(request(folder), named, pre=False), made_up


def subject(project, commit):
    return project.git("show", "--no-patch", "--format=%s", commit).strip()


def subjects(project, found):
    (answer,) = found.answers
    return [subject(project, each) for each in answer.suspects]


def of_commits(monkeypatch, project, at, good, bad, metric=CALLS):
    """The search over the commits of a repository, at whose commits `at(their subject)` is recorded.

    A process takes 100 us at each.
    """

    class Every(dict):
        def __missing__(self, id):
            return at(subject(project, id))

    made_up = MadeUp(Every(), lambda id: 100.0)
    tree = Tree(project.root, project.root, (), (), project.root)
    monkeypatch.setattr(bisection, "CommitSteps", lambda tree, commits, **more: made_up)
    monkeypatch.setattr(bisection, "tree_here", lambda arguments: tree)
    monkeypatch.setattr(Request, "tests", lambda self: made_up)
    made_up.arguments = ()
    return over_commits(request(project.root.parent / "kept", metric), good, bad), made_up


def test_a_commit_of_a_merged_branch_is_found_and_not_the_merge(monkeypatch, tmp_path):
    project = GitProject.here(tmp_path / "project", monkeypatch)
    project.commit("start")
    project.git("tag", "good")
    project.git("checkout", "-q", "-b", "side")
    for subject in ("one", "guilty", "three"):
        project.commit(subject)
    project.git("checkout", "-q", "main")
    project.commit("beside")
    project.git("merge", "-q", "--no-ff", "-m", "merge", "side")
    worse = {"guilty", "three", "merge"}
    found, _ = of_commits(monkeypatch, project, lambda name: {CALLS: count(9 if name in worse else 5)}, "good", "main")
    assert subjects(project, found) == ["guilty"]
    assert not found.notes


def test_a_branch_that_was_bad_before_the_good_end_is_not_taken_for_the_cause(monkeypatch, tmp_path):
    """The side branch lacks the fix that the good end has: git bisect would name its first commit."""
    project = GitProject.here(tmp_path / "project", monkeypatch)
    project.commit("slow")
    project.git("checkout", "-q", "-b", "side")
    project.commit("side")
    project.git("checkout", "-q", "main")
    project.commit("fix")
    project.git("tag", "good")
    project.commit("work")
    project.git("merge", "-q", "--no-ff", "-m", "merge", "side")
    project.commit("guilty")
    project.commit("last")
    worse = {"slow", "side", "guilty", "last"}
    found, _ = of_commits(monkeypatch, project, lambda name: {CALLS: count(9 if name in worse else 5)}, "good", "main")
    assert subjects(project, found) == ["guilty"]


def test_a_merge_of_a_branch_that_lacks_the_fix_is_searched_again(monkeypatch, tmp_path):
    """All that the search tries first is bad: the branch, and the merge that undid the fix."""
    project = GitProject.here(tmp_path / "project", monkeypatch)
    project.commit("slow")
    project.git("checkout", "-q", "-b", "side")
    for place in range(4):
        project.commit(f"side {place}")
    project.git("checkout", "-q", "main")
    project.commit("fix")
    project.git("tag", "good")
    project.git("merge", "-q", "--no-ff", "-m", "merge", "side")
    found, _ = of_commits(monkeypatch, project, lambda name: {CALLS: count(5 if name == "fix" else 9)}, "good", "main")
    assert subjects(project, found) == ["merge"]
    assert "only commits that come after" in found.notes[0]
    assert "slow" in found.notes[0]


VERSIONS = {"a": ["1", "2", "3", "4", "5"], "b": ["1", "2", "3"], "c": ["7", "8"]}
NAMED = [Package("a", "1", "5"), Package("b", "1", "3"), Package("c", "7", "8")]


def test_the_package_and_its_release(monkeypatch, tmp_path):
    found, _ = of_packages(monkeypatch, tmp_path, lambda v: {CALLS: count(9 if v["b"] >= "2" else 5)}, NAMED, VERSIONS)
    (answer,) = found.answers
    assert (answer.package, [each.title for each in answer.about]) == ("b", ["b 2"])
    assert answer.before == "a==1 b==1 c==7"
    assert len(found.steps) == 2 + 2 + 1  # the ends, a alone, b alone, and one release


def test_two_packages_that_do_it_together(monkeypatch, tmp_path):
    found, _ = of_packages(
        monkeypatch,
        tmp_path,
        lambda v: {CALLS: count(9 if v["a"] >= "4" and v["c"] == "8" else 5)},
        NAMED,
        VERSIONS,
    )
    assert [each.about[0].title for each in found.answers] == ["a 4", "c 8"]
    assert "none of a, c is known to be enough alone" in found.notes[0]


def test_releases_that_do_not_go_together_leave_a_range(monkeypatch, tmp_path):
    def at(versions):
        if versions["a"] in "34":
            return "no solution: a 3 wants b>=2"
        return {CALLS: count(9 if versions["a"] >= "4" else 5)}

    found, _ = of_packages(monkeypatch, tmp_path, at, NAMED[:1], VERSIONS)
    assert [each.title for each in found.answers[0].about] == ["a 3", "a 4", "a 5"]
    assert not found.exact
    assert {step.reason for step in found.steps if step.verdict == "skipped"} == {"no solution: a 3 wants b>=2"}


def test_an_older_end_may_be_the_bad_one(monkeypatch, tmp_path):
    found, _ = of_packages(
        monkeypatch, tmp_path, lambda v: {CALLS: count(5 if v["a"] >= "3" else 9)}, [Package("a", "5", "1")], VERSIONS
    )
    (answer,) = found.answers
    assert (answer.first, answer.about[0].title) == ("good", "a 3")


def test_an_interrupted_search_goes_on(monkeypatch, tmp_path):
    """Ctrl-C at each step in turn."""
    tries = 0

    def at(versions):
        nonlocal tries
        tries += 1
        if tries % 2:
            raise KeyboardInterrupt
        return {CALLS: count(9 if versions["a"] >= "4" else 5)}

    for _ in range(20):
        try:
            found, made_up = of_packages(monkeypatch, tmp_path, at, NAMED[:1], VERSIONS)
            break
        except KeyboardInterrupt:
            continue
    assert found.answers[0].about[0].title == "a 4"
    assert len(found.steps) <= 2 + 2
    assert not made_up.open


def test_a_planted_release_is_found_among_wheels(tmp_path, monkeypatch, cache, capsys):
    """Real environments, linked to the present packages, and pip's own list: 1.1 cannot be imported."""
    index = tmp_path / "wheels"
    index.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setattr(environments, "_from_conda", lambda: True)
    for version, text in (("1.0", source(False)), ("1.1", "broken("), ("1.2", source(True))):
        wheel(index, "steps", version, text)
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    Path("test_steps.py").write_text(PERF_TEST)
    Path("pytest.ini").write_text("[pytest]\n")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    assert command("--package", "steps", "--good", "1.0", "--bad", "1.2", METRIC) == 1
    written = capsys.readouterr().out
    assert "the first bad release of steps is one of 2" in written
    assert re.search(r"steps 1\.1 +- +skipped", written)
    assert "SyntaxError" in written or "was never closed" in written
    assert list(scratch.iterdir()) == []


def test_sigterm_leaves_no_worktree(project, monkeypatch, tmp_path):
    """In the middle of the first step."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    before = state(project)

    def killed(self, side):
        assert len(subprocess.run(["git", "worktree", "list"], capture_output=True, text=True).stdout.splitlines()) == 2
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Tests, "metrics", killed)
    with pytest.raises(SystemExit):
        command("--good", "v0", "--bad", "v4", METRIC)
    assert state(project) == before
    assert list(scratch.iterdir()) == []
