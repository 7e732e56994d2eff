"""`perf.time`: which of its times gate, and which only inform because the host's load decides them."""

import json

import pytest
from support.fakes import FakeBlocks, takes

from perfsuite.measure.timing import timing


@pytest.fixture(autouse=True)
def fake_blocks(monkeypatch):
    """Blocks on a clock of their own."""
    FakeBlocks().install(monkeypatch, timing)
    assert takes  # which the tests of the project import


@pytest.fixture
def timed(project):
    """Run `perf.time` of a call that takes so many microseconds to return and to be ready; the verdicts, by metric."""

    def timed(to_return, to_ready, *options, passes=True, extra=""):
        project.makepyfile(
            test_step=f"""
            from perfsuite import Budget, call
            from support.fakes import takes
            def test_step(perf): perf.time(call(takes(({to_return}, {to_ready}), name="step")){extra})
            """
        )
        result = project.runpytest_inprocess(*(options or ["--perf"]), "-v", "--perf-report=report")
        result.assert_outcomes(**{"passed" if passes else "failed": 1})
        report = json.loads((project.path / "report/report.json").read_text())
        rows = report["tests"][0]["metrics"]
        return {row["title"].removeprefix("step "): row["verdict"] for row in rows if row["source"] != "budget"}, result

    return timed


def recorded(project):
    (metrics,) = json.loads((project.path / "baselines/cpu.json").read_text())["metrics"].values()
    return {name.removeprefix("time "): entry["kind"] for name, entry in metrics.items()}


@pytest.mark.parametrize(
    ("to_return", "to_ready", "kinds"),
    [
        (1000, 1000, ("time", "time", "time")),
        (10, 10.2, ("time", "time", "info")),
        (100, 1000, ("info", "time", "time")),
        (900, 999, ("info", "time", "info")),
        (7, 44, ("info", "info", "info")),
    ],
)
def test_a_time_that_the_load_of_the_host_decides_is_information(project, timed, to_return, to_ready, kinds):
    timed(to_return, to_ready, "--perf-save")
    assert recorded(project) == dict(zip(("to return", "to ready", "p99"), kinds, strict=True))


def test_a_call_that_returns_early_may_return_later_and_still_passes(timed):
    timed(80, 1000, "--perf-save")
    verdicts, _ = timed(270, 1000)
    assert (verdicts["to return"], verdicts["to ready"]) == ("info", "pass")


def test_a_call_that_waits_fails_by_both_of_its_times(timed):
    timed(1000, 1000, "--perf-save")
    verdicts, result = timed(2100, 2100, passes=False)
    assert (verdicts["to return"], verdicts["to ready"]) == ("fail", "fail")
    result.stdout.fnmatch_lines(["*step to return is 2100 us [[]2100, 2100], +110 % over the baseline 1000 us*"])


@pytest.mark.parametrize(("was", "now", "verdict"), [(96, 90, "pass"), (90, 97, "info"), (96, 81, "pass")])
def test_a_call_near_the_boundary_keeps_the_kind_of_its_baseline(timed, was, now, verdict):
    timed(10 * was, 1000, "--perf-save")
    verdicts, _ = timed(10 * now, 1000)
    assert verdicts["to return"] == verdict


def test_a_call_that_waited_and_returns_early_now_loses_its_gate_and_says_so(timed):
    timed(1000, 1000, "--perf-save")
    verdicts, result = timed(100, 1000)
    assert (verdicts["to return"], verdicts["to ready"]) == ("not comparable", "pass")
    result.stdout.fnmatch_lines(["*step to return: recorded as time, and now information, *--perf-save replaces it"])


def test_a_call_of_few_samples_is_undecided_and_says_what_would_settle_it(timed):
    timed(1000, 1000, "--perf-save")
    verdicts, result = timed(1000, 1000, "--perf", "--perf-seconds=0.003")
    assert (verdicts["to return"], verdicts["to ready"]) == ("inconclusive", "inconclusive")
    result.stdout.fnmatch_lines(
        ["to settle it: a narrower interval (more samples: --perf-seconds), or a wider tolerance="]
    )


@pytest.mark.parametrize(("limit", "passes"), [(1100, True), (900, False)])
def test_a_budget_on_the_time_is_one_on_the_median_to_ready_whatever_the_baseline(timed, limit, passes):
    _, result = timed(10, 1000, passes=passes, extra=f", budget=Budget(time_us={limit})")
    if not passes:
        result.stdout.fnmatch_lines(["*step to ready is * over the budget of 900 us*"])
