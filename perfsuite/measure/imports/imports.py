"""What importing a module imports, as a fresh process sees it."""

import dataclasses
import functools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from perfsuite.measure import units
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.metric import Metric
from perfsuite.measure.private.backend_start import START
from perfsuite.measure.private.capabilities import BACKEND_START, CapabilityLost
from perfsuite.measure.serialise import from_json
from perfsuite.measure.words import number, plural

_WORKER = Path(__file__).with_name("worker.py")
_TIME = re.compile(r"^import time:\s+(\d{1,15}) \|\s+\d+ \| +(\S+)$", re.MULTILINE)
_INSTALLED = re.compile(r"^.*/(?:site|dist)-packages/")
_MOST_SECONDS = 600
_SHOWN = 5
_LAST_WORDS = 300


@dataclasses.dataclass(frozen=True)
class _Seen:
    """What the process that imports writes down (`worker.main`).

    Of each module its name, file, bytes, and the module, file and line that import it; of each backend its platform,
    and the module, file and line that start it.
    """

    error: str
    moved: str = ""
    modules: tuple[tuple[str, str, int, str, str, str], ...] = ()
    backends: tuple[tuple[str, str, str, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class Module:
    """An imported module. `file` is empty, and `bytes` 0, for one that is built in, or a namespace.

    `importer` is the module that imported it first, and `place` the line (`file:line`); empty for the one asked for.
    """

    name: str
    file: str
    bytes: int
    importer: str
    place: str
    seconds: float

    @property
    def package(self) -> str:
        """The name before the first dot."""
        return self.name.partition(".")[0]


@dataclasses.dataclass(frozen=True)
class Package:
    """The modules of one package. `place` is the line that imported the first of them."""

    name: str
    modules: int
    bytes: int
    seconds: float
    place: str

    def __str__(self) -> str:
        at = f", first at {self.place}" if self.place else ""
        return f"{self.name}: {plural(self.modules, 'module')}, {self.bytes:,} bytes, {number(self.seconds)} s{at}"


@dataclasses.dataclass(frozen=True)
class Backend:
    """A backend of JAX that was started, and the line that did it."""

    platform: str
    place: str


@dataclasses.dataclass(frozen=True)
class Imports:
    """What importing `name` imports, in the order of the imports.

    `modules` are those outside the standard library, `standard` those of it: which of these have a file, and which
    Python imports at its start, differs between builds of Python, and between environments.
    """

    name: str
    modules: tuple[Module, ...]
    standard: tuple[Module, ...]
    backends: tuple[Backend, ...]

    @property
    def files(self) -> int:
        """How many files the modules come from."""
        return len({module.file for module in self.modules if module.file})

    @property
    def bytes(self) -> int:
        """Of the files of other packages: an edit of one's own is no heavier import."""
        own = self.name.partition(".")[0]
        return sum({module.file: module.bytes for module in self.modules if module.package != own}.values())

    @property
    def seconds(self) -> float:
        """What this one time took, the standard library included."""
        return sum(module.seconds for module in (*self.modules, *self.standard))

    @functools.cached_property
    def packages(self) -> tuple[Package, ...]:
        """Those with the most bytes first."""
        of: dict[str, list[Module]] = {}
        for module in self.modules:
            of.setdefault(module.package, []).append(module)
        found = [_package(name, modules) for name, modules in of.items()]
        return tuple(sorted(found, key=lambda package: (-package.bytes, package.name)))

    def of(self, package: str) -> tuple[Module, ...]:
        """The modules of a package or a module, with those inside it."""
        return tuple(each for each in self.modules if f"{each.name}.".startswith(f"{package}."))

    def chain(self, name: str) -> list[str]:
        """The imports that lead to a module, from the one that was asked for: `model.py:3 imports numpy`."""
        known = {module.name: module for module in (*self.modules, *self.standard)}
        steps: list[str] = []
        while (module := known.get(name)) is not None and module.place and len(steps) < len(known):
            steps.append(f"{module.place} imports {module.name}")
            name = module.importer
        return steps[::-1]

    def metrics(self, name: str) -> list[Metric]:
        """Modules, files, bytes and backends; as information, modules of the standard library, and the seconds."""
        modules = {package.name: package.modules for package in self.packages}
        own = self.name.partition(".")[0]
        sizes = {package.name: package.bytes for package in self.packages if package.bytes and package.name != own}
        places = {package.name: package.place for package in self.packages if package.place}
        started = {backend.platform: 1 for backend in self.backends}
        at = {backend.platform: backend.place for backend in self.backends}
        return [
            Metric(
                f"{name} modules imported", len(self.modules), units.MODULES, "count", detail=modules, places=places
            ),
            Metric(f"{name} files imported", self.files, units.FILES, "count"),
            Metric(f"{name} bytes imported", self.bytes, units.BYTES_OF_FILES, "size", detail=sizes, places=places),
            Metric(f"{name} backends started", len(self.backends), units.BACKENDS, "count", detail=started, places=at),
            Metric(f"{name} standard modules imported", len(self.standard), units.MODULES, "info"),
            Metric(f"{name} seconds to import", self.seconds, "s", "info", samples=1),
        ]

    def heaviest(self) -> list[str]:
        """The packages with the most bytes, a line each."""
        said = [str(package) for package in self.packages[:_SHOWN]]
        if (more := len(self.packages) - _SHOWN) > 0:
            said.append(f"and {plural(more, 'package')} more")
        return said

    def started(self) -> list[str]:
        """The backends that were started, a line each."""
        return [f"{each.platform} is started at {each.place}" for each in self.backends]

    def __str__(self) -> str:
        head = f"{self.name}: {plural(len(self.modules), 'module')}, {plural(self.files, 'file')}, {self.bytes:,} bytes"
        return "\n".join([head, *(f"  {line}" for line in (*self.heaviest(), *self.started()))])


def imports_of(name: str, after: Sequence[str] = ()) -> Imports:
    """What importing a module imports, in a fresh process with this one's path and environment.

    What Python itself imports at its start does not count, nor what the modules `after` import. Raises
    `MeasurementError` where the module does not exist or raises while it is imported, and `CapabilityLost` where it
    starts a backend in a way that perfsuite does not see.
    """
    __tracebackhide__ = True
    with tempfile.TemporaryDirectory(prefix="perfsuite-imports-", ignore_cleanup_errors=True) as folder:
        output = Path(folder) / "imports.json"
        command = [sys.executable, "-P", "-X", "importtime", str(_WORKER), name, ",".join(after), str(output)]
        command += [START.module, START.path, *(os.path.abspath(entry) for entry in sys.path)]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        try:
            ended = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=_MOST_SECONDS
            )
        except subprocess.TimeoutExpired:
            raise MeasurementError(f"importing {name} did not end within {_MOST_SECONDS} s") from None
        said = (ended.stdout + ended.stderr).decode(errors="replace")
        try:
            seen = from_json(_Seen, output.read_bytes())
        except FileNotFoundError:
            seen = _Seen(f"its process ended with status {ended.returncode}: {_last_words(said)}")
        except ValueError as error:
            seen = _Seen(f"what its process wrote cannot be read ({error}): {_last_words(said)}")
    if seen.error:
        raise MeasurementError(f"importing {name} failed: {seen.error}")
    if seen.moved:
        raise CapabilityLost(BACKEND_START.sentence("perf.imports"), f"there is no {seen.moved}")
    return _read(name, seen, {module: int(us) / 1e6 for us, module in _TIME.findall(said)})


def _read(name: str, seen: _Seen, seconds: Mapping[str, float]) -> Imports:
    modules = [
        Module(each, file, size, importer, _place(source, line), seconds.get(each, 0.0))
        for each, file, size, importer, source, line in seen.modules
    ]
    backends = [Backend(platform, _place(source, line)) for platform, _, source, line in seen.backends]
    standard = tuple(module for module in modules if module.package in sys.stdlib_module_names)
    return Imports(name, tuple(module for module in modules if module not in standard), standard, tuple(backends))


def _package(name: str, modules: Iterable[Module]) -> Package:
    modules = list(modules)
    size = sum({module.file: module.bytes for module in modules}.values())
    return Package(name, len(modules), size, sum(module.seconds for module in modules), modules[0].place)


def _place(file: str, line: str) -> str:
    """The file from the working directory, or from the folder of installed packages."""
    if not file:
        return ""
    return f"{_INSTALLED.sub('', file.removeprefix(os.getcwd() + os.sep))}:{line}"


def _last_words(said: str) -> str:
    lines = [line for line in said.splitlines() if not line.startswith("import time:")]
    return " ".join(" ".join(lines).split())[-_LAST_WORDS:] or "it wrote nothing"
