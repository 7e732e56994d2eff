"""Virtual environments like the present one but for the packages named.

An environment begins as a copy of the present site-packages, whatever is in there and however it was installed (from a
folder, editable, from a repository), so that two environments differ in the packages named and in what pip changes for
their sake, and in nothing else. Files are linked rather than copied where the file system can: pip replaces files and
never writes into them, and uv installs that way (https://docs.astral.sh/uv/reference/settings/#link-mode).
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

_MARKER = "perfsuite-environment.json"
"""Written last: an environment without it was not finished, and is made again."""

_FORMAT = 1
_LAST_LINES = 8
_LONGEST_LINE = 300
_BEYOND = "_perfsuite_present.pth"

_LIST = """
import importlib.metadata, json
found = {}
for made in importlib.metadata.distributions():
    name = made.metadata["Name"]
    if name:
        found.setdefault(name.lower().replace("_", "-").replace(".", "-"), (made.version, made.requires or []))
print(json.dumps(found))
"""


class EnvironmentFailed(Exception):  # noqa: N818  (a report, not a fault of this process)
    """An environment cannot be made. The message names what was asked for, and has pip's last lines."""


@dataclasses.dataclass(frozen=True)
class Made:
    """A virtual environment that is whole.

    `specs` are the packages named, `packages` what is installed, name to version, `contradictions` a line for each
    requirement of an installed package that these versions do not meet and the present ones do.
    """

    folder: Path
    specs: tuple[str, ...]
    packages: Mapping[str, str]
    contradictions: tuple[str, ...]

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return _python(self.folder)

    def variables(self, present: Mapping[str, str]) -> dict[str, str]:
        """The environment variables of a process in it."""
        kept = {name: value for name, value in present.items() if name not in ("PYTHONHOME", "__PYVENV_LAUNCHER__")}
        on_path = [str(self.python.parent), *filter(None, [kept.get("PATH", "")])]
        return {**kept, "VIRTUAL_ENV": str(self.folder), "PATH": os.pathsep.join(on_path)}


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


def make(specs: Sequence[str], folder: Path, *, linked: bool | None = None) -> Made:
    """The environment of `specs` below `folder`: the one that is there and whole, or a new one.

    `linked` looks at the present packages where they are instead of copying them; None does so where they cannot be
    copied. Raises `EnvironmentFailed`; of an environment that failed nothing is left.
    """
    key = _key(specs)
    place = folder / f"environment-{key[:12]}"
    if (made := _read(place, specs, key)) is not None:
        return made
    _remove(place)
    try:
        return _build(place, specs, key, linked=_from_conda() if linked is None else linked)
    except BaseException:
        _remove(place)
        raise


def _build(place: Path, specs: Sequence[str], key: str, *, linked: bool) -> Made:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        venv.EnvBuilder(symlinks=os.name != "nt").create(place)
        _take_over(place, linked=linked)
    except (OSError, subprocess.CalledProcessError) as error:
        raise EnvironmentFailed(f"no environment can be made in {place} ({error})") from None
    made = Made(place, tuple(specs), {}, ())
    if specs:
        _install(made, specs)
    installed = _installed(made)
    packages = {name: version for name, (version, _) in installed.items()}
    already = _contradictions(_present())
    contradictions = [line for line in _contradictions(installed) if line not in already]
    made = dataclasses.replace(made, packages=packages, contradictions=tuple(contradictions))
    marker = {"key": key, "specs": list(specs), "packages": packages, "contradictions": contradictions}
    _write(place / _MARKER, json.dumps(marker, indent=1, sort_keys=True))
    return made


def _write(path: Path, text: str) -> None:
    """Never into a file that is there: it may be linked to one of the present environment."""
    beside = path.with_name(f"{path.name}.part")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def _take_over(place: Path, *, linked: bool) -> None:
    """Give the environment the present packages, its own folder of them first."""
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
    # Not a plain path in the .pth: the .pth files in there, of editable installs, count too.
    lines = [f"import site; site.addsitedir({str(path)!r})" for path in beyond]
    _write(to / _BEYOND, "\n".join([*lines, ""]))


def _link(source: str, to: str, *, follow_symlinks: bool = True) -> None:
    try:
        os.link(source, to, follow_symlinks=False)
    except (OSError, NotImplementedError):  # another file system, or one without links
        shutil.copy2(source, to, follow_symlinks=False)


def _from_conda() -> bool:
    """Whether conda installed any of the present packages: their libraries are found by where they lie."""
    return any((each.read_text("INSTALLER") or "").strip() == "conda" for each in importlib.metadata.distributions())


