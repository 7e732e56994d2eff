"""One of the two sides of a comparison: the packages, and the folder with the code and the tests."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from perfsuite.against.environments import Packages
from perfsuite.against.notes import NOT_FROM


class SideFailed(Exception):  # noqa: N818  (a report, not a fault of this process)
    """A side cannot be made, or does not run what it stands for. The message says why, and what to do."""


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
        made = {**present, **self.extra}
        first = [*self.paths, *filter(None, [self.packages.folder])]
        if first:
            made["PYTHONPATH"] = os.pathsep.join([*map(str, first), *filter(None, [made.get("PYTHONPATH", "")])])
        if self.stand is not None:
            made[NOT_FROM] = os.pathsep.join([str(self.stand.tree), str(self.stand.root)])
        return made

    def arguments(self, given: tuple[str, ...]) -> list[str]:
        """The arguments of pytest on this side."""
        return [self.stand.argument(each) if self.stand else each for each in given]
