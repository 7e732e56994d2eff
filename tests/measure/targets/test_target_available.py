"""Whether this machine can compile for TPUs and GPUs, and the message where it cannot."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import perfsuite
from perfsuite.measure.installed import install
from perfsuite.measure.targets import target_available
from perfsuite.measure.targets.target_available import TargetUnavailable, check_available

ROOT = Path(perfsuite.__path__[0]).parent

MACHINES = {
    "tpu": {
        "system": "Linux",
        "machine": "x86_64",
        "libtpu": "0.0.42.1",
        "jax": "0.10.2",
        "requirements": ['jaxlib<=0.10.2,>=0.10.2; extra == "tpu"', 'libtpu==0.0.42.*; extra == "tpu"'],
    },
    "cuda": {
        "system": "Linux",
        "machine": "x86_64",
        "jax": "0.10.2",
        "jax-cuda12-plugin": "0.10.2",
        "jax-cuda12-pjrt": "0.10.2",
        "nvidia-cuda-nvcc-cu12": "12.9.86",
        "requirements": [
            'jax-cuda12-plugin<=0.10.2,>=0.10.2; extra == "cuda12-local"',
            'jax-cuda13-plugin<=0.10.2,>=0.10.2; extra == "cuda13-local"',
        ],
    },
}
CUDA_13 = {
    "jax-cuda12-plugin": None,
    "jax-cuda13-plugin": "0.10.2",
    "jax-cuda13-pjrt": "0.10.2",
    "nvidia-cuda-nvcc": "13.0.88",
    "nvidia-nvvm": "13.0.88",
}
ARM_MAC = {"system": "Darwin", "machine": "arm64"}


@pytest.fixture
def machine(monkeypatch):
    """Makes this a machine for which these packages are installed."""

    def machine(platform, changes):
        values = MACHINES[platform] | changes
        monkeypatch.setattr(target_available, "version", values.get)
        monkeypatch.setattr(target_available, "requirements", lambda package: values["requirements"])
        for name in ("system", "machine"):
            monkeypatch.setattr(target_available.platform, name, lambda name=name: values[name])

    return machine


@pytest.mark.parametrize(
    ("platform", "changes"),
    [
        ("tpu", {}),
        ("tpu", {"libtpu": "0.0.42.dev20260101"}),
        ("tpu", {"requirements": []}),
        ("cuda", {}),
        ("cuda", CUDA_13),
        ("cuda", {"machine": "aarch64"}),
    ],
)
def test_with_all_that_it_needs_a_compiler_is_there_and_has_its_versions(machine, platform, changes):
    machine(platform, changes)
    check_available(platform)
    assert None not in target_available.compiler_versions(platform).values()


@pytest.mark.parametrize(
    ("platform", "changes", "remedy"),
    [
        ("tpu", {"libtpu": None}, install("tpu")),
        ("tpu", {"libtpu": "0.0.41"}, 'pip install "jax[tpu]==0.10.2"'),
        ("tpu", ARM_MAC, "x86-64 Linux only"),
        ("tpu", {"machine": "aarch64"}, "x86-64 Linux only"),
        ("cuda", ARM_MAC, "Linux only"),
        ("cuda", {"jax-cuda12-plugin": None}, install("gpu")),
        ("cuda", {"nvidia-cuda-nvcc-cu12": None}, "pip install nvidia-cuda-nvcc-cu12"),
        ("cuda", CUDA_13 | {"nvidia-cuda-nvcc": None, "nvidia-nvvm": None}, "pip install nvidia-cuda-nvcc nvidia-nvvm"),
        ("cuda", {"jax-cuda12-plugin": "0.10.1"}, 'pip install "jax-cuda12-plugin==0.10.2" "jax-cuda12-pjrt==0.10.2"'),
    ],
)
def test_what_is_missing_is_said_with_the_remedy(machine, platform, changes, remedy):
    machine(platform, changes)
    with pytest.raises(TargetUnavailable, match=re.escape(remedy)):
        check_available(platform)


def test_any_version_of_the_compiler_will_do_where_it_is_what_is_searched(machine, monkeypatch):
    monkeypatch.setenv(target_available.ANY_VERSION, "1")
    machine("tpu", {"libtpu": "0.0.41"})
    check_available("tpu")


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_the_check_imports_neither_jax_nor_a_compiler(platform):
    code = f"""
    import sys
    from perfsuite.measure.targets.target_available import TargetUnavailable, check_available
    try:
        check_available({platform!r})
    except TargetUnavailable:
        pass
    print({{"jax", "jax_plugins", "libtpu", "numpy", "pytest"}} & set(sys.modules))
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout == "set()\n"
