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

def test_count(perf):
    perf.record("counted", {counted}, unit="calls", kind="count")

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


def test_counts_gate_and_fail_in_a_worker_and_timings_refuse_with_a_reason(project):
    project.makepyfile(test_all=TESTS.format(calls=7, counted=7))
    result = project.runpytest_subprocess("--perf-save", "-n2", "-rs")
    result.assert_outcomes(passed=3, skipped=2)
    result.stdout.fnmatch_lines(
        ["*perf.time: other processes share the machine under pytest-xdist*run it with `-n 0`*"]
    )
    metrics = json.loads((project.path / "baselines/cpu.json").read_text())["metrics"]
    assert metrics["test_all.py::test_host_calls[7]"]["calls"]["value"] == 7
    project.makepyfile(test_all=TESTS.format(calls=7, counted=8))
    result = project.runpytest_subprocess("--perf", "-n2")
    result.assert_outcomes(passed=2, failed=1, skipped=2)
    result.stdout.fnmatch_lines(
        ["*counted is 8 calls, +1 (+14.3 %) over the baseline 7 calls*", "4 metrics of * 1 fail, 1 pass, *"]
    )
