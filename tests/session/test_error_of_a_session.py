"""The error that a session may make, shared out over its comparisons; and what an open one says would settle it."""

import re

import pytest

from perfsuite.gate.budget import Budget
from perfsuite.measure.stats.error_rates import DECIDING_ERROR, SESSION_ERROR, error_of_gate
from perfsuite.measure.timing.comparison import Comparison, compare_calls

pytestmark = pytest.mark.alone


@pytest.fixture
def errors(monkeypatch):
    """The errors that comparisons are given, in turn; they see three pairs only."""
    given = []

    def compare(*calls, error, seconds, **arguments) -> Comparison:
        given.append(error)
        return compare_calls(*calls, error=error, seconds=1e-6, **arguments)

    monkeypatch.setattr("perfsuite.measure.timing.comparison.compare_calls", compare)
    return given


def compared(*budgets: Budget | None) -> str:
    """A test that makes as many comparisons."""
    lines = [
        f"    perf.compare(call(sum, range(999)), call(sum, range(999)), {'Budget(ratio=9)' if budget else ''})"
        for budget in budgets
    ]
    return "\n".join(lines)


def write(project, **tests: str) -> None:
    functions = [f"def test_{name}(perf):\n{body}\n" for name, body in tests.items()]
    project.makepyfile("\n".join(["from perfsuite import Budget, call", *functions]))


LIMITED, OPEN = Budget(ratio=9), None


def test_each_test_without_metrics_on_file_is_expected_to_make_one_comparison(project, errors):
    names = "abcdefghij"
    write(project, **dict.fromkeys(names, compared(LIMITED)))
    project.runpytest_inprocess("--perf").assert_outcomes(passed=10)
    assert errors == [SESSION_ERROR / 2 / 10] * 10


def test_comparisons_beyond_those_expected_take_from_the_other_half(project, errors):
    write(project, one=compared(*[LIMITED] * 4))
    project.runpytest_inprocess("--perf").assert_outcomes(passed=1)
    assert errors == [error_of_gate(gate, 1) for gate in range(1, 5)]
    assert len(set(errors)) > 2


def test_a_comparison_without_a_limit_takes_no_share(project, errors):
    write(project, one=compared(OPEN, OPEN, LIMITED))
    project.runpytest_inprocess("--perf").assert_outcomes(passed=1)
    assert errors == [DECIDING_ERROR, DECIDING_ERROR, error_of_gate(1, 1)]


def test_tests_that_are_not_run_and_tests_without_perf_are_not_expected(project, errors):
    write(project, **dict.fromkeys(("a", "b", *(f"deselected{n}" for n in range(20))), compared(LIMITED)))
    project.makepyfile(test_others="".join(f"def test_{n}(): pass\n" for n in range(20)))
    project.runpytest_inprocess("--perf", "-k", "not deselected").assert_outcomes(passed=22)
    assert errors == [error_of_gate(1, 2)] * 2


def test_the_ratios_on_file_are_expected(project, errors, monkeypatch):
    write(project, many=compared(*[LIMITED] * 12), none="    perf.record('n', 1, unit='x', kind='count')")
    with monkeypatch.context() as patch:
        patch.setattr("perfsuite.measure.timing.comparison.compare_calls", of_enough_pairs)
        project.runpytest_inprocess("--perf-save").assert_outcomes(passed=2)
    errors.clear()
    (file,) = (project.path / "baselines").glob("*.json")
    on_file = file.read_text().count('"kind": "ratio"')
    assert on_file > 6, "of 12; where the machine stood still, the pairs were too few for a ratio"
    project.runpytest_inprocess("--perf").assert_outcomes(passed=2)
    assert errors == [error_of_gate(gate, on_file) for gate in range(1, 13)]
    assert errors[0] == SESSION_ERROR / 2 / on_file


def of_enough_pairs(*calls, error, seconds, **arguments) -> Comparison:
    return compare_calls(*calls, error=error, seconds=0.05, **arguments)


def test_half_is_kept_where_further_processes_may_follow(project, errors, monkeypatch):
    monkeypatch.setattr(
        "perfsuite.instruments.comparison_processes.Processes.settle", lambda self, name, comparison, held: comparison
    )
    write(project, one=compared(LIMITED))
    project.runpytest_inprocess("--perf", "--perf-processes=2").assert_outcomes(passed=1)
    assert errors == [error_of_gate(1, 1) / 2]


NOISY = """
import random, time
from perfsuite import Budget, call
def noisy(): time.sleep(random.uniform(1e-3, 2e-3))
"""


def test_an_open_budget_says_what_would_settle_it(project):
    project.makepyfile(NOISY + "def test_step(perf): perf.compare(call(noisy), call(noisy), Budget(ratio=1.03))")
    result = project.runpytest_inprocess("--perf", "--perf-seconds=0.2")
    assert re.search(
        r"^inconclusive: .*\nto settle it: (about \d+ more seconds? of sampling \(--perf-seconds=\d+\)$|more than 10 min|"
        r"its estimate lies within 0\.1%)",
        result.stdout.str(),
        re.MULTILINE,
    )


def test_an_open_baseline_says_what_would_settle_it(project):
    project.makepyfile(NOISY + "def test_step(perf): perf.compare(call(noisy), call(noisy))")
    project.runpytest_inprocess("--perf-save", "--perf-seconds=0.2").assert_outcomes(passed=1)
    (file,) = (project.path / "baselines").glob("*.json")
    file.write_text(re.sub(r'("kind": "ratio",[^}]*?"value": )[\d.]+', r"\g<1>0.98", file.read_text()))
    result = project.runpytest_inprocess("--perf", "--perf-seconds=0.2")
    assert re.search(r"^inconclusive: .*the baseline is 0\.98 x.*\nto settle it: ", result.stdout.str(), re.MULTILINE)
