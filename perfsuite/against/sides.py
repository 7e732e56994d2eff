"""The sides of a comparison: a commit in a git worktree, or the working tree as it is, perhaps with other packages.

Packages. uv says what it would change in the present environment to have the packages that are named, and installs just
that into a folder that comes first on Python's path. So two sides differ only in the packages named and in what they
need. The present environment is not touched, and all that does not differ is imported from it, however it was
installed. JAX's CUDA plugin finds its libraries by import (`jax_plugins/xla_cuda12/__init__.py`, jax 0.10.2), so they
need not lie beside it.

Commits. New tests must run on old code, so the perf tests of the working tree are laid over a commit's:

- the files of the collected perf tests, and every conftest.py on the way to them;
- pytest's configuration files in its rootdir;
- all files of each folder of tests: the outermost folder on the way to a perf test with a name of `FOLDERS`. In a
  package only `tests` and `test` count.

Nothing else is: a change of the project's own files is what is looked for.
"""

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from perfsuite.against.notes import NOT_FROM
from perfsuite.git import SHALLOW, GitError, Repository
from perfsuite.measure.installed import install

FOLDERS = ("test", "tests", "perf", "perf_tests", "bench", "benchmark", "benchmarks")
IN_A_PACKAGE = ("test", "tests")
CONFIGURATION = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")

_LAST_LINES = 12
_NO_HOOKS = ("-c", f"core.hooksPath={os.devnull}")


class SideFailed(Exception):  # noqa: N818  (a report, not a fault of this process)
    """A side cannot be made, or does not run what it stands for. The message says why, and what to do."""


