"""Packages in the place of the present ones: uv brings them into a folder that comes first on Python's path.

uv says what it would change in the present environment to have the packages that are named, and installs just that. So
two sides differ only in the packages named and in what they need. The present environment is not touched, and all that
does not differ is imported from it, however it was installed. JAX's CUDA plugin finds its libraries by import
(`jax_plugins/xla_cuda12/__init__.py`, jax 0.10.2), so they need not lie beside it.
"""

import dataclasses
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from perfsuite.measure.installed import install

_LAST_LINES = 12


class EnvironmentFailed(Exception):  # noqa: N818  (a report, not a fault of this process)
    """Packages cannot be had. The message names what was asked for, and has uv's last lines."""


@dataclasses.dataclass(frozen=True)
class Packages:
    """The packages of a side: those of this process, but for what is in `folder`.

    `specs` are the packages named, `versions` what is installed, name to version, `conflicts` a line for each
    requirement of an installed package that these versions do not meet and the present ones do.
    """

    versions: Mapping[str, str]
    specs: tuple[str, ...] = ()
    folder: Path | None = None
    conflicts: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What people call them."""
        return " ".join(self.specs) or "the present packages"


def name_of(spec: str) -> str:
    """The package that a spec names; of a folder, the folder. Raises `EnvironmentFailed` where it is neither."""
    if os.path.exists(spec):
        return os.path.realpath(spec)
    try:
        return canonicalize_name(Requirement(spec).name)
    except InvalidRequirement as error:
        why = str(error).splitlines()[0]
        raise EnvironmentFailed(
            f'"{spec}" names no package ({why}): give what uv takes, for example "jax==0.10.2", or a folder'
        ) from None


def present() -> Packages:
    """The packages of this process."""
    return Packages({name: each.version for name, each in _installed(sys.path).items()})


def brought(specs: Sequence[str], folder: Path) -> Packages:
    """The present packages with `specs` in their place, and what these need; what differs is installed into `folder`.

    Raises `EnvironmentFailed`.
    """
    # A line each: `+ jax==0.10.1`, or `+ steps @ file:///home/me/steps`.
    to_install = re.findall(r"^ [+~] (.+)$", _uv(["install", "--dry-run", *specs], specs), re.MULTILINE)
    if not to_install:
        return dataclasses.replace(present(), specs=tuple(specs))
    _uv(["install", "--no-deps", "--target", str(folder), *to_install], specs)
    here, there = _installed(sys.path), _installed([str(folder), *sys.path])
    conflicts = [line for line in _conflicts(there) if line not in set(_conflicts(here))]
    return Packages({name: each.version for name, each in there.items()}, tuple(specs), folder, tuple(conflicts))


def releases(name: str, older: str, newer: str) -> list[str]:
    """The versions of a package between two, newest first, that uv would install here: uv is asked for one at a time.

    Raises `EnvironmentFailed`.
    """
    found: list[str] = []
    while True:
        spec = f"{name}>{older},<{(found or [newer])[-1]}"
        ended = _run(["compile", "--no-deps", "--no-header", "--no-annotate", "--quiet", "-"], stdin=spec)
        if ended.returncode and "No solution found" in ended.stderr:
            return found
        _check(ended, [spec])
        found.append(str(next(iter(Requirement(ended.stdout.strip()).specifier)).version))


def _uv(arguments: Sequence[str], specs: Sequence[str]) -> str:
    """What `uv pip` prints. Raises `EnvironmentFailed` where it fails."""
    ended = _run(arguments)
    _check(ended, specs)
    return ended.stderr


def _run(arguments: Sequence[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    command, *others = arguments
    uv = _program()
    return subprocess.run(
        [uv, "pip", command, "--python", sys.executable, "--no-progress", *others],
        env={**os.environ, "NO_COLOR": "1"},
        input=stdin,
        capture_output=True,
        text=True,
        errors="replace",
    )


def _program() -> str:
    if importlib.util.find_spec("uv"):
        import uv  # of the extra `against`

        return uv.find_uv_bin()
    found = shutil.which("uv")
    if found is None:
        raise EnvironmentFailed(f"other packages take uv, which is not installed: {install('against')}")
    return found


def _check(ended: subprocess.CompletedProcess[str], specs: Sequence[str]) -> None:
    if ended.returncode:
        named = ", ".join(f'"{spec}"' for spec in specs)
        lines = [line.rstrip() for line in ended.stderr.splitlines() if line.strip()][-_LAST_LINES:]
        shown = "\n".join(f"  {line}" for line in lines)
        raise EnvironmentFailed(f"uv cannot install {named}, so there is nothing to compare. Its last lines:\n{shown}")


def _installed(path: Iterable[str]) -> dict[str, importlib.metadata.Distribution]:
    """The packages in these folders, by their name in the form that PEP 503 gives it."""
    found: dict[str, importlib.metadata.Distribution] = {}
    for each in importlib.metadata.distributions(path=list(path)):
        if name := each.metadata["Name"]:
            found.setdefault(canonicalize_name(name), each)
    return found


def _conflicts(installed: Mapping[str, importlib.metadata.Distribution]) -> list[str]:
    """The requirements that installed packages do not meet, of extras too: uv installs what is named all the same."""
    found: dict[str, None] = {}
    for name, each in installed.items():
        extras = ["", *(each.metadata.get_all("Provides-Extra") or [])]
        for text in each.requires or []:
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            here = installed.get(canonicalize_name(requirement.name))
            if here is None or requirement.specifier.contains(here.version, prereleases=True):
                continue
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
                wanted = f"{requirement.name}{requirement.specifier}"
                found[f"{name} {each.version} asks for {wanted}, here is {here.version}"] = None
    return list(found)
