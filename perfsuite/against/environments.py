"""Virtual environments like the present one but for the packages named.

An environment begins as a copy of the present site-packages, whatever is in there and however it was installed (from a
folder, editable, from a repository). So two environments differ only in the packages named and in what pip changes for
them. Files are linked rather than copied where the file system can: pip replaces files and never writes into them, and
uv installs that way (https://docs.astral.sh/uv/reference/settings/#link-mode).
"""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from perfsuite.measure.io import LockedTooLong, file_locked, write_atomically
from perfsuite.measure.serialise import from_json, plain

LOCK_SECONDS = 30.0

_FOR_PIP_ALONE = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "PIP_FIND_LINKS", "PIP_CONFIG_FILE")
"""Where they are set, uv would look for packages somewhere else."""

_MARKER = "perfsuite-environment.json"
"""Written last: an environment without it was not finished, and is made again."""

_FORMAT = 1
_LAST_LINES = 8
_LONGEST_LINE = 300
_BEYOND = "_perfsuite_present.pth"


class EnvironmentFailed(Exception):  # noqa: N818  (a report, not a fault of this process)
    """An environment cannot be made. The message names what was asked for, and has pip's last lines."""


@dataclasses.dataclass(frozen=True)
class VirtualEnvironment:
    """A finished virtual environment.

    `specs` are the packages named, `packages` what is installed, name to version, `contradictions` a line for each
    requirement of an installed package that these versions do not meet and the present ones do. `interpreter` is set
    where it is the present one, which need not be a virtual environment.
    """

    folder: Path
    specs: tuple[str, ...]
    packages: Mapping[str, str]
    contradictions: tuple[str, ...]
    interpreter: Path | None = None

    @property
    def python(self) -> Path:
        """Its interpreter."""
        if self.interpreter is not None:
            return self.interpreter
        return self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    def variables(self, present: Mapping[str, str]) -> dict[str, str]:
        """The environment variables of a process in it."""
        if self.interpreter is not None:
            return dict(present)
        kept = {name: value for name, value in present.items() if name not in ("PYTHONHOME", "__PYVENV_LAUNCHER__")}
        on_path = [str(self.python.parent), *filter(None, [kept.get("PATH", "")])]
        return {**kept, "VIRTUAL_ENV": str(self.folder), "PATH": os.pathsep.join(on_path)}


@contextlib.contextmanager
def locked(folder: Path | None) -> Iterator[None]:
    """Keep another process out of the folder where environments are kept. Raises `EnvironmentFailed`."""
    if folder is None:
        yield
        return
    held = contextlib.ExitStack()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held.enter_context(file_locked(folder / ".perfsuite.lock", LOCK_SECONDS))
    except LockedTooLong:
        why = f"another process has used it for {LOCK_SECONDS:g} s: wait for it"
        raise EnvironmentFailed(f"--keep {folder}: {why}") from None
    except OSError as error:
        raise EnvironmentFailed(
            f"--keep {folder}: cannot be used ({error.strerror or error}): choose another"
        ) from None
    with held:
        yield


def check_specs(specs: Sequence[str]) -> None:
    """Raise `EnvironmentFailed` for what pip would not take for a package, and for two specs of one package."""
    names: dict[str, str] = {}
    for spec in specs:
        if _is_place(spec):
            continue
        try:
            name = canonicalize_name(Requirement(spec).name)
        except InvalidRequirement as error:
            why = str(error).splitlines()[0]
            raise EnvironmentFailed(
                f'"{spec}" names no package ({why}): give what pip takes, for example "jax==0.10.2"'
            ) from None
        if name in names:
            raise EnvironmentFailed(f'"{names[name]}" and "{spec}" name the same package: give one of them')
        names[name] = spec


def name_of(spec: str) -> str | None:
    """The package that a spec names; None for a folder or an address."""
    return None if _is_place(spec) else canonicalize_name(Requirement(spec).name)


def present() -> VirtualEnvironment:
    """The environment of this process, as it is."""
    packages = {name: each.version for name, each in _installed().items()}
    return VirtualEnvironment(Path(sys.prefix), (), packages, (), interpreter=Path(sys.executable))


