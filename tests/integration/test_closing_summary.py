"""What the terminal shows around the tests: the header, the few lines that close a session, and the table of -v."""

import jax
import pytest


def test_the_header_names_device_versions_and_baseline_file(project, perf_test):
    perf_test("perf.record('fusions', 3, unit='fusions', kind='count')")
    result = project.runpytest_inprocess("--perf")
    result.stdout.fnmatch_lines(
        [
            f"perfsuite: 8 x cpu (*), jax {jax.__version__}, jaxlib *, equinox *",
            "perfsuite: baselines baselines/cpu.json (no metrics yet: pytest --perf-save records them), size small",
        ]
    )
    project.runpytest_inprocess("--perf-save")
    result = project.runpytest_inprocess("--perf", "--perf-size=full")
    result.stdout.fnmatch_lines(["perfsuite: baselines baselines/cpu.json (1 metric), size full"])


def test_without_perf_there_is_no_header_and_no_summary(project, perf_test):
    perf_test("perf.record('fusions', 3, unit='fusions', kind='count')")
    result = project.runpytest_inprocess()
    result.stdout.no_fnmatch_line("*perfsuite:*")
    result.stdout.no_fnmatch_line("*metrics:*")


def test_a_green_session_is_ten_lines_within_the_width_however_many_metrics_there_are(project, perf_test, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    names = "[f'a metric with a long name and the number {n}' for n in range(12)]"
    project.makepyfile(
        test_many=f"""
import pytest
NAMES = {names}

@pytest.mark.parametrize("test", range(11))
def test_of_a_suite_with_long_names_of_tests_and_of_parameters(perf, test):
    for name in NAMES:
        perf.record(name, 12345678, unit="bytes accessed", kind="size")
"""
    )
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=11)
    result = project.runpytest_inprocess("--perf")
    result.assert_outcomes(passed=11)
    lines = [line for line in result.outlines if line.strip()]
    # Between pytest's header and its last line: perfsuite's header, the files with their dots, and what closes it.
    own = lines[[line.startswith("perfsuite: ") for line in lines].index(True) : -1]
    assert len(own) <= 10
    assert max(map(len, own)) <= 100
    result.stdout.fnmatch_lines(["132 metrics of 11 tests: 132 pass", "all metrics: pytest --perf -v*"])
    project.runpytest_inprocess("--perf", "-q").stdout.no_fnmatch_line("all metrics: *")
    verbose = project.runpytest_inprocess("--perf", "-v")
    table = verbose.outlines[verbose.outlines.index("132 metrics of 11 tests: 132 pass") - 132 - 11 - 1 :]
    assert table[0].split() == ["metric", "value", "against", "change", "verdict"]
    assert max(map(len, table)) <= 100


def test_with_v_the_table_has_every_gate_with_value_baseline_change_and_verdict(project, perf_test):
    perf_test(
        "perf.record('fusions', 3, unit='fusions', kind='count')", "perf.record('seconds', 1, unit='s', kind='info')"
    )
    project.runpytest_inprocess("--perf-save")
    perf_test(
        "perf.record('fusions', 3, unit='fusions', kind='count')",
        "perf.record('peak', 12345678, unit='bytes', kind='size')",
        "perf.record('seconds', 2.5, unit='s', kind='info')",
        "perf.host_calls(call(lambda x: [len(x)] * 3, [1]), budget=Budget(host_calls=5))",
    )
    result = project.runpytest_inprocess("--perf", "-v")
    result.stdout.fnmatch_lines(
        [
            "metric * value * against * change * verdict",
            "test_step.py::test_step",
            "  lambda host calls * 2 calls * 5 (budget) * pass",
            "  fusions * 3 fusions * 3 * pass",
            "  peak * 12,345,678 bytes * new",
            "  seconds * 2.5 s * 1 * +150 % * info",
            "  lambda host calls * 2 calls * new",
            "  lambda dispatches * 0 programs * new",
            "  lambda eager operations * 0 operations * new",
            "6 metrics of 1 test: 1 pass, 4 new, 1 info",
            "new: 4 metrics have no baseline: pytest --perf-save records them",
        ]
    )
    few = project.runpytest_inprocess("--perf")
    few.stdout.no_fnmatch_line("*fusions*")


def test_an_undecided_comparison_says_so_and_does_not_fail(project, perf_test):
    perf_test(
        "import random, time",
        "def noisy(x): time.sleep(random.choice([1e-3, 3e-3])); return x",
        "compared = perf.compare(call(noisy, batch()), call(noisy, batch()), Budget(ratio=1.0))",
        "assert compared.verdict == 'inconclusive'",
    )
    result = project.runpytest_inprocess("--perf", "--perf-seconds=0.5")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["inconclusive: 1 with the limit inside the interval", "  noisy/noisy ratio to ready: *"]
    )
    verbose = project.runpytest_inprocess("--perf", "--perf-seconds=0.5", "-v")
    verbose.stdout.fnmatch_lines(
        ["inconclusive: *noisy/noisy ratio to ready is *, undecided against the budget of 1 x"]
    )


def test_too_few_pairs_for_an_interval_are_inconclusive_and_never_gate(project, perf_test):
    perf_test(
        "import time",
        "def slow(x): time.sleep(0.06); return x",
        "compared = perf.compare(call(slow, batch()), call(slow, batch()), Budget(ratio=0.5))",
        "assert compared.verdict == 'inconclusive' and compared.pairs < 12",
    )
    result = project.runpytest_inprocess("--perf", "--perf-seconds=0.01")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "inconclusive: 1 of too few samples for an interval",
            "  slow/slow ratio to ready: *too few for an interval*",
        ]
    )


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


@pytest.mark.parametrize("options", [[], ["-n", "2"]], ids=["alone", "xdist"])
def test_what_a_test_that_passed_does_not_show_is_said(project, options):
    """A misspelt measurement, and a gate whose failure went no further than the test."""
    project.makepyfile(test_unnoticed=UNNOTICED)
    result = project.runpytest_inprocess("--perf", *options)
    result.assert_outcomes(passed=11, skipped=1)
    said = [line for line in result.outlines if line.startswith("test_unnoticed.py::test_")]
    assert sorted(said) == [
        "test_unnoticed.py::test_that_catches passed although sorted host calls failed its budget: the test caught the error",
        "test_unnoticed.py::test_without_parentheses has perf, and calls none of its instruments: it measures nothing",
        "test_unnoticed.py::test_without_with calls perf.no_compiles() and never enters it, so it checks nothing: "
        "with perf.no_compiles(): ...",
    ]
