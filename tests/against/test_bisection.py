"""`perfsuite bisect`: commits by `git bisect`, releases by halving a list, exact metrics and times."""

import contextlib
import dataclasses
import json
import math
import signal
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.against import (
    ENVIRONMENT,
    TEST,
    count,
    first_run,
    notes,
    run_command,
    side,
    small_windows,
    wheel,
    wheels_for_uv,
)
from support.git_project import GitProject

from perfsuite.against import bisection
from perfsuite.against.bisection import BisectFailed, Package, Trials, Wanted, halved, over_commits, over_packages
from perfsuite.against.notes import Place
from perfsuite.against.runs import Effort, Run, Tests
from perfsuite.against.sides import SideFailed, Tree
from perfsuite.commands import CommandError, bisect
from perfsuite.gate.baseline import Entry

CALLS = "step host calls"
TIME = "step to return"
EFFORT = Effort(1.0, 0.1)


def command(*arguments):
    return run_command(bisect, *arguments)


def recorded(value):
    """The first run of a step: with so many calls, which are a time where the value is a float, or an outcome."""
    if isinstance(value, tuple):
        return first_run(tests={TEST: value})
    if isinstance(value, float):
        run = first_run({TIME: Entry(value, "us", "time", "measured", ENVIRONMENT)})
        run.notes.places[TEST] = {TIME: Place(sampled=True)}
        return run
    return first_run({CALLS: count(value, f=5, g=value - 5)})


@dataclasses.dataclass
class MadeUp:
    """In the place of sides and of `Tests`: `at(step)` is the value there, an outcome, or the words of a failure.

    `times_at` gives the microseconds of one process at a step.
    """

    at: object
    times_at: object = None
    ran: list = dataclasses.field(default_factory=list)
    open: set = dataclasses.field(default_factory=set)
    only: frozenset | None = None

    @contextlib.contextmanager
    def side(self, id):
        if isinstance(self.at(id), str):
            raise SideFailed(self.at(id))
        self.open.add(id)
        yield side(id)
        self.open.discard(id)

    def metrics(self, side):
        self.ran.append(side.name)
        return [recorded(self.at(side.name))]

    def times(self, side, *, seconds, limit):
        return Run(notes({TIME: self.times_at(side.name)}), 1.0)


def trials(made_up, metric=CALLS):
    return Trials(made_up.side, lambda id: id, Wanted(TEST, metric), made_up, EFFORT, lambda text: None)


@pytest.mark.parametrize(
    ("text", "test", "metric"),
    [
        ("tests/test_a.py::test_step::step host calls", "tests/test_a.py::test_step", "step host calls"),
        ("test_a.py::TestA::test_it[a::b]::f flops @ tpu-v5e", "test_a.py::TestA::test_it[a::b]", "f flops @ tpu-v5e"),
        ("test_a.py::test_it --perf-size=full::f flops", "test_a.py::test_it", "f flops"),
    ],
)
def test_a_test_and_its_metric(text, test, metric):
    assert Wanted.read(text) == Wanted(test, metric)


@pytest.mark.parametrize(
    "text", ["jax", "jax==0.10.0", "jax==0.1..main", "jax==0.10..0.10.0", "==0.1..0.2", "a b==1..2"]
)
def test_packages_that_cannot_be_read(text):
    with pytest.raises(BisectFailed, match="--package"):
        Package.read(text)


@given(st.integers(2, 200), st.data())
def test_a_list_of_n_takes_log2_n_tries(size, data):
    first = data.draw(st.integers(1, size - 1))
    asked = []

    def verdict(step):
        asked.append(step)
        return "bad" if step >= first else "good"

    assert halved(range(size), verdict) == (first - 1, first)
    assert len(asked) == len(set(asked)) <= math.ceil(math.log2(size - 1))


@given(st.integers(2, 60), st.data())
def test_skipped_steps_leave_no_more_than_themselves(size, data):
    first = data.draw(st.integers(1, size - 1))
    skipped = data.draw(st.sets(st.integers(1, size - 1))) - {size - 1}
    low, high = halved(range(size), lambda at: "skipped" if at in skipped else "bad" if at >= first else "good")
    assert low < first <= high
    assert set(range(low + 1, high)) <= skipped


