"""libtpu's noise on file descriptor 2 is dropped, and nothing else is."""

import os
import subprocess
import sys

import pytest
from support.libtpu_needed import needs_libtpu

from perfsuite.measure.compat.libtpu_stderr import libtpu_silenced, meaningful

NOISE = b"""Failed to find host bounds for accelerator type: WARNING: could not determine TPU accelerator type
WARNING: Logging before InitGoogle() is written to STDERR
E0000 00:00:1.2 3 common_lib.cc:554] INVALID_ARGUMENT: Error: unexpected worker hostname 'WARNING: could not'
=== Source Location Trace: ===
learning/45eac/tfrc/runtime/libtpu_init_utils.cc:327
"""


def test_noise_goes_and_other_lines_stay_as_they_are():
    assert meaningful(NOISE) == b""
    assert meaningful(b"one\r\n" + NOISE + b"\xff two\n\nthree") == b"one\r\n\xff two\n\nthree"


def test_what_the_body_writes_comes_after_it_without_the_noise(capfd):
    with libtpu_silenced():
        os.write(2, b"before\n" + NOISE + b"after")
        assert capfd.readouterr().err == ""
    assert capfd.readouterr().err == "before\nafter"
    os.write(2, NOISE)
    assert capfd.readouterr().err.encode() == NOISE, "only inside"


def test_an_error_in_the_body_is_raised_and_loses_nothing(capfd):
    def fails():
        with libtpu_silenced():
            os.write(2, b"said first\n")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert capfd.readouterr().err == "said first\n"


def test_a_closed_descriptor_is_left_alone():
    code = "import os\nos.close(2)\nfrom perfsuite.measure.compat.libtpu_stderr import *\nwith libtpu_silenced(): print('done')"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "done\n"


@needs_libtpu
def test_a_session_that_looks_for_a_tpu_says_nothing_of_it(pytester, monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS")
    pytester.makepyfile(test_it="def test_it(perf):\n    perf.record('x', 1, unit='things', kind='count')")
    result = pytester.runpytest_subprocess("--perf")
    result.assert_outcomes(passed=1)
    assert "Source Location Trace" not in str(result.stdout) + str(result.stderr)
