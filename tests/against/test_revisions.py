"""The sides of commits: worktrees with the working tree's tests, from which nothing of the user's is imported."""

import functools
import json
import os
import shutil
import signal
import subprocess

import pytest
from support.git_project import ISOLATED, GitProject

from perfsuite.against import environments, revisions, worktrees
from perfsuite.against.environments import VirtualEnvironment
from perfsuite.against.revisions import side_of_commit, side_of_tree
from perfsuite.against.runs import Tests
from perfsuite.against.sides import SideFailed, Stand
from perfsuite.against.tree import Tree, tree_here
from perfsuite.git import GitError, Repository

LIBRARY = "def value():\n    return {}\n"
TEST = """
import steps
from helpers import unit

def test_value(perf):
    perf.record("value", steps.value(), unit=unit, kind="count")
"""
NEW_TEST = """
import steps_of_the_tree

def test_new(perf):
    perf.record("value", 1, unit="things", kind="count")
"""


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Two commits with the values 1 and 2, and a tree with 3, in which tests and modules are new and changed."""
    made = GitProject(tmp_path_factory.mktemp("project"))
    hook = made.root / ".git" / "hooks" / "post-checkout"
    write(made.root, {
        "pytest.ini": "[pytest]\nold = true\n",
        "src/steps.py": LIBRARY.format(1),
        "tests/conftest.py": "raise RuntimeError('the old one')\n",
        "tests/perf/test_steps.py": "raise RuntimeError('the old one')\n",
        "tests/perf/test_gone.py": "raise RuntimeError('the old one')\n",
        "tests/old_helpers.py": "",
        ".git/hooks/post-checkout": "#!/bin/sh\ntouch ran-a-hook\n",
    })  # fmt: skip
    hook.chmod(0o755)
    made.commit("first")
    made.git("tag", "first")
    write(made.root, {"src/steps.py": LIBRARY.format(2)})
    made.commit("second")
    made.git("stash", "list")
    write(made.root, {
        "pytest.ini": "[pytest]\n",
        "src/steps.py": LIBRARY.format(3),
        "src/steps_of_the_tree.py": "",
        "tests/conftest.py": "import sys, pathlib\nsys.path.append(str(pathlib.Path(__file__).parent))\n",
        "tests/helpers.py": "unit = 'things'\n",
        "tests/perf/test_steps.py": TEST,
        "tests/perf/test_new.py": NEW_TEST,
        "tests/test_plain.py": "def test_plain():\n    pass\n",
    })  # fmt: skip
    for gone in ("tests/perf/test_gone.py", "tests/old_helpers.py"):
        (made.root / gone).unlink()
    made.git("add", "src/steps_of_the_tree.py")
    return made


@pytest.fixture
def here(project, monkeypatch):
    for name, value in ISOLATED.items():
        monkeypatch.setenv(name, value)
    present = filter(None, [os.environ.get("PYTHONPATH")])  # an empty entry would be the current directory
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(project.root / "src"), *present]))
    monkeypatch.chdir(project.root)
    return project


@pytest.fixture
def tree(here):
    """As `tree_here` gives it, without the process that collects."""
    root = here.root
    tests = (root / "tests/perf/test_new.py", root / "tests/perf/test_steps.py")
    return Tree(root, root, (root / "src",), tests, root)


def state(project):
    git = project.root / ".git"
    return (
        project.git("status", "--porcelain=v2", "--branch"),
        project.git("diff", "HEAD"),
        project.git("worktree", "list"),
        (git / "index").read_bytes(),
        (git / "HEAD").read_text(),
        sorted(str(path) for path in (git / "worktrees").glob("*")),
    )


def test_a_commit_runs_its_own_code_with_the_tests_of_the_tree(here, tmp_path):
    before = state(here)
    tree = tree_here(["tests", f"--junitxml={tmp_path / 'not_written.xml'}"])
    assert (tree.root, tree.directory, tree.imports) == (here.root, here.root, (here.root / "src",))
    assert [path.name for path in tree.tests] == ["test_new.py", "test_steps.py"]
    tests = Tests(["tests", str(here.root / "tests")], tmp_path / "runs")
    seen = {}
    with side_of_commit(tree, "first", "base", scratch=tmp_path / "scratch", keep=None) as base:
        assert base.environment.interpreter is not None
        for side in (base, side_of_tree(tree, [], "head", folder=tmp_path)):
            [run] = tests.metrics(side)
            assert not run.run.problem
            seen[side.name] = run
        place = base.directory
        assert place.is_dir()
        assert not (place / "ran-a-hook").exists()
    assert not place.exists()
    assert state(here) == before
    values = {
        side: {
            test.rpartition("::")[2]: entry.value
            for test, entries in run.baselines["cpu"].metrics.items()
            for entry in entries.values()
        }
        for side, run in seen.items()
    }
    assert values == {"base": {"test_value": 1}, "head": {"test_value": 3, "test_new": 1}}
    assert seen["base"].run.notes.foreign == {}
    reason = seen["base"].run.notes.uncollected["tests/perf/test_new.py"]
    assert reason == "ModuleNotFoundError: No module named 'steps_of_the_tree'"


def test_what_is_laid_over_a_commit(tree, tmp_path):
    with side_of_commit(tree, "first", "base", scratch=tmp_path, keep=None) as side:
        files = {path.relative_to(side.directory).as_posix() for path in side.directory.rglob("*") if path.is_file()}
        assert files == {
            ".git",
            "pytest.ini",
            "src/steps.py",
            "tests/conftest.py",
            "tests/helpers.py",
            "tests/perf/test_new.py",
            "tests/perf/test_steps.py",
            "tests/test_plain.py",
        }
        assert (side.directory / "src/steps.py").read_text() == LIBRARY.format(1)
        assert (side.directory / "pytest.ini").read_text() == "[pytest]\n"
        assert side.paths == (side.directory / "src",)


def test_folders_of_tests(tmp_path):
    write(tmp_path, {"pack/__init__.py": "", "pack/perf/__init__.py": "", "pack/tests/__init__.py": ""})

    def folders(*tests):
        paths = tuple(tmp_path / test for test in tests)
        return [str(folder) for folder in Tree(tmp_path, tmp_path, (), paths, tmp_path).folders_of_tests()]

    assert folders("tests/perf/test_a.py", "tests/test_b.py", "benchmarks/test_c.py") == ["benchmarks", "tests"]
    assert folders("pack/perf/test_a.py") == []
    assert folders("pack/tests/deep/test_a.py") == ["pack/tests"]
    assert folders("test_a.py", "examples/test_b.py") == []


class TestNothingIsLeft:
    def test_after_an_exception(self, here, tree, tmp_path):
        before = state(here)
        for error in (KeyboardInterrupt, SystemExit, ValueError):
            with pytest.raises(error), side_of_commit(tree, "first", "base", scratch=tmp_path, keep=None):
                raise error
        assert state(here) == before

    def test_after_git_was_killed_while_it_made_the_worktree(self, here, tree, tmp_path, monkeypatch):
        before = state(here)
        run = Repository.run

        def interrupted(self, *arguments):
            found = run(self, *arguments)
            if "add" in arguments:
                raise KeyboardInterrupt
            return found

        monkeypatch.setattr(Repository, "run", interrupted)
        with pytest.raises(KeyboardInterrupt), side_of_commit(tree, "first", "base", scratch=tmp_path, keep=None):
            pass
        assert state(here) == before

    def test_a_later_run_removes_what_a_killed_process_left(self, here, tree, tmp_path):
        before = state(here)
        left, theirs = tmp_path / "left", tmp_path / "theirs"
        dead = subprocess.Popen(["true"])
        dead.wait()
        for place, process in ((left, dead.pid), (theirs, os.getpid())):
            here.git("worktree", "add", "--quiet", "--detach", str(place), "first")
            reason = worktrees._REASON.format(process=process, host=worktrees.socket.gethostname())
            here.git("worktree", "lock", "--reason", reason, str(place))
        with side_of_commit(tree, "first", "base", scratch=tmp_path / "scratch", keep=None):
            assert not left.exists()
            assert theirs.exists()
        worktrees._remove(tree.repository, theirs)
        assert state(here) == before

    def test_a_hook_of_git_runs_it_with_variables_of_its_own(self, here, tree, tmp_path, monkeypatch):
        before = state(here)
        monkeypatch.setenv("GIT_INDEX_FILE", str(here.root / ".git" / "index"))
        monkeypatch.setenv("GIT_DIR", ".git")
        with side_of_commit(tree, "first", "base", scratch=tmp_path, keep=None) as side:
            assert (side.directory / "src/steps.py").read_text() == LIBRARY.format(1)
        for name in ("GIT_INDEX_FILE", "GIT_DIR"):
            monkeypatch.delenv(name)
        assert state(here) == before


class TestBadInput:
    def test_no_such_revision(self, here, tree, tmp_path):
        with (
            pytest.raises(SideFailed, match="'v9' is no commit of this repository"),
            side_of_commit(tree, "v9", "base", scratch=tmp_path, keep=None),
        ):
            pass

    def test_not_a_repository(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(GitError, match="is not in a git repository"):
            tree_here([])

    def test_no_git(self, here, monkeypatch):
        monkeypatch.setenv("PATH", "")
        with pytest.raises(GitError, match="git is not installed"):
            tree_here([])

    def test_no_perf_test(self, here):
        with pytest.raises(SideFailed, match="finds no perf test in the working tree"):
            tree_here(["tests/test_plain.py"])

    def test_a_compiled_module_that_git_does_not_have(self, here, tree, tmp_path):
        built = here.root / "src" / "fast.so"
        inside = here.root / "src" / ".venv" / "site-packages" / "other.so"
        inside.parent.mkdir(parents=True)
        inside.touch()
        assert tree.built() == []
        built.touch()
        try:
            with (
                pytest.raises(SideFailed, match=r"compiled modules that git does not have \(src/fast.so\)"),
                side_of_commit(tree, "first", "base", scratch=tmp_path, keep=None),
            ):
                pass
        finally:
            built.unlink()
            shutil.rmtree(here.root / "src" / ".venv")

    def test_what_was_imported_from_the_tree_all_the_same_is_refused(self, here, tree, tmp_path):
        conftest = here.root / "tests" / "conftest.py"
        text = conftest.read_text()
        conftest.write_text(f"{text}\nsys.path.insert(0, {str(here.root / 'src')!r})\nsys.meta_path.pop(0)\n")
        try:
            with (
                side_of_commit(tree, "first", "base", scratch=tmp_path, keep=None) as side,
                pytest.raises(SideFailed, match=r"base imported steps from the working tree \(.*src/steps.py"),
            ):
                Tests(["tests"], tmp_path / "runs").collected(side)
        finally:
            conftest.write_text(text)


class TestSubmodules:
    @pytest.fixture
    def outer(self, tmp_path, monkeypatch):
        inner = GitProject(tmp_path / "inner")
        write(inner.root, {"inside.py": "old = True\n"})
        inner.commit()
        outer = GitProject.here(tmp_path / "outer", monkeypatch)
        outer.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner.root), "part")
        outer.commit("first")
        outer.git("tag", "first")
        return outer

    def worktree(self, outer, place):
        return worktrees.worktree(Repository(outer.root), "first", place)

    def test_a_submodule_is_that_of_the_commit(self, outer, tmp_path):
        with self.worktree(outer, tmp_path / "scratch") as place:
            assert (place / "part" / "inside.py").read_text() == "old = True\n"
        assert not (tmp_path / "scratch").exists()
        for folder in (outer.root, outer.root / "part"):
            assert Repository(folder).run("worktree", "list").count("\n") == 1

    def test_a_dirty_submodule_is_refused(self, outer, tmp_path):
        (outer.root / "part" / "inside.py").write_text("old = False\n")
        with (
            pytest.raises(SideFailed, match="the submodule part has changes that are not committed"),
            self.worktree(outer, tmp_path / "scratch"),
        ):
            pass
        assert not (tmp_path / "scratch").exists()
        assert outer.git("worktree", "list").count("\n") == 1


class TestDependencies:
    @pytest.fixture
    def asking(self, tmp_path, monkeypatch):
        """The side of a commit whose pyproject.toml is the first text, in a tree with the second."""

        def side(then, now="[project]\nname = 'own'\n", specs=()):
            made = GitProject.here(tmp_path / "asking", monkeypatch)
            write(made.root, {"pyproject.toml": then, "test_a.py": ""})
            made.commit()
            write(made.root, {"pyproject.toml": now})
            tree = Tree(made.root, made.root, (), (made.root / "test_a.py",), made.root)
            of_specs = functools.partial(VirtualEnvironment, packages={}, contradictions=())
            monkeypatch.setattr(environments, "make", lambda specs, folder: of_specs(folder, tuple(specs)))
            with side_of_commit(tree, "HEAD", "base", scratch=tmp_path / "s", keep=None, specs=specs) as side:
                return side

        return side

    def project(self, *needed, **more):
        lines = ["[project]", "name = 'own'", f"dependencies = {json.dumps(needed)}"]
        return "\n".join([*lines, *(f"{name.replace('_', '-')} = {value}" for name, value in more.items())])

    def test_what_the_present_packages_meet_needs_no_environment(self, asking):
        extra = "{dev = ['pytest<1; python_version < \"3\"', 'never-installed>=1', 'jax>=0.1']}"
        side = asking(self.project("jax>=0.2", "numpy", optional_dependencies=extra))
        assert side.environment.interpreter is not None
        assert side.notes == ()

    def test_what_they_do_not_meet_makes_one(self, asking):
        extra = "{dev = ['pytest<1', 'own[more]']}"
        side = asking(self.project("jax<0.2", "never-installed", optional_dependencies=extra))
        assert side.environment.specs == ("jax<0.2", "never-installed", "pytest<1")
        assert side.title.endswith(", jax<0.2 never-installed pytest<1")

    def test_what_both_ask_for_is_left_as_it_is(self, asking):
        text = self.project("jax < 0.2")
        assert asking(text, self.project("jax<0.2")).environment.interpreter is not None

    def test_packages_that_are_named_come_in_the_place_of_what_it_asks_for(self, asking):
        side = asking(self.project("jax<0.2", "never-installed"), specs=("jax==0.3",))
        assert side.environment.specs == ("never-installed", "jax==0.3")

    def test_another_python_is_refused(self, asking):
        with pytest.raises(SideFailed, match=r"asks for Python <3, and this is 3.*run perfsuite with a Python"):
            asking(self.project(requires_python="'<3'"))

    def test_dynamic_dependencies_are_not_compared_and_that_is_said(self, asking):
        (note,) = asking("[project]\nname = 'own'\ndynamic = ['dependencies', 'version']\n").notes
        assert note == "pyproject.toml of HEAD leaves its dependencies to the build: not compared"

    def test_a_broken_file_is_named(self, asking):
        with pytest.raises(SideFailed, match=r"pyproject.toml of HEAD cannot be read"):
            asking("[project\n")


def test_a_perfsuite_with_other_notes_cannot_be_compared(tmp_path, monkeypatch):
    made = GitProject.here(tmp_path / "own", monkeypatch)
    for text, why in (("", "other notes"), ("PROTOCOL = 0", "other notes"), (None, "no `perfsuite against`")):
        file = made.root / "perfsuite" / "against" / "notes.py"
        file.unlink(missing_ok=True)
        write(made.root, {"test_a.py": "", **({} if text is None else {"perfsuite/against/notes.py": text})})
        made.commit()
        write(made.root, {"perfsuite/against/notes.py": "PROTOCOL = 1"})
        tree = Tree(made.root, made.root, (made.root,), (made.root / "test_a.py",), made.root)
        with (
            pytest.raises(SideFailed, match=why),
            side_of_commit(tree, "HEAD", "base", scratch=tmp_path / "s", keep=None),
        ):
            pass
    assert revisions._protocol("PROTOCOL = 7\n") == 7


def test_arguments_that_name_the_tree_name_the_worktree_there(tmp_path):
    stand = Stand(tmp_path / "tree", tmp_path / "worktree")
    for given, made in {
        "tests": "tests",
        f"{tmp_path}/tree/tests/test_a.py::test_b[/x]": f"{tmp_path}/worktree/tests/test_a.py::test_b[/x]",
        f"--rootdir={tmp_path}/tree": f"--rootdir={tmp_path}/worktree",
        f"{tmp_path}/treehouse": f"{tmp_path}/treehouse",
        "-k=a or b": "-k=a or b",
    }.items():
        assert stand.argument(given) == made


def test_sigterm_ends_git_and_leaves_no_worktree(here, tree, tmp_path):
    """SIGTERM becomes SystemExit in the command; the worktree's own clean-up needs no more than an exception."""
    before = state(here)
    previous = signal.signal(signal.SIGTERM, lambda number, _: (_ for _ in ()).throw(SystemExit(128 + number)))
    try:
        with pytest.raises(SystemExit), side_of_commit(tree, "first", "base", scratch=tmp_path, keep=None):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert state(here) == before
