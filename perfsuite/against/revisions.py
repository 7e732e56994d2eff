"""The sides of a comparison: a commit in a git worktree, or the working tree as it is, perhaps with other packages.

New tests must run on old code, so the perf tests of the working tree are laid over a commit's:

- the files of the collected perf tests, and every conftest.py on the way to them;
- pytest's configuration files in its rootdir;
- all files of each folder of tests: the outermost folder on the way to a perf test with a name of `FOLDERS`. In a
  package only `tests` and `test` count.

Nothing else is: a change of the project's own files is what is looked for.
"""

import contextlib
import dataclasses
import os
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from perfsuite.against.environments import brought, name_of, present
from perfsuite.against.runs import Tests
from perfsuite.against.sides import Side, SideFailed, Stand
from perfsuite.git import SHALLOW, GitError, Repository

BRANCHES = ("main", "master", "origin/HEAD", "origin/main", "origin/master")
"""The first of these that is there is what a branch is compared with by default: its merge base with it."""

FOLDERS = ("test", "tests", "perf", "perf_tests", "bench", "benchmark", "benchmarks")
IN_A_PACKAGE = ("test", "tests")
CONFIGURATION = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")

_INSTALLED = {"site-packages", "dist-packages"}
_NO_HOOKS = ("-c", f"core.hooksPath={os.devnull}")


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
        found = [self._folder_of_tests(test.relative_to(self.root)) for test in self.tests]
        return sorted({folder for folder in found if folder is not None})

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


def tree_here(arguments: Sequence[str]) -> Tree:
    """The working tree around the current directory, with the perf tests that pytest collects with `arguments`.

    Raises `GitError` without git or outside a repository, and `SideFailed` where there is no perf test.
    """
    here = Path.cwd().resolve()
    root = Path(Repository(here).run("rev-parse", "--show-toplevel").removesuffix("\n")).resolve()
    with tempfile.TemporaryDirectory(prefix="perfsuite-against-", ignore_cleanup_errors=True) as scratch:
        collected = Tests(arguments, Path(scratch)).collected(Side("the working tree", present(), here))
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
    `SideFailed`, `GitError` and `EnvironmentFailed`.
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


def side_of_tree(specs: Sequence[str], name: str, *, scratch: Path) -> Side:
    """The working tree as it is, with the packages `specs` in the place of the present ones, or with these.

    Raises `EnvironmentFailed`.
    """
    packages = brought(specs, scratch / f"packages-{name}") if specs else present()
    return Side(name, packages, Path.cwd(), title=f"the working tree, {packages.title}")


@contextlib.contextmanager
def side_of_commit(tree: Tree, revision: str, name: str, *, scratch: Path, specs: Sequence[str] = ()) -> Iterator[Side]:
    """A commit in a worktree below `scratch`, which is removed at the end, with the working tree's perf tests.

    It has the present packages, but for `specs` and the `dependencies` of its pyproject.toml that the working tree does
    not have. Raises `SideFailed`, `GitError` and `EnvironmentFailed`.
    """
    commit = commit_of(tree.repository, revision)
    project = tree.directory
    while not (project / "pyproject.toml").is_file() and project != tree.root:
        project = project.parent
    with worktree(tree.repository, commit, scratch / f"code-{name}") as place:
        stand = Stand(tree.root, place.resolve())
        here, named = _dependencies(project), set(map(name_of, specs))
        asked = [each for each in _dependencies(stand.moved(project)) if each not in here]
        wanted = [*specs, *(each for each in asked if name_of(each) not in named)]
        tree.lay_over(stand)
        packages = brought(wanted, scratch / f"packages-{name}") if wanted else present()
        paths = tuple(stand.moved(path) for path in tree.imports)
        title = f"{tree.repository.commit(commit).title}, {packages.title}"
        yield Side(name, packages, stand.moved(tree.directory), paths, stand, title=title)


def commit_of(repository: Repository, revision: str) -> str:
    """The full hash. Raises `SideFailed` where there is no such commit."""
    found = repository.commit_id(revision)
    if found is None:
        raise SideFailed(
            f"{revision!r} is no commit of this repository: give a branch, a tag or a hash (packages go after --with)"
            + (f". {SHALLOW[0].upper()}{SHALLOW[1:]}" if repository.shallow else "")
        )
    return found


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


def _merge_base(repository: Repository) -> str:
    main = next((name for name in BRANCHES if repository.commit_id(name)), None)
    if main is None:
        raise SideFailed(f"there is no branch {', '.join(BRANCHES)} to compare with: name a commit or a branch")
    try:
        return repository.run("merge-base", main, "HEAD").strip()
    except GitError:
        why = f" {SHALLOW[0].upper()}{SHALLOW[1:]}" if repository.shallow else ""
        raise SideFailed(f"HEAD and {main} have no commit in common: name a commit or a branch.{why}") from None


def _dependencies(project: Path) -> list[str]:
    """What the pyproject.toml in a folder asks for."""
    try:
        content = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
        return [str(each) for each in content["project"]["dependencies"]]
    except (FileNotFoundError, KeyError):  # none, or a build works them out
        return []
    except (ValueError, TypeError) as error:
        raise SideFailed(f"{project / 'pyproject.toml'} cannot be read ({error})") from None


def _holds_code(path: Path, root: Path) -> bool:
    return path.is_dir() and path.is_relative_to(root) and not _INSTALLED & set(path.relative_to(root).parts)


def _copy(source: Path, to: Path) -> None:
    """Put the file, link or nothing of `source` at `to`."""
    if to.is_symlink() or to.exists():
        to.unlink()
    if source.is_symlink() or source.is_file():
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, to, follow_symlinks=False)
