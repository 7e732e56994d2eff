"""pytest-benchmark beside perfsuite: its own tests go on as before, and timings appear among them."""

import json

import pytest

TIMED = """
from steps import *

def test_twice(perf):
    carried = call(step, state(), batch(), carry=1)
    perf.time(carried)
    perf.time(carried, name="again")

def test_own(benchmark):
    assert benchmark(sum, range(10)) == 45

def test_both(perf, benchmark):
    perf.time(call(step, state(), batch(), carry=1))
    assert benchmark(sum, range(10)) == 45
"""


@pytest.fixture
def timed(project):
    project.makepyfile(test_timed=TIMED)
    return project


def test_timings_stand_in_the_table_and_in_the_json(timed):
    result = timed.runpytest_inprocess("--perf", "--benchmark-json=out.json", "--benchmark-max-time=0.05", "-Werror")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines_random(
        ["test_twice:step *", "test_twice:again *", "test_own *", "test_both:step *", "test_both *"]
    )
    benchmarks = {each["fullname"]: each for each in json.loads((timed.path / "out.json").read_text())["benchmarks"]}
    step = benchmarks["test_timed.py::test_twice:step"]
    assert step["stats"]["rounds"] >= 30
    assert step["stats"]["median"] * 1e6 == pytest.approx(step["extra_info"]["to_ready_median_us"])
    assert 0 < step["extra_info"]["to_return_median_us"] <= step["extra_info"]["to_ready_median_us"]


def test_disabled_benchmarks_stay_out_of_the_table_and_perfsuite_still_measures(timed):
    result = timed.runpytest_inprocess("--perf", "-v", "--benchmark-disable")
    result.assert_outcomes(passed=3)
    result.stdout.no_fnmatch_line("*benchmark: *tests*")
    result.stdout.fnmatch_lines(["  step to return *"])


def test_without_an_option_of_pytest_benchmark_no_timing_is_shown(timed):
    result = timed.runpytest_inprocess("--perf", "-Werror", "-k", "twice or own")
    result.assert_outcomes(passed=2)
    result.stdout.no_fnmatch_line("*:step *")
    result.stdout.fnmatch_lines(["*benchmark: 1 tests*", "test_own *"])  # the user's own benchmarks


def test_where_pytest_benchmark_has_moved_its_table_lacks_the_timings_and_a_line_says_so_once(timed):
    timed.makeconftest(
        """
        import pytest

        from perfsuite.measure.private import libraries, capabilities

        @pytest.fixture(scope="session", autouse=True)
        def moved():
            with pytest.MonkeyPatch.context() as patch:
                patch.setitem(libraries._TIMER.__dict__, "name", "_timer_moved")
                capabilities.forget()
                yield
            capabilities.forget()
        """
    )
    result = timed.runpytest_inprocess("--perf", "--benchmark-max-time=0.05", "-Werror")
    result.assert_outcomes(passed=3)
    result.stdout.no_fnmatch_line("*:step *")
    said = [line for line in result.outlines if "its table lacks what perf.time timed" in line]
    assert len(said) == 1


def test_perf_works_without_pytest_benchmark(project):
    project.makepyfile("from steps import *\ndef test_it(perf): perf.time(call(step, state(), batch(), carry=1))")
    project.runpytest_inprocess("--perf", "-p", "no:benchmark").assert_outcomes(passed=1)
