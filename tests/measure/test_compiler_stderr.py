"""The noise of libtpu and the CUDA plugin on file descriptor 2 is dropped, and nothing else is."""

import os

import pytest
from support.cuda_needed import UNAVAILABLE as CUDA
from support.libtpu_needed import UNAVAILABLE as LIBTPU

from perfsuite.measure import compiler_stderr
from perfsuite.measure.compiler_stderr import compilers_silenced, meaningful

NOISE = b"""Failed to find host bounds for accelerator type: WARNING: could not determine TPU accelerator type
WARNING: Logging before InitGoogle() is written to STDERR
E0000 00:00:1.2 3 common_lib.cc:554] INVALID_ARGUMENT: Error: unexpected worker hostname 'WARNING: could not'
=== Source Location Trace: ===
learning/45eac/tfrc/runtime/libtpu_init_utils.cc:327
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1.2 3 cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will not be used.
"""
NO_CUDA = b"""Jax plugin configuration error: Exception when calling jax_plugins.xla_cuda12.initialize()
Traceback (most recent call last):
  File "jax_plugins/xla_cuda12/__init__.py", line 201, in _version_check
RuntimeError: operation cudaRuntimeGetVersion(&version) failed

The above exception was the direct cause of the following exception:

RuntimeError: Unable to load CUDA. Is it installed?
"""


def test_noise_goes_and_other_lines_stay_as_they_are():
    assert meaningful(NOISE) == b""
    assert meaningful(b"one\r\n" + NOISE + b"\xff two\n\nthree") == b"one\r\n\xff two\n\nthree"


def test_that_cuda_cannot_be_loaded_is_noise_without_a_driver_and_said_with_one(monkeypatch, tmp_path):
    monkeypatch.setattr(compiler_stderr, "_DRIVER", str(tmp_path / "none"))
    assert meaningful(b"one\n" + NO_CUDA + b"two\n") == b"one\ntwo\n"
    monkeypatch.setattr(compiler_stderr, "_DRIVER", str(tmp_path))
    assert meaningful(b"one\n" + NO_CUDA + b"two\n") == b"one\n" + NO_CUDA + b"two\n"


def test_what_the_body_writes_comes_after_it_without_the_noise(capfd):
    with compilers_silenced():
        os.write(2, b"before\n" + NOISE + b"after")
        assert capfd.readouterr().err == ""
    assert capfd.readouterr().err == "before\nafter"
    os.write(2, NOISE)
    assert capfd.readouterr().err.encode() == NOISE, "only inside"


@pytest.mark.skipif(bool(LIBTPU and CUDA), reason=f"{LIBTPU}; {CUDA}")
def test_a_session_that_looks_for_a_tpu_or_a_gpu_says_nothing_of_it(pytester, monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS")
    pytester.makepyfile(test_it="def test_it(perf):\n    perf.record('x', 1, unit='things', kind='count')")
    result = pytester.runpytest_subprocess("--perf")
    result.assert_outcomes(passed=1)
    said = str(result.stdout) + str(result.stderr)
    for noise in ("Source Location Trace", "cuda drivers", "Jax plugin configuration error", "Unable to load CUDA"):
        assert noise not in said
