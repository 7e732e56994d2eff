"""A comparison over its limit is made again in a fresh process, which confirms it or not, or says why it cannot.

The samples are made up (`fakes.FakeBlocks`), so that it is known what they decide; the processes are real, or are left
out where only what is made of their metrics matters.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from perfsuite.measure import instructions
from perfsuite.measure.compiles import compiles
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.metric import Interval, Metric
from perfsuite.measure.serialise import from_json, plain
from perfsuite.processes import LAUNCH, Launch, running
from perfsuite.session import fresh
from perfsuite.session.fresh import AGAIN, Request, answer, argument_of, gating, measure_again, rerunning
from perfsuite.session.modes import Answer, Elsewhere
from perfsuite.session.outcomes import Deferred
from perfsuite.session.session import PerfSession

TESTS = Path(__file__).parents[1]

CONFTEST = """
import random
import pytest
from support.fakes import FakeBlocks, takes
from perfsuite import Budget, call

@pytest.fixture(autouse=True)
def fake_blocks(monkeypatch):
    from perfsuite.measure.timing import comparison
    FakeBlocks().install(monkeypatch, comparison)

@pytest.fixture
def compare(perf):
    def compare(ratio, /, noise=1, **budget):
        draw = random.Random(1)
        errors = [draw.gauss(0, noise) for _ in range(500)]
        candidate = takes(*[100 * ratio + sign * error for error in errors for sign in (1, -1)], name="candidate")
        limits = Budget(**budget or {"ratio": 1.05})
        return perf.compare(call(candidate), call(takes(100, name="reference")), limits)
    return compare

@pytest.fixture
def first(request):
    return not request.config.option.perf_again
