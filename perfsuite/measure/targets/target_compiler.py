"""Compiles StableHLO for a device that need not be present, in another process, and remembers the result.

The other process is `target_worker`: a compiler that crashes takes only that process with it, what it writes to the
terminal is caught there, and libtpu and the CUDA plugin never meet in one process. That costs 0.6 s a compile, nearly
all of it the import of jax (2 cores, jax 0.10.2).
"""

import dataclasses
import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from perfsuite.measure.compiler_stderr import NOISE
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.private.capabilities import KERNEL_SCHEDULES, CapabilityLost
from perfsuite.measure.private.libraries import UNKNOWN_FLAG, schedule_flags
from perfsuite.measure.serialise import from_json, from_plain
from perfsuite.measure.targets import cache as facts_cache
from perfsuite.measure.targets.kernel_code import KernelCode, holds_kernels
from perfsuite.measure.targets.target_available import (
    TargetError,
    TargetUnavailable,
    check_available,
    compiler_versions,
    version,
)
from perfsuite.measure.targets.target_worker import KERNELS, PROGRAM, REQUEST, RESULT
from perfsuite.measure.targets.targets import Target
from perfsuite.measure.words import plural

FORMAT = 7
"""Part of every key: raised when what the worker does or what an entry holds changes."""

# The values of `jax.config` that end up in the options of a compile (`compiler.get_compile_options`).
CONFIG = (
    "jax_use_shardy_partitioner",
    "jax_exec_time_optimization_effort",
    "jax_memory_fitting_effort",
    "jax_optimization_level",
    "jax_memory_fitting_level",
    "jax_compiler_enable_remat_pass",
)

# Failures that another attempt need not repeat; all others are the compiler's last word on the program.
_PASSING = ("UNAVAILABLE: ", "DEADLINE_EXCEEDED: ", "CANCELLED: ", "ABORTED: ", "UNKNOWN: ")

_LIBTPU_FLAGS = "LIBTPU_INIT_ARGS"

# Flags about this machine or another backend. In the cache's key they would make one program look like two.
_HOST_FLAGS = ("--xla_force_host_platform_device_count", "--xla_cpu_")
_FLAGS_OF_OTHERS = {"tpu": "--xla_gpu_", "cuda": "--xla_tpu_"}

# JAX_* arrives through CONFIG; TPU_* and CUDA_* describe this machine's own devices; the others would only slow or
# break it.
_DROPPED_PREFIXES = (
    *("JAX_", "TPU_", "PJRT_", "CUDA_", "NVIDIA_"),
    *("PYTHONWARNINGS", "PYTHONDEVMODE", "PYTHONINSPECT", "PYTHONPROFILE"),
)

_OF_PLATFORM = {
    "tpu": {
        # Else it asks Google Cloud's metadata server what machine this is, and waits for an answer.
        "TPU_SKIP_MDS_QUERY": "1",
        # Else a second process that loads libtpu ends with an error about /tmp/libtpu_lockfile.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        # Else it writes log files to /tmp/tpu_logs.
        "TPU_LOG_DIR": "disabled",
    },
    # The GPUs of this machine have nothing to do with the target.
    "cuda": {"CUDA_VISIBLE_DEVICES": ""},
}

_CODES = re.compile(r"\A(?:[A-Z]+(?:_[A-Z]+)*: )*")
_LINE_CHARACTERS = 300
_WHOLE_CHARACTERS = 2000
"""The first paragraph of a compiler's message is whole up to here. Most of a longer one are an operation's operands."""


@dataclasses.dataclass(frozen=True)
class CompilerOutput:
    """A program as a compiler returns it.

    `hlo` is the optimised module, and `unsplit_hlo` that of a program on several slices before the compiler splits its
    collectives between them, both `packed`. `memory` are XLA's memory statistics ("temp_size_in_bytes", ...) of one
    device's share. `compiler` names the compiler's build. `compile_seconds` is what the compile took; where `cached` is
    true, it took place earlier. `kernels` has the code of the user's kernels by the names of their instructions, as far
    as it is known.
    """

    hlo: str
    memory: dict[str, int]
    compile_seconds: float
    compiler: str
    cached: bool
    unsplit_hlo: str | None = None
    kernels: Mapping[str, KernelCode] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class _Error:
    """What kept the worker from compiling the program, and at which stage."""

    stage: Literal["start", "parse", "compile", "report"]
    type: str
    message: str


