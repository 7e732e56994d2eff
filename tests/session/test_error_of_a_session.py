"""The error that a session may make, shared out over its comparisons; and what an open one says would settle it."""

import re

import pytest
from support.fakes import FakeBlocks

from perfsuite.gate.budget import Budget
from perfsuite.gate.limits import Compared
from perfsuite.measure.stats.error_rates import DECIDING_ERROR, SESSION_ERROR, error_of_gate
from perfsuite.measure.timing import comparison
from perfsuite.measure.timing.comparison import Comparison, compare_calls
from perfsuite.session import mode, modes


@pytest.fixture(autouse=True)
def fake_blocks(monkeypatch):
    """Blocks on a clock of their own."""
    FakeBlocks().install(monkeypatch, comparison)


@pytest.fixture
def errors(monkeypatch):
    """The errors that comparisons are given, in turn; they see three pairs only."""
    given = []

    def compare(*calls, error, seconds, **arguments) -> Comparison:
        given.append(error)
        return compare_calls(*calls, error=error, seconds=1e-6, **arguments)

    monkeypatch.setattr(mode, "compare_calls", compare)
    return given


def compared(*budgets: Budget | None) -> str:
    """A test that makes as many comparisons."""
    lines = [
        f"    perf.compare(call(takes(100)), call(takes(100)), {'Budget(ratio=9)' if budget else ''})"
        for budget in budgets
    ]
    return "\n".join(lines)


def write(project, **tests: str) -> None:
    functions = [f"def test_{name}(perf):\n{body}\n" for name, body in tests.items()]
    project.makepyfile("\n".join(["from perfsuite import Budget, call", "from support.fakes import takes", *functions]))


LIMITED, OPEN = Budget(ratio=9), None


def test_each_test_without_a_baseline_is_expected_to_make_one_comparison(project, errors):
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


def test_the_ratios_of_the_baseline_are_expected(project, errors, monkeypatch):
    write(project, many=compared(*[LIMITED] * 12), none="    perf.record('n', 1, unit='x', kind='count')")
    with monkeypatch.context() as patch:
        patch.setattr(mode, "compare_calls", compare_calls)
        project.runpytest_inprocess("--perf-save").assert_outcomes(passed=2)
    errors.clear()
    (file,) = (project.path / "baselines").glob("*.json")
    assert file.read_text().count('"kind": "ratio"') == 12
    project.runpytest_inprocess("--perf").assert_outcomes(passed=2)
    assert errors == [SESSION_ERROR / 2 / 12] * 12


def test_half_is_kept_where_further_processes_may_follow(project, errors, monkeypatch):
    monkeypatch.setattr(modes.Gating, "_further", lambda self, pair, first, limits: Compared(first))
    write(project, one=compared(LIMITED))
    project.runpytest_inprocess("--perf", "--perf-processes=2").assert_outcomes(passed=1)
    assert errors == [error_of_gate(1, 1) / 2]


NOISY = """
import random
from perfsuite import Budget, call
from support.fakes import takes

def noisy(seed):
    drawn = random.Random(seed)
    return call(takes(*(drawn.uniform(1000, 2000) for _ in range(999)), name="noisy"))

"""


def test_an_open_budget_says_what_would_settle_it(project):
    project.makepyfile(NOISY + "def test_step(perf): perf.compare(noisy(0), noisy(1), Budget(ratio=1.03))")
    result = project.runpytest_inprocess("--perf", "--perf-seconds=0.2")
    assert re.search(
        r"^inconclusive: .*\nto settle it: (about \d+ more seconds? of sampling \(--perf-seconds=\d+\)$|more than 10 min|"
        r"its estimate lies within 0\.1%)",
        result.stdout.str(),
        re.MULTILINE,
    )


def test_an_open_baseline_says_what_would_settle_it(project):
    project.makepyfile(NOISY + "def test_step(perf): perf.compare(noisy(0), noisy(1))")
    project.runpytest_inprocess("--perf-save", "--perf-seconds=0.2").assert_outcomes(passed=1)
    (file,) = (project.path / "baselines").glob("*.json")
    file.write_text(re.sub(r'("kind": "ratio",[^}]*?"value": )[\d.]+', r"\g<1>0.98", file.read_text()))
    result = project.runpytest_inprocess("--perf", "--perf-seconds=0.2")
    assert re.search(r"^inconclusive: .*the baseline 0\.98 x.*\nto settle it: ", result.stdout.str(), re.MULTILINE)
