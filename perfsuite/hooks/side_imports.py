"""Keeps the user's working tree out of a process that runs the code of a commit.

An editable install points at the working tree. The worktree's own folders come first on the path, so what it has is
imported from there. What only the working tree has must not be imported instead: it is not part of the commit.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from perfsuite.against.notes import NOT_FROM

INSTALLED = ("site-packages", "dist-packages")
"""A virtual environment in the working tree is not part of it."""


class _Guard(importlib.abc.MetaPathFinder):
    """Asks the finders after it, and refuses a module of the working tree."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        after = sys.meta_path[sys.meta_path.index(self) + 1 :]
        for finder in after:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.has_location and _is_foreign(spec.origin):
                    raise ModuleNotFoundError(f"this commit has no module {name!r} (the working tree has)", name=name)
                return spec
        return None


def keep_out() -> None:
    """Import nothing from the working tree from now on, where this process runs the code of a commit."""
    if _places() is not None:
        sys.path[:] = [entry for entry in sys.path if not _is_foreign(entry)]
        sys.meta_path.insert(0, _Guard())


def foreign() -> dict[str, str]:
    """The modules that this process imported from the working tree all the same, each with its file."""
    files = {name: str(getattr(module, "__file__", None)) for name, module in list(sys.modules.items())}
    return {name: file for name, file in sorted(files.items()) if _is_foreign(file)}


def _places() -> tuple[Path, Path] | None:
    tree, _, own = os.environ.get(NOT_FROM, "").partition(os.pathsep)
    return (Path(tree), Path(own)) if tree else None


def _is_foreign(file: object) -> bool:
    places = _places()
    if places is None or not isinstance(file, str):
        return False
    tree, own = places
    path = Path(os.path.realpath(file))
    return path.is_relative_to(tree) and not path.is_relative_to(own) and not set(INSTALLED) & set(path.parts)
