"""Which folder of baselines is for the jax that is installed, and which files are in it.

A compiler's metrics belong to its version. A project that is tested with several versions of jax keeps baselines of
each: `baselines/jax-0.12` is for jax 0.12 and what is newer, up to the next such folder, and `baselines` itself for
what is older. So a release that no folder names is compared with the nearest older one.
"""

import re
from pathlib import Path

from packaging.version import Version

from perfsuite.gate.baseline_file import BaselineError
from perfsuite.gate.environment import installed

_NAME = re.compile(r"jax-([0-9]+(?:\.[0-9]+)*)", re.ASCII)
_PREFIX = "jax-"


def folder_here(folder: Path) -> Path:
    """The folder of the baselines for the jax that is installed. Raises `BaselineError` like `folder_for`."""
    return folder_for(folder, installed("jax") or "0")


def folder_for(folder: Path, jax: str) -> Path:
    """The folder of the baselines for a version of jax: `folder`, or that in it for the nearest version not newer.

    A development version counts as the release that it becomes. Raises `BaselineError` for a folder in `folder` whose
    name begins with `jax-` and goes on with no version.
    """
    release = Version(Version(jax).base_version)
    older = [(of, path) for of, path in _versions(folder) if of <= release]
    return max(older, default=(release, folder))[1]


def baseline_files(folder: Path) -> list[Path]:
    """The baseline files in a folder, sorted by name."""
    return sorted(path for path in folder.glob("*.json") if is_baselines(path.name))


def is_baselines(name: str) -> bool:
    """Whether a file of this name has baselines: no other file, and none that is being written."""
    return name.endswith(".json") and not name.startswith(".")


def _versions(folder: Path) -> list[tuple[Version, Path]]:
    found = []
    for path in folder.glob(f"{_PREFIX}*"):
        if not path.is_dir():
            continue
        match = _NAME.fullmatch(path.name)
        if match is None:
            problem = "the name of a folder of baselines for one jax is jax- and a version, such as jax-0.12"
            raise BaselineError(path, f"{problem}: rename it, or move it elsewhere")
        found.append((Version(match[1]), path))
    return found