class TestSteps:
    def test_the_gate_says_which_end_a_step_is_like(self):
        made_up = MadeUp({"good": 5, "bad": 9, "a": 6, "b": 4}.get)
        tried = trials(made_up)
        with tried.between("good", "bad"):
            assert [tried.verdict(each) for each in ("a", "b", "a")] == ["bad", "good", "bad"]
            assert made_up.open == {"good"}
        assert made_up.ran == ["good", "bad", "a", "b"]

    @pytest.mark.parametrize(
        ("at", "why"),
        [
            ("uv cannot install it", "uv cannot install it"),
            (("failed", "it broke"), "it broke"),
            (1.0, 'makes no "step'),
        ],
    )
    def test_one_where_the_test_does_not_run_is_skipped_with_the_reason(self, at, why):
        tried = trials(MadeUp({"good": 5, "bad": 9, "a": at}.get))
        with tried.between("good", "bad"):
            assert tried.verdict("a") == "skipped"
            assert why in tried.steps["a"].reason

    @pytest.mark.parametrize(
        ("good", "bad", "why"),
        [
            (("failed", "it broke"), 9, "the good end, good, says nothing: .*it broke"),
            (5, "no such release", "the bad end, bad, says nothing: no such release"),
            (9, 5, "not worse at the bad end .9 calls, then 5 calls.*swap"),
            (5, 5, "not worse"),
        ],
    )
    def test_ends_that_say_nothing(self, good, bad, why):
        with (
            pytest.raises(BisectFailed, match=why),
            trials(MadeUp({"good": good, "bad": bad}.get)).between("good", "bad"),
        ):
            pass


def timed(us, seed=0, spread=0.01):
    """Steps at which a process takes so long, but for a spread from process to process."""
    draws = {id: np.random.default_rng((seed, place)) for place, id in enumerate(us)}
    return MadeUp(us.get, lambda id: us[id] * float(np.exp(spread * draws[id].standard_normal())))


class TestTimes:
    @pytest.fixture(autouse=True)
    def few_windows(self, monkeypatch):
        """Six of them, whatever the clock says."""
        windows = bisection.timed_windows

        def six(*arguments, **options):
            yield from (window for _, window in zip(range(6), windows(*arguments, **options), strict=False))

        monkeypatch.setattr(bisection, "timed_windows", six)

    def test_a_step_is_compared_with_half_of_the_way_to_the_bad_end(self):
        made_up = timed({"good": 100.0, "bad": 120.0, "a": 102.0, "b": 118.0, "c": 90.0})
        tried = trials(made_up, TIME)
        with tried.between("good", "bad"):
            assert [tried.verdict(each) for each in "abc"] == ["good", "bad", "good"]
        interval = tried.steps["a"].interval
        assert interval.low < 1.02 < interval.high
        assert made_up.open == set()

    def test_a_process_that_dies_in_every_window_says_so(self):
        made_up = timed({"good": 100.0, "bad": 120.0, "a": 120.0})
        tried = trials(made_up, TIME)
        with tried.between("good", "bad"):
            made_up.times = lambda side, **_: Run(notes(), 1.0, "killed")
            assert tried.verdict("a") == "skipped"
        assert tried.steps["a"].reason == "killed"

    def test_wrong_verdicts_are_as_rare_as_is_said(self):
        """Steps just above and below half of the way, with noise of the size of the difference: nearly all are skipped."""
        near = {f"u{place}": 109.5 for place in range(30)} | {f"o{place}": 110.5 for place in range(30)}
        tried = trials(timed({"good": 100.0, "bad": 121.0, **near}, seed=3, spread=0.02), TIME)
        with tried.between("good", "bad"):
            wrong = sum(tried.verdict(id) == ("bad" if id[0] == "u" else "good") for id in near)
        assert wrong <= 2


@pytest.fixture
def project(tmp_path, monkeypatch):
    made = GitProject.here(tmp_path / "project", monkeypatch)
    made.commit("start")
    made.git("tag", "good")
    return made


def subject(project, commit):
    return project.git("show", "--no-patch", "--format=%s", commit).strip()


def commits_searched(monkeypatch, project, at, good="good", bad="main"):
    """The search over commits at which `at(their subject)` is recorded: the subjects that it may be, and the answer."""
    made_up = MadeUp(lambda id: at(subject(project, id)))
    tree = Tree(project.root, project.root, (), (), project.root)
    monkeypatch.setattr(bisection, "side_of_commit", lambda tree, id, name, scratch: made_up.side(id))
    monkeypatch.setattr(bisection, "tree_here", lambda arguments: tree)
    monkeypatch.setattr(bisection, "Tests", lambda *_: made_up)
    scratch = project.root.parent
    found = over_commits(Wanted(TEST, CALLS), good, bad, (), EFFORT, scratch, lambda text: None)
    assert project.git("worktree", "list").count("\n") == 1
    assert not project.git("for-each-ref", "refs/bisect")
    return [name.partition(", ")[2].rstrip(")") for name in found.suspects], found