@dataclasses.dataclass(frozen=True)
class Packages:
    """The packages of a side: those of this process, but for what is in `folder`.

    `specs` are the packages named, `versions` what is installed, name to version, `conflicts` a line for each
    requirement of an installed package that these versions do not meet and the present ones do.
    """

    versions: Mapping[str, str]
    specs: tuple[str, ...] = ()
    folder: Path | None = None
    conflicts: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What people call them."""
        return " ".join(self.specs) or "the present packages"


def package_name(spec: str) -> str:
    """The package that a spec names; of a folder, the folder. Raises `SideFailed` where it is neither."""
    if os.path.exists(spec):
        return os.path.realpath(spec)
    try:
        return canonicalize_name(Requirement(spec).name)
    except InvalidRequirement as error:
        why = str(error).splitlines()[0]
        raise SideFailed(
            f'"{spec}" names no package ({why}): give what uv takes, for example "jax==0.10.2", or a folder'
        ) from None


def present_packages() -> Packages:
    """The packages of this process."""
    return Packages({name: each.version for name, each in _installed(sys.path).items()})


def packages_with(specs: Sequence[str], folder: Path) -> Packages:
    """The present packages with `specs` in their place, and what these need; what differs is installed into `folder`.

    Raises `SideFailed`.
    """
    # A line each: `+ jax==0.10.1`, or `+ steps @ file:///home/me/steps`.
    to_install = re.findall(r"^ [+~] (.+)$", _uv(["install", "--dry-run", *specs], specs).stderr, re.MULTILINE)
    if not to_install:
        return dataclasses.replace(present_packages(), specs=tuple(specs))
    _uv(["install", "--no-deps", "--target", str(folder), *to_install], specs)
    here, there = _installed(sys.path), _installed([str(folder), *sys.path])
    conflicts = [line for line in _conflicts(there) if line not in set(_conflicts(here))]
    return Packages({name: each.version for name, each in there.items()}, tuple(specs), folder, tuple(conflicts))


def releases(name: str, older: str, newer: str) -> list[str]:
    """The versions of a package between two, newest first, that uv would install here: uv is asked for one at a time.

    Raises `SideFailed`.
    """
    versions: list[str] = []
    while True:
        spec = f"{name}>{older},<{(versions or [newer])[-1]}"
        arguments = ["compile", "--no-deps", "--no-header", "--no-annotate", "--quiet", "-"]
        try:
            pinned = _uv(arguments, [spec], stdin=spec).stdout
        except SideFailed as error:
            if "No solution found" not in str(error):
                raise
            return versions
        versions.append(str(next(iter(Requirement(pinned.strip()).specifier)).version))


def _uv(arguments: Sequence[str], specs: Sequence[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run `uv pip` with these arguments, for `specs`. Raises `SideFailed` where it fails."""
    if importlib.util.find_spec("uv"):
        import uv  # of the extra `against`

        program: str | None = uv.find_uv_bin()
    else:
        program = shutil.which("uv")
    if program is None:
        raise SideFailed(f"other packages take uv, which is not installed: {install('against')}")
    command, *others = arguments
    ended = subprocess.run(
        [program, "pip", command, "--python", sys.executable, "--no-progress", *others],
        env={**os.environ, "NO_COLOR": "1"},
        input=stdin,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if ended.returncode:
        named = ", ".join(f'"{spec}"' for spec in specs)
        lines = [line.rstrip() for line in ended.stderr.splitlines() if line.strip()][-_LAST_LINES:]
        shown = "\n".join(f"  {line}" for line in lines)
        raise SideFailed(f"uv cannot install {named}, so there is nothing to compare. Its last lines:\n{shown}")
    return ended


def _installed(path: Iterable[str]) -> dict[str, importlib.metadata.Distribution]:
    """The packages in these folders, by their name in the form that PEP 503 gives it."""
    packages: dict[str, importlib.metadata.Distribution] = {}
    for each in importlib.metadata.distributions(path=list(path)):
        if name := each.metadata["Name"]:
            packages.setdefault(canonicalize_name(name), each)
    return packages


def _conflicts(installed: Mapping[str, importlib.metadata.Distribution]) -> list[str]:
    """The requirements that installed packages do not meet, of extras too: uv installs what is named all the same."""
    lines: dict[str, None] = {}
    for name, each in installed.items():
        extras = ["", *(each.metadata.get_all("Provides-Extra") or [])]
        for text in each.requires or []:
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            here = installed.get(canonicalize_name(requirement.name))
            if here is None or requirement.specifier.contains(here.version, prereleases=True):
                continue
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
                wanted = f"{requirement.name}{requirement.specifier}"
                lines[f"{name} {each.version} asks for {wanted}, here is {here.version}"] = None
    return list(lines)


@dataclasses.dataclass(frozen=True)
class Stand:
    """A git worktree at `root` that stands for the user's working tree at `tree`."""

    tree: Path
    root: Path

    def moved(self, path: Path) -> Path:
        """The place in the worktree of a path in the user's tree."""
        return self.root / path.relative_to(self.tree)

    def argument(self, text: str) -> str:
        """An argument of pytest's; what it names in the user's tree is in the worktree here."""
        option, equals, value = text.partition("=") if text.startswith("-") else ("", "", text)
        path = Path(value.partition("::")[0])
        if not (value and path.is_absolute() and path.is_relative_to(self.tree)):
            return text
        return f"{option}{equals}{self.root}{value.removeprefix(str(self.tree))}"


@dataclasses.dataclass(frozen=True)
class Side:
    """What pytest needs to run the tests on one side.

    `name` is what people call it, `title` what code and packages it has, `directory` is where pytest starts. Python
    looks for modules in `paths` before it looks among the packages. `stand` is set where the code is a commit's: then
    nothing is imported from the user's working tree. `extra` has more environment variables.
    """

    name: str
    packages: Packages
    directory: Path
    paths: tuple[Path, ...] = ()
    stand: Stand | None = None
    extra: Mapping[str, str] = dataclasses.field(default_factory=dict)
    title: str = ""

    def variables(self, present: Mapping[str, str]) -> dict[str, str]:
        """The environment variables of a process of this side."""
        variables = {**present, **self.extra}
        first = [*self.paths, *filter(None, [self.packages.folder])]
        if first:
            last = filter(None, [variables.get("PYTHONPATH", "")])
            variables["PYTHONPATH"] = os.pathsep.join([*map(str, first), *last])
        if self.stand is not None:
            variables[NOT_FROM] = os.pathsep.join([str(self.stand.tree), str(self.stand.root)])
        return variables

    def arguments(self, given: tuple[str, ...]) -> list[str]:
        """The arguments of pytest on this side."""
        return [self.stand.argument(each) if self.stand else each for each in given]


@dataclasses.dataclass(frozen=True)
class Tree:
    """The working tree at `root`, with the directory in it where pytest starts.

    `imports` are the folders in it where Python finds modules, first those that come first. `tests` are the files of
    the perf tests, `rootdir` is pytest's.
    """

    root: Path
    directory: Path
    imports: tuple[Path, ...]
    tests: tuple[Path, ...]
    rootdir: Path

    @property
    def repository(self) -> Repository:
        return Repository(self.root)

    def folders_of_tests(self) -> list[Path]:
        """The outermost folders of tests on the way to the perf tests, relative to the root."""
        folders = [self._folder_of_tests(test.relative_to(self.root)) for test in self.tests]
        return sorted({folder for folder in folders if folder is not None})

    def _folder_of_tests(self, test: Path) -> Path | None:
        for folder in reversed(test.parents[:-1]):
            in_package = (self.root / folder.parent / "__init__.py").exists()
            if folder.name in (IN_A_PACKAGE if in_package else FOLDERS):
                return folder
        return None

    def lay_over(self, stand: Stand) -> None:
        """Put the tests of the working tree in the place of the commit's."""
        tests = [test.relative_to(self.root) for test in self.tests]
        files = {*tests, *(folder / "conftest.py" for test in tests for folder in test.parents)}
        if self.rootdir.is_relative_to(self.root):
            files |= {self.rootdir.relative_to(self.root) / name for name in CONFIGURATION}
        if folders := self.folders_of_tests():
            for folder in folders:
                shutil.rmtree(stand.root / folder, ignore_errors=True)
            # What git ignores is not copied.
            listed = ("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *map(str, folders))
            files |= {Path(name) for name in self.repository.run(*listed).split("\0") if name}
        for path in sorted(files):
            _copy(self.root / path, stand.root / path)
        stand.moved(self.directory).mkdir(parents=True, exist_ok=True)


def side_of_tree(specs: Sequence[str], name: str, *, scratch: Path) -> Side:
    """The working tree as it is, with the packages `specs` in the place of the present ones, or with these.

    Raises `SideFailed`.
    """
    packages = packages_with(specs, scratch / f"packages-{name}") if specs else present_packages()
    return Side(name, packages, Path.cwd(), title=f"the working tree, {packages.title}")


@contextlib.contextmanager
def side_of_commit(tree: Tree, revision: str, name: str, *, scratch: Path, specs: Sequence[str] = ()) -> Iterator[Side]:
    """A commit in a worktree below `scratch`, which is removed at the end, with the working tree's perf tests.

    It has the present packages, but for `specs` and the `dependencies` of its pyproject.toml that the working tree does
    not have. Raises `SideFailed` and `GitError`.
    """
    commit = commit_of(tree.repository, revision)
    project = tree.directory
    while not (project / "pyproject.toml").is_file() and project != tree.root:
        project = project.parent
    with worktree(tree.repository, commit, scratch / f"code-{name}") as place:
        stand = Stand(tree.root, place.resolve())
        here, named = _dependencies(project), set(map(package_name, specs))
        asked = [each for each in _dependencies(stand.moved(project)) if each not in here]
        wanted = [*specs, *(each for each in asked if package_name(each) not in named)]
        tree.lay_over(stand)
        packages = packages_with(wanted, scratch / f"packages-{name}") if wanted else present_packages()
        paths = tuple(stand.moved(path) for path in tree.imports)
        title = f"{tree.repository.title(commit)}, {packages.title}"
        yield Side(name, packages, stand.moved(tree.directory), paths, stand, title=title)


def commit_of(repository: Repository, revision: str) -> str:
    """The full hash. Raises `SideFailed` where there is no such commit."""
    commit = repository.commit_id(revision)
    if commit is None:
        raise SideFailed(
            f"{revision!r} is no commit of this repository: give a branch, a tag or a hash (packages go after --with)"
            + (f". {SHALLOW[0].upper()}{SHALLOW[1:]}" if repository.shallow else "")
        )
    return commit


@contextlib.contextmanager
def worktree(repository: Repository, commit: str, place: Path) -> Iterator[Path]:
    """A git worktree of the commit at `place`, which must not exist yet; removed at the end, whatever happens.

    It shares the repository's objects and has its own HEAD, index and bisection: the user's are never touched. What a
    killed process leaves, `git worktree prune` forgets once the temporary folder is gone. Raises `SideFailed` where git
    cannot make it.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        try:
            repository.run(*_NO_HOOKS, "worktree", "add", "--quiet", "--detach", os.fspath(place), commit)
        except GitError as error:
            raise SideFailed(f"git cannot put {commit[:12]} into a worktree: {error}") from None
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        with contextlib.suppress(GitError):  # git was ended before it knew the worktree
            repository.run("worktree", "remove", "--force", os.fspath(place))


def _dependencies(project: Path) -> list[str]:
    """What the pyproject.toml in a folder asks for."""
    try:
        content = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
        return [str(each) for each in content["project"]["dependencies"]]
    except (FileNotFoundError, KeyError):  # none, or a build works them out
        return []
    except (ValueError, TypeError) as error:
        raise SideFailed(f"{project / 'pyproject.toml'} cannot be read ({error})") from None


def _copy(source: Path, to: Path) -> None:
    """Put the file, link or nothing of `source` at `to`."""
    if to.is_symlink() or to.exists():
        to.unlink()
    if source.is_symlink() or source.is_file():
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, to, follow_symlinks=False)
