"""What pytest prints of a failed test: perfsuite's message once, at the user's line, and no frames of libraries."""

import pytest

RECORDS = [f"perf.record('metric {number}', {{}}, unit='x', kind='count')" for number in range(7)]


def test_what_got_worse_is_said_once(project, perf_test, monkeypatch):
    monkeypatch.setenv("CI", "1")  # where pytest repeats whole messages in its short summary
    perf_test(*[line.format(7) for line in RECORDS])
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=1)
    perf_test(*[line.format(8) for line in RECORDS])
    result = project.runpytest_inprocess("--perf")
    result.assert_outcomes(failed=1)
    printed = result.stdout.str()
    assert printed.count("metric 0 is 8 x, +1 (+14.3 %) over the baseline 7 x") == 1
    assert printed.count("metric 0") == 1
    result.stdout.fnmatch_lines(
        ["test_step.py:4: test_step", "7 metrics of 1 test: 7 fail", "FAILED test_step.py::test_step"],
        consecutive=False,
    )
    every = project.runpytest_inprocess("--perf", "-v")
    every.stdout.fnmatch_lines(["  metric 6 * 8 x * 7 * +14.3 % * fail"])


HELPED = """
from perfsuite import call

def made(perf, size):
    perf.record("size", size, unit="x", kind="count")

def test_step(perf):
    perf.record("first", 1, unit="x", kind="count")
    made(perf, {size})
    if {size} == 1:
        perf.record("lost", 1, unit="x", kind="count")
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_failure_names_the_line_of_the_call_that_made_the_metric(project, workers):
    project.makepyfile(test_step=HELPED.format(size=1))
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=1)
    project.makepyfile(test_step=HELPED.format(size=2))
    result = project.runpytest("--perf", "-n", workers)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["size is 2 x, +1 (+100 %) over the baseline 1 x", "test_step.py:4: test_step"])
    project.makepyfile(test_step=HELPED.format(size=1).replace('kind="count")\n    made', 'kind="count")\n    #made'))
    gone = project.runpytest_inprocess("--perf")
    gone.stdout.fnmatch_lines(["size has a baseline of 1 x and was not measured*", "test_step.py:6: test_step"])
    new = project.runpytest_inprocess("--perf", "--perf-strict", "--perf-baselines=other")
    new.stdout.fnmatch_lines(["first has no baseline (--perf-strict)*", "test_step.py:7: test_step"])


@pytest.mark.parametrize("option", ["--perf", "--perf -v"])
def test_an_error_of_perfsuite_is_said_once(project, perf_test, monkeypatch, option):
    monkeypatch.setenv("CI", "1")
    perf_test("with perf.no_compiles():", "    step(state(), batch())")
    result = project.runpytest(*option.split())
    result.assert_outcomes(failed=1)
    assert result.stdout.str().count("RecompilationError: `") == 1
    result.stdout.fnmatch_lines(["FAILED test_step.py::test_step"])


def test_without_tracebacks_the_short_summary_says_it(project, perf_test):
    perf_test("perf.record('metric 0', 8, unit='x', kind='count')", "assert 1 == 2, 'of the test itself'")
    project.runpytest_inprocess("--perf").stdout.fnmatch_lines(["FAILED *of the test itself*"])
    perf_test("with perf.no_compiles():", "    step(state(), batch())")
    result = project.runpytest_inprocess("--perf", "--tb=no")
    result.stdout.fnmatch_lines(["FAILED test_step.py::test_step - *RecompilationError*"])


# Tracebacks.

RECOMPILES = """
from steps import *

def helper(size):
    step(state(), batch(size))

def test_step(compile_counter):
    step(state(), batch(8))
    batch(9)
    with compile_counter.forbid():
        helper(9)
"""


def test_a_recompilation_is_shown_at_the_users_line_without_the_frames_of_jax(project):
    project.makepyfile(test_step=RECOMPILES)
    result = project.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([">*helper(9)", ">*step(state(), batch(size))", "test_step.py:4: RecompilationError"])
    assert "jax/_src/" not in result.stdout.str()


def test_full_trace_has_them(project):
    project.makepyfile(test_step=RECOMPILES)
    result = project.runpytest_inprocess("--full-trace")
    result.assert_outcomes(failed=1)
    assert "perfsuite/measure/compiles/" in result.stdout.str()


def test_a_transfer_is_shown_at_the_users_line(project, perf_test):
    perf_test("loss = jnp.ones(())", "with perf.no_transfers():", "    float(loss)")
    result = project.runpytest_inprocess("--perf")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([">           float(loss)", "test_step.py:6: TransferError"])
    assert "array.py" not in result.stdout.str()


def test_of_other_errors_every_frame_is_shown(project, perf_test):
    perf_test("import equinox", "equinox.filter_jit(None)(1)")
    result = project.runpytest_inprocess("--perf")
    result.assert_outcomes(failed=1)
    assert "site-packages/equinox" in result.stdout.str()