class CompileFailed(MeasurementError):  # noqa: N818
    """The target's compiler refused the program.

    `reason` is the first paragraph of the compiler's message, `details` all of it. `out_of_memory` is true where the
    program needs more of some memory than one device has. `where` is the line of the operation that the compiler
    names, empty where it names none, and `arrays` what takes the memory, as far as it is known.
    """

    def __init__(self, target: str, reason: str, *, out_of_memory: bool = False, details: str = ""):
        super().__init__(target, reason)
        self.target = target
        self.reason = reason
        self.out_of_memory = out_of_memory
        self.details = details
        self.where = ""
        self.arrays = ""

    def __str__(self) -> str:
        at = f" at {self.where}" if self.where else ""
        arrays = f" {self.arrays}" if self.arrays else ""
        return f"the compiler for {self.target} refused the program{at}: {self.reason}{arrays}"


class CompilerCrashed(CompileFailed):
    """The target's compiler died over the program. `details` are the last lines that it wrote."""

    def __str__(self) -> str:
        written = f"; it wrote:\n{self.details}" if self.details else ""
        return f"the compiler for {self.target} crashed: {self.reason}{written}"


def compile_for(
    target: Target,
    stablehlo: bytes,
    *,
    partitions: int = 1,
    chips: int | None = None,
    slices: int = 1,
    cache: Path | None = None,
    options: Mapping[str, str | bool | int | float] | None = None,
) -> CompilerOutput:
    """Compile a StableHLO text (with debug locations, for sources in the result) for `partitions` devices of a target.

    The devices are the first of the smallest slice of TPUs, or of the fewest hosts of GPUs, that has them and `chips`
    chips; of several slices, joined by the network, all are of one size, and each has as many of the devices and chips.
    `options` are those of `jax.jit(compiler_options=...)`, of which the target may override some. With the folder
    `cache`, neither this process nor another compiles the same program with the same compiler and flags again; what the
    compiler refuses is remembered as well.

    Raises `ValueError` where no slice is that large, `chips` are too few, or the slices cannot share devices or chips
    equally; `TargetUnavailable` where there is no
    compiler, `CompileFailed` where it refuses the program, and `CompilerCrashed` where it dies.
    """
    __tracebackhide__ = True
    topology = _topology(target, partitions, chips, slices)
    check_available(target.platform)
    request = {
        "platform": target.platform,
        "topology": topology,
        "partitions": partitions,
        "config": configuration(),
        "options": {**(options or {}), **target.compiler_options},
    }
    result = _remembered_or_compiled(target, stablehlo, request, cache)
    if isinstance(result, CompileFailed):
        raise result
    return result


def _topology(target: Target, partitions: int, chips: int | None, slices: int) -> dict[str, Any]:
    """The smallest topology that has the devices and chips."""
    __tracebackhide__ = True
    have = None if chips is None else chips * target.devices_per_chip
    if have is not None and have < partitions:
        raise ValueError(
            f"the program needs {plural(partitions, 'device')}, and chips={chips} is {plural(have, 'device')} of "
            f"{target.name}"
        )
    for count, what in ((partitions, f"{plural(partitions, 'device')} of the program"), (chips, f"chips={chips}")):
        if count is not None and count % slices:
            raise ValueError(f"slices={slices} cannot share the {what} equally: give a number that divides {count}")
    return target.topology(max(partitions, have or 0), slices)


def _remembered_or_compiled(
    target: Target, stablehlo: bytes, request: Mapping[str, Any], cache: Path | None
) -> CompilerOutput | CompileFailed:
    environment = worker_environment(os.environ, target.platform)
    key = _key(target, stablehlo, request, environment)
    if result := _result(target, facts_cache.read(cache, key), cached=True):
        return result
    with facts_cache.locked(cache, key):
        # Another process may have compiled it meanwhile.
        if result := _result(target, facts_cache.read(cache, key), cached=True):
            return result
        entry = _run(target, stablehlo, request, environment)
        result = _result(target, entry, cached=False)
        if result is None:
            raise _unreadable(target, f"it lacks a part: {_first_paragraph(str(entry))}")
        if not (isinstance(result, CompileFailed) and result.details.startswith(_PASSING)):
            facts_cache.write(cache, key, entry)
        return result


