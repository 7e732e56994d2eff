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
from perfsuite.measure.private.capabilities import BACKEND_START, CapabilityLost
from perfsuite.measure.serialise import from_json

_WORKER = Path(__file__).with_name("worker.py")
_MOST_SECONDS = 600
_SHOWN = 5
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
class _Output:
    """What the process that imports writes down (`worker.main`)."""

    error: str = ""
    moved: str = ""
    modules: tuple[Module, ...] = ()
    backends: tuple[Backend, ...] = ()


@dataclasses.dataclass(frozen=True)
class Imports:
    """What importing `name` imports outside the standard library, in the order of the imports."""

    name: str
    modules: tuple[Module, ...]
    backends: tuple[Backend, ...]

    @property
    def bytes(self) -> int:
        """Of the files of other packages: an edit of one's own is no heavier import."""
        return sum(self._sizes().values())

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
        modules = dict(Counter(module.package for module in self.modules))
        first = {module.package: module.place for module in reversed(self.modules) if module.place}
        started = {backend.platform: 1 for backend in self.backends}
        at = {backend.platform: backend.place for backend in self.backends}
        return [
            Metric(f"{name} modules imported", len(self.modules), units.MODULES, "count", detail=modules, places=first),
            Metric(
                f"{name} bytes imported", self.bytes, units.BYTES_OF_FILES, "size", detail=self._sizes(), places=first
            ),
            Metric(f"{name} backends started", len(self.backends), units.BACKENDS, "count", detail=started, places=at),
        ]

    def heaviest(self) -> list[str]:
        """The packages with the most bytes, a line each."""
        sizes = Counter(self._sizes()).most_common(_SHOWN)
        return [f"{package}: {size:,} bytes, first at {self.of(package)[0].place}" for package, size in sizes]

    def started(self) -> list[str]:
        """The backends that were started, a line each."""
        return [f"{each.platform} is started at {each.place}" for each in self.backends]

    def _sizes(self) -> dict[str, int]:
        """The bytes of each other package."""
        sizes: Counter[str] = Counter()
        for module in self.modules:
            if module.bytes and module.package != self.name.partition(".")[0]:
                sizes[module.package] += module.bytes
        return dict(sizes)


def imports_of(name: str, after: Sequence[str] = ()) -> Imports:
    """What importing a module imports, in a fresh process with this one's path and environment.

    The standard library does not count, nor what the modules `after` import. Raises `MeasurementError` where the module
    does not exist or raises while it is imported, and `CapabilityLost` where perfsuite could not see
    it start a backend.
    """
    __tracebackhide__ = True
    with tempfile.TemporaryDirectory(prefix="perfsuite-imports-", ignore_cleanup_errors=True) as folder:
        output = Path(folder) / "imports.json"
        command = [sys.executable, "-P", str(_WORKER), name, ",".join(after), str(output)]
        command += [START.module, START.path, *(os.path.abspath(entry) for entry in sys.path)]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        try:
            ended = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=_MOST_SECONDS
            )
        except subprocess.TimeoutExpired:
            raise MeasurementError(f"importing {name} did not end within {_MOST_SECONDS} s") from None
        try:
            made = from_json(_Output, output.read_bytes())
        except (FileNotFoundError, ValueError):
            words = " ".join((ended.stdout + ended.stderr).decode(errors="replace").split())
            made = _Output(f"its process ended with status {ended.returncode}: {words[-_LAST_WORDS:]}")
    if made.error:
        raise MeasurementError(f"importing {name} failed: {made.error}")
    if made.moved:
        raise CapabilityLost(BACKEND_START.sentence("perf.imports"), f"there is no {made.moved}")
    return Imports(name, made.modules, made.backends)