"""

RATIO = "candidate/reference ratio to ready"


@pytest.fixture
def project(pytester):
    pytester.makeconftest(CONFTEST)
    pytester.makeini(f"[pytest]\naddopts = --perf-seconds=0.3 -p no:cacheprovider\npythonpath = {TESTS}\n")
    return pytester


def seen(ratio, low, high, overhead=(5.0, 4.0, 6.0)):
    """What a process hands over."""
    return [
        Metric(RATIO, ratio, "x", "ratio", interval=Interval(low, high), samples=100),
        Metric("candidate/reference overhead to ready", overhead[0], "us", "info", interval=Interval(*overhead[1:])),
    ]


# With real processes.


def test_a_slowdown_fails_when_a_fresh_process_confirms_it_and_nothing_is_left_behind(project):
    """Beside a control that passes, under ids and in folders that are hard to name."""
    folder = project.mkdir("sub")
    (folder / "conftest.py").write_text("import pytest\n@pytest.fixture\ndef ratios(): return 1.01, 1.2\n")
    (folder / "test_sub.py").write_text(
        "import json, sys\n"
        "import pytest\n"
        "class TestSteps:\n"
        "    @pytest.mark.parametrize('which', [0, 1], ids=['a::b [ü] \\n c', 'x] y'])\n"
        "    def test_step(self, compare, ratios, which, request, tmp_path):\n"
        "        config = request.config\n"
        "        if config.option.perf_again:\n"
        "            seen = [str(config.rootpath), str(config.inipath), str(config.invocation_params.dir), sys.stdin.read()]\n"
        "            seen += [config.option.xmlpath, config.option.perf_size, str(tmp_path)]\n"
        "            with open(config.rootpath / 'seen.jsonl', 'a') as file: file.write(json.dumps(seen) + '\\n')\n"
        "        else:\n"
        "            (tmp_path / 'mine').touch()\n"
        "        try:\n"
        "            compare(ratios[which])\n"
        "        finally:\n"
        "            if not config.option.perf_again: assert (tmp_path / 'mine').exists()\n"
    )
    elsewhere = project.mkdir("elsewhere")
    os.chdir(elsewhere)
    ini = project.path / "tox.ini"
    options = ["--perf", "--perf-size=full", f"-c{ini}", "--junitxml=report.xml", "--basetemp=base"]
    result = project.runpytest_inprocess(*options, "../sub")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.re_match_lines(
        [
            r".*BudgetExceeded: .* is 1\.\d+ x .*, \+.* % over the budget of 1\.05 x; confirmed in a fresh process: 1\.\d+ \[1\..*\]$"
        ]
    )
    # It was made again once, in a session like this one that reads and writes nothing.
    (line,) = [json.loads(line) for line in (project.path / "seen.jsonl").read_text().splitlines()]
    assert line[:-1] == [str(project.path), str(ini), str(elsewhere), "", None, "full"]
    assert not Path(line[-1]).exists()
    assert {path.name for path in elsewhere.iterdir()} - {".benchmarks"} == {"base", "report.xml"}


def test_a_candidate_that_is_slow_in_the_first_process_alone_stays_open(project):
    project.makepyfile("def test_step(compare, first): assert compare(1.2 if first else 1).verdict == 'inconclusive'")
    result = project.runpytest_inprocess("--perf", "-v")
    result.assert_outcomes(passed=1)
    result.stdout.re_match_lines(
        [
            r"inconclusive: .* is 1\.\d+ x .*, \+.* % over the budget of 1\.05 x; not confirmed in a fresh process: \d.* \[.*\]$",
            r"to settle it: .*another limit",
        ],
        consecutive=True,
    )


# What is made of what they see.


@pytest.mark.parametrize(
    ("body", "verdict"),
    [("compare(1.04)", "pass"), ("compare(1.05, noise=9)", "inconclusive"), ("compare(9, overhead_us=1e9)", "pass")],
    ids=["passes", "open", "no limit on the ratio"],
)
def test_a_comparison_that_does_not_fail_asks_no_fresh_process(project, further, body, verdict):
    project.makepyfile(f"def test_step(compare): assert {body}.verdict == '{verdict}'")
    requests = further()
    project.runpytest_inprocess("--perf").assert_outcomes(passed=1)
    assert requests == []


@pytest.mark.parametrize(
    ("handed", "outcome", "rerun"),
    [
        (seen(3.2, 3.19, 3.21), "failed", "; confirmed in a fresh process: 3.2 [3.19, 3.21]"),
        (seen(1, 0.99, 1.01), "passed", "; not confirmed in a fresh process: 1 [0.99, 1.01]"),
        ([], "failed", "; not confirmed, because a fresh process measured nothing: it did not make this metric"),
        ([dataclasses.replace(seen(1, 0.99, 1.01)[0], unit="y")], "failed", ": it did not make this metric"),
        ("SIGKILL", "failed", "; not confirmed, because a fresh process measured nothing: SIGKILL"),
    ],
    ids=["confirmed", "not confirmed", "without the metric", "another unit", "killed"],
)
def test_a_baseline_fails_where_a_fresh_process_breaks_it_too(project, further, handed, outcome, rerun):
    project.makepyfile("def test_step(compare): compare(1, overhead_us=1e9)")
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=1)
    project.makepyfile("def test_step(compare): compare(3.2, overhead_us=1e9)")
    requests = further(handed)
    result = project.runpytest_inprocess("--perf", "-v", "--perf-report=out")
    result.assert_outcomes(**{outcome: 1})
    assert rerun in (project.path / "out/report.json").read_text()
    asked = [(each.metric, each.budget, each.doubtful) for each in requests]
    assert asked == [(None, {}, [RATIO])], "the whole test"


def test_a_time_that_fails_is_confirmed_as_a_ratio_is(project, further):
    body = "def test_time(perf): perf.record('wait', {0}, unit='s', kind='time', interval=({0}, {0}))"
    project.makepyfile(body.format(1.0))
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=1)
    project.makepyfile(body.format(3.0))
    again = [Metric("wait", 1.0, "s", "time", interval=Interval(1.0, 1.0))]
    requests = further(again, [dataclasses.replace(again[0], value=3.0, interval=Interval(3.0, 3.0))])
    project.runpytest_inprocess("--perf").assert_outcomes(passed=1)
    project.runpytest_inprocess("--perf").assert_outcomes(failed=1)
    assert len(requests) == 2


def test_what_is_exact_fails_at_once(project, further):
    project.makepyfile("def test_count(perf): perf.record('calls', 1, unit='calls', kind='count')")
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=1)
    project.makepyfile("def test_count(perf): perf.record('calls', 2, unit='calls', kind='count')")
    requests = further()
    project.runpytest_inprocess("--perf").assert_outcomes(failed=1)
    assert requests == []


def test_processes_that_measure_together_start_no_fresh_one():
    assert gating(together=4).measure_again(SimpleNamespace(nodeid="test"), []).failure == (
        "4 processes measure together here"
    )


def handed(folder):
    """What a process handed over, or said."""
    return from_json(Answer, (folder / "answer.json").read_bytes())


# In the process that was started. It is a session like any other, so here it runs in this process.


@pytest.fixture
def again(project, tmp_path):
    """Run the session of a process that is asked for a comparison: its outcomes, and the folder for what it hands over."""

    def run(body, *arguments, metric=RATIO, conftest="", **limits):
        path = project.makepyfile(test_it=body)
        if conftest:
            project.makeconftest(CONFTEST + conftest)
        asked = Request("test_it.py::test_step", f"{path}::test_step", metric, **limits)
        (tmp_path / "request.json").write_text(json.dumps(plain(asked)))
        return project.inline_run("--perf", f"{AGAIN}={tmp_path}", *arguments, no_reraise_ctrlc=True), tmp_path

    return run


def test_it_samples_until_the_limits_of_the_request_are_settled_and_ends_where_it_has_handed_over(again):
    body = "def test_step(compare):\n    compare(1.04, noise=9, ratio=1.0401)\n    raise RuntimeError('went on')"
    result, folder = again(body, budget={"ratio": 1.5})
    result.assertoutcome(skipped=1)
    ratio, overhead = handed(folder).metrics
    assert ratio.value == pytest.approx(1.04, abs=0.05)
    assert overhead.value == pytest.approx(4, abs=5)
    result, folder = again(body, budget={"ratio": 1.0401})
    assert handed(folder).metrics[0].samples > 1.5 * ratio.samples, "fewer settle the other limit"


def test_what_comes_before_the_comparison_is_sampled_for_a_moment_and_not_gated(again):
    body = (
        "def test_step(compare, perf):\n"
        "    assert compare(9).pairs == 3\n"
        "    perf.record('x', 1, unit='x', kind='count')\n"
        "    compare(1.04)"
    )
    result, folder = again(body, metric="candidate/reference #2 ratio to ready", budget={"ratio": 1.5})
    result.assertoutcome(skipped=1)
    assert handed(folder).metrics[0].value == pytest.approx(1.04, abs=0.01)


def test_all_metrics_of_the_test_are_handed_over_where_no_comparison_is_named(again):
    """A comparison that is not in doubt is glanced at."""
    body = (
        "def test_step(compare, perf):\n    compare(9)\n    compare(9)\n    perf.record('x', 1, unit='x', kind='time')"
    )
    result, folder = again(body, metric=None, doubtful=[RATIO])
    result.assertoutcome(passed=1)
    doubtful, _, other, _, recorded = handed(folder).metrics
    assert doubtful.value == pytest.approx(9, abs=0.1)
    assert doubtful.interval.half_width < 0.1
    assert (other.title, other.interval) == (RATIO.replace(" ratio", " #2 ratio"), None)
    assert recorded == Metric("x", 1, "x", "time")


def test_a_test_that_fails_there_hands_over_what_it_made(again):
    body = "def test_step(perf):\n    perf.record('x', 1, unit='x', kind='time')\n    1 / 0"
    result, folder = again(body, metric=None, doubtful=["x"])
    result.assertoutcome(failed=1)
    assert handed(folder).metrics == [Metric("x", 1, "x", "time")]


def test_a_test_that_makes_nothing_there_says_why(again):
    _, folder = again("import pytest\ndef test_step(perf): pytest.skip('no device')", metric=None, doubtful=["x"])
    assert handed(folder) == Answer(failure="the test was skipped there (no device)")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("import pytest\ndef test_step(): pytest.skip('no\\ndevice')", "the test was skipped there (no device)"),
        ("def test_step(compare): 1 / 0", "the test failed there (ZeroDivisionError: division by zero)"),
        ("def test_step(compar): pass", "the test's set-up failed there (no fixture 'compar')"),
        ("def test_step(perf): pass", "the test ended there without making the comparison '*#2 ratio to ready'"),
        ("def test_another(): pass", "the test was not found there"),
        ("1 / 0", "test_it.py could not be collected there (*ZeroDivisionError: division by zero)"),
        ("def test_step(): raise KeyboardInterrupt", "its session was ended there (KeyboardInterrupt*)"),
    ],
    ids=["skips", "raises", "fixture", "ends", "missing", "import", "interrupted"],
)
def test_what_keeps_it_from_its_comparison_is_said_in_a_sentence(again, body, reason):
    _, folder = again(body, metric="candidate/reference #2 ratio to ready")
    assert handed(folder).metrics == []
    assert re.fullmatch(reason.replace("(", r"\(").replace(")", r"\)").replace("*", ".*"), handed(folder).failure)


@pytest.mark.parametrize("option", ["-n2", "--pdb"])
def test_it_starts_no_process_and_no_worker_and_no_debugger_and_leaves_baselines_alone(again, further, option, capsys):
    requests = further()
    body = "def test_step(compare, perf):\n    compare(1.2)\n    perf.record('x', 1, unit='x', kind='count')\n    1 / 0"
    result, _ = again(body, option, "--perf-save", metric="another")
    result.assertoutcome(failed=1)
    assert requests == []
    printed = capsys.readouterr().out
    assert "(Pdb)" not in printed
    assert "workers" not in printed
    assert not (Path.cwd() / "baselines").exists()


def test_another_plugin_that_takes_tests_away_does_not_keep_it_from_its_own(again):
    conftest = "\ndef pytest_collection_modifyitems(items): items.clear()\n"
    _, folder = again("def test_step(compare): compare(1.04)", conftest=conftest)
    assert handed(folder).metrics


@pytest.mark.parametrize("content", [None, b"", b"{}", b"[]", b"\xff"])
def test_a_folder_without_a_request_is_a_usage_error(project, tmp_path, content):
    if content is not None:
        (tmp_path / "request.json").write_bytes(content)
    result = project.runpytest_inprocess("--perf", f"{AGAIN}={tmp_path}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*perfsuite: no request in {tmp_path}*"])


# What is handed over.


def test_what_is_handed_over_comes_back_as_it_was(tmp_path):
    metrics = [*seen(1.04, 1.03, float("inf")), Metric("a", 7, "calls", "count", detail={"f": 7}, places={"f": "x"})]
    for each in (Answer(failure="because\nü"), Answer(values=[{"a": 1}]), Answer(metrics)):
        answer(tmp_path, each)
        assert fresh._handed_over(tmp_path, -signal.SIGSEGV) == each, "also where the process fell over afterwards"
    answer(tmp_path, Answer(failure="later"))
    assert fresh._handed_over(tmp_path, None) == Answer(metrics)
    assert [path.name for path in tmp_path.iterdir()] == ["answer.json"]
    request = Request("a::b[ü\n\ud800]", "/x y/a::b[ü\n\ud800]", 'a"b ratio', {"ratio": 1.5}, ["a"], "/cache")
    assert from_json(Request, json.dumps(plain(request))) == request


@pytest.mark.parametrize("content", ["", "{", '{"a": 1}', "[1]", '{"metrics": [{"name": "a"}]}'])
def test_a_damaged_answer_is_a_failure_and_never_a_comparison(tmp_path, content):
    (tmp_path / "answer.json").write_text(content)
    assert fresh._handed_over(tmp_path, 0).failure.startswith("what it handed back cannot be read (")


# Values of processes that are like those of other machines.


def asked_elsewhere(mode, item):
    here = lambda given: [os.getcwd(), dict(given)]
    return mode.elsewhere(Elsewhere(item, "cache_key", here, processes=3, given={"folder": "x"}))


@pytest.fixture
def processes(monkeypatch):
    """Fresh processes that give these in turn, values or why there are none; what was asked of each."""

    def give(*answers):
        coming, requests = iter(answers), []
        monkeypatch.setattr(fresh, "measure_again", lambda config, request: requests.append(request) or next(coming))
        return requests

    return give


def test_each_process_is_asked_for_the_same(processes, request):
    requests = processes(*(Answer(values=value) for value in (1, 2, 3)))
    assert asked_elsewhere(gating(), request.node) == [1, 2, 3]
    test = request.node.nodeid
    assert requests == [
        Request(test, argument_of(request.node), "cache_key", process=number, given={"folder": "x"})
        for number in range(3)
    ]


def test_a_process_that_hands_nothing_over_is_said(processes, request):
    requests = processes(Answer(values=1), Answer(failure="it ended with SIGKILL"))
    with pytest.raises(MeasurementError, match=r"^perf\.cache_key: fresh process 2 of 3 handed nothing over: it ended"):
        asked_elsewhere(gating(), request.node)
    assert len(requests) == 2


def test_a_process_hands_over_what_it_sees_in_other_folders_and_ends_the_test(tmp_path, request):
    before = os.getcwd()
    mode = rerunning(tmp_path, Request("test", "test", "cache_key", process=1, given={"folder": "y"}))
    with pytest.raises(pytest.skip.Exception, match="handed over"):
        asked_elsewhere(mode, request.node)
    assert os.getcwd() == before
    assert handed(tmp_path).values == [str(tmp_path / "elsewhere"), {"folder": "y"}]


@pytest.mark.parametrize(
    "asks", [Request("t", "t"), Request("t", "t", "cache_key"), Request("t", "t", "cache_key #2", process=0)]
)
def test_a_process_for_another_metric_starts_no_others(tmp_path, request, asks):
    assert asked_elsewhere(rerunning(tmp_path, asks), request.node) is None
    assert not list(tmp_path.iterdir())


def test_a_process_that_confirms_a_metric_of_the_test_gets_what_others_handed_over_for_it(processes, request, tmp_path):
    requests = processes(*(Answer(values=value) for value in (1, 2, 3)), Answer(failure="none"))
    mode = gating()
    asked_elsewhere(mode, request.node)
    mode.measure_again(request.node, ["ratio"])
    assert [each.elsewhere for each in requests] == [{}, {}, {}, {"cache_key": [1, 2, 3]}]
    assert asked_elsewhere(rerunning(tmp_path, requests[-1]), request.node) == [1, 2, 3]


# Instructions, which a process under Valgrind counts for several tests of a file.


COUNTING = """
def test_first(perf): perf.instructions
def test_other(perf): perf.host_calls
def test_second(perf): perf.first_call(instructions=True)
def test_third(perf): perf.instructions
def test_last(perf): perf.instructions
"""


def test_the_later_tests_of_a_file_that_count_share_a_process_and_one_that_lacks_is_asked_for_again(
    processes, pytester
):
    first, _, second, third, last = pytester.getitems(COUNTING)
    asked = lambda item: [Elsewhere(item, "instructions", lambda given: None, 1, under_valgrind=True)]
    for item in (first, second, third, last):
        item.session.items = [first, _, second, third, last]
    counts = {test.nodeid: {"instructions": [place]} for place, test in enumerate((first, second, last))}
    requests = processes(Answer(values=counts), Answer(failure="it ended with SIGKILL"))
    mode = gating()
    assert [mode.elsewhere(*asked(item)) for item in (first, second)] == [[0], [1]]
    with pytest.raises(MeasurementError, match=r"under Valgrind handed nothing over: it ended with SIGKILL$"):
        mode.elsewhere(*asked(third))
    assert mode.elsewhere(*asked(last)) == [2]
    assert [request.under_valgrind for request in requests] == [
        [first.nodeid, second.nodeid, third.nodeid, last.nodeid],
        [third.nodeid],
    ]
    assert requests[0].argument == str(first.path)


def test_a_test_that_does_not_come_to_its_metric_beside_others_is_asked_for_alone(processes, pytester):
    first, _, second, *_ = items = pytester.getitems(COUNTING)
    for item in items:
        item.session.items = [first, second]
    requests = processes(Answer(values={second.nodeid: {"instructions": [2]}}), Answer(failure="it said why"))
    mode = gating()
    with pytest.raises(MeasurementError, match="it said why"):
        mode.elsewhere(Elsewhere(first, "instructions", lambda given: None, 1, under_valgrind=True))
    assert mode.elsewhere(Elsewhere(second, "instructions", lambda given: None, 1, under_valgrind=True)) == [2]
    assert [request.under_valgrind for request in requests] == [[first.nodeid, second.nodeid], [first.nodeid]]


def test_a_process_under_valgrind_hands_over_all_that_its_tests_count_and_goes_on(tmp_path, request):
    mode = rerunning(tmp_path, Request("t", "t", "instructions", process=0, under_valgrind=["t"]))
    for metric in ("instructions", "instructions #2"):
        here = lambda given: given["folder"]
        assert mode.elsewhere(Elsewhere(request.node, metric, here, 1, under_valgrind=True)) == [str(tmp_path)]
    test = request.node.nodeid
    assert handed(tmp_path).values == {test: {"instructions": [str(tmp_path)], "instructions #2": [str(tmp_path)]}}
    assert asked_elsewhere(mode, request.node) is None


ANSWERS_WITH_ITS_PROCESSOR = """
import json, pathlib, sys
processor, folder = sys.argv[1], pathlib.Path(sys.argv[2])
tests = json.loads((folder / "request.json").read_text())["under_valgrind"]
(folder / "answer.json").write_text(json.dumps({"values": {test: processor for test in tests}}))
"""


@pytest.mark.parametrize(("tests", "processors", "expected"), [(9, 4, [9]), (11, 4, [9, 2]), (40, 2, [9, 9, 9, 9, 4])])
def test_many_tests_that_count_are_shared_out_among_processors(launched, monkeypatch, tests, processors, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(processors)), raising=False)
    monkeypatch.setattr(
        instructions,
        "under_valgrind",
        lambda folder, processor: [sys.executable, "-c", ANSWERS_WITH_ITS_PROCESSOR, str(processor)],
    )
    monkeypatch.setattr(fresh, "command", lambda config, folder: [str(folder)])
    ids = [f"test_{number}" for number in range(tests)]
    values = measure_again(launched(), Request("a", "a", "instructions", process=0, under_valgrind=ids)).values
    assert list(values) == ids
    assert [len(list(group)) for _, group in itertools.groupby(values.values())] == expected


WAITS_FOR_ANOTHER = """
import json, pathlib, sys, time
shared, folder = map(pathlib.Path, sys.argv[1:])
tests = json.loads((folder / "request.json").read_text())["under_valgrind"]
(shared / tests[0]).touch()
for _ in range(6000):
    if len(list(shared.iterdir())) > 1:
        (folder / "answer.json").write_text(json.dumps({"values": {test: {} for test in tests}}))
        break
    time.sleep(0.01)