class TestCommits:
    def test_a_commit_of_a_merged_branch_is_found_and_not_the_merge(self, monkeypatch, project):
        project.git("checkout", "-q", "-b", "side")
        for name in ("one", "guilty", "three"):
            project.commit(name)
        project.git("checkout", "-q", "main")
        project.commit("beside")
        project.git("merge", "-q", "--no-ff", "-m", "merge", "side")
        worse = {"guilty", "three", "merge"}
        suspects, found = commits_searched(monkeypatch, project, lambda name: 9 if name in worse else 5)
        assert (suspects, found.first) == (["guilty"], "bad")
        assert found.about[0] == "Ada, 2026-01-01"
        assert found.about[1] == "guilty"

    def test_skipped_commits_leave_a_range(self, monkeypatch, project):
        for name in ("one", "broken", "guilty", "last"):
            project.commit(name)
        at = {"start": 5, "one": 5, "broken": ("failed", "it broke"), "guilty": 9, "last": 9}
        suspects, found = commits_searched(monkeypatch, project, at.get)
        assert set(suspects) == {"broken", "guilty"}
        assert (found.about, found.changes) == ((), ())

    def test_the_bad_end_may_be_the_older_one(self, monkeypatch, project):
        for name in ("one", "fix", "last"):
            project.commit(name)
        at = {"start": 9, "one": 9, "fix": 5, "last": 5}
        suspects, found = commits_searched(monkeypatch, project, at.get, good="main", bad="good")
        assert (suspects, found.first) == (["fix"], "good")
        assert [(change.baseline, change.metric.value) for change in found.changes] == [(5, 9)]

    def test_of_ends_on_two_branches_the_commit_where_they_part_is_tried(self, monkeypatch, project):
        project.git("checkout", "-q", "-b", "side")
        project.commit("guilty")
        project.git("checkout", "-q", "main")
        project.commit("beside")
        at = {"start": 5, "beside": 5, "guilty": 9}
        assert commits_searched(monkeypatch, project, at.get, good="main", bad="side")[0] == ["guilty"]
        with pytest.raises(BisectFailed, match=r"The merge base .* is new"):
            commits_searched(monkeypatch, project, {**at, "start": 9}.get, good="main", bad="side")


VERSIONS = {"a": ["1", "2", "3", "4", "5"], "b": ["1", "2", "3"], "c": ["7", "8"]}
NAMED = [Package("a", "1", "5"), Package("b", "1", "3"), Package("c", "7", "8")]


def releases_searched(monkeypatch, tmp_path, at, named=NAMED):
    """The search over packages at whose versions `at` is recorded."""
    made_up = MadeUp(lambda id: at(dict(each.split("==") for each in id.split())))

    def side_of_tree(specs, name, scratch):
        made_up.at_name = " ".join(specs)
        if isinstance(made_up.at(made_up.at_name), str):
            raise SideFailed(made_up.at(made_up.at_name))
        return side(made_up.at_name)

    def between(name, older, newer):
        versions = VERSIONS[name]
        return versions[versions.index(older) + 1 : versions.index(newer)][::-1]

    monkeypatch.setattr(bisection, "side_of_tree", side_of_tree)
    monkeypatch.setattr(bisection, "releases", between)
    monkeypatch.setattr(bisection, "Tests", lambda *_: made_up)
    found = over_packages(Wanted(TEST, CALLS), named, (), EFFORT, tmp_path, lambda text: None)
    assert list(tmp_path.iterdir()) == []
    return found


