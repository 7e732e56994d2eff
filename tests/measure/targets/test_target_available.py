"""Whether this machine can compile for a TPU, and the message where it cannot."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import perfsuite
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
        ({"libtpu": None}, ["not installed", 'pip install "perfsuite[tpu]"']),
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
        check_available()
        return
    with pytest.raises(TargetUnavailable) as missing:
        check_available()
    for part in parts:
        assert part in str(missing.value)


def test_the_check_imports_neither_jax_nor_libtpu():
    code = """
    import sys
    from perfsuite.measure.targets.target_available import TargetUnavailable, check_available
    try:
        check_available()
    except TargetUnavailable:
        pass
    print({"jax", "libtpu", "numpy", "pytest"} & set(sys.modules))
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout == "set()\n"
