"""What the steps of a search are: commits, or releases of packages. Each step is a side where the test can run."""

import contextlib
import dataclasses
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from perfsuite.against.environments import VirtualEnvironment
from perfsuite.against.revisions import side_of_commit, side_of_tree
from perfsuite.against.sides import Side
from perfsuite.against.tree import Tree
from perfsuite.bisecting.commits import Commits
from perfsuite.bisecting.releases import notes_address
from perfsuite.measure.targets.target_available import ANY_VERSION


class Steps(Protocol):
    """Where a step's side comes from."""

    def side(self, id: str) -> contextlib.AbstractContextManager[Side]:
        """The side of a step; what was made for it is removed at the end."""

    def name(self, id: str) -> str:
        """What people call the step."""

    def addresses(self, side: Side) -> dict[str, str]:
        """Where the named packages tell what is new."""


class CommitSteps:
    """Commits, by their hashes. Worktrees, and what environments it takes, are below `scratch`, or `keep`."""

    def __init__(self, tree: Tree, commits: Commits, *, scratch: Path, keep: Path | None):
        self._tree, self._commits, self._scratch, self._keep = tree, commits, scratch, keep

    @contextlib.contextmanager
    def side(self, id: str) -> Iterator[Side]:
        with side_of_commit(self._tree, id, id[:12], scratch=self._scratch, keep=self._keep) as side:
            yield side

    def name(self, id: str) -> str:
        return self._commits.name(id)

    def addresses(self, side: Side) -> dict[str, str]:
        return {}


class PackageSteps:
    """Versions of packages, as pip takes them: `"jax==0.10.1 flax==0.12.8"`. The code is the working tree's."""

    def __init__(self, names: Sequence[str], *, scratch: Path, keep: Path | None):
        self._names, self._scratch, self._keep = names, scratch, keep

    @contextlib.contextmanager
    def side(self, id: str) -> Iterator[Side]:
        folder = self._keep or self._scratch / "environments"
        made = side_of_tree(None, id.split(), re.sub(r"[^\w.-]+", "-", id), folder=folder)
        side = dataclasses.replace(made, extra={ANY_VERSION: "1"})
        try:
            yield side
        finally:
            if self._keep is None:
                # An environment with libtpu holds some 600 MB.
                shutil.rmtree(side.environment.folder, ignore_errors=True)

    def name(self, id: str) -> str:
        return id.replace("==", " ")

    def addresses(self, side: Side) -> dict[str, str]:
        place = _site_packages(side.environment)
        return {name: address for name in self._names if (address := notes_address(name, place))}


def step_id(versions: Mapping[str, str]) -> str:
    """The id of versions of packages."""
    return " ".join(f"{name}=={version}" for name, version in versions.items())


def _site_packages(environment: VirtualEnvironment) -> Path:
    return next(environment.folder.glob("lib*/python*/site-packages"), environment.folder / "Lib" / "site-packages")
