"""The user's working tree, and which of its files are the perf tests that also run on other commits.

New tests must run on old code, so the tests of the working tree are laid over a commit's. The rule:

- the files of the collected perf tests, and every conftest.py on the way to them;
- pytest's configuration files in its rootdir;
- all files of each folder of tests: the outermost folder on the way to a perf test with a name of `FOLDERS`. In a
  package only `tests` and `test` count.

Nothing else is: a change of the project's own files is what is looked for.
"""

import dataclasses
import importlib.metadata
import importlib.util
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from perfsuite.against.environments import present
from perfsuite.against.runs import Tests
from perfsuite.against.sides import Side, SideFailed, Stand
from perfsuite.git import Repository

FOLDERS = ("test", "tests", "perf", "perf_tests", "bench", "benchmark", "benchmarks")
IN_A_PACKAGE = ("test", "tests")
CONFIGURATION = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")

_INSTALLED = {"site-packages", "dist-packages"}
_BUILT = ("*.so", "*.pyd", "*.dylib")
_NO_CODE = {"build", "dist", "node_modules"}


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

    def single_files(self) -> list[Path]:
        """The other files of the tests, relative to the root, whether they exist or not."""
        tests = [test.relative_to(self.root) for test in self.tests]
        conftests = [folder / "conftest.py" for test in tests for folder in test.parents]
        inside = self.rootdir.is_relative_to(self.root)
        rootdir = self.rootdir.relative_to(self.root) if inside else None
        configuration = [rootdir / name for name in CONFIGURATION] if rootdir is not None else []
        return sorted({*tests, *conftests, *configuration})

    def lay_over(self, stand: Stand) -> None:
        """Put the tests of the working tree in the place of the commit's."""
        folders = self.folders_of_tests()
        for folder in folders:
            shutil.rmtree(stand.root / folder, ignore_errors=True)
        for path in [*self.single_files(), *self._files(folders)]:
            _copy(self.root / path, stand.root / path)
        stand.moved(self.directory).mkdir(parents=True, exist_ok=True)

    def _files(self, folders: Sequence[Path]) -> list[Path]:
        """The files in these folders that git knows or would add; what it ignores is not copied."""
        if not folders:
            return []
        listed = self.repository.run(
            "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *map(str, folders)
        )
        return sorted({Path(name) for name in listed.split("\0") if name})

    def built(self) -> list[str]:
        """The compiled modules that git does not have: those of a commit would have to be built."""
        listed = self.repository.run("ls-files", "-z", "--others", "--", *_BUILT).split("\0")[:-1]
        return [name for name in listed if self._is_module(Path(name))]

    def _is_module(self, path: Path) -> bool:
        folders = path.parts[:-1]
        if (_INSTALLED | _NO_CODE) & set(folders) or any(each.startswith(".") for each in folders):
            return False
        return any((self.root / path).is_relative_to(place) for place in self.imports)


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
        why = "; ".join(f"{file}: {reason}" for file, reason in notes.uncollected.items())
        raise SideFailed(f"pytest finds no perf test in the working tree{f' ({why})' if why else ''}")
    paths = [Path(entry).resolve() for entry in notes.path if entry]
    imports = dict.fromkeys(path for path in [*paths, *_editable(root)] if _holds_code(path, root))
    return Tree(root, here, tuple(imports), tuple(tests), Path(notes.rootdir))


def _holds_code(path: Path, root: Path) -> bool:
    return path.is_dir() and path.is_relative_to(root) and not _INSTALLED & set(path.relative_to(root).parts)


def _editable(root: Path) -> Iterator[Path]:
    """The folders of the packages that editable installs find by a mapping, which `sys.path` does not show."""
    for each in importlib.metadata.distributions():
        place = _folder_of(each.read_text("direct_url.json") or "")
        if place is None or not place.is_relative_to(root):
            continue
        for name in (each.read_text("top_level.txt") or "").split():
            try:
                spec = importlib.util.find_spec(name)
            except (ImportError, ValueError):
                continue
            if spec is not None and spec.origin:
                file = Path(spec.origin).resolve()
                package = file.parent if file.name == "__init__.py" else file
                if package.stem == name:
                    yield package.parent


def _folder_of(text: str) -> Path | None:
    """The folder of an editable install, by its direct_url.json (PEP 610)."""
    try:
        about = json.loads(text)
        url = urlsplit(about["url"])
        if not about["dir_info"]["editable"] or url.scheme != "file":
            return None
        return Path(url2pathname(unquote(url.path))).resolve()
    except (AttributeError, KeyError, OSError, RecursionError, TypeError, ValueError):
        return None


def _copy(source: Path, to: Path) -> None:
    """Put the file, link or nothing of `source` at `to`."""
    if to.is_symlink() or to.exists():
        to.unlink()
    if source.is_symlink() or source.is_file():
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, to, follow_symlinks=False)
