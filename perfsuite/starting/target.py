"""The function that the user names as `module:function`, as a process of its own sees it."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from perfsuite.measure.serialise import from_json
from perfsuite.starting.project import StartError

_WORKER = Path(__file__).with_name("worker.py")
_LAST_WORDS = 300
_NAMED = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*)")


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter without a default. `value` is the source of an argument; empty where nobody can see one."""

    name: str
    value: str
    annotation: str

    @property
    def why_unseen(self) -> str:
        """Why there is no value, for people."""
        return f"{self.annotation} does not say enough" if self.annotation else "it has no annotation"


@dataclasses.dataclass(frozen=True)
class Target:
    """A function to write a perf test of.

    `file` is its module's, `path` the folder that pytest has to put on the path, if any. The first `carry` outputs are
    the first arguments of the next call. `problem` is what tracing it with the values of the parameters raised.
    """

    module: str
    name: str
    parameters: tuple[Parameter, ...]
    jitted: bool
    carry: int
    problem: str
    file: Path
    path: Path | None

    @property
    def unseen(self) -> tuple[Parameter, ...]:
        return tuple(each for each in self.parameters if not each.value)


@dataclasses.dataclass(frozen=True)
class _Seen:
    """What the process that imports the module writes down (`worker.main`): an error, or all the rest."""

    error: str
    parameters: tuple[tuple[str, str, str], ...] = ()
    jitted: bool = False
    carry: int = 0
    problem: str = ""
    file: str = ""
    needed: str = ""


def split(text: str) -> tuple[str, str]:
    """Module and function of `mypackage.train:step`. Raises `StartError`."""
    if match := _NAMED.fullmatch(text):
        return match[1], match[2]
    hint = ""
    path, _, name = text.rpartition(":")
    if path.endswith(".py") or "/" in path:
        module = path.removesuffix(".py").removeprefix("./").removeprefix("src/").replace("/", ".")
        hint = f": perhaps {module}:{name}"
    elif ":" not in text and "." in text:
        module, _, name = text.rpartition(".")
        hint = f": perhaps {module}:{name}"
    raise StartError(
        f"{text!r} is not the name of a function: name it as module:function, such as mypackage.train:step{hint}"
    )


def look_at(module: str, name: str, *, given: Sequence[Path], further: Sequence[Path]) -> Target:
    """Import the module and look at its function. Raises `StartError` for what cannot be used.

    `given` are folders that pytest puts on the path, `further` those that it could. JAX uses the CPU, unless
    JAX_PLATFORMS names another platform: nothing is run.
    """
    with tempfile.TemporaryDirectory(prefix="perfsuite-init-", ignore_cleanup_errors=True) as folder:
        output = Path(folder) / "seen.json"
        folders = [json.dumps([os.fspath(each.absolute()) for each in some]) for some in (given, further)]
        command = [sys.executable, "-P", os.fspath(_WORKER), module, name, os.fspath(output), *folders]
        environment = {"JAX_PLATFORMS": "cpu", **os.environ}
        ended = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True)
        said = " ".join((ended.stdout + ended.stderr).decode(errors="replace").split())[-_LAST_WORDS:]
        return _read(output, module, name, f"ended with status {ended.returncode}: {said}")


def _read(output: Path, module: str, name: str, ended: str) -> Target:
    """What the process wrote to `output`; `ended` says how it ended. Raises `StartError`."""
    try:
        seen = from_json(_Seen, output.read_bytes())
    except FileNotFoundError:
        seen = _Seen(f"the process that imports it {ended}")
    except (OSError, ValueError) as error:
        seen = _Seen(f"what the process that imports it wrote cannot be read ({error}); it {ended}")
    if seen.error:
        raise StartError(f"{module}:{name}: {seen.error}")
    return Target(
        module,
        name,
        tuple(Parameter(*each) for each in seen.parameters),
        seen.jitted,
        seen.carry,
        seen.problem,
        Path(seen.file),
        Path(seen.needed) if seen.needed else None,
    )
