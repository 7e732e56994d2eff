"""Whether this machine can compile programs for TPUs or GPUs, and what is missing where it cannot. Imports no jax."""

import importlib.metadata
import os
import platform

from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.installed import install


class TargetError(MeasurementError):
    """Programs cannot be compiled for a target here."""


class TargetUnavailable(TargetError):  # noqa: N818 - a state of this machine, as `BudgetExceeded` is of a metric
    """What compiling for a target needs is not installed, or cannot be. The message says what to do."""


ANY_VERSION = "PERFSUITE_ANY_COMPILER"
"""The environment variable of processes that compile with whatever compiler is installed, not the one that jax asks
for: which of the two does it is what `perfsuite bisect --package libtpu` wants to know."""

_CUDA = {
    "12": ("jax-cuda12-plugin", "jax-cuda12-pjrt", "nvidia-cuda-nvcc-cu12"),
    "13": ("jax-cuda13-plugin", "jax-cuda13-pjrt", "nvidia-cuda-nvcc", "nvidia-nvvm"),
}
"""The packages that compile for GPUs, by CUDA's major version: XLA itself, and the assembler of the kernels."""


def check_available(platform_name: str) -> None:
    """Raise `TargetUnavailable` where programs cannot be compiled for "tpu" or "cuda".

    Imports neither jax nor the compiler.
    """
    if platform_name == "tpu":
        _check_tpu()
    else:
        _check_cuda()


def compiler_versions(platform_name: str) -> dict[str, str | None]:
    """The packages that compile for "tpu" or "cuda", with their versions."""
    packages = ("libtpu",) if platform_name == "tpu" else _cuda_packages()
    return {package: version(package) for package in packages}


def _check_tpu() -> None:
    system, machine = platform.system(), platform.machine()
    if (system, machine.lower()) not in (("Linux", "x86_64"), ("Linux", "amd64")):
        raise TargetUnavailable(
            f"libtpu, the compiler for TPUs, exists for x86-64 Linux only, and this is {machine} {system}"
        )
    libtpu = version("libtpu")
    if libtpu is None:
        raise TargetUnavailable(f"libtpu, the compiler for TPUs, is not installed: {install('tpu')}")
    _check_requirement("libtpu", libtpu, 'pip install "jax[tpu]=={jax}"')


def _check_cuda() -> None:
    system, machine = platform.system(), platform.machine()
    if system != "Linux":
        raise TargetUnavailable(
            f"jax's CUDA plugin, the compiler for GPUs, exists for Linux only, and this is {machine} {system}"
        )
    plugin, *others = packages = _cuda_packages()
    installed = version(plugin)
    if installed is None:
        raise TargetUnavailable(f"jax's CUDA plugin, the compiler for GPUs, is not installed: {install('gpu')}")
    _check_requirement(plugin, installed, f'pip install "{plugin}=={{jax}}" "{packages[1]}=={{jax}}"')
    if missing := [package for package in others if version(package) is None]:
        raise TargetUnavailable(
            f"{plugin} compiles for GPUs only with {' and '.join(missing)}: pip install {' '.join(missing)}"
        )


def _cuda_packages() -> tuple[str, ...]:
    """Those of the CUDA version whose plugin is installed; the one that perfsuite's extra brings where none is."""
    return next((packages for packages in _CUDA.values() if version(packages[0])), _CUDA["12"])


def _check_requirement(package: str, installed: str, install: str) -> None:
    """Raise where the installed jax needs another version of a compiler."""
    if os.environ.get(ANY_VERSION):
        return
    from packaging.requirements import Requirement  # 70 ms: only compiling for a target needs it

    jax = version("jax")
    for requirement in map(Requirement, requirements("jax")):
        if requirement.name == package and not requirement.specifier.contains(installed, prereleases=True):
            raise TargetUnavailable(
                f"jax {jax} needs {package}{requirement.specifier}, and {package} {installed} is installed: "
                f"{install.format(jax=jax)}"
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
