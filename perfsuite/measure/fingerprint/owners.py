"""Whose code it is: the project's own counts by what it says, that of an installed package by its version."""

import functools
import hashlib
import importlib.metadata
import os
import sys
import sysconfig

_INSTALLED = ("site-packages", "dist-packages")
_STANDARD = tuple(
    os.path.join(os.path.realpath(sysconfig.get_path(name)), "") for name in ("stdlib", "platstdlib") if name
)
_PYTHON = f"Python {sys.version.split()[0]}"
_HARNESS = "perfsuite."
_NOT_HARNESS = "perfsuite.workloads"


@functools.cache
def library_of(filename: str, module: str) -> str | None:
    """The distribution and version that a file of Python source belongs to; None for the project's own code.

    A package that is installed in editable mode is the project's own, and so is code that was generated while running,
    and a file beside the installed packages that no distribution owns.
    """
    if filename.startswith("<frozen "):
        return _PYTHON
    if module.startswith(_HARNESS) and not module.startswith(_NOT_HARNESS):
        return "perfsuite"
    if not os.path.isabs(filename):
        return None
    path = os.path.realpath(filename)
    if set(_INSTALLED) & set(path.split(os.sep)):
        return distribution_of(module)
    return _PYTHON if path.startswith(_STANDARD) else None


@functools.cache
def distribution_of(module: str) -> str | None:
    """The distributions that own a module's outermost package, with their versions; None where none does."""
    names = sorted(set(_owners().get(module.partition(".")[0], ())))
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names) or None


@functools.cache
def extension_of(module: str) -> str:
    """What a module of compiled code is: its distribution and version, or a hash of its file without one."""
    outermost = module.partition(".")[0]
    if outermost in sys.stdlib_module_names or outermost in sys.builtin_module_names:
        return _PYTHON
    if (known := distribution_of(module)) is not None:
        return known
    file = getattr(sys.modules.get(module), "__file__", None)
    if not file or not os.path.isfile(file):
        return module
    with open(file, "rb") as opened:
        return f"{module} {hashlib.file_digest(opened, 'sha256').hexdigest()}"


@functools.cache
def _owners() -> dict[str, list[str]]:
    return dict(importlib.metadata.packages_distributions())
