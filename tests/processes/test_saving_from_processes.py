"""`--perf-save` takes sampled metrics from several processes, and says which ones differ much between them."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from perfsuite.measure.metric import Interval, Metric
from perfsuite.processes import rerun as processes
from perfsuite.session.saving import Saving, is_narrow, over_processes

BODY = """
import os

def test_step(perf):
    perf.record("ratio", RATIO, unit="x", kind="ratio", interval=(RATIO - 0.01, RATIO + 0.01))
    perf.record("time", TIME, unit="us", kind="time", interval=(TIME - 1, TIME + 1))
    perf.record("calls", 3, unit="calls", kind="count")
"""


def seen(ratio, time=100.0):
    return [
        Metric("ratio", ratio, "x", "ratio", interval=Interval(ratio - 0.01, ratio + 0.01), samples=10),
        Metric("time", time, "us", "time", interval=Interval(time - 1, time + 1), samples=10),
        Metric("calls", 4, "calls", "count"),
    ]


@pytest.fixture
def project(pytester):
    pytester.makeini("[pytest]\naddopts = -p no:cacheprovider\n")
    return pytester


@pytest.fixture
def write(project):
    def write(ratio, time=100.0):
        project.makepyfile(test_it=f"RATIO, TIME = {ratio}, {time}\n{BODY}")

    return write


def saved(project, test="test_it.py::test_step"):
    (file,) = (project.path / "baselines").glob("*.json")
    return json.loads(file.read_text())["metrics"][test]


def test_two_fresh_processes_measure_the_whole_test_once_each(project):
    """Real ones: each sees a ratio of its own, and appends to a file that it ran."""
    project.makepyfile(
        test_it="from pathlib import Path\n"
        "runs = Path(__file__).with_name('runs')\n"
        "with runs.open('a') as file: file.write('1')\n"
        "RATIO, TIME = {1: 1.014, 2: 1.0, 3: 1.007}[len(runs.read_text())], 100\n" + BODY
    )
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=1)
    assert (project.path / "runs").read_text() == "111"
    entry = saved(project)["ratio"]
    # Student's interval of one more: 4.303 deviations of 0.7 % times sqrt(1 + 1/3).
    assert (entry["value"], entry["low"], entry["high"]) == (1.00698, 0.972799, 1.04237)
    assert saved(project)["calls"]["value"] == 3


def test_a_metric_that_not_every_process_measures_is_said(project):
    project.makepyfile(
        test_it="from pathlib import Path\n"
        "runs = Path(__file__).with_name('runs')\n"
        "with runs.open('a') as file: file.write('1')\n"
        "RATIO, TIME = 1.0, 100\n"
        + BODY
        + "    if len(runs.read_text()) != 2:\n"
        + "        perf.record('at times', 1.0, unit='x', kind='ratio', interval=(0.99, 1.01))\n"
    )
    result = project.runpytest_inprocess("--perf-save")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["test_it.py::test_step: at times: only 2 of 3 processes gave it with an interval"])
    result.stdout.no_fnmatch_line("*test_step: ratio: only*")


THREE = """
from pathlib import Path
import pytest

@pytest.fixture(scope="module")
def ratio():
    runs = Path(__file__).with_name("runs")
    with runs.open("a") as file:
        file.write("1")
    return {1: 1.014, 2: 1.0}.get(len(runs.read_text()), 1.007)

def record(perf, ratio):
    perf.record("ratio", ratio, unit="x", kind="ratio", interval=(ratio - 0.01, ratio + 0.01))

def test_first(perf, ratio):
    record(perf, ratio)

def test_second(perf, ratio):
    record(perf, 2 * ratio)

def test_calls(perf, ratio):
    perf.record("calls", 3, unit="calls", kind="count")

def test_third(perf, ratio):
    record(perf, 3 * ratio)
