"""`perf.compare`: a comparison that its time leaves open is no pass, and says what would settle it."""

import pytest
from support.fakes import FakeBlocks

from perfsuite.measure.timing import comparison

NOISY = """
import random
from perfsuite import Budget, call
from support.fakes import takes

def noisy(seed):
    drawn = random.Random(seed)
    return call(takes(*(drawn.uniform(1000, 2000) for _ in range(999)), name="noisy"))

def test_step(perf):
    perf.compare(noisy(0), noisy(1){})
    perf.record("after", 3, unit="things", kind="count")
"""


@pytest.fixture(autouse=True)
def fake_blocks(monkeypatch):
    """Blocks on a clock of their own."""
    FakeBlocks().install(monkeypatch, comparison)


@pytest.fixture
def gated(project):
    """Run a comparison of two noisy calls whose medians are alike, with this budget; returns pytest's result."""

    def gated(*options, budget=""):
        project.makepyfile(NOISY.format(f", {budget}" if budget else ""))
        return project.runpytest_inprocess(*(options or ["--perf"]), "-v", "--perf-seconds=3")

    return gated


UNDECIDED = "*noisy/noisy ratio to ready is *, undecided against the budget of 1.0001 x*"
SETTLES = "to settle it: *"


def test_an_open_budget_fails_nothing_and_says_what_would_settle_it(gated):
    result = gated(budget="Budget(ratio=1.0001)")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"inconclusive: {UNDECIDED}", SETTLES])


def test_strictly_it_fails_when_the_test_has_ended(gated):
    result = gated("--perf", "--perf-strict=inconclusive", budget="Budget(ratio=1.0001)")
    result.assert_outcomes(failed=1)
    undecided = f"{UNDECIDED}fails because it is undecided (--perf-strict=inconclusive)"
    result.stdout.fnmatch_lines([undecided, SETTLES, "  after *"])
    result.stdout.no_fnmatch_line("*likely cause*")


def test_too_few_pairs_are_undecided_against_a_recorded_ratio(project, gated):
    gated("--perf-save").assert_outcomes(passed=1)
    (file,) = (project.path / "baselines").glob("*.json")
    assert '"kind": "ratio"' in file.read_text()
    gated("--perf", "--perf-strict=inconclusive").assert_outcomes(passed=1)
    project.makepyfile(NOISY.format(""))
    result = project.runpytest_inprocess("--perf", "-v", "--perf-seconds=0.001")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["inconclusive: *noisy/noisy ratio to ready is *", "to settle it: *pairs are too few*"])


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ('perf.compare(noisy(0), noisy(1), until="redy")', "*perf.compare(until=...) must be one of 'return', 'ready', got 'redy'"),
        ('perf.scaling(lambda n: (noisy(n), n), [1, 2], metric="hostcalls")', "*perf.scaling(metric=...) must be one of *'host_calls', *got 'hostcalls'"),
    ],
)  # fmt: skip
def test_a_misspelt_choice_names_the_argument_and_the_choices(project, made, said):
    project.makepyfile(NOISY.format("").replace("perf.compare(noisy(0), noisy(1))", made))
    result = project.runpytest_inprocess("--perf")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([said])
