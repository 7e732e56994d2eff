"""Where a metric was measured: device, host and versions; and whether two metrics can be compared."""

import dataclasses
import functools
import hashlib
import importlib.machinery
import importlib.metadata
import json
import os
import platform
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from perfsuite.measure.installed import valgrind_version
from perfsuite.measure.metric import ESTIMATED, INSTRUCTIONS, MODULES, OF_PYTHON, Kind

# In the order in which a machine is described.
VERSION_FIELDS = ("python", "jax", "jaxlib", "libtpu", "equinox", "flax", "optax")
OPTIONAL_FIELDS = ("libtpu", "equinox", "flax", "optax")

_TPU = re.compile(r"tpu[ -]?v?([0-9]{1,3})[ -]?(lite|[a-z]?)", re.ASCII)

# Letters, digits, and one space or hyphen between them: two such kinds never get the same slug by accident.
_PLAIN = re.compile(r"[A-Za-z0-9]+(?:[ -][A-Za-z0-9]+)*", re.ASCII)
_LONGEST_SLUG = 64
# Windows has no files of these names, whatever their ending.
_RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))}

_GENERATION = ("cpu family", "model", "stepping", "CPU implementer", "CPU part", "CPU variant")
"""What Linux tells of a processor: the first three on x86-64, the others on arm64."""

# Dumping changes no program, and its argument is a path of one machine; the number of host devices is in
# `device_count` already, where `jax_num_cpu_devices` puts it too.
_FLAGS_LEFT_OUT = re.compile(r"--xla_dump_|--xla_force_host_platform_device_count(=|$)")

OTHER_PROCESSOR = 2.0
"""How many times as large a sampled ratio of the same code may be on another processor. Of those of `tests/perf`, saved
on an Intel Xeon and taken again on an AMD EPYC, that of `nnx.cached_partial` over a step of lists rose the most, from
2.54 to 4.18, and to 5.02 on another occasion (2 cores each, jax 0.10.2)."""

OF_INSTRUCTIONS: Mapping[str, Callable[[], str | None]] = {
    "python build": lambda: f"{platform.python_version()} of {platform.python_build()[1]}",
    "glibc": lambda: platform.libc_ver()[1] or None,
    "valgrind": valgrind_version,
}
"""What instructions depend on beside packages. They stand among the packages of such a metric's environment.

Two builds of Python 3.11 by one compiler differed by 12 % for `filter_jit`. Valgrind emulates one processor; with 16
of them in place of 2 three calls differed by 0.05 % (jax 0.10.2)."""