def make(specs: Sequence[str], folder: Path, *, linked: bool | None = None) -> VirtualEnvironment:
    """The environment of `specs` below `folder`: the finished one that is there, or a new one.

    `linked` uses the present packages where they are instead of copying them; None does so where they cannot be copied.
    Raises `EnvironmentFailed`, and leaves nothing of an environment that failed.
    """
    key = _key(specs)
    place = folder / f"environment-{key[:12]}"
    if (finished := _read(place, specs, key)) is not None:
        return finished
    _remove(place)
    try:
        return _build(place, specs, key, linked=_from_conda() if linked is None else linked)
    except BaseException:
        _remove(place)
        raise


def _build(place: Path, specs: Sequence[str], key: str, *, linked: bool) -> VirtualEnvironment:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        venv.EnvBuilder(symlinks=os.name != "nt").create(place)
        paths = _take_over(place, linked=linked)
    except (OSError, subprocess.CalledProcessError) as error:
        raise EnvironmentFailed(f"no environment can be made in {place} ({error})") from None
    if specs:
        made = VirtualEnvironment(place, tuple(specs), {}, ())
        # uv looks only into the environment's own folder for what is installed.
        uv = None if linked else _uv()
        _check_installed(_install_with_uv(made, uv, specs) if uv else _install_with_pip(made, specs), specs)
    installed = _installed(path=[str(path) for path in paths])
    packages = {name: each.version for name, each in installed.items()}
    already = _contradictions(_installed())
    contradictions = [line for line in _contradictions(installed) if line not in already]
    marker = _Marker(key, list(specs), packages, tuple(contradictions))
    write_atomically(place / _MARKER, json.dumps(plain(marker), indent=1, sort_keys=True))
    return VirtualEnvironment(place, tuple(specs), packages, tuple(contradictions))


