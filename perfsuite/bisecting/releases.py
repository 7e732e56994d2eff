"""The releases of a package between two versions, and where it tells what is new."""

import dataclasses
import importlib.metadata
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from perfsuite.bisecting.found import BisectFailed
from perfsuite.measure.serialise import from_json

_INDEX = "https://pypi.org/simple"
_SECONDS = 20.0
_NEAREST = 3
_NOTES = ("changelog", "releasenotes", "changes", "history", "whatsnew", "homepage", "repository", "source")
"""Labels of project addresses, those that say what is new first, as
https://packaging.python.org/en/latest/specifications/well-known-project-urls has them."""


@dataclasses.dataclass(frozen=True)
class Package:
    """A package, and its version at either end."""

    name: str
    good: str
    bad: str

    @property
    def older(self) -> str:
        return min(self.good, self.bad, key=Version)

    @property
    def newer(self) -> str:
        return max(self.good, self.bad, key=Version)

    @property
    def bad_is_newer(self) -> bool:
        return Version(self.bad) > Version(self.good)


def read_packages(texts: Sequence[str], good: str | None, bad: str | None) -> list[Package]:
    """The packages of the command line: `jax` with `--good` and `--bad`, or `jax==0.10.0..0.10.2`, good to bad.

    Raises `BisectFailed`.
    """
    found: dict[str, Package] = {}
    for text in texts:
        name, dashes, ends = text.partition("==")
        lone = not dashes
        first, dots, last = (good or "", "..", bad or "") if lone else ends.partition("..")
        problem = _problem(name, first, last) if dots else 'write its versions as "good..bad"'
        if lone and not (good and bad):
            problem = "say --good VERSION and --bad VERSION"
        elif lone and len(texts) > 1:
            problem = "of several packages each has versions of its own"
        elif not lone and (good or bad):
            problem = "its versions are in it: leave out --good and --bad"
        if problem:
            example = f"--package {name.strip() or 'jax'}==0.10.0..0.10.2"
            raise BisectFailed(f"--package {text}: {problem}; for example {example}, from good to bad")
        package = Package(canonicalize_name(name.strip()), str(Version(first)), str(Version(last)))
        if package.name in found:
            raise BisectFailed(f"--package {text}: {package.name} is there twice: give it once")
        found[package.name] = package
    return list(found.values())


def _problem(name: str, good: str, bad: str) -> str:
    try:
        if Requirement(name.strip()).name != name.strip():
            return f'"{name}" is no package\'s name'
        if Version(good) == Version(bad):
            return f"good and bad are the same version, {good}"
    except (InvalidRequirement, InvalidVersion) as error:
        return str(error).splitlines()[0]
    return ""


def between(package: Package, *, pre: bool) -> list[str]:
    """The releases from the older end to the newer one, both included, that this Python can install.

    Yanked ones are left out where the index tells them, and without `pre` those before a release; the ends stay. Raises
    `BisectFailed` where an end is not among them.
    """
    known = _from_pip(package.name)
    yanked = _yanked(package.name)
    versions = sorted(
        {Version(each) for each in known if _in_range(package, Version(each))},
    )
    ends = [Version(package.older), Version(package.newer)]
    for end in ends:
        if end not in versions:
            raise BisectFailed(_no_release(package.name, end, known))
    return [
        str(each) for each in versions if each in ends or ((pre or not each.is_prerelease) and str(each) not in yanked)
    ]


def notes_address(name: str, site_packages: Path) -> str:
    """Where an installed package says what is new; empty where its metadata has no address."""
    for each in importlib.metadata.distributions(path=[str(site_packages)]):
        if canonicalize_name(each.metadata["Name"] or "") != name:
            continue
        urls: dict[str, str] = {}
        for line in each.metadata.get_all("Project-URL") or []:
            label, _, address = line.partition(",")
            urls.setdefault(re.sub(r"[^a-z]", "", label.lower()), address.strip())
        urls.setdefault("homepage", next(iter(each.metadata.get_all("Home-page") or []), ""))
        return next((urls[label] for label in _NOTES if urls.get(label)), "")
    return ""