@dataclasses.dataclass(frozen=True)
class Environment:
    """The device, the host and the versions that a metric was made with.

    `device_kind` is JAX's name of the device ("cpu", "TPU v5 lite"), `processor` the model of the host's processor,
    `python` the full version; both are "" for a metric that was compiled without the device, which does not
    depend on them. `libtpu`, the TPU's compiler, is None for every other device, installed or not. `equinox`, `flax`
    and `optax` are None where they are not installed. `device_count` counts the devices of all `process_count`
    processes of the session. `packages` are other installed packages, with their versions, that the parts of the
    metrics of its test name.

    Raises `TypeError` when a field has the wrong type, `ValueError` when a count is not positive.
    """

    device_kind: str
    device_count: int
    processor: str
    python: str
    jax: str
    jaxlib: str
    libtpu: str | None = None
    equinox: str | None = None
    flax: str | None = None
    optax: str | None = None
    x64: bool = False
    xla_flags: str = ""
    process_count: int = 1
    packages: tuple[tuple[str, str], ...] = ()

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is None and field.name in OPTIONAL_FIELDS:
                continue
            wanted = {"device_count": int, "process_count": int, "x64": bool, "packages": tuple}.get(field.name, str)
            if type(value) is not wanted:
                raise TypeError(f"{field.name} must be {_noun(wanted)}, got {value!r}")
        for name in ("device_count", "process_count"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def id(self) -> str:
        """Eight hexadecimal digits made from the content: the same environment has the same id everywhere."""
        text = json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def as_dict(self) -> dict[str, Any]:
        """The fields as they stand in a baseline file. One process is not worth a word, and neither are no packages."""
        fields = dataclasses.asdict(self)
        fields["packages"] = dict(self.packages)
        if self.process_count == 1:
            del fields["process_count"]
        if not self.packages:
            del fields["packages"]
        return fields

    def fingerprint(self) -> dict[str, Any]:
        """What has to be equal for two times to be comparable, by the words that a message uses."""
        return {
            "device kind": self.device_kind,
            "host processor": self.processor,
            "device count": self.device_count,
            "process count": self.process_count,
            "x64": self.x64,
            "XLA_FLAGS": self.xla_flags,
        }


def environment_from_dict(fields: Mapping[str, Any]) -> Environment:
    """The inverse of `Environment.as_dict`. Every field has to be there: raises `ValueError` or `TypeError`."""
    names = [field.name for field in dataclasses.fields(Environment)]
    if missing := [name for name in names if name not in fields and name not in ("process_count", "packages")]:
        raise ValueError(f"the environment lacks {', '.join(missing)}")
    if unknown := sorted(set(fields) - set(names)):
        raise ValueError(f"the environment has unknown keys: {', '.join(unknown)}")
    packages = fields.get("packages", {})
    if not isinstance(packages, Mapping) or not all(isinstance(version, str) for version in packages.values()):
        raise TypeError(f"packages must be versions by name, got {packages!r}")
    return Environment(**{**fields, "packages": tuple(sorted(packages.items()))})


def incomparable(kind: Kind, unit: str, then: Environment | None, now: Environment | None) -> str | None:
    """Why a metric from `then` cannot be compared with one from `now`; None where it can.

    Counts and sizes belong to the program and can always be compared, except counts of Python's calls and what is
    imported (`OF_PYTHON`), which change with Python's minor version; instructions, which change with its build too
    (`OF_INSTRUCTIONS`); and times that a compiler estimates, which need the same compiler. A ratio needs the same
    device kind and as many processes, the slowest of which makes its samples; a time the same fingerprint. Metrics of
    kind info are never gated, so the question does not arise and the answer is None. A library upgrade makes nothing
    incomparable: finding what it costs is what baselines are for.
    """
    counted = kind in ("count", "size")
    if kind == "info" or (counted and unit not in (*OF_PYTHON, ESTIMATED)):
        return None
    if then is None or now is None:
        return f"a {_metric(kind)} can only be compared where the environment of both metrics is known"
    if unit == ESTIMATED:
        changed = [name for name in ("jaxlib", "libtpu") if getattr(then, name) != getattr(now, name)]
        versions = (f"{name} {getattr(then, name)}, now {getattr(now, name)}" for name in changed)
        return f"the compiler that estimates differs ({'; '.join(versions)})" if changed else None
    if counted:
        return _other_python(unit, then, now)
    was_all, is_all = then.fingerprint(), now.fingerprint()
    words = ["device kind", "process count"] if kind == "ratio" else list(was_all)
    changed = [word for word in words if was_all[word] != is_all[word]]
    return (
        "; ".join(f"{word} differs ({_shown(was_all[word])}, now {_shown(is_all[word])})" for word in changed) or None
    )


def _other_python(unit: str, then: Environment, now: Environment) -> str | None:
    """Why counts of Python's calls, or instructions, cannot be compared."""
    was, is_now = _minor(then.python), _minor(now.python)
    if was != is_now:
        what = {MODULES: "imports", INSTRUCTIONS: "instructions"}.get(unit, "calls")
        return f"{what} were counted under Python {was}, this is Python {is_now}"
    here = dict(now.packages)
    changes = [(name, was, here.get(name, was)) for name, was in then.packages if name in OF_INSTRUCTIONS]
    return "; ".join(f"{name} differs ({was}, now {is_now})" for name, was, is_now in changes if was != is_now) or None


def other_processor(then: Environment | None, now: Environment) -> str:
    """The host's processor of `then`, where it is known and another one than now; else empty."""
    return then.processor if then is not None and then.processor != now.processor else ""


def version_changes(then: Environment | None, now: Environment | None) -> list[str]:
    """The versions that differ, as a message names them: `["jax 0.10.2 -> 0.11.0"]`. Empty when one is not known.

    jax comes first and Python last. jaxlib is left out where it went with jax, as it nearly always does.
    """
    if then is None or now is None:
        return []
    pairs = {name: (getattr(then, name), getattr(now, name)) for name in (*VERSION_FIELDS[1:], "python")}
    if pairs["jaxlib"] == pairs["jax"]:
        del pairs["jaxlib"]
    pairs["jax_enable_x64"] = str(then.x64), str(now.x64)
    here = dict(now.packages)
    pairs |= {name: (version, here[name]) for name, version in then.packages if name in here}
    return [
        f"{name} {was or 'absent'} -> {is_now or 'absent'}"
        for name, (was, is_now) in pairs.items()
        if was != is_now and "" not in (was, is_now)  # a compiled metric does not depend on Python
    ]


def device_slug(device_kind: str) -> str:
    """The name of a device's baseline file, without its ending: "TPU v5 lite" and "TPU v5e" give "tpu-v5e".

    JAX calls the small chips "lite" or "e", the large fifth generation "v5" or "v5p", and drops the "v" from the
    seventh on. Any other kind is written in lower case with hyphens: "nvidia-h100-80gb-hbm3". Where that leaves out
    what tells kinds apart ("gfx950:sramecc+:xnack-"), or is no name for a file, eight hexadecimal digits made from the
    kind follow. Never empty, never with a path separator.
    """
    words = device_kind.lower().strip()
    if tpu := _TPU.fullmatch(words):
        generation, variant = int(tpu[1]), tpu[2]
        if generation >= 7:
            return f"tpu{generation}{variant}"
        if variant == "lite":
            variant = "i" if generation == 4 else "e"
        elif generation == 5 and not variant:
            variant = "p"
        return f"tpu-v{generation}{variant}"
    slug = re.sub(r"[^a-z0-9]+", "-", words).strip("-")
    if slug and _PLAIN.fullmatch(device_kind) and len(slug) <= _LONGEST_SLUG and slug not in _RESERVED:
        return slug
    digits = hashlib.sha256(device_kind.encode(errors="backslashreplace")).hexdigest()[:8]
    return f"{slug[:_LONGEST_SLUG].strip('-') or 'device'}-{digits}"


def present_environment() -> Environment:
    """The environment of this process. Imports jax and starts its backend when that has not happened yet.

    Raises what `jax.devices()` raises when no device can be used.
    """
    import jax  # `perfsuite show` and the other commands read baselines without it
    import jaxlib

    devices = jax.devices()
    return Environment(
        device_kind=devices[0].device_kind,
        device_count=len(devices),
        processor=host_processor(),
        python=platform.python_version(),
        jax=jax.__version__,
        jaxlib=jaxlib.__version__,
        libtpu=installed("libtpu") if devices[0].platform == "tpu" else None,
        equinox=installed("equinox"),
        flax=installed("flax"),
        optax=installed("optax"),
        x64=bool(jax.config.read("jax_enable_x64")),
        xla_flags=_present_flags(devices[0].platform),
        process_count=jax.process_count(),
    )


def target_environment(present: Environment, device_kind: str, libtpu: str | None = None) -> Environment:
    """The environment of metrics that are compiled here, for a device that is not present.

    `libtpu` is the version of a TPU's compiler, None for a GPU, whose compiler is of jaxlib's version. The environment
    is the same on every host and under every Python, so that the metrics of a target do not change with the machine
    that they are saved on.
    """
    if _TPU.fullmatch(device_kind.lower()):
        flags = os.environ.get("LIBTPU_INIT_ARGS", "").split()
    else:
        flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if flag.startswith("--xla_gpu_")]
    return dataclasses.replace(
        present,
        device_kind=device_kind,
        device_count=1,
        processor="",
        python="",
        libtpu=libtpu,
        process_count=1,
        xla_flags=normal_flags(" ".join(flags)),
    )


