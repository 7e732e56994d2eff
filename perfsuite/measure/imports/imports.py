"""What importing a module imports, as a fresh process sees it."""

import dataclasses
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from perfsuite.measure import units
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.metric import Metric
from perfsuite.measure.private.backend_start import START
from perfsuite.measure.serialise import from_json

_WORKER = Path(__file__).with_name("worker.py")
_LAST_WORDS = 300


@dataclasses.dataclass(frozen=True)
class Module:
    """An imported module. `bytes` are those of its file, 0 without one.

    `importer` is the module that imported it first, and `place` the line (`file:line`); empty for the one asked for.
    """

    name: str
    bytes: int
    importer: str
    place: str

    @property
    def package(self) -> str:
        """The name before the first dot."""
        return self.name.partition(".")[0]


@dataclasses.dataclass(frozen=True)
class Backend:
    """A backend of JAX that was started, and the line that did it."""

    platform: str
    place: str


@dataclasses.dataclass(frozen=True)
class Imports:
    """What importing `name` imports outside the standard library, in the order of the imports."""

    name: str
    modules: tuple[Module, ...]
    backends: tuple[Backend, ...]

    @property
    def bytes_by_package(self) -> dict[str, int]:
        """Of the files of each other package: an edit of one's own is no heavier import."""
        sizes: Counter[str] = Counter()
        for module in self.modules:
            if module.bytes and module.package != self.name.partition(".")[0]:
                sizes[module.package] += module.bytes
        return dict(sizes)

    @property
    def bytes(self) -> int:
        """Of the files of other packages."""
        return sum(self.bytes_by_package.values())

    def of(self, package: str) -> tuple[Module, ...]:
        """The modules of a package or a module, with those inside it."""
        return tuple(each for each in self.modules if f"{each.name}.".startswith(f"{package}."))

    def chain(self, name: str) -> list[str]:
        """The imports that lead to a module, from the one that was asked for: `model.py:3 imports numpy`."""
        left = {module.name: module for module in self.modules if module.place}
        steps: list[str] = []
        while module := left.pop(name, None):
            steps.insert(0, f"{module.place} imports {module.name}")
            name = module.importer
        return steps

    def metrics(self, name: str) -> list[Metric]:
        """Modules, bytes and backends, with the line that first imports each package, or starts each backend."""
        modules, sizes = dict(Counter(module.package for module in self.modules)), self.bytes_by_package
        first = {module.package: module.place for module in reversed(self.modules) if module.place}
        started = {backend.platform: 1 for backend in self.backends}
        at = {backend.platform: backend.place for backend in self.backends}
        return [
            Metric(f"{name} modules imported", len(self.modules), units.MODULES, "count", detail=modules, places=first),
            Metric(f"{name} bytes imported", self.bytes, units.BYTES_OF_FILES, "size", detail=sizes, places=first),
            Metric(f"{name} backends started", len(self.backends), units.BACKENDS, "count", detail=started, places=at),
        ]


def imports_of(name: str, after: Sequence[str] = ()) -> Imports:
    """What importing a module imports, in a fresh process with this one's path and environment.

    The standard library does not count, nor what the modules `after` import. Raises `MeasurementError` where the module
    does not exist or raises while it is imported.
    """
    __tracebackhide__ = True
    with tempfile.TemporaryDirectory(prefix="perfsuite-imports-", ignore_cleanup_errors=True) as folder:
        output = Path(folder) / "imports.json"
        command = [sys.executable, "-P", str(_WORKER), name, ",".join(after), str(output)]
        command += [START.module, START.path, *map(os.path.abspath, sys.path)]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        ended = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True)
        try:
            return from_json(Imports, output.read_bytes())
        except (FileNotFoundError, ValueError):
            words = " ".join((ended.stdout + ended.stderr).decode(errors="replace").split())[-_LAST_WORDS:]
    raise MeasurementError(f"importing {name} ended with status {ended.returncode}: {words}")
