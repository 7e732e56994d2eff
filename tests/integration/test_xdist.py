"""Under pytest-xdist counts and programs gate in the workers, and what needs a quiet machine in the main process."""

from xml.etree import ElementTree

import pytest

from .test_targets_end_to_end import COMPILED, metrics

pytest.importorskip("xdist")

TESTS = """
import os
import pytest
from compiled import collectives
from steps import *

def place(name):
    with open("places.txt", "a") as file:
        file.write(f"{name} {os.environ.get('PYTEST_XDIST_WORKER', 'main')}\\n")

@pytest.mark.parametrize("calls", [7])
@pytest.mark.xdist_group("counts")
def test_host_calls(perf, calls):
    perf.record("calls", calls, unit="calls", kind="count")
    place("calls")

@pytest.mark.xdist_group("counts")
def test_count(perf):
    perf.record("counted", 7, unit="calls", kind="count")

def test_collectives(perf):
    collectives(perf, all_gather=7)

def test_compiles(perf):
    warm = perf.warm(step, over=[(state(), batch())])
    more = state(), batch()
    with perf.no_compiles():
        warm(*more)

@pytest.mark.xdist_group("times")
@pytest.mark.parametrize("address", ["a@b"])
def test_time(perf, address):
    perf.record("before", 7, unit="things", kind="count")
    place("time")
    perf.time(call(step, state(), batch(), carry=1), name="time")  # information only, where the step is too short
    perf.record("longest", 9, unit="us", kind="time", interval=(9, 9))
    place("timed")

def test_compare(perf):
    perf.compare(call(step, state(), batch(), carry=1), call(step, state(), batch(), carry=1), budget=Budget(ratio=90))

def test_ratio(perf):
    perf.record("ratio", 1, unit="x", kind="ratio", interval=(1, 1))

def test_imports(perf):
    perf.imports("colorsys")

def test_plain():
    pass
"""


def test_counts_gate_in_a_worker_and_timings_after_it_in_the_main_process(project):
    project.makepyfile(
        test_all=TESTS,
        compiled=COMPILED,
        test_gone="def test_gone(perf):\n    perf.record('a', 1, unit='x', kind='count')",
    )
    result = project.runpytest_subprocess("--perf-save", "-n1", "--dist=loadgroup", "--junitxml=first.xml")
    result.assert_outcomes(passed=10)
    result.stdout.fnmatch_lines(["2 tests for a quiet machine: now, in the main process"])
    assert sum(line.startswith("perfsuite: baselines ") for line in result.outlines) == 1, "one header"
    assert places(project) == ["calls gw0", "time gw0", "time main", "timed main"]
    recorded = metrics(project, "cpu")
    assert recorded["test_all.py::test_host_calls[7]"]["calls"]["value"] == 7
    assert {"before", "time:time to ready", "time:time p99"} <= recorded["test_all.py::test_time[a@b]"].keys()
    assert "compare ratio to ready" in recorded["test_all.py::test_compare"]
    assert metrics(project, "tpu-v5e")["test_all.py::test_collectives"]["step collectives"]["value"] == 7
    of_each = cases(project, "first.xml")
    assert len(of_each) == len({case.get("name") for case in of_each}) == 10

    project.makepyfile(
        test_all=TESTS.replace(" 7", " 8").replace("gather=7", "gather=8").replace("ratio=90", "ratio=0.1"),
        test_gone="",
    )
    result = project.runpytest_subprocess("--perf", "-n1", "--junitxml=second.xml")
    result.assert_outcomes(passed=5, failed=5)
    assert result.ret == 1
    assert places(project) == ["calls gw0", "time main", "timed main"]
    result.stdout.fnmatch_lines_random(
        [
            "3 tests for a quiet machine: now, in the main process",
            "*counted is 8 calls, +1 (+14.3 %) over the baseline 7 calls*",
            "*before is 8 things, +1 (+14.3 %) over the baseline 7 things*",
            "*step/step ratio to ready is * over the budget of 0.1 x*",
            "step collectives @ tpu-v5e is 8*grew: all-gather (+1) at model.py:10 in attention",
            "test_gone.py::test_gone is gone, or without perf*",
        ]
    )
    assert sorted(case.get("name") for case in cases(project, "second.xml") if case.find("failure") is not None) == [
        "test_collectives",
        "test_compare",
        "test_count",
        "test_gone",
        "test_time[a@b]",
    ]