def _in_range(package: Package, version: Version) -> bool:
    return Version(package.older) <= version <= Version(package.newer)


def _no_release(name: str, end: Version, known: Sequence[str]) -> str:
    versions = sorted(map(Version, known))
    below = [str(each) for each in versions if each < end][-_NEAREST:]
    above = [str(each) for each in versions if each > end][:_NEAREST]
    python = ".".join(map(str, sys.version_info[:2]))
    near = ", ".join([*below, *above])
    return f"{name} {end}: the index has no such release for Python {python} on this machine; the nearest are {near}"


def _from_pip(name: str) -> list[str]:
    """All versions that pip finds, with the user's own index and settings."""
    ended = _pip("index", "versions", "--pre", name)
    listed = re.search(r"^Available versions: (.+)$", ended.stdout, re.MULTILINE)
    if listed:
        return [text for text in listed[1].split(", ") if _is_version(text)]
    if "No module named pip" in ended.stderr:
        return _from_index(name)
    lines = [line.strip() for line in ended.stderr.splitlines() if line.strip() and not line.startswith("WARNING:")]
    said = lines[-1] if lines else f"it ended with status {ended.returncode}"
    raise BisectFailed(f"--package {name}: pip lists no releases: {said}")


def _pip(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )


def _index() -> str:
    """The index that pip is set to use."""
    return os.environ.get("PIP_INDEX_URL") or _pip("config", "get", "global.index-url").stdout.strip() or _INDEX


def _from_index(name: str) -> list[str]:
    """The same without pip: the releases of which there is a file for this version of Python."""
    files = _files(name)
    if files is None:
        raise BisectFailed(f"--package {name}: there is no pip, and {_index()} has no list of releases: install pip")
    return sorted({version for version, file in files if _for_this_python(file.get("requires-python") or "")})


def _for_this_python(wanted: str) -> bool:
    try:
        return SpecifierSet(wanted).contains(".".join(map(str, sys.version_info[:3])))
    except ValueError:  # as in `_is_version`
        return True


def _yanked(name: str) -> set[str]:
    """The releases of which every file was yanked, where the index says so (PEP 592)."""
    files = _files(name) or []
    return {version for version, _ in files} - {version for version, file in files if not file.get("yanked")}


def _files(name: str) -> list[tuple[str, dict]] | None:
    """The files of the index by their versions (PEP 691); None without one."""
    if os.environ.get("PIP_NO_INDEX") or not (index := _index()).startswith("http"):
        return None
    accept = {"Accept": "application/vnd.pypi.simple.v1+json"}
    try:
        request = urllib.request.Request(f"{index.rstrip('/')}/{name}/", headers=accept)
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            return _listed(answer.read())
    except (urllib.error.URLError, OSError, ValueError):
        return None


def _listed(content: bytes) -> list[tuple[str, dict]]:
    """The files of an index's answer, by their versions. Raises `ValueError` where it cannot be read."""
    files = from_json(dict[str, Any], content).get("files")
    if not isinstance(files, list) or not all(map(_is_file, files)):
        raise ValueError("not a list of files")
    return [(version, file) for file in files if (version := _version_of(file["filename"]))]


def _is_file(file: Any) -> bool:
    texts = (file.get("filename"), file.get("requires-python") or "") if isinstance(file, dict) else (None,)
    return all(isinstance(text, str) for text in texts)


def _version_of(file: str) -> str:
    """The version in a file's name: `name-1.2-py3-none-any.whl`, `name-1.2.tar.gz`."""
    stem = file.removesuffix(".tar.gz").removesuffix(".zip")
    text = "".join(file.split("-")[1:2]) if file.endswith(".whl") else stem.rpartition("-")[2]
    return str(Version(text)) if _is_version(text) else ""


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except ValueError:  # an `InvalidVersion`, or a number of thousands of digits
        return False
    return True
