"""Whether this machine can compile programs for a TPU, and what is missing where it cannot. Imports no jax."""

import importlib.metadata
import platform
from collections.abc import Iterable
from typing import Any

from perfsuite.measure.errors import MeasurementError


class TargetError(MeasurementError):
    """Programs cannot be compiled for a target here."""


class TargetUnavailable(TargetError):  # noqa: N818 - a state of this machine, as `BudgetExceeded` is of a metric
    """What compiling for a target needs is not installed, or cannot be. The message says what to do."""


def check_available() -> None:
    """Raise `TargetUnavailable` where programs cannot be compiled for a TPU. Imports neither jax nor libtpu."""
    jax = version("jax")
    reason = unavailable_reason(
        system=platform.system(),
        machine=platform.machine(),
        libtpu=version("libtpu"),
        jax=jax,
        requirements=importlib.metadata.requires("jax") or () if jax else (),
    )
    if reason is not None:
        raise TargetUnavailable(reason)


def unavailable_reason(
    *, system: str, machine: str, libtpu: str | None, jax: str | None, requirements: Iterable[str]
) -> str | None:
    """Why programs cannot be compiled for a TPU; `None` where they can.

    `libtpu` and `jax` are the installed versions, `requirements` what jax's metadata asks for.
    """
    if (system, machine.lower()) not in (("Linux", "x86_64"), ("Linux", "amd64")):
        return f"libtpu, the compiler for TPUs, exists for x86-64 Linux only, and this is {machine} {system}"
    if libtpu is None:
        return 'libtpu, the compiler for TPUs, is not installed: pip install "perfsuite[tpu]"'
    wanted = _pinned("libtpu", requirements)
    if wanted is not None and not wanted.contains(libtpu, prereleases=True):
        return f'jax {jax} needs libtpu{wanted}, and libtpu {libtpu} is installed: pip install "jax[tpu]=={jax}"'
    return None


def version(package: str) -> str | None:
    """The installed version; `None` where the package is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _pinned(package: str, requirements: Iterable[str]) -> Any:
    """The versions of `package` that requirements allow, as a `packaging` specifier set; `None` where none names it."""
    from packaging.requirements import InvalidRequirement, Requirement  # 70 ms: only compiling for a target needs it

    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.name == package:
            return requirement.specifier
    return None
