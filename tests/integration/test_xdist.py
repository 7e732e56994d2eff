"""Under pytest-xdist counts gate, also those compiled for a target; timings refuse, and the main process saves."""

import pytest

from .test_targets_end_to_end import COMPILED, metrics

pytest.importorskip("xdist")

TESTS = """
import pytest
from compiled import collectives
from steps import *

@pytest.mark.parametrize("calls", [{calls}])
def test_host_calls(perf, calls):
    perf.record("calls", calls, unit="calls", kind="count")

def test_count(perf):
    perf.record("counted", {counted}, unit="calls", kind="count")

def test_collectives(perf):
    collectives(perf, all_gather={counted})

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
    project.makepyfile(test_all=TESTS.format(calls=7, counted=7), compiled=COMPILED)
    result = project.runpytest_subprocess("--perf-save", "-n2", "-rs")
    result.assert_outcomes(passed=4, skipped=2)
    result.stdout.fnmatch_lines(
        ["*perf.time: other processes share the machine under pytest-xdist*run it with `-n 0`*"]
    )
    assert metrics(project, "cpu")["test_all.py::test_host_calls[7]"]["calls"]["value"] == 7
    assert metrics(project, "tpu-v5e")["test_all.py::test_collectives"]["step collectives"]["value"] == 7
    project.makepyfile(test_all=TESTS.format(calls=7, counted=8))
    result = project.runpytest_subprocess("--perf", "-n2")
    result.assert_outcomes(passed=2, failed=2, skipped=2)
    result.stdout.fnmatch_lines_random(
        [
            "*counted is 8 calls, +1 (+14.3 %) over the baseline 7 calls*",
            "step collectives @ tpu-v5e is 8*grew: all-gather (+1) at model.py:10 in attention",
            "5 metrics of * 2 fail, 1 pass, *",
        ]
    )