def _install(made: Made, specs: Sequence[str]) -> None:
    ended = _pip(made, "install", "--no-input", *specs)
    if ended.returncode and "No module named pip" in ended.stderr:
        if _run(made, "-m", "ensurepip", "--default-pip").returncode:
            raise EnvironmentFailed(
                "there is no pip, and this Python cannot install one: install pip beside the packages you test with"
            )
        ended = _pip(made, "install", "--no-input", *specs)
    if ended.returncode == 0:
        return
    lines = [line for line in _lines(ended) if not line.startswith(("WARNING:", "[notice]"))]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines
    guilty = [spec for spec in specs if any(spec.replace(" ", "") in line.replace(" ", "") for line in errors)]
    named = ", ".join(f'"{spec}"' for spec in guilty or specs)
    said = "\n".join(f"  {_clipped(line)}" for line in lines[-_LAST_LINES:])
    raise EnvironmentFailed(f"pip cannot install {named}, so there is nothing to compare. Its last lines:\n{said}")


Installed = Mapping[str, tuple[str, Sequence[str]]]
"""Version and requirements of each package, by its name in the form that PEP 503 gives it."""


def _installed(made: Made) -> Installed:
    ended = _run(made, "-c", _LIST)
    try:
        return {name: (version, requires) for name, (version, requires) in json.loads(ended.stdout).items()}
    except ValueError:
        said = "\n".join(f"  {_clipped(line)}" for line in _lines(ended)[-_LAST_LINES:])
        raise EnvironmentFailed(f"Python does not run in {made.folder}. Its last lines:\n{said}") from None


def _present() -> Installed:
    found: dict[str, tuple[str, Sequence[str]]] = {}
    for made in importlib.metadata.distributions():
        if name := made.metadata["Name"]:
            found.setdefault(canonicalize_name(name), (made.version, made.requires or []))
    return found


def _contradictions(installed: Installed) -> list[str]:
    """The requirements that are not met: pip installs what is named all the same, and of extras it says nothing."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for name, (version, requires) in installed.items():
        for text in requires:
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            here, _ = installed.get(canonicalize_name(requirement.name), (None, ()))
            if here is None or requirement.specifier.contains(here, prereleases=True):
                continue
            extra = ""
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                named = re.search(r"extra == ['\"]([^'\"]+)['\"]", str(requirement.marker))
                if named is None or not requirement.marker.evaluate({"extra": named[1]}):
                    continue
                extra = named[1]
            what = f"{requirement.name}{requirement.specifier}, here is {here}"
            found.setdefault((name, version, what), []).append(extra)
    return [
        f"{name}{'' if '' in extras else '[' + ', '.join(sorted(extras)) + ']'} {version} asks for {what}"
        for (name, version, what), extras in found.items()
    ]


def _pip(made: Made, *arguments: str) -> subprocess.CompletedProcess:
    return _run(made, "-m", "pip", "--disable-pip-version-check", *arguments)


def _run(made: Made, *arguments: str) -> subprocess.CompletedProcess:
    command = [str(made.python), *arguments]
    variables = made.variables(os.environ)
    return subprocess.run(
        command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )


def _lines(ended: subprocess.CompletedProcess) -> list[str]:
    return [line.strip() for line in f"{ended.stdout}\n{ended.stderr}".splitlines() if line.strip()]


def _clipped(line: str) -> str:
    """A line of pip's, which may list every version that there is, cut short."""
    half = _LONGEST_LINE // 2
    return line if len(line) <= _LONGEST_LINE else f"{line[:half]} ... {line[-half:]}"


def _key(specs: Sequence[str]) -> str:
    """What an environment depends on: the packages named, the present ones, and Python."""
    present = sorted(
        (str(each.metadata["Name"]), each.version, each.read_text("direct_url.json") or "")
        for each in importlib.metadata.distributions()
    )
    places = {spec: _changed(spec) for spec in specs if _is_place(spec)}
    parts: list[Any] = [_FORMAT, sorted(specs), places, present, sys.prefix, platform.python_version()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _is_place(spec: str) -> bool:
    """Whether a spec is a folder, a file or an address, and no name."""
    return not spec.startswith("-") and (os.path.exists(spec) or "://" in spec.partition("@")[0])


def _changed(spec: str) -> float:
    """When what lies at a path was last changed: an environment that is kept must not hide that."""
    if not os.path.exists(spec):
        return 0.0
    files = [Path(spec), *Path(spec).rglob("*")] if os.path.isdir(spec) else [Path(spec)]
    return max(os.lstat(path).st_mtime for path in files)


def _read(place: Path, specs: Sequence[str], key: str) -> Made | None:
    try:
        marker = json.loads((place / _MARKER).read_text(encoding="utf-8"))
        if marker["key"] != key or not _python(place).exists():
            return None
        return Made(place, tuple(specs), dict(marker["packages"]), tuple(marker["contradictions"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remove(place: Path) -> None:
    # The marker first: what is left of an environment that cannot be removed whole must not look whole.
    with contextlib.suppress(OSError):
        (place / _MARKER).unlink()
    shutil.rmtree(place, ignore_errors=True)


def _python(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _site_packages(folder: Path) -> Path:
    variables = {"base": str(folder), "platbase": str(folder)}
    return Path(sysconfig.get_path("purelib", "venv", vars=variables))
