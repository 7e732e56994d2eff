"""What closes a session: nothing without --perf, and else what a test that passed does not show."""


def test_without_perf_there_is_no_header_and_no_summary(project, perf_test):
    perf_test("perf.record('fusions', 3, unit='fusions', kind='count')")
    result = project.runpytest_inprocess()
    result.stdout.no_fnmatch_line("*perfsuite:*")
    result.stdout.no_fnmatch_line("*metrics:*")


UNNOTICED = """
import pytest
from perfsuite import Budget, BudgetExceeded, call

def test_without_parentheses(perf):
    perf.time

def test_that_catches(perf):
    with pytest.raises(BudgetExceeded):
        perf.host_calls(call(sorted, [1]), budget=Budget(host_calls=0))

@pytest.mark.parametrize("how", ["no_compiles", "no_transfers", "count_transfers", "count_compiles"])
def test_within(perf, how):
    with getattr(perf, how)():
        pass

def test_that_records(perf):
    perf.record("rows", 1, unit="rows", kind="count")

def test_without_with(perf):
    perf.no_compiles()
    with perf.no_transfers():
        pass

def test_decorated(perf):
    @perf.no_compiles()
    @perf.no_transfers()
    @perf.count_compiles(name="loop")
    def loop():
        pass

    loop()

def test_decorated_and_called_twice(perf):
    @perf.no_compiles()
    @perf.no_transfers()
    def loop():
        pass

    loop()
    loop()

def test_that_asks_for_the_size(perf):
    assert perf.size == "small"

def test_that_is_skipped(perf):
    pytest.skip("not here")
"""


def test_what_a_test_that_passed_does_not_show_is_said(project):
    """A misspelt measurement, and a gate whose failure went no further than the test."""
    project.makepyfile(test_unnoticed=UNNOTICED)
    result = project.runpytest_inprocess("--perf")
    result.assert_outcomes(passed=11, skipped=1)
    said = [line for line in result.outlines if line.startswith("test_unnoticed.py::test_")]
    assert sorted(said) == [
        "test_unnoticed.py::test_that_catches passed although sorted host calls failed its budget: the test caught the error",
        "test_unnoticed.py::test_without_parentheses has perf, and calls none of its instruments: it measures nothing",
        "test_unnoticed.py::test_without_with calls perf.no_compiles() and never enters it, so it checks nothing: "
        "with perf.no_compiles(): ...",
    ]