def test_what_waits_runs_in_the_order_of_its_file(project):
    project.makepyfile(
        """
        import os
        import time
        import pytest
        from steps import *

        @pytest.mark.parametrize("number", [2, 1, 0])
        def test_time(perf, number):
            worker = "PYTEST_XDIST_WORKER" in os.environ
            time.sleep(number if worker else 0)
            with open("places.txt", "a") as file:
                file.write(f"{number} {'worker' if worker else 'main'}\\n")
            perf.time(call(step, state(), batch(), carry=1))
        """
    )
    project.runpytest_subprocess("--perf", "-n3").assert_outcomes(passed=3)
    lines = (project.path / "places.txt").read_text().splitlines()
    assert [line for line in lines if "main" in line] == ["2 main", "1 main", "0 main"]


def test_a_library_that_one_metric_names_is_of_all_metrics_of_the_test(project):
    project.makeini("[pytest]\npythonpath = site-packages\n")
    installed = project.path / "site-packages/dm_flowlib-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "top_level.txt").write_text("flowlib\n")
    (installed.parent / "flowlib.py").write_text("def spline(x):\n    return x\n")
    for version, count in (("1.0", 7), ("2.0", 8)):
        (installed / "METADATA").write_text(f"Name: dm-flowlib\nVersion: {version}\n")
        project.makepyfile(
            f"""
            from flowlib import spline
            from perfsuite import call

            def test_calls(perf):
                perf.record("counted", {count}, unit="calls", kind="count")
                perf.host_calls(call(lambda: spline(1)))
            """
        )
        result = project.runpytest_subprocess("--perf" if count == 8 else "--perf-save", "-n1")
    result.stdout.fnmatch_lines(["dm-flowlib 1.0 -> 2.0: counted is 8 calls, *"])


def test_a_damaged_file_is_the_error_of_the_tests_that_need_it(project):
    project.makepyfile(
        """
        def test_count(perf):
            perf.record("calls", 7, unit="calls", kind="count")

        def test_plain():
            pass
        """
    )
    (project.path / "baselines").mkdir(exist_ok=True)
    (project.path / "baselines/cpu.json").write_text("{")
    result = project.runpytest_subprocess("--perf", "-n1")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*BaselineError: *cpu.json:1: *"])


def test_a_test_that_asks_for_a_quiet_machine_waits_for_it_and_another_in_its_class_need_not(project):
    project.makepyfile(
        """
        import os

        import pytest

        @pytest.mark.perf(quiet=True)
        class TestOwnClock:
            def test_seconds(self, perf):
                assert "PYTEST_XDIST_WORKER" not in os.environ
                perf.record("seconds", 1.5, unit="s", kind="info")

            @pytest.mark.perf(quiet=False)
            def test_count(self, perf):
                assert "PYTEST_XDIST_WORKER" in os.environ
        """
    )
    result = project.runpytest_subprocess("--perf", "-n1")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["1 test for a quiet machine: now, in the main process"])
    project.runpytest_subprocess("--perf", "-k", "seconds").assert_outcomes(passed=1, deselected=1)


def test_where_no_report_can_be_taken_back_what_needs_a_quiet_machine_is_skipped_and_says_why(project):
    project.makeconftest(
        """
        from perfsuite.measure.private import libraries

        object.__setattr__(libraries._SEND, "name", "sendevent_moved")
        """
    )
    project.makepyfile(
        """
        import pytest
        from steps import *

        def test_time(perf):
            perf.time(call(step, state(), batch(), carry=1))

        @pytest.mark.perf(quiet=True)
        def test_own_clock(perf):
            raise AssertionError("other processes share the machine")

        def test_count(perf):
            perf.record("counted", 7, unit="calls", kind="count")
        """
    )
    result = project.runpytest_subprocess("--perf", "-n1", "-rs")
    result.assert_outcomes(passed=1, skipped=2)
    why = (
        "other processes share the machine under pytest-xdist; run it with `-n 0`. Leaving a test to the main process "
        "does not work with pytest-xdist * take a worker's report back.*"
    )
    result.stdout.fnmatch_lines_random([f"*perf.time: {why}", f"*@pytest.mark.perf(quiet=True): {why}"])


def places(project) -> list[str]:
    """Where tests ran since the last look, in their order in the file."""
    path = project.path / "places.txt"
    lines = path.read_text().splitlines()
    path.unlink()
    return sorted(lines)


def cases(project, name: str) -> list[ElementTree.Element]:
    """The tests of a JUnit file."""
    return list(ElementTree.parse(project.path / name).iter("testcase"))
