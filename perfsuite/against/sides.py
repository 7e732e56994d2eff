"""One of the two sides of a comparison: the packages, and the folder with the code and the tests."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from perfsuite.against.environments import VirtualEnvironment


@dataclasses.dataclass(frozen=True)
class Side:
    """What pytest needs to run the tests on one side.

    `name` is what people call it, `directory` is where pytest starts. Python looks for modules in `paths` before it
    looks among the packages of `environment`.
    """

    name: str
    environment: VirtualEnvironment
    directory: Path
    paths: tuple[Path, ...] = ()

    def variables(self, present: Mapping[str, str]) -> dict[str, str]:
        """The environment variables of a process of this side."""
        made = self.environment.variables(present)
        if self.paths:
            made["PYTHONPATH"] = os.pathsep.join([*map(str, self.paths), *filter(None, [made.get("PYTHONPATH", "")])])
        return made
