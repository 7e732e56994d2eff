"""The sides of a comparison: packages that uv brings, and commits from which nothing of the user's tree is imported."""

import json
import os
import subprocess
import sys

import pytest
from support.against import wheel, wheels_for_uv
from support.git_project import ISOLATED, GitProject

import perfsuite
from perfsuite.against import sides
from perfsuite.against.runs import Tests, tree_here
from perfsuite.against.sides import (
    Packages,
    Side,
    SideFailed,
    Stand,
    Tree,
    package_name,
    packages_with,
    present_packages,
    releases,
    side_of_commit,
    side_of_tree,
)
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
        "tests/test_dropped.py": "raise RuntimeError('the old one')\n",
        ".git/hooks/post-checkout": "#!/bin/sh\ntouch ran-a-hook\n",
    })  # fmt: skip
    hook.chmod(0o755)
    made.commit("first")
    made.git("tag", "first")
    write(made.root, {"src/steps.py": LIBRARY.format(2)})
    (made.root / "tests/test_dropped.py").unlink()
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
    with side_of_commit(tree, "first", "base", scratch=tmp_path / "scratch") as base:
        for side in (base, side_of_tree([], "head", scratch=tmp_path)):
            [run] = tests.metrics(side)
            assert not run.problem
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
    assert seen["base"].notes.foreign == {}
    assert seen["base"].notes.tests["tests/perf/test_new.py"] == (
        "not collected",
        "ModuleNotFoundError: No module named 'steps_of_the_tree'",
    )


def test_what_is_laid_over_a_commit(tree, tmp_path):
    with side_of_commit(tree, "first", "base", scratch=tmp_path) as side:
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
            with pytest.raises(error), side_of_commit(tree, "first", "base", scratch=tmp_path):
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
        with pytest.raises(KeyboardInterrupt), side_of_commit(tree, "first", "base", scratch=tmp_path):
            pass
        assert state(here) == before

    def test_a_hook_of_git_runs_it_with_variables_of_its_own(self, here, tree, tmp_path, monkeypatch):
        before = state(here)
        monkeypatch.setenv("GIT_INDEX_FILE", str(here.root / ".git" / "index"))
        monkeypatch.setenv("GIT_DIR", ".git")
        with side_of_commit(tree, "first", "base", scratch=tmp_path) as side:
            assert (side.directory / "src/steps.py").read_text() == LIBRARY.format(1)
        for name in ("GIT_INDEX_FILE", "GIT_DIR"):
            monkeypatch.delenv(name)
        assert state(here) == before