def _take_over(place: Path, *, linked: bool) -> list[Path]:
    """Give the environment the present packages. Returns the folders of its packages, its own first."""
    own = list(dict.fromkeys(Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")))
    beyond = [
        path
        for path in dict.fromkeys(Path(entry).resolve() for entry in sys.path if entry)
        if path.name in ("site-packages", "dist-packages") and path.is_dir() and path not in own
    ]
    to = _site_packages(place)
    if linked:
        beyond = [*own, *beyond]
    else:
        for path in reversed(own):
            shutil.copytree(path, to, symlinks=True, dirs_exist_ok=True, copy_function=_link)
    # Python reads the .pth files of editable installs there only if site.addsitedir adds the folder.
    lines = [f"import site; site.addsitedir({str(path)!r})" for path in beyond]
    # Not into the file that is there: it may be linked to one of the present environment.
    write_atomically(to / _BEYOND, "\n".join([*lines, ""]))
    return [to, *beyond]


def _link(source: str, to: str, *, follow_symlinks: bool = True) -> None:
    try:
        os.link(source, to, follow_symlinks=False)
    except (OSError, NotImplementedError):  # another file system, or one without links
        shutil.copy2(source, to, follow_symlinks=False)


def _from_conda() -> bool:
    """Whether conda installed any of the present packages, which find their libraries by their own place."""
    return any((each.read_text("INSTALLER") or "").strip() == "conda" for each in importlib.metadata.distributions())


def _uv() -> str | None:
    """uv, which takes seconds where pip takes minutes; not where pip is told what uv does not read (`PIP_NO_INDEX`)."""
    return None if any(os.environ.get(name) for name in _FOR_PIP_ALONE) else shutil.which("uv")


def _install_with_uv(
    environment: VirtualEnvironment, uv: str, specs: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    command = [uv, "pip", "install", "--no-progress", "--python", str(environment.python), *specs]
    return _ended(environment, command)


def _install_with_pip(environment: VirtualEnvironment, specs: Sequence[str]) -> subprocess.CompletedProcess[str]:
    pip = ("-m", "pip", "--disable-pip-version-check", "install", "--no-input", *specs)
    ended = _run(environment, *pip)
    if ended.returncode and "No module named pip" in ended.stderr:
        if _run(environment, "-m", "ensurepip", "--default-pip").returncode:
            raise EnvironmentFailed(
                "there is no pip, and this Python cannot install one: install pip beside the packages you test with"
            )
        ended = _run(environment, *pip)
    return ended


def _check_installed(ended: subprocess.CompletedProcess[str], specs: Sequence[str]) -> None:
    """Raise `EnvironmentFailed`, with the installer's own words, where it failed."""
    if ended.returncode == 0:
        return
    written = [line.strip() for line in f"{ended.stdout}\n{ended.stderr}".splitlines()]
    lines = [line for line in written if line and not line.startswith(("WARNING:", "[notice]"))]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines
    guilty = [spec for spec in specs if any(spec.replace(" ", "") in line.replace(" ", "") for line in errors)]
    named = ", ".join(f'"{spec}"' for spec in guilty or specs)
    shown = "\n".join(f"  {_clipped(line)}" for line in lines[-_LAST_LINES:])
    tool = "pip" if "-m" in ended.args else "uv"
    raise EnvironmentFailed(f"{tool} cannot install {named}, so there is nothing to compare. Its last lines:\n{shown}")


def _run(environment: VirtualEnvironment, *arguments: str) -> subprocess.CompletedProcess[str]:
    return _ended(environment, [str(environment.python), *arguments])


def _ended(environment: VirtualEnvironment, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    variables = environment.variables(os.environ)
    return subprocess.run(
        command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )


def _clipped(line: str) -> str:
    """A line of pip's, which may list every version that there is, cut short."""
    half = _LONGEST_LINE // 2
    return line if len(line) <= _LONGEST_LINE else f"{line[:half]} ... {line[-half:]}"


def _installed(**where: Any) -> dict[str, importlib.metadata.Distribution]:
    """The packages in the folders `path`, or those of this process, by their name in the form that PEP 503 gives it."""
    found: dict[str, importlib.metadata.Distribution] = {}
    for each in importlib.metadata.distributions(**where):
        if name := each.metadata["Name"]:
            found.setdefault(canonicalize_name(name), each)
    return found


def _contradictions(installed: Mapping[str, importlib.metadata.Distribution]) -> list[str]:
    """The requirements that are not met: pip installs what is named all the same, and does not mention extras."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for name, each in installed.items():
        for text in each.requires or []:
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            here = installed.get(canonicalize_name(requirement.name))
            extra = _extra_of(requirement)
            if here is None or extra is None or requirement.specifier.contains(here.version, prereleases=True):
                continue
            what = f"{requirement.name}{requirement.specifier}, here is {here.version}"
            found.setdefault((name, each.version, what), []).append(extra)
    return [
        f"{name}{'' if '' in extras else '[' + ', '.join(sorted(extras)) + ']'} {version} asks for {what}"
        for (name, version, what), extras in found.items()
    ]


def _extra_of(requirement: Requirement) -> str | None:
    """The extra of a package that has this requirement: "" where it needs none, None where it is for other systems."""
    if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
        return ""
    named = re.search(r"extra == ['\"]([^'\"]+)['\"]", str(requirement.marker))
    return named[1] if named and requirement.marker.evaluate({"extra": named[1]}) else None


def _key(specs: Sequence[str]) -> str:
    """What an environment depends on: the packages named, the present ones, and Python."""
    present = sorted(
        (name, each.version, each.read_text("direct_url.json") or "") for name, each in _installed().items()
    )
    places = {spec: _changed(spec) for spec in specs if _is_place(spec)}
    parts: list[Any] = [_FORMAT, sorted(specs), places, present, sys.prefix, platform.python_version()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _is_place(spec: str) -> bool:
    """Whether a spec is a folder, a file or an address, and no name."""
    return not spec.startswith("-") and (os.path.exists(spec) or "://" in spec.partition("@")[0])


def _changed(spec: str) -> float:
    """The time of the last change below a path: a kept environment of an older state must not be used."""
    if not os.path.exists(spec):
        return 0.0
    files = [Path(spec), *Path(spec).rglob("*")] if os.path.isdir(spec) else [Path(spec)]
    return max(os.lstat(path).st_mtime for path in files)


@dataclasses.dataclass(frozen=True)
class _Marker:
    """What the marker of a finished environment holds. `specs` is there for people: `key` stands for it."""

    key: str
    specs: list[str]
    packages: dict[str, str]
    contradictions: tuple[str, ...]


def _read(place: Path, specs: Sequence[str], key: str) -> VirtualEnvironment | None:
    try:
        marker = from_json(_Marker, (place / _MARKER).read_bytes())
    except (OSError, ValueError):
        return None
    found = VirtualEnvironment(place, tuple(specs), marker.packages, marker.contradictions)
    return found if marker.key == key and found.python.exists() else None


def _remove(place: Path) -> None:
    # The marker first: what is left of an environment that cannot be removed completely must not look finished.
    with contextlib.suppress(OSError):
        (place / _MARKER).unlink()
    shutil.rmtree(place, ignore_errors=True)


def _site_packages(folder: Path) -> Path:
    variables = {"base": str(folder), "platbase": str(folder)}
    return Path(sysconfig.get_path("purelib", "venv", vars=variables))