"""


def of_tests(**ratios):
    return {f"test_it.py::test_{name}": seen(ratio) for name, ratio in ratios.items()}


def test_a_fresh_process_measures_all_tests_of_a_file_with_what_they_share(project):
    project.makepyfile(test_it=THREE)
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=4)
    assert (project.path / "runs").read_text() == "111", "the fixture is made once in each of three processes"
    values = [saved(project, f"test_it.py::test_{name}")["ratio"]["value"] for name in ("first", "second", "third")]
    assert values == [1.00698, 2.01397, 3.02095]


def test_a_test_that_a_fresh_process_did_not_come_to_starts_one_when_it_is_its_turn(project, further):
    project.makepyfile(test_it=THREE)
    both = of_tests(first=1.014, second=2.02, third=3.04)
    requests = further(both, of_tests(first=1.014), of_tests(second=2.02), of_tests(third=3.04))
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=4)
    assert [(each.test.removeprefix("test_it.py::test_"), len(each.others)) for each in requests] == [
        ("first", 3),
        ("first", 3),
        ("second", 2),
        ("third", 0),
    ]
    assert {Path(each.argument).name for each in requests} == {"test_it.py"}


def test_what_is_handed_over_already_is_not_measured_again(project, further):
    project.makepyfile(test_it=THREE)
    without_second = of_tests(first=1.014, third=3.04)
    requests = further(without_second, without_second, of_tests(second=2.02), of_tests(second=2.02))
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=4)
    others = [[test.removeprefix("test_it.py::test_") for test in each.others] for each in requests]
    assert others == [["second", "calls", "third"]] * 2 + [["calls"]] * 2


def test_the_reason_is_that_of_the_test_and_not_of_one_after_it(project):
    unused = (
        "@pytest.mark.perf\ndef test_first(request, ratio):\n"
        "    if ratio != 1.014: return\n    perf = request.getfixturevalue('perf')\n"
    )
    broken = "def test_second(perf, ratio):\n    assert ratio == 1.014, 'of the second'\n"
    content = THREE.replace("def test_first(perf, ratio):\n", unused)
    project.makepyfile(test_it=content.replace("def test_second(perf, ratio):\n", broken))
    result = project.runpytest_inprocess("--perf-save", "-k", "first or second")
    result.stdout.fnmatch_lines(["test_it.py::test_first: *measured nothing: the test ended there without using perf"])


def test_a_process_that_only_one_test_needs_measures_that_one(project, further):
    project.makepyfile(test_it=THREE)
    twice = [of_tests(first=1.2, second=2.02, third=3.04), of_tests(first=1.0, second=2.01, third=3.03)]
    requests = further(*twice, of_tests(first=1.1), of_tests(first=1.1))
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=4)
    assert [len(each.others) for each in requests] == [3, 3, 0, 0]


def test_a_test_whose_baseline_has_nothing_sampled_is_not_measured_beside_others(project, further):
    project.makepyfile(test_it=THREE)
    twice = [of_tests(first=1.014, second=2.02, third=3.04)] * 2
    requests = further(*twice, *twice)
    for _ in range(2):
        project.runpytest_inprocess("--perf-save").assert_outcomes(passed=4)
    others = [[test.removeprefix("test_it.py::test_") for test in each.others] for each in requests]
    assert others == [["second", "calls", "third"]] * 2 + [["second", "third"]] * 2


def test_a_test_that_fails_in_a_fresh_process_leaves_the_metrics_of_the_others(project):
    broken = "def test_second(perf, ratio):\n    assert ratio == 1.014, 'only in the first process'\n"
    project.makepyfile(test_it=THREE.replace("def test_second(perf, ratio):\n", broken))
    result = project.runpytest_inprocess("--perf-save")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(
        [
            "test_it.py::test_second: its ratios and times are of 1 of 3 processes, because a fresh one measured nothing: "
            "the test failed there (AssertionError: only in the first process*"
        ]
    )
    assert saved(project, "test_it.py::test_third")["ratio"]["value"] == 3.02095


def test_a_metric_that_is_not_narrow_after_three_processes_takes_up_to_five(project, further, write):
    write(1.0)
    requests = further(seen(1.0), seen(1.1), seen(1.05), seen(1.0), "one too many")
    project.runpytest_inprocess("--perf-save")
    assert len(requests) == 4
    assert {each.metric for each in requests} == {None}


def test_processes_end_as_soon_as_all_metrics_are_narrow(project, further, write):
    write(1.0)
    requests = further(seen(1.0), seen(1.025), seen(1.01), "one too many")
    result = project.runpytest_inprocess("--perf-save")
    assert result.ret == 0
    assert len(requests) == 3, "of three processes the next may be 1.082, of four 1.051"
    assert saved(project)["ratio"]["high"] == pytest.approx(1.05147, abs=1e-5)


def test_a_metric_that_never_gets_narrow_is_saved_wide_and_a_line_says_where_its_limit_starts(project, further, write):
    write(2.0, 150)
    further(seen(2.5, 150), seen(2.0, 151), seen(2.2, 152), seen(2.1, 151))
    result = project.runpytest_inprocess("--perf-save", "--perf-report=out")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "test_it.py::test_step: ratio: 5 processes saw 2, 2.5, 2, 2.2, 2.1 x, so the limit of its gate starts at 2.852; "
            "for a closer one allow more seconds (--perf-seconds)"
        ]
    )
    assert result.stdout.str().count("processes saw") == 1, "the time is known well against its tolerance"
    assert saved(project)["ratio"]["high"] == pytest.approx(2.852, abs=1e-3)
    assert "5 processes saw" in (project.path / "out/report.json").read_text()


def test_a_time_that_never_gets_narrow_is_one_to_compare_in_one_run(project, further, write):
    write(1.0, 150)
    further(seen(1.0, 900), seen(1.0, 150), seen(1.0, 2000), seen(1.0, 150))
    result = project.runpytest_inprocess("--perf-save")
    result.stdout.fnmatch_lines(
        [
            "test_it.py::test_step: *: 5 processes saw 150, 900, 150, 2,000, 150 us, so the limit of its gate starts at *; "
            "for a closer one use perf.compare, or allow more seconds (--perf-seconds)"
        ]
    )


def test_a_wide_baseline_gates_from_its_end_and_the_next_narrow_save_takes_its_place(project, further, write):
    write(2.0)
    further(*[seen(ratio) for ratio in (2.5, 2.0, 2.2, 2.1)])
    assert project.runpytest_inprocess("--perf-save").ret == 0
    for ratio, fails in ((2.9, False), (3.1, True)):
        write(ratio)
        project.runpytest_inprocess("--perf").assert_outcomes(passed=not fails, failed=fails)
    write(2.2)
    further(seen(2.2), seen(2.21))
    assert project.runpytest_inprocess("--perf-save").ret == 0
    assert saved(project)["ratio"]["value"] == pytest.approx(2.203, abs=1e-3)
    assert saved(project)["ratio"]["high"] < 2.3


def test_a_wider_tolerance_of_the_test_allows_a_wider_interval(project, further):
    project.makepyfile(
        test_it=f"RATIO, TIME = 2.0, 100\nimport pytest\npytestmark = pytest.mark.perf(tolerance=0.3)\n{BODY}"
    )
    requests = further(seen(2.1), seen(2.2), "one too many")
    result = project.runpytest_inprocess("--perf-save")
    assert len(requests) == 2
    assert "processes saw" not in result.stdout.str()


def test_a_test_that_cannot_run_again_is_saved_from_what_there_is_and_a_line_says_so(project, further, write):
    write(1.0)
    requests = further("it ended with SIGABRT", "one too many")
    result = project.runpytest_inprocess("--perf-save")
    assert result.ret == 0
    assert len(requests) == 1
    result.stdout.fnmatch_lines(
        [
            "test_it.py::test_step: its ratios and times are of 1 of 3 processes, because a fresh one measured nothing: "
            "it ended with SIGABRT"
        ]
    )
    assert saved(project)["ratio"]["value"] == 1.0


@pytest.mark.parametrize("options", [["--perf-save", "--perf-processes=1"], ["--perf"]], ids=["one process", "gating"])
def test_what_starts_no_process(project, further, write, options):
    write(1.0)
    requests = further()
    assert project.runpytest_inprocess(*options).ret == 0
    assert requests == []


def test_a_test_without_sampled_metrics_starts_no_process(project, further):
    project.makepyfile("def test_step(perf): perf.record('calls', 3, unit='calls', kind='count')")
    requests = further()
    assert project.runpytest_inprocess("--perf-save").ret == 0
    assert requests == []


def test_ctrl_c_while_a_fresh_process_runs_saves_nothing(project, monkeypatch, write):
    def interrupted(config, request):
        raise KeyboardInterrupt

    monkeypatch.setattr(processes, "measure_again", interrupted)
    write(1.0)
    result = project.runpytest_inprocess("--perf-save", no_reraise_ctrlc=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert not [*(project.path / "baselines").glob("*.json")]
    assert Path.cwd() == project.path


# What is made of several.


def sampled(value, low, high, **fields):
    return Metric("ratio", value, "x", "ratio", interval=Interval(low, high), **fields)


def test_the_metric_of_several_processes_is_their_mean_with_the_interval_of_one_more():
    values = [1.1, 1.0, 1.3]
    made = over_processes([sampled(value, value - 0.05, value + 0.05, samples=5) for value in values])
    logs = np.log(values)
    spread = stats.t.ppf(0.975, 2) * np.std(logs, ddof=1) * np.sqrt(1 + 1 / 3)
    assert (made.value, made.samples) == (pytest.approx(np.exp(np.mean(logs))), 15)
    assert made.interval.low == pytest.approx(np.exp(np.mean(logs) - spread))
    assert made.interval.high == pytest.approx(np.exp(np.mean(logs) + spread))


def test_a_metric_that_may_be_zero_or_less_has_no_logarithms():
    made = over_processes([sampled(value, value - 0.001, value + 0.001) for value in (-0.01, 0.0, 0.01)])
    assert made.value == pytest.approx(0.0)
    assert made.interval.high == pytest.approx(stats.t.ppf(0.975, 2) * 0.01 * np.sqrt(1 + 1 / 3))
    assert made.interval.low == pytest.approx(-made.interval.high)


@pytest.mark.parametrize("count", [3, 5])
def test_one_more_process_lies_inside_nineteen_times_in_twenty(count):
    rng = np.random.default_rng(count)
    outside = 0
    for *values, one_more in np.exp(rng.normal(0, 0.1, size=(2000, count + 1))):
        interval = over_processes([sampled(value, value, value) for value in values]).interval
        outside += not interval.low <= one_more <= interval.high
    assert 60 <= outside <= 150, "5 % of 2,000, and what chance adds"


def test_more_processes_that_scatter_as_much_narrow_it():
    three, five = ([sampled(1 + 0.01 * n, 0.99, 1.01) for n in numbers] for numbers in ((-1, 0, 1), (-1, -1, 0, 1, 1)))
    assert over_processes(five).interval.half_width < 0.65 * over_processes(three).interval.half_width


def test_processes_that_agree_by_chance_are_known_no_better_than_each_of_them_knows():
    made = over_processes([sampled(value, value - 0.03, value + 0.03) for value in (1.0, 1.0001, 0.9999)])
    assert made.interval.half_width == pytest.approx(0.03 / 3**0.5)
    wide = over_processes([sampled(value, value - 0.03, math.inf) for value in (1.0, 1.0001, 0.9999)])
    assert wide.interval.half_width < 0.001


def test_one_or_two_processes_have_all_of_their_intervals():
    two = [sampled(1.1, 1.05, 1.2, samples=5), sampled(1.0, 0.9, 1.05, samples=6)]
    assert over_processes(two) == sampled(1.05, 0.9, 1.2, samples=11)
    assert over_processes([sampled(1, 0.9, 1.1)]) == sampled(1, 0.9, 1.1)


def test_narrow_is_the_end_from_which_the_limit_starts():
    assert is_narrow(sampled(1, 0.5, 1.02), 0.025)
    assert not is_narrow(sampled(1, 0.99, 1.03), 0.025)
    assert is_narrow(sampled(1, 0.98, 1.5, better="higher"), 0.025)
    assert not is_narrow(sampled(1, 0.97, 1.01, better="higher"), 0.025)
    assert is_narrow(sampled(1, 0.5, float("inf")), 0.025), "no interval is recorded of it"


@pytest.mark.parametrize(("given", "most"), [(None, 5), (1, 1), (2, 2), (9, 9)])
def test_the_option_is_the_most_processes_of_a_save(given, most):
    session = SimpleNamespace(options=SimpleNamespace(processes=given))
    assert Saving(session)._most == most
