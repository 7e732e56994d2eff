"""`perf.compare`: a comparison that its time leaves open is no pass, and says what would settle it."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from support.fakes import FakeBlocks

from perfsuite import call
from perfsuite.instruments.compare import _slow_path
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
"""


@pytest.fixture
def gated(project, monkeypatch):
    """Compare two noisy calls whose medians are alike: gives pytest's result, and the verdicts of budget and baseline on the ratio."""
    FakeBlocks().install(monkeypatch, comparison)

    def gated(*options, budget=""):
        project.makepyfile(NOISY.format(budget))
        result = project.runpytest_inprocess("--perf-seconds=3", "--perf-report=report", *options)
        rows = json.loads((project.path / "report/report.json").read_text())["tests"][0]["results"]
        return result, [row["verdict"] for row in rows if "ratio" in row["title"]]

    return gated


@pytest.mark.parametrize(
    ("strict", "outcome", "verdict"),
    [("--perf-strict=new,inconclusive", "failed", "fail"), ("--perf-strict=new", "passed", "inconclusive")],
)
def test_an_open_budget_fails_only_where_what_is_inconclusive_fails(gated, strict, outcome, verdict):
    gated("--perf-save")
    result, verdicts = gated("--perf", strict, budget=", Budget(ratio=1.01)")
    result.assert_outcomes(**{outcome: 1})
    assert verdicts == [verdict, "pass"]
    result.stdout.fnmatch_lines(["*: a narrower interval (more samples: --perf-seconds), or a wider budget"])


def test_too_few_pairs_are_undecided_against_a_recorded_ratio(gated):
    gated("--perf-save")
    assert gated("--perf")[1] == ["pass"]
    result, verdicts = gated("--perf", "--perf-seconds=0.001")
    result.assert_outcomes(passed=1)
    assert verdicts == ["inconclusive"]


def test_a_candidate_that_leaves_the_fast_path_says_why():
    quick = jax.jit(lambda x: x * 2)
    slow = jax.jit(lambda x: (jax.debug.callback(lambda y: None, x), x * 2)[1])
    x = jnp.ones(3)
    assert "it has effects (DebugEffect)" in _slow_path(
        SimpleNamespace(candidate=call(slow, x), reference=call(quick, x))
    )
    assert not _slow_path(SimpleNamespace(candidate=call(quick, x), reference=call(slow, x)))