class TestPackages:
    def test_the_package_and_its_release(self, monkeypatch, tmp_path):
        found = releases_searched(monkeypatch, tmp_path, lambda v: 9 if v["b"] >= "2" else 5)
        assert (found.suspects, found.first) == (("a 5 b 2 c 7",), "bad")
        assert found.about == ("what is new in it: https://pypi.org/project/b/2",)
        assert len(found.steps) <= 2 + 3

    def test_a_release_that_cannot_be_installed_leaves_a_range(self, monkeypatch, tmp_path):
        def at(versions):
            return "no solution" if versions["a"] in "34" else 9 if versions["a"] >= "4" else 5

        found = releases_searched(monkeypatch, tmp_path, at, NAMED[:1])
        assert found.suspects == ("a 3", "a 4", "a 5")
        assert {step.reason for step in found.steps if step.verdict == "skipped"} == {"no solution"}


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
def planted(project, monkeypatch, tmp_path):
    """Five more commits, of which the fourth makes one more call. The tests are in none, and the tree has other code."""
    (project.root / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    for place in range(5):
        (project.root / "steps.py").write_text(f"{source(place >= 3)}\n# {place}\n")
        project.commit(f"Step {place}")
        project.git("tag", f"v{place}")
    (project.root / "test_steps.py").write_text(PERF_TEST)
    (project.root / "steps.py").write_text("def step():\n    pass\n")
    monkeypatch.setenv("PYTHONPATH", str(project.root))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    before = state(project)
    yield project
    assert state(project) == before
    assert list(scratch.iterdir()) == []


def state(project):
    return [project.git(*each) for each in (("status", "--porcelain"), ("stash", "list"), ("worktree", "list"))]


class TestCommand:
    def test_a_planted_call_is_found_and_nothing_is_left(self, planted, capsys, tmp_path):
        """Two ends, and two of the four commits after the good one."""
        file = tmp_path / "found.json"
        assert command("--good", "v0", "--bad", "v4", METRIC, f"--json={file}") == 0
        found = json.loads(file.read_text())
        assert planted.git("rev-parse", "--short", "v3").strip() in found["suspects"][0]
        assert [step["verdict"] for step in found["steps"]] == ["good", "bad", "good", "bad"]
        assert [part["name"] for part in found["changes"][0]["grown"]] == ["steps:_look in step (steps.py)"]
        assert "steps.py | 3 ++-" in capsys.readouterr().out

    def test_a_planted_slowdown_is_found_beside_the_good_end(self, project, tmp_path, monkeypatch):
        """The second commit makes the step 20 times as slow."""
        small_windows(monkeypatch, 3)
        monkeypatch.setenv("PYTHONPATH", str(project.root))
        for place, size in enumerate((10_000, 200_000)):
            (project.root / "steps.py").write_text(f"def step():\n    return sum(range({size}))\n")
            project.commit(f"Slow {place}")
        (project.root / "pytest.ini").write_text("[pytest]\n")
        (project.root / "test_steps.py").write_text(PERF_TEST.replace("host_calls", "time"))
        file = tmp_path / "found.json"
        metric = "test_steps.py::test_step::step to ready"
        assert command("--good=HEAD~1", "--bad=HEAD", metric, "--minutes=0.01", "--seconds=0.1", f"--json={file}") == 0
        found = json.loads(file.read_text())
        assert "Slow 1" in found["suspects"][0]
        assert found["steps"][1]["interval"]["low"] > 5

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (("--good", "v0", METRIC), "say where it is good and where it is worse"),
            (("--good", "v0", "--bad", "v1", "--package=a==1..2", METRIC), "or --package alone"),
            (("--good", "v0", "--bad", "nowhere", METRIC), "nowhere: git knows no such commit"),
            (("--good", "v0", "--bad", "v4", "test_steps.py"), "names no metric of a test"),
            (("--good", "v0", "--bad", "v4", "test_none.py::test_step::x"), "test_none.py"),
            (("--good", "v0", "--bad", "v4", "--json=no/such/folder/found.json", METRIC), "make it first"),
        ],
    )
    def test_bad_input_is_an_error(self, planted, arguments, why):
        with pytest.raises(CommandError, match=why):
            command(*arguments)

    def test_sigterm_leaves_no_worktree(self, planted, monkeypatch):
        def killed(self, side):
            worktrees = subprocess.run(["git", "worktree", "list"], capture_output=True, text=True).stdout
            assert len(worktrees.splitlines()) == 2
            signal.raise_signal(signal.SIGTERM)

        monkeypatch.setattr(Tests, "metrics", killed)
        with pytest.raises(SystemExit):
            command("--good", "v0", "--bad", "v4", METRIC)

    def test_a_planted_release_is_found_among_wheels(self, tmp_path, monkeypatch, capsys):
        """With uv: 1.1 cannot be imported."""
        folder = wheels_for_uv(tmp_path, monkeypatch)
        for version, text in (("1.0", source(False)), ("1.1", "broken("), ("1.2", source(True)), ("1.3", source(True))):
            wheel(folder, "steps", version, text)
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        (tmp_path / "here" / "test_steps.py").write_text(PERF_TEST)
        (tmp_path / "here" / "pytest.ini").write_text("[pytest]\n")
        file = tmp_path / "found.json"
        assert command("--package", "steps==1.0..1.3", METRIC, f"--json={file}") == 1
        found = json.loads(file.read_text())
        assert found["suspects"] == ["steps 1.1", "steps 1.2"]
        assert {step["name"]: step["verdict"] for step in found["steps"]} == {
            "steps 1.0": "good",
            "steps 1.3": "bad",
            "steps 1.2": "bad",
            "steps 1.1": "skipped",
        }
        assert "SyntaxError" in capsys.readouterr().out
