"""Whether this machine can compile for TPUs and GPUs, and the message where it cannot."""

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

HERE = {
    "system": "Linux",
    "machine": "x86_64",
    "libtpu": "0.0.42.1",
    "jax": "0.10.2",
    "requirements": ["numpy>=2.0", 'jaxlib<=0.10.2,>=0.10.2; extra == "tpu"', 'libtpu==0.0.42.*; extra == "tpu"'],
}


@pytest.mark.parametrize(
    ("found", "parts"),
    [
        ({}, None),
        ({"libtpu": "0.0.42.dev20260101"}, None),
        ({"requirements": []}, None),
        ({"libtpu": None}, ["not installed", install("tpu")]),
        (
            {"libtpu": "0.0.41"},
            ["jax 0.10.2 needs libtpu==0.0.42.*", "libtpu 0.0.41 is installed", 'pip install "jax[tpu]==0.10.2"'],
        ),
        ({"system": "Darwin", "machine": "arm64"}, ["x86-64 Linux only", "arm64 Darwin"]),
        ({"machine": "aarch64"}, ["x86-64 Linux only", "aarch64 Linux"]),
        ({"system": "Windows", "machine": "AMD64"}, ["x86-64 Linux only"]),
    ],
)
def test_what_is_missing_is_said_with_what_to_do(monkeypatch, found, parts):
    machine = {**HERE, **found}
    monkeypatch.setattr(target_available, "version", lambda package: machine[package])
    monkeypatch.setattr(target_available, "requirements", lambda package: machine["requirements"])
    for name in ("system", "machine"):
        monkeypatch.setattr(target_available.platform, name, lambda name=name: machine[name])
    if parts is None:
        check_available("tpu")
        return
    with pytest.raises(TargetUnavailable) as missing:
        check_available("tpu")
    for part in parts:
        assert part in str(missing.value)


def test_any_version_of_the_compiler_will_do_where_it_is_what_is_searched(monkeypatch):
    machine = {**HERE, "libtpu": "0.0.41"}
    monkeypatch.setattr(target_available, "version", lambda package: machine[package])
    monkeypatch.setattr(target_available, "requirements", lambda package: machine["requirements"])
    for name in ("system", "machine"):
        monkeypatch.setattr(target_available.platform, name, lambda name=name: machine[name])
    monkeypatch.setenv(target_available.ANY_VERSION, "1")
    check_available("tpu")
    machine["libtpu"] = None
    with pytest.raises(TargetUnavailable, match="not installed"):
        check_available("tpu")


CUDA = {
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
}
CUDA_13 = {
    "jax-cuda12-plugin": None,
    "jax-cuda13-plugin": "0.10.2",
    "jax-cuda13-pjrt": "0.10.2",
    "nvidia-cuda-nvcc": "13.0.88",
    "nvidia-nvvm": "13.0.88",
}


@pytest.mark.parametrize(
    ("found", "parts"),
    [
        ({}, None),
        (CUDA_13, None),
        ({"machine": "aarch64"}, None),
        ({"jax-cuda12-plugin": None}, ["jax's CUDA plugin", "is not installed", install("gpu")]),
        (
            {"nvidia-cuda-nvcc-cu12": None},
            ["jax-cuda12-plugin compiles for GPUs only with nvidia-cuda-nvcc-cu12: pip install nvidia-cuda-nvcc-cu12"],
        ),
        (
            CUDA_13 | {"nvidia-cuda-nvcc": None, "nvidia-nvvm": None},
            [
                "jax-cuda13-plugin",
                "only with nvidia-cuda-nvcc and nvidia-nvvm",
                "pip install nvidia-cuda-nvcc nvidia-nvvm",
            ],
        ),
        (
            {"jax-cuda12-plugin": "0.10.1"},
            [
                "jax 0.10.2 needs jax-cuda12-plugin<=0.10.2,>=0.10.2, and jax-cuda12-plugin 0.10.1 is installed",
                'pip install "jax-cuda12-plugin==0.10.2" "jax-cuda12-pjrt==0.10.2"',
            ],
        ),
        ({"system": "Darwin", "machine": "arm64"}, ["Linux only", "arm64 Darwin"]),
    ],
)
def test_what_compiling_for_a_gpu_lacks_is_said_with_what_to_do(monkeypatch, found, parts):
    machine = {**CUDA, **found}
    monkeypatch.setattr(target_available, "version", machine.get)
    monkeypatch.setattr(target_available, "requirements", lambda package: machine["requirements"])
    for name in ("system", "machine"):
        monkeypatch.setattr(target_available.platform, name, lambda name=name: machine[name])
    if parts is None:
        check_available("cuda")
        assert None not in target_available.compiler_versions("cuda").values()
        return
    with pytest.raises(TargetUnavailable) as missing:
        check_available("cuda")
    for part in parts:
        assert part in str(missing.value)


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
