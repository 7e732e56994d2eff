"""Under pytest-xdist counts gate, timings refuse, and the main process saves."""

import json

import pytest

pytest.importorskip("xdist")

TESTS = """
import pytest
from steps import *

@pytest.mark.parametrize("calls", [{calls}])
def test_host_calls(perf, calls):
    perf.record("calls", calls, unit="calls", kind="count")

def test_compiles(perf):
    warm = perf.warm(step, over=[(state(), batch())])
    more = state(), batch()
    with perf.no_compiles():
        warm(*more)

def test_time(perf):
    perf.record("before", 1, unit="things", kind="count")
    perf.time(call(step, state(), batch(), carry=1))

def test_compare(perf):
    perf.compare(call(step, state(), batch(), carry=1), call(step, state(), batch(), carry=1))
"""


def test_counts_gate_and_timings_refuse_with_a_reason(project):
    project.makepyfile(test_all=TESTS.format(calls=7))
    result = project.runpytest_subprocess("--perf-save", "-n2", "-rs")
    result.assert_outcomes(passed=2, skipped=2)
    result.stdout.fnmatch_lines(
        ["*perf.time: other processes share the machine under pytest-xdist*run it with `-n 0`*"]
    )
    figures = json.loads((project.path / "baselines/cpu.json").read_text())["figures"]
    assert figures["test_all.py::test_host_calls[7]"]["calls"]["value"] == 7
    project.runpytest_subprocess("--perf", "-n2").assert_outcomes(passed=2, skipped=2)


def test_a_regression_fails_in_a_worker(project):
    project.makepyfile(test_all="def test_count(perf): perf.record('calls', 7, unit='calls', kind='count')")
    project.runpytest_subprocess("--perf-save", "-n1").assert_outcomes(passed=1)
    project.makepyfile(test_all="def test_count(perf): perf.record('calls', 8, unit='calls', kind='count')")
    result = project.runpytest_subprocess("--perf", "-n1")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*calls is 8 calls, the baseline is 7 calls*", "1 figures: 1 fail"])