def host_processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The model of the host's processor: its name, and the numbers of its generation where Linux tells them.

    Clouds call several generations by one name ("AMD EPYC"), and arm64 has no name but the architecture's.
    """
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    facts = dict(re.findall(r"^(\w[^:\n]*?)[ \t]*:[ \t]*(\S.*?)[ \t]*$", text.partition("\n\n")[0], re.MULTILINE))
    # "model name" on x86-64, "cpu" on POWER.
    name = facts.get("model name") or facts.get("cpu") or platform.processor() or platform.machine() or "unknown"
    numbers = "-".join(facts[field] for field in _GENERATION if field in facts)
    return f"{name} {numbers}".rstrip()


def normal_flags(flags: str) -> str:
    """XLA flags in the order of their names, without those that change neither programs nor times."""
    kept = [flag for flag in flags.split() if not _FLAGS_LEFT_OUT.match(flag)]
    # Sorting is stable: of a flag given twice XLA takes the last, which has to stay the last.
    return " ".join(sorted(kept, key=lambda flag: flag.partition("=")[0]))


def installed(package: str) -> str | None:
    """The version of an installed package, or of what is in `OF_INSTRUCTIONS`, or None. Imports nothing."""
    if package in OF_INSTRUCTIONS:
        return OF_INSTRUCTIONS[package]()
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def packages_of(parts: Collection[str]) -> tuple[str, ...]:
    """The installed packages, beside those of `VERSION_FIELDS`, that parts of metrics name, by their names in an index.

    They name them as "flowjax", "flowjax.bijections:f", "bijections.py:f" or "dot in f (bijections.py)".
    """
    functions: dict[str, set[str]] = {}
    for part in parts:
        named = re.findall(r"([\w.]+):(\w+)", part)
        named += [(file, function) for function, file in re.findall(r"\bin (\w+)\S* \(([\w.]+)\)", part)]
        for place, function in named:
            functions.setdefault(place, set()).add(function)
    owners: dict[tuple[str, str], set[str]] = {}
    for name, module in list(sys.modules.items()) if functions else ():
        names = getattr(module, "__dict__", {})
        folder, file = os.path.split(str(names.get("__file__")))
        package = name.partition(".")[0] if _is_of_installer(folder) else ""
        for place in (name, file):
            for function in functions.get(place, set()) & names.keys():
                owners.setdefault((place, function), set()).add(package)
    packages = set(filter(_is_installed, parts))
    # A file and a function of these names that the user has too may be the user's.
    packages = packages.union(*(owner for owner in owners.values() if "" not in owner))
    indexed = {each for package in packages for each in _distributions().get(package, ()) if each}
    return tuple(sorted(indexed.difference(VERSION_FIELDS)))


def _is_installed(package: str) -> bool:
    """Whether a package lies where installers put it: one that is under development has a version for each commit."""
    spec = importlib.machinery.PathFinder.find_spec(package) if package in _distributions() else None
    return spec is not None and any(
        map(_is_of_installer, [spec.origin or "", *(spec.submodule_search_locations or ())])
    )


def _is_of_installer(path: str) -> bool:
    return "site-packages" in path or "dist-packages" in path


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    """The installed packages by what they are imported as: haiku is of dm-haiku. None is one without its metadata."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 and later warn of that one
        return importlib.metadata.packages_distributions()


def with_packages(environment: Environment, packages: Iterable[str]) -> Environment:
    """The environment with the versions of those packages that are installed."""
    versions = ((name, installed(name)) for name in packages)
    return dataclasses.replace(environment, packages=tuple((name, version) for name, version in versions if version))


def _present_flags(platform_name: str) -> str:
    flags = os.environ.get("XLA_FLAGS", "")
    if platform_name == "tpu":
        # The TPU's compiler reads its flags from this variable.
        flags += " " + os.environ.get("LIBTPU_INIT_ARGS", "")
    return normal_flags(flags)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _metric(kind: Kind) -> str:
    return "count of host calls" if kind == "count" else kind


def _shown(value: Any) -> str:
    return "empty" if value == "" else str(value)


def _noun(wanted: type) -> str:
    return {int: "a whole number", bool: "true or false", str: "a text", tuple: "pairs"}[wanted]
