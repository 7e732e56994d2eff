"""What importing a module imports, as a fresh process sees it."""

import dataclasses
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.metric import BACKENDS, MODULES, Metric
from perfsuite.measure.private.libraries import START
from perfsuite.measure.serialise import from_json

_WORKER = Path(__file__).with_name("import_worker.py")
_LAST_WORDS = 300


@dataclasses.dataclass(frozen=True)
class Module:
    """An imported module.

    `importer` is the module that imported it first, and `place` the line (`file:line`); empty for the one asked for.
    """

    name: str
    importer: str
    place: str


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
        """Modules and backends, with the line that first imports each package, or starts each backend."""
        packages = [(module.name.partition(".")[0], module.place) for module in self.modules]
        backends = [(backend.platform, backend.place) for backend in self.backends]
        return [
            _count(f"{name} modules imported", MODULES, packages),
            _count(f"{name} backends started", BACKENDS, backends),
        ]


def _count(name: str, unit: str, parts: list[tuple[str, str]]) -> Metric:
    places = {part: place for part, place in reversed(parts) if place}
    return Metric(name, len(parts), unit, "count", detail=dict(Counter(part for part, _ in parts)), places=places)


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
            output_text = (ended.stdout + ended.stderr).decode(errors="replace")
            # The traceback below the worker's own line; Python 3.13 marks that with another one.
            words = " ".join(output_text.rpartition("__import__(module)")[2].split()).lstrip("~^ ")[-_LAST_WORDS:]
    raise MeasurementError(f"importing {name} ended with status {ended.returncode}: {words}")
