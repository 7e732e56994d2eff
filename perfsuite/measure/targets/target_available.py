"""Whether this machine can compile programs for a TPU, and what is missing where it cannot. Imports no jax."""

import importlib.metadata
import platform

from perfsuite.measure.errors import MeasurementError


class TargetError(MeasurementError):
    """Programs cannot be compiled for a target here."""


class TargetUnavailable(TargetError):  # noqa: N818 - a state of this machine, as `BudgetExceeded` is of a metric
    """What compiling for a target needs is not installed, or cannot be. The message says what to do."""


def check_available() -> None:
    """Raise `TargetUnavailable` where programs cannot be compiled for a TPU. Imports neither jax nor libtpu."""
    system, machine = platform.system(), platform.machine()
    if (system, machine.lower()) not in (("Linux", "x86_64"), ("Linux", "amd64")):
        raise TargetUnavailable(
            f"libtpu, the compiler for TPUs, exists for x86-64 Linux only, and this is {machine} {system}"
        )
    libtpu, jax = version("libtpu"), version("jax")
    if libtpu is None:
        raise TargetUnavailable('libtpu, the compiler for TPUs, is not installed: pip install "perfsuite[tpu]"')
    from packaging.requirements import Requirement  # 70 ms: only compiling for a target needs it

    for requirement in map(Requirement, requirements("jax")):
        if requirement.name == "libtpu" and not requirement.specifier.contains(libtpu, prereleases=True):
            raise TargetUnavailable(
                f"jax {jax} needs libtpu{requirement.specifier}, and libtpu {libtpu} is installed: "
                f'pip install "jax[tpu]=={jax}"'
            )


def version(package: str) -> str | None:
    """The installed version; `None` where the package is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def requirements(package: str) -> list[str]:
    """The packages that an installed package needs, as its metadata has them; none where it is not installed."""
    return importlib.metadata.requires(package) or [] if version(package) else []
