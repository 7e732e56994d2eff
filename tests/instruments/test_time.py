"""`perf.time`: which of its times gate, and which only inform because the host's load decides them."""

import json

import pytest
from support.fakes import FakeBlocks, takes

from perfsuite.measure.timing import timing


@pytest.fixture
def timed(project, monkeypatch):
    """Run `perf.time` of a call that takes so many microseconds to return and to be ready; the verdicts, by metric."""
    FakeBlocks().install(monkeypatch, timing)
    assert takes  # which the tests of the project import

    def timed(to_return, to_ready, *options, passes=True, extra=""):
        project.makepyfile(
            test_step=f"""
            from perfsuite import Budget, call
            from support.fakes import takes
            def test_step(perf): perf.time(call(takes(({to_return}, {to_ready}), name="step")){extra})
            """
        )
        result = project.runpytest_inprocess(*(options or ["--perf"]), "--perf-report=report")
        result.assert_outcomes(**{"passed" if passes else "failed": 1})
        rows = json.loads((project.path / "report/report.json").read_text())["tests"][0]["results"]
        return {row["title"].removeprefix("step "): row["verdict"] for row in rows if row["source"] != "budget"}

    return timed


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
    (metrics,) = json.loads((project.path / "baselines/cpu.json").read_text())["metrics"].values()
    assert tuple(metrics[f"time {what}"]["kind"] for what in ("to return", "to ready", "p99")) == kinds


@pytest.mark.parametrize(
    ("was", "now", "verdicts"),
    [
        ((80, 1000), (270, 1000), ("info", "pass")),
        ((1000, 1000), (2100, 2100), ("fail", "fail")),
        ((1000, 1000), (100, 1000), ("not comparable", "pass")),
        ((960, 1000), (900, 1000), ("pass", "pass")),
        ((960, 1000), (500, 1000), ("pass", "pass")),
        ((900, 1000), (970, 1000), ("info", "pass")),
    ],
    ids=["returns early", "waits", "waited and returns early", "keeps its kind", "still keeps it", "keeps the other"],
)
def test_a_call_is_judged_by_the_times_that_are_its_own(timed, was, now, verdicts):
    timed(*was, "--perf-save")
    times = timed(*now, passes="fail" not in verdicts)
    assert (times["to return"], times["to ready"]) == verdicts


def test_a_save_on_a_busy_machine_keeps_what_gates(project, timed):
    for to_return, kind in ((960, "time"), (600, "time"), (100, "info"), (900, "info"), (960, "time")):
        timed(to_return, 1000, "--perf-save")
        (metrics,) = json.loads((project.path / "baselines/cpu.json").read_text())["metrics"].values()
        assert metrics["time to return"]["kind"] == kind, to_return


def test_a_call_of_few_samples_is_undecided(timed):
    timed(1000, 1000, "--perf-save")
    times = timed(1000, 1000, "--perf", "--perf-seconds=0.003")
    assert (times["to return"], times["to ready"]) == ("inconclusive", "inconclusive")


@pytest.mark.parametrize(("limit", "passes"), [(1100, True), (900, False)])
def test_a_budget_on_the_time_is_one_on_the_median_to_ready_whatever_the_baseline(timed, limit, passes):
    timed(10, 1000, passes=passes, extra=f", budget=Budget(time_us={limit})")