def configuration() -> dict[str, Any]:
    """The values of `jax.config` that a compile depends on, by name."""
    import jax  # not on loading: whether this machine can compile for a target is checked without jax

    values = {name: getattr(jax.config, name, None) for name in CONFIG}
    return {name: value for name, value in values.items() if value is not None}


def _key(target: Target, stablehlo: bytes, request: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """A hash of everything that the result depends on."""
    about = {
        "format": FORMAT,
        "target": target.name,
        "compiler": compiler_versions(target.platform),
        "jaxlib": version("jaxlib"),
        "libtpu flags": parsed_flags(environment.get(_LIBTPU_FLAGS, "")),
        "xla flags": parsed_flags(environment.get("XLA_FLAGS", "")),
        **request,
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode() + b"\0" + stablehlo).hexdigest()


def _run(
    target: Target, stablehlo: bytes, request: Mapping[str, Any], environment: Mapping[str, str]
) -> dict[str, Any]:
    """Let a worker compile the program, and return the entry for the cache."""
    # libtpu takes a space for the end of a flag.
    place = "/tmp" if " " in tempfile.gettempdir() else None
    with tempfile.TemporaryDirectory(prefix="perfsuite-", dir=place) as name:
        folder = Path(name)
        (folder / PROGRAM).write_bytes(stablehlo)
        (folder / REQUEST).write_text(json.dumps({**request, "parent": os.getpid()}), encoding="utf-8")
        log = folder / "log"
        flags = environment.get(_LIBTPU_FLAGS, "")
        if target.platform == "tpu" and holds_kernels(stablehlo) and not KERNEL_SCHEDULES.lost():
            # Of a flag that is given twice, libtpu takes the last: a dump of the user's own is not written here.
            flags = f"{flags} {schedule_flags(folder / KERNELS)}"
        code = _exit_code(folder, {**environment, _LIBTPU_FLAGS: flags}, log)
        # Not after any other death: what is kept would lack the kernels for good.
        if UNKNOWN_FLAG in log.read_bytes():
            code = _exit_code(folder, environment, log)
        return _entry(target, folder, code, log)


def _entry(target: Target, folder: Path, code: int, log: Path) -> dict[str, Any]:
    """The entry for the cache, of what a worker left in its folder. It ended with a code, and wrote a log."""
    try:
        entry = from_json(dict[str, Any], (folder / RESULT).read_bytes())
        error = from_plain(_Error, entry["error"]) if "error" in entry else None
    except FileNotFoundError:
        lines = meaningful_lines(log.read_text(encoding="utf-8", errors="replace"))
        raise CompilerCrashed(target.name, _death(code), details="\n".join(lines)) from None
    except ValueError as why:
        raise _unreadable(target, str(why)) from None
    if error is None or error.stage == "compile":
        return entry
    if error.type == CapabilityLost.__name__:
        raise TargetUnavailable(error.message)
    problem = f"{error.type}: {_first_paragraph(error.message)}"
    if error.stage == "start":
        raise TargetUnavailable(f"the compiler for {target.name} did not start: {problem}")
    raise TargetError(f"the compiler for {target.name} could not {error.stage} the program: {problem}")


def _unreadable(target: Target, why: str) -> TargetError:
    problem = f"the process of the compiler for {target.name} gave a result that cannot be read ({why})"
    return TargetError(f"{problem}: try it again, and report it if it stays")


def _exit_code(folder: Path, environment: Mapping[str, str], log: Path) -> int:
    """Run the worker to its end. Whatever interrupts this process ends the worker too."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            _command(folder),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # An interrupt from the terminal is for this process, which then ends the worker.
            start_new_session=True,
        )
        try:
            return process.wait()
        finally:
            process.kill()  # does nothing to a process that has ended
            process.wait()


def _command(folder: Path) -> list[str]:
    # -P: a `jax` or `json.py` in the current folder is not meant.
    return [sys.executable, "-P", "-m", "perfsuite.measure.targets.target_worker", str(folder)]


def output_of(entry: Mapping[str, Any] | None, *, cached: bool) -> CompilerOutput | None:
    """The output that an entry of the cache holds; `None` without an entry, and where it holds none."""
    try:
        return from_plain(CompilerOutput, {**(entry or {}), "cached": cached})
    except ValueError:
        return None


def _result(target: Target, entry: Mapping[str, Any] | None, *, cached: bool) -> CompilerOutput | CompileFailed | None:
    if not entry or entry.get("error") is None:
        return output_of(entry, cached=cached)
    try:
        error = from_plain(_Error, entry["error"])
    except ValueError:
        return None
    reason = _first_paragraph(_CODES.sub("", error.message.strip())) or error.type
    out_of_memory = error.message.startswith("RESOURCE_EXHAUSTED: ")
    return CompileFailed(target.name, reason, out_of_memory=out_of_memory, details=error.message)


def _first_paragraph(text: str) -> str:
    """In one line. The size and the limit are at its end, so a long one is cut in the middle."""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    half = _WHOLE_CHARACTERS // 2
    return paragraph if len(paragraph) <= 2 * half else f"{paragraph[:half]} ... {paragraph[-half:]}"


def _death(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code} and no result"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (most often: the machine ran out of memory)" if name == "SIGKILL" else ""
    return f"its process was ended by {name}{hint}"


# The frames of stack traces, which name no functions.
_FRAMES = re.compile(r"^\s*@ +0x|^PC: @|^\*\*\* Check failure stack trace|symbolize\.|^\s*$")
_FATAL = re.compile(r"F\d{4} ")


def meaningful_lines(log: str, count: int = 5) -> list[str]:
    """The lines of a worker's output that may say why it died: from the first fatal one on, or else the last."""
    lines = [line for line in log.splitlines() if not (NOISE.search(line) or _FRAMES.search(line))]
    lines = [line.rstrip()[:_LINE_CHARACTERS] for line in lines]
    fatal = next((number for number, line in enumerate(lines) if _FATAL.match(line)), None)
    return lines[-count:] if fatal is None else lines[fatal : fatal + count]


def worker_environment(environment: Mapping[str, str], platform: str) -> dict[str, str]:
    """The environment variables of the worker that compiles for "tpu" or "cuda", from those of this process."""
    variables = {name: value for name, value in environment.items() if not name.startswith(_DROPPED_PREFIXES)}
    if platform != "tpu":
        variables.pop(_LIBTPU_FLAGS, None)
    flags = parsed_flags(_flags_text(variables.pop("XLA_FLAGS", "")))
    flags = {
        name: value for name, value in flags.items() if not name.startswith((*_HOST_FLAGS, _FLAGS_OF_OTHERS[platform]))
    }
    if flags:
        variables["XLA_FLAGS"] = " ".join(
            name if value is None else f"{name}={shlex.quote(value)}" for name, value in flags.items()
        )
    root = Path(__file__).parents[3]
    if root.name not in ("site-packages", "dist-packages"):
        # Only pytest's `pythonpath` may lead to this perfsuite.
        variables["PYTHONPATH"] = os.pathsep.join([*filter(None, [variables.get("PYTHONPATH")]), str(root)])
    return variables | {"JAX_PLATFORMS": "cpu"} | _OF_PLATFORM[platform]


def _flags_text(value: str) -> str:
    """The flags in XLA_FLAGS, which may also be the name of a file that holds them."""
    if not value.strip() or value.lstrip().startswith("-"):
        return value
    try:
        return Path(value.strip()).read_text(encoding="utf-8")
    except OSError:
        return ""


def parsed_flags(text: str) -> dict[str, str | None]:
    """The flags in a text by name, sorted; of one given twice the last counts."""
    try:
        words = shlex.split(text)
    except ValueError:  # a quote without its end: the compiler decides what it means
        words = text.split()
    parts = [word.partition("=") for word in words]
    return dict(sorted({name: value if equals else None for name, equals, value in parts}.items()))
