"""What the two versions of a project ask for in pyproject.toml, and what of it the present packages do not meet."""

import dataclasses
import platform
import tomllib
from collections.abc import Mapping, Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from perfsuite.against.sides import SideFailed


@dataclasses.dataclass(frozen=True)
class Declared:
    """`[project]` of a pyproject.toml: the requirements, those of extras, and what a build would work out."""

    name: str = ""
    needed: tuple[str, ...] = ()
    of_extras: tuple[str, ...] = ()
    python: str = ""
    dynamic: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str, where: str) -> "Declared":
        """Read a pyproject.toml. Raises `SideFailed` where it is none."""
        try:
            project = tomllib.loads(text).get("project", {})
            extras = project.get("optional-dependencies", {})
            return cls(
                canonicalize_name(project.get("name", "")),
                tuple(project.get("dependencies", ())),
                tuple(line for lines in extras.values() for line in lines),
                project.get("requires-python", ""),
                tuple(each for each in project.get("dynamic", ()) if each.endswith("dependencies")),
            )
        except (tomllib.TOMLDecodeError, AttributeError, TypeError) as error:
            raise SideFailed(f"the pyproject.toml of {where} cannot be read ({error})") from None


def unmet(asked: Declared, here: Declared, packages: Mapping[str, str], where: str) -> list[str]:
    """The requirements of `asked`, the commit's, that the present packages do not meet.

    What the working tree (`here`) asks for too is met as far as its user wants. A package of an extra that is not
    installed is not needed. Raises `SideFailed` where the commit is not for this Python.
    """
    _check_python(asked, where)
    same = {_normal(line) for line in (*here.needed, *here.of_extras)}
    needed = [line for line in asked.needed if _normal(line) not in same and not _met(line, packages, needed=True)]
    extra = [line for line in asked.of_extras if _normal(line) not in same and not _met(line, packages, needed=False)]
    own = {asked.name, here.name}
    return _one_a_package([line for line in (*needed, *extra) if canonicalize_name(Requirement(line).name) not in own])


def _check_python(asked: Declared, where: str) -> None:
    try:
        allowed = SpecifierSet(asked.python)
    except InvalidSpecifier:
        return
    if not allowed.contains(platform.python_version(), prereleases=True):
        raise SideFailed(
            f"{where} asks for Python {asked.python}, and this is {platform.python_version()}: run perfsuite with "
            "a Python that both versions allow"
        )


def _met(line: str, packages: Mapping[str, str], *, needed: bool) -> bool:
    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        return True  # pip would refuse the project itself
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return True
    version = packages.get(canonicalize_name(requirement.name))
    if version is None:
        return not needed
    return requirement.url is None and requirement.specifier.contains(version, prereleases=True)


def _normal(line: str) -> str:
    try:
        return str(Requirement(line))
    except InvalidRequirement:
        return line


def _one_a_package(lines: Sequence[str]) -> list[str]:
    """The same without lines that ask for a package that an earlier line names: an extra often repeats it."""
    found: dict[str, str] = {}
    for line in lines:
        found.setdefault(canonicalize_name(Requirement(line).name), line)
    return list(found.values())
