"""What there is in a project: its configuration, its tests, its repository and its CI."""

import dataclasses
import fnmatch
from pathlib import Path

from perfsuite.git import GitError, Repository

_FILES = ("pyproject.toml", "setup.py", "setup.cfg", "pytest.ini", "tox.ini", ".git")


class StartError(Exception):
    """`perfsuite init` cannot go on: the message names what is wrong, and says what to do."""


@dataclasses.dataclass(frozen=True)
class PytestSettings:
    """What pytest says of a project: its root, its file of settings, and some of these."""

    root: Path
    file: Path | None
    testpaths: tuple[str, ...]
    pythonpath: tuple[str, ...]
    python_files: tuple[str, ...]
    baselines: str


@dataclasses.dataclass(frozen=True)
class Project:
    """A project that `perfsuite init` writes into. `repository` is the root of its git repository, if there is one."""

    settings: PytestSettings
    repository: Path | None
    remotes: str

    @property
    def root(self) -> Path:
        return self.settings.root

    @property
    def known(self) -> bool:
        """Whether a file says that this is a project."""
        return any((self.root / name).exists() for name in _FILES)

    @property
    def paths(self) -> list[Path]:
        """Folders that pytest puts on the path, by its setting."""
        return [self.root / each for each in self.settings.pythonpath]

    @property
    def possible_paths(self) -> list[Path]:
        """Folders that it could put there."""
        return [self.root, self.root / "src"]

    @property
    def tests(self) -> Path:
        """The folder for tests."""
        folders = [self.root / each for each in self.settings.testpaths or ("tests", "test")]
        present = [each for each in folders if each.is_dir()] or folders
        # Among the testpaths are sources, where their docstrings are tests.
        return next((each for each in present if each.name.startswith("test")), present[0])

    def test_file(self, name: str) -> Path:
        """The file for the perf tests of a function, with a name that pytest collects."""
        stem = f"perf_{name}"
        patterns = self.settings.python_files or ("test_*.py",)
        if any(fnmatch.fnmatch(f"test_{stem}.py", pattern) for pattern in patterns):
            return self.tests / f"test_{stem}.py"
        return self.tests / patterns[0].replace("*", stem, 1)

    @property
    def on_github(self) -> bool:
        return self._has(".github") or "github.com" in self.remotes

    @property
    def on_gitlab(self) -> bool:
        return self._has(".gitlab-ci.yml") or "gitlab" in self.remotes

    def ignores(self, path: Path) -> bool:
        """Whether git ignores a file, which need not exist."""
        try:
            Repository(self.root).run("check-ignore", "--quiet", "--", str(path))
        except GitError:  # no repository, or not ignored
            return False
        return True

    def _has(self, name: str) -> bool:
        return ((self.repository or self.root) / name).exists()


def project_of(settings: PytestSettings) -> Project:
    """Look at a project."""
    try:
        repository = Repository(settings.root)
        top = Path(repository.run("rev-parse", "--show-toplevel").removesuffix("\n"))
        return Project(settings, top, repository.run("remote", "--verbose"))
    except GitError:
        return Project(settings, None, "")