class TestBadInput:
    def test_not_a_repository(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(GitError, match="is not in a git repository"):
            tree_here([])

    def test_no_perf_test(self, here):
        with pytest.raises(SideFailed, match="finds no perf test in the working tree"):
            tree_here(["tests/test_plain.py"])

    def test_what_was_imported_from_the_tree_all_the_same_is_refused(self, here, tree, tmp_path):
        conftest = here.root / "tests" / "conftest.py"
        text = conftest.read_text()
        conftest.write_text(f"{text}\nsys.path.insert(0, {str(here.root / 'src')!r})\nsys.meta_path.pop(0)\n")
        try:
            with (
                side_of_commit(tree, "first", "base", scratch=tmp_path) as side,
                pytest.raises(SideFailed, match=r"base imported steps from the working tree \(.*src/steps.py"),
            ):
                Tests(["tests"], tmp_path / "runs").collected(side)
        finally:
            conftest.write_text(text)


class TestDependencies:
    @pytest.fixture
    def asking(self, tmp_path, monkeypatch):
        """The packages of a commit whose pyproject.toml is the first text, in a tree with the second."""

        def packages(then, now="[project]\nname = 'own'\n", specs=()):
            made = GitProject.here(tmp_path / "asking", monkeypatch)
            write(made.root, {"pyproject.toml": then, "test_a.py": ""})
            made.commit()
            write(made.root, {"pyproject.toml": now})
            tree = Tree(made.root, made.root, (), (made.root / "test_a.py",), made.root)
            monkeypatch.setattr(sides, "packages_with", lambda specs, folder: Packages({}, tuple(specs), folder))
            with side_of_commit(tree, "HEAD", "base", scratch=tmp_path / "s", specs=specs) as side:
                return side.packages

        return packages

    def project(self, *needed):
        return f"[project]\nname = 'own'\ndependencies = {json.dumps(needed)}"

    def test_what_only_the_commit_asks_for_is_brought(self, asking):
        both = asking(self.project("numpy", "jax<0.2"), self.project("numpy", "jax"))
        assert both.specs == ("jax<0.2",)

    def test_packages_that_are_named_come_in_the_place_of_what_it_asks_for(self, asking):
        assert asking(self.project("jax<0.2", "other"), specs=("Jax==0.3",)).specs == ("Jax==0.3", "other")

    def test_a_broken_file_is_named(self, asking):
        with pytest.raises(SideFailed, match=r"pyproject.toml cannot be read"):
            asking("[project\n")


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


@pytest.fixture
def index(tmp_path, monkeypatch):
    """`steplib` of two versions, and `stepuser`, which asks for the first."""
    folder = wheels_for_uv(tmp_path, monkeypatch)
    for version in ("1.0", "2.0"):
        wheel(folder, "steplib", version, f"version = {version!r}\n")
    wheel(folder, "stepuser", "1.0", "", ["steplib<2", "steplib>=3; extra == 'new'"])
    return folder


def test_packages_are_those_named_and_the_present_ones(index, tmp_path):
    made = packages_with(["stepuser==1.0"], tmp_path / "packages")
    assert (made.versions["stepuser"], made.versions["steplib"]) == ("1.0", "1.0")
    assert made.versions["jax"] == present_packages().versions["jax"]
    assert {each.name for each in made.folder.glob("*.py")} == {"stepuser.py", "steplib.py"}
    code = "import importlib.metadata, steplib, perfsuite; print(importlib.metadata.version('steplib'), perfsuite.__file__)"
    variables = Side("head", made, tmp_path).variables(os.environ)
    ended = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["1.0", perfsuite.__file__]
    assert "steplib" not in present_packages().versions


def test_what_an_installed_package_asks_for_and_does_not_get_is_said(index, tmp_path):
    made = packages_with(["stepuser", "steplib==1.0"], tmp_path / "packages")
    assert made.conflicts == ("stepuser 1.0 asks for steplib>=3, here is 1.0",)


@pytest.mark.parametrize("specs", [["steplib==99"], ["stepuser==1.0", "steplib==2.0"]])
def test_what_uv_cannot_install_is_named_with_its_own_words(index, tmp_path, specs):
    with pytest.raises(SideFailed, match=rf'(?s)uv cannot install "{specs[0]}".*No solution found'):
        packages_with(specs, tmp_path / "packages")


def test_without_uv_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sides.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SideFailed, match=r"pip install .*\[against\]"):
        packages_with(["steplib==2.0"], tmp_path)


@pytest.mark.parametrize("spec", ["-r file.txt", "jax=0.10", ""])
def test_a_spec_that_names_nothing(spec):
    with pytest.raises(SideFailed, match="names no package"):
        package_name(spec)


def test_the_name_of_a_spec(tmp_path):
    assert package_name("Equinox_lib>=0.13,<0.14") == "equinox-lib"
    assert package_name("flax @ https://example.org/flax.whl") == "flax"
    assert package_name(str(tmp_path)) == str(tmp_path.resolve())


def test_releases_between_two_are_those_that_uv_would_install(index):
    for version in ("1.1", "1.2rc1", "1.2", "1.10", "3.0.dev1"):
        wheel(index, "steplib", version, "")
    assert releases("steplib", "1.0", "2.0") == ["1.10", "1.2", "1.1"]
    assert releases("steplib", "1.10", "2.0") == []
    assert releases("nolib", "1", "2") == []