"""


def test_tests_that_are_shared_out_run_at_once(launched, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    line = [sys.executable, "-c", WAITS_FOR_ANOTHER, str(tmp_path)]
    monkeypatch.setattr(instructions, "under_valgrind", lambda folder, processor: line)
    monkeypatch.setattr(fresh, "command", lambda config, folder: [str(folder)])
    ids = [f"test_{number}" for number in range(18)]
    assert list(measure_again(launched(), Request("a", "a", process=0, under_valgrind=ids)).values) == ids


def test_processes_that_run_at_once_have_one_deadline(launched, monkeypatch):
    now, waited = [0.0], []

    @contextlib.contextmanager
    def hanging(line, *, output, **how):
        def ended(seconds):
            waited.append(seconds)
            now[0] += seconds

        output.touch()
        yield ended

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    monkeypatch.setattr(fresh, "running", hanging)
    monkeypatch.setattr(fresh, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(fresh, "allowed_seconds", lambda launch, sampling: 2.0)
    ids = [f"test_{number}" for number in range(18)]
    failure = measure_again(launched(), Request("a", "a", process=0, under_valgrind=ids)).failure
    assert failure == "it was stopped because its time was up"
    assert waited == [2.0 * fresh.SLOWER_UNDER_VALGRIND, 0.0]


def test_what_one_process_hands_over_is_handed_on_as_it_is(launched, monkeypatch):
    answers = "import pathlib, sys; (pathlib.Path(sys.argv[1]) / 'answer.json').write_text('{\"values\": [1, 2]}')"
    monkeypatch.setattr(fresh, "command", lambda config, folder: [sys.executable, "-c", answers, str(folder)])
    assert measure_again(launched(), Request("a", "a", "cache_key", process=0)).values == [1, 2]


@pytest.mark.parametrize("need", ["processes", "quiet"])
def test_a_worker_of_xdist_leaves_what_it_cannot_measure_to_the_main_process(need):
    worker = SimpleNamespace(in_worker=True, group=None)
    with pytest.raises(Deferred, match=r"perf\.it: other processes share the machine under pytest-xdist; .*`-n 0`"):
        PerfSession.check(worker, "perf.it", (need, "alone"))
    PerfSession.check(SimpleNamespace(in_worker=False, group=None), "perf.it", (need,))


def test_every_process_has_an_environment_of_its_own(tmp_path):
    variables = []
    for number in range(3):
        (folder := tmp_path / str(number)).mkdir()
        variables.append(fresh.environment_of_another(number, folder))
        assert os.path.isdir(variables[-1]["TMPDIR"])
    for name in ("HOSTNAME", "TMPDIR"):
        assert len({each[name] for each in variables}) == 3, name
    assert [each["PYTHONHASHSEED"] for each in variables] == ["0", "1", "2"]


def here():
    return os.getcwd(), socket.gethostname(), platform.node(), os.uname().nodename, jax.process_index()


def test_the_call_is_made_in_another_place_and_only_there(tmp_path):
    before = here()
    with compiles.count() as counted, fresh.like_another(2, tmp_path):
        assert here() == (str(tmp_path), *["perfsuite-host-2"] * 3, 2)
        assert jax.devices()[0].process_index == 0
    assert here() == before
    assert counted.compiles == 2, "programs that are compiled before the call"


# The process itself.

SLEEPS = (
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    "print(child.pid, flush=True)\n"
    "time.sleep(20)\n"
    "print('woke')"
)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ended(pid):
    deadline = time.monotonic() + 30
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not is_running(pid)


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")


def bounded(output, code, seconds):
    command = [sys.executable, "-c", code]
    with running(command, directory=output.parent, environment=os.environ, output=output) as ended:
        return ended(seconds)


@needs_proc
def test_a_process_that_hangs_is_ended_with_what_it_started(tmp_path):
    output = tmp_path / "output.txt"
    seconds = 1.0
    while True:  # a busy machine may not have started it by then
        assert bounded(output, SLEEPS, seconds) is None
        if output.read_text():
            break
        seconds *= 2
    assert "woke" not in output.read_text(), "it came to its own end"
    assert ended(int(output.read_text()))
    assert re.search(
        r"it was stopped because its time was up; the last that it wrote: \d+",
        fresh._handed_over(tmp_path, None).failure,
    )


@needs_proc
def test_ctrl_c_ends_a_process_and_what_it_started(tmp_path, monkeypatch):
    output = tmp_path / "output.txt"

    class Interrupted(subprocess.Popen):
        waits = 0

        def wait(self, timeout=None):
            self.waits += 1
            if self.waits > 1:
                return super().wait(timeout)
            while not output.read_text().endswith("\n"):
                time.sleep(0.01)
            raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        bounded(output, SLEEPS, 60)
    assert "woke" not in output.read_text(), "it came to its own end"
    assert ended(int(output.read_text()))


def test_the_end_of_a_process_is_said_by_its_status_or_signal(tmp_path):
    output = tmp_path / "output.txt"
    assert bounded(output, "import sys; sys.exit(3)", 60) == 3
    assert re.search(r"^it ended with exit status 3$", fresh._handed_over(tmp_path, 3).failure)
    assert re.search(r"^it ended with SIGKILL$", fresh._handed_over(tmp_path, -signal.SIGKILL).failure)


@pytest.mark.parametrize(("so_far", "sampling", "allowed"), [(0, 0, 60), (10, 0, 80), (600, 0, 1260), (10, 100, 280)])
def test_its_time_is_what_this_session_took_so_far_and_more(pytestconfig, monkeypatch, so_far, sampling, allowed):
    launch = Launch.of(pytestconfig)
    monkeypatch.setattr(fresh, "time", SimpleNamespace(monotonic=lambda: launch.started + so_far))
    assert fresh.allowed_seconds(launch, sampling) == pytest.approx(allowed)


@pytest.fixture
def launched(pytestconfig):
    """This session's config, as if it had been started otherwise."""
    before = pytestconfig.stash.get(LAUNCH, None)

    def otherwise(**changes):
        pytestconfig.stash[LAUNCH] = dataclasses.replace(Launch.of(pytestconfig), **changes)
        return pytestconfig

    yield otherwise
    if before is None:  # this session has no --perf
        del pytestconfig.stash[LAUNCH]
    else:
        pytestconfig.stash[LAUNCH] = before


def test_a_process_that_cannot_be_started_is_said(launched):
    config = launched(directory=Path("/does/not/exist"))
    assert measure_again(config, Request("a", "a")).failure.startswith("it could not be started (")


def test_options_end_where_the_command_line_says_so(launched, tmp_path):
    config = launched(arguments=("-v", "--", "-odd.py"), flags=("-P",))
    python, *line = fresh.command(config, tmp_path)
    assert python == sys.executable
    assert line[:4] == ["-P", "-m", "pytest", "-v"]
    assert line[4] == f"{AGAIN}={tmp_path}"
    assert line[-2:] == ["--", "-odd.py"]
