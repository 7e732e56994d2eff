"""`--perf-processes`: a comparison that its own process leaves undecided is settled by fresh ones, or says why not.

The samples are made up (`fakes.FakeBlocks`), so that it is known how many pairs decide; the processes are real, or are
left out where only what is made of their samples matters.
"""

import dataclasses
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from perfsuite.gate.limits import Limits
from perfsuite.measure.estimate import Estimate
from perfsuite.measure.measurement import Interval
from perfsuite.measure.timing.comparison import Comparison
from perfsuite.processes import rerun as processes
from perfsuite.processes.handover import (
    Request,
    read_reason,
    read_request,
    read_samples,
    write_reason,
    write_request,
    write_samples,
)
from perfsuite.processes.launch import LAUNCH
from perfsuite.processes.rerun import AGAIN, ProcessFailed, compare_again, run_bounded
from perfsuite.session.modes import what_settles

TESTS = Path(__file__).parents[1]

SECONDS = "--perf-seconds=0.082"
"""400 pairs of 205 us: too few to tell the noisy metrics from their limit of 1.05; 800 are enough."""

ABOVE, BELOW = 1.0572, 1.0428

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
    def compare(ratio, *, noise=5, limit=1.05):
        draw = random.Random(1)
        errors = [draw.gauss(0, noise) for _ in range(500)]
        candidate = takes(*[100 * ratio + sign * error for error in errors for sign in (1, -1)], name="candidate")
        budget = Budget(ratio=limit) if limit else Budget()
        return perf.compare(call(candidate), call(takes(100, name="reference")), budget)
    return compare
"""


@pytest.fixture
def project(pytester):
    pytester.makeconftest(CONFTEST)
    pytester.makeini(f"[pytest]\naddopts = {SECONDS} -p no:cacheprovider\npythonpath = {TESTS}\n")
    return pytester


def of_samples(candidate_us, reference_us=100.0, **changes):
    """A comparison of these samples, each to return and to ready, with the intervals of 99 in 100."""
    candidate = np.repeat(np.asarray(candidate_us, dtype=float)[:, None], 2, axis=1)
    reference = np.full_like(candidate, reference_us)
    low, value, high = np.quantile(candidate[:, 1] / reference[:, 1], [0.1, 0.5, 0.9])
    fields = {
        "candidate": "candidate",
        "reference": "reference",
        "until": "ready",
        "ratio": Estimate(float(value), Interval(float(low), float(high))),
        "overhead_us": Estimate(5.0, Interval(-math.inf, math.inf)),
        "candidate_us": candidate,
        "reference_us": reference,
        "looks": 3,
        "seconds": 1.5,
    }
    return Comparison(**{**fields, **changes})


@pytest.fixture
def further(monkeypatch):
    """Further processes that give these in turn, a comparison or the reason why there is none; the requests made."""

    def give(*parts):
        coming, requests = iter(parts), []

        def compare_again(config, request):
            requests.append(request)
            part = next(coming)
            if isinstance(part, str):
                raise ProcessFailed(part)
            return part

        monkeypatch.setattr(processes, "compare_again", compare_again)
        return requests

    return give


# With real processes.


def test_a_fresh_process_settles_what_one_left_open_and_leaves_nothing_behind(project):
    """A regression that fails, its control that passes, under ids and in folders that are hard to name."""
    folder = project.mkdir("sub")
    (folder / "conftest.py").write_text(f"import pytest\n@pytest.fixture\ndef ratios(): return {BELOW}, {ABOVE}\n")
    (folder / "test_sub.py").write_text(
        "import json, sys\n"
        "import pytest\n"
        "class TestSteps:\n"
        "    @pytest.mark.parametrize('which', [0, 1], ids=['a::b [ü] \\n c', 'x] y'])\n"
        "    def test_step(self, compare, ratios, which, request, tmp_path):\n"
        "        config = request.config\n"
        "        if config.option.perf_again:\n"
        "            seen = [str(config.rootpath), str(config.inipath), str(config.invocation_params.dir), sys.stdin.read()]\n"
        "            seen += [config.option.xmlpath, config.option.perf_save, config.option.perf_size, str(tmp_path)]\n"
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
    result = project.runpytest_inprocess(
        "--perf-save",
        "--perf-processes=4",
        "--perf-size=full",
        f"-c{ini}",
        "--junitxml=report.xml",
        "--basetemp=base",
        "../sub",
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.re_match_lines(
        [r".*BudgetExceeded: candidate/reference ratio to ready is 1\.057\d* x .*1\.05 x; 8\d\d pairs in 2 processes$"]
    )
    # Each was made again once, in a session like this one that reads and writes nothing.
    lines = [json.loads(line) for line in (project.path / "seen.jsonl").read_text().splitlines()]
    assert [line[:-1] for line in lines] == [[str(project.path), str(ini), str(elsewhere), "", None, False, "full"]] * 2
    assert not any(Path(line[-1]).exists() for line in lines)
    assert {path.name for path in elsewhere.iterdir()} - {".benchmarks"} == {"base", "report.xml"}
    # The pooled metric is the one on file.
    (metrics,) = json.loads((project.path / "baselines/cpu.json").read_text())["metrics"].values()
    assert metrics["candidate/reference ratio to ready"]["value"] == pytest.approx(BELOW, abs=1e-3)
    assert 800 <= metrics["candidate/reference ratio to ready"]["samples"] < 830


def test_a_process_that_dies_leaves_the_verdict_open_and_is_said(project):
    project.makeconftest(
        f"import os, sys\nif any('{AGAIN}' in word for word in sys.argv): print('boom'); sys.stdout.flush(); os.abort()\n"
        + CONFTEST
    )
    project.makepyfile(f"def test_step(compare): assert compare({ABOVE}).verdict == 'inconclusive'")
    result = project.runpytest_inprocess("--perf", "--perf-processes=5")
    result.assert_outcomes(passed=1)
    result.stdout.re_match_lines(
        [
            r"inconclusive: .*1\.05 x; 4\d\d pairs in 1 process; a further process gave no samples: it ended with "
            r"SIGABRT; the last that it wrote: .*boom$",
            r"to settle it: about \d+ more seconds? of sampling",
        ],
        consecutive=True,
    )


# What is made of the samples.


def test_processes_follow_each_other_only_until_the_samples_together_decide(project, further):
    project.makepyfile(
        f"def test_step(compare):\n    made = compare({BELOW})\n    assert made.verdict == 'pass'\n"
        # Half of what a single gate of a session may err, for the other half went into the first process.
        "    assert (made.processes, made.error) == (4, 0.0005)"
    )
    requests = further(*[of_samples([104.8, 104.9])] * 2, of_samples([104] * 3000), "one too many")
    project.runpytest_inprocess("--perf", "--perf-processes=9").assert_outcomes(passed=1)
    (asked,) = set(requests)
    assert len(requests) == 3
    assert asked.comparison == "candidate/reference ratio to ready"


def test_no_more_processes_than_asked_for_and_then_the_verdict_says_what_would_settle_it(project, further):
    project.makepyfile(f"def test_step(compare): assert compare({BELOW}).verdict == 'inconclusive'")
    requests = further(*[of_samples([104.8, 104.9])] * 2, "one too many")
    result = project.runpytest_inprocess("--perf", "--perf-processes=3")
    result.assert_outcomes(passed=1)
    result.stdout.re_match_lines(
        [
            r"inconclusive: .*1\.05 x; 40\d pairs in 3 processes$",
            r"to settle it: about \d+ processes \(--perf-processes=\d+\), or --perf-seconds=0\.\d+$",
        ],
        consecutive=True,
    )
    assert len(requests) == 2


@pytest.mark.parametrize("option", [[], ["--perf-processes=1"]], ids=["default", "one"])
def test_without_the_option_nothing_is_started(project, further, option):
    project.makepyfile(f"def test_step(compare): assert compare({BELOW}).verdict == 'inconclusive'")
    requests = further()
    project.runpytest_inprocess("--perf", *option).assert_outcomes(passed=1)
    assert requests == []


@pytest.mark.parametrize("body", ["compare(1.04, noise=0)", "compare(1.04, limit=None)"], ids=["decided", "no limit"])
def test_a_comparison_that_has_nothing_to_decide_starts_nothing(project, further, body):
    project.makepyfile(f"def test_step(compare): {body}")
    requests = further()
    project.runpytest_inprocess("--perf", "--perf-processes=3").assert_outcomes(passed=1)
    assert requests == []


def test_a_baseline_is_settled_by_further_processes_too(project, further):
    project.makepyfile("def test_step(compare): compare(1, noise=0, limit=None)")
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=1)
    project.makepyfile(f"def test_step(compare): compare({ABOVE}, limit=None)")
    result = project.runpytest_inprocess("--perf")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["inconclusive: *"])
    further(of_samples([106] * 800))
    result = project.runpytest_inprocess("--perf", "--perf-processes=2")
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines(
        [
            r".*ratio to ready is 1\.0\d+ x .* over the baseline 1 x .*; 12\d\d pairs in 2 processes",
            ".*likely cause: .*",
        ]
    )


def test_a_process_that_gives_no_samples_ends_the_starting_of_more(project, further):
    project.makepyfile(f"def test_step(compare): assert compare({BELOW}).verdict == 'inconclusive'")
    requests = further(of_samples([104.8, 104.9]), "the test was skipped there (it needs two devices)", "one too many")
    result = project.runpytest_inprocess("--perf", "--perf-processes=9")
    result.assert_outcomes(passed=1)
    result.stdout.re_match_lines(
        [
            r"inconclusive: .*pairs in 2 processes; a further process gave no samples: the test was skipped there "
            r"\(it needs two devices\)$",
            "to settle it: about .* processes",
        ],
        consecutive=True,
    )
    assert len(requests) == 2


def test_processes_that_contradict_each_other_end_the_starting_of_more(project, further):
    project.makepyfile(f"def test_step(compare): assert compare({BELOW}).verdict == 'inconclusive'")
    requests = further(of_samples([106] * 800), "one too many")
    result = project.runpytest_inprocess("--perf", "--perf-processes=9")
    result.assert_outcomes(passed=1)
    result.stdout.re_match_lines(
        [r"inconclusive: .*in 2 processes$", r"to settle it: the processes contradict each other \(1\.04\d*, 1\.06\)"],
        consecutive=True,
    )
    assert len(requests) == 1


def test_samples_of_other_calls_are_not_pooled(project, further):
    project.makepyfile(f"def test_step(compare): assert compare({BELOW}).verdict == 'inconclusive'")
    further(of_samples([104] * 5000, candidate="another"))
    result = project.runpytest_inprocess("--perf", "--perf-processes=2")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["inconclusive: *in 1 process; *it compared another with reference and not candidate with reference*"]
    )


def test_ctrl_c_while_a_further_process_runs_ends_the_session(project, monkeypatch):
    def interrupted(config, request):
        raise KeyboardInterrupt

    monkeypatch.setattr(processes, "compare_again", interrupted)
    project.makepyfile(f"def test_step(compare): compare({BELOW})")
    result = project.runpytest_inprocess("--perf", "--perf-processes=2", no_reraise_ctrlc=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED


# What would settle it.


def settles(*parts, held=Limits({"ratio": 1.05})):  # noqa: B008  (frozen)
    return what_settles(parts[-1], parts, held, seconds=5)


def of_ratio(value, low, high, **changes):
    return of_samples([100] * 20, ratio=Estimate(value, Interval(low, high)), **changes)


def test_what_would_settle_it_is_as_many_samples_as_make_the_interval_narrow_enough():
    # To lie below 1.05 the interval must be 3 times narrower, which takes 9 times as many samples.
    below = of_ratio(1.04, 1.01, 1.07)
    assert settles(below) == "about 9 processes (--perf-processes=9), or --perf-seconds=45"
    assert settles(below, below) == "about 18 processes (--perf-processes=18), or --perf-seconds=45"
    above = of_ratio(1.06, 1.04, 1.2)
    assert settles(above, above) == "about 8 processes (--perf-processes=8), or --perf-seconds=20"
    kept = of_ratio(1, 0.9, 1.01, overhead_us=Estimate(4, Interval(0, 10)))
    assert settles(kept, held=Limits({"ratio": 1.05, "overhead_us": 6})).startswith("about 9 processes ")


@pytest.mark.parametrize("ratio", [1.0499, 1.05, 1.0501])
def test_a_metric_on_its_limit_is_not_said_to_be_settled_by_more_samples(ratio):
    assert settles(of_ratio(ratio, 1.01, 1.08)) == ("more than 50 processes: move the limit, or take a quieter machine")


def test_a_ratio_that_moved_while_it_was_sampled_is_not_said_to_be_settled_by_more_processes():
    below = of_ratio(1.04, 1.01, 1.07)
    moved = of_ratio(1.04, 1.01, 1.07, unsettled="the ratio moved from 1.02 to 1.06")
    assert settles(moved, below) == "the ratio moved from 1.02 to 1.06; more processes do not settle that"


def test_processes_that_contradict_each_other_are_named_by_what_they_saw():
    below, above = of_ratio(1.04, 1.01, 1.07), of_ratio(1.06, 1.01, 1.07)
    said = "the processes contradict each other (1.04, 1.06), and more processes do not settle that: move the limit"
    assert settles(below, above) == said
    # Both break the smaller of two limits: that is a failure, on which they agree.
    assert Limits({"ratio": 1.05}, 1.03).contradiction([below, above]) == []
    assert Limits({"ratio": 1.05}, 1.045).contradiction([below, above]) == [1.04, 1.06]
    assert Limits({"ratio": 1.07}).contradiction([below, above]) == []


# In the process that was started. It is a session like any other, so here it runs in this process.


@pytest.fixture
def again(project, tmp_path):
    """Run the session of a process that is asked for a comparison: its result, and the folder for what it hands over."""

    def run(body, *arguments, comparison="candidate/reference ratio to ready", test="test_step", conftest=""):
        path = project.makepyfile(test_it=body)
        if conftest:
            project.makeconftest(CONFTEST + conftest)
        write_request(tmp_path, Request(f"test_it.py::{test}", f"{path}::{test}", comparison))
        return project.runpytest_inprocess("--perf", f"{AGAIN}={tmp_path}", *arguments, no_reraise_ctrlc=True), tmp_path

    return run


def test_it_samples_for_all_of_its_time_and_ends_where_it_has_handed_over(again):
    result, folder = again("def test_step(compare):\n    compare(1.04, noise=0)\n    raise RuntimeError('went on')")
    result.assert_outcomes(skipped=1)
    part = read_samples(folder)
    assert part.pairs == pytest.approx(402, abs=4), "20 pairs would have decided it"
    assert (part.candidate, part.reference, part.until) == ("candidate", "reference", "ready")


def test_comparisons_before_the_one_that_is_asked_for_stop_as_ever(again):
    result, folder = again(
        "def test_step(compare):\n    assert compare(1.03, noise=0).pairs == 20\n    compare(1.04, noise=0)",
        comparison="candidate/reference #2 ratio to ready",
    )
    result.assert_outcomes(skipped=1)
    assert read_samples(folder).ratio.value == pytest.approx(1.04)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("import pytest\ndef test_step(): pytest.skip('no\\ndevice')", "the test was skipped there (no device)"),
        ("def test_step(compare):\n    compare(2)", "the test failed there (perfsuite.gate.budget.BudgetExceeded: *)"),
        ("def test_step(compare): 1 / 0", "the test failed there (ZeroDivisionError: division by zero)"),
        ("def test_step(compar): pass", "the test's set-up failed there (no fixture 'compar')"),
        ("def test_step(perf): pass", "the test ended there without making the comparison '*#2 ratio to ready'"),
        ("def test_another(): pass", "the test was not found there"),
        ("1 / 0", "test_it.py could not be collected there (*ZeroDivisionError: division by zero)"),
        ("def test_step(): raise KeyboardInterrupt", "its session was ended there (KeyboardInterrupt*)"),
    ],
    ids=["skips", "budget", "raises", "fixture", "ends", "missing", "import", "interrupted"],
)
def test_what_keeps_it_from_its_comparison_is_said_in_a_sentence(again, body, reason):
    result, folder = again(body, comparison="candidate/reference #2 ratio to ready")
    print(result.stdout.str())
    assert read_samples(folder) is None
    assert re.fullmatch(reason.replace("(", r"\(").replace(")", r"\)").replace("*", ".*"), read_reason(folder))


@pytest.mark.parametrize("option", ["-n2", "--pdb"])
def test_it_starts_no_process_and_no_worker_and_no_debugger_and_leaves_baselines_alone(again, further, option):
    requests = further()
    body = "def test_step(compare, perf):\n    compare({}, limit=1.0501)\n    perf.record('x', 1, unit='x', kind='count')\n    1 / 0"
    result, _ = again(body.format(BELOW), "--perf-processes=3", option, "--perf-save", comparison="another")
    result.assert_outcomes(failed=1)
    assert requests == []
    result.stdout.no_fnmatch_line("*(Pdb)*")
    result.stdout.no_fnmatch_line("*workers*")
    assert not (Path.cwd() / "baselines").exists()


def test_another_plugin_that_takes_tests_away_does_not_keep_it_from_its_own(again):
    conftest = "\ndef pytest_collection_modifyitems(items): items.clear()\n"
    _, folder = again("def test_step(compare): compare(1.04, noise=0)", conftest=conftest)
    assert read_samples(folder) is not None


@pytest.mark.parametrize("content", [None, b"", b"{}", b"[]", b"\xff"])
def test_a_folder_without_a_request_is_a_usage_error(project, tmp_path, content):
    if content is not None:
        (tmp_path / "request.json").write_bytes(content)
    result = project.runpytest_inprocess("--perf", f"{AGAIN}={tmp_path}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*perfsuite: no request in {tmp_path}*"])


# What is handed over.


def test_a_comparison_comes_back_as_it_was(tmp_path):
    handed = of_samples([104, 106.5, 1e-3], seconds=1.25)
    write_samples(tmp_path, handed)
    back = read_samples(tmp_path)
    for field in dataclasses.fields(Comparison):
        np.testing.assert_equal(getattr(back, field.name), getattr(handed, field.name))
    assert type(back.ratio) is type(handed.ratio)
    assert [path.name for path in tmp_path.iterdir()] == ["samples.npz"]


def test_a_request_and_a_reason_come_back_as_they_were(tmp_path):
    request = Request("a::b[ü\n\ud800]", "/x y/a::b[ü\n\ud800]", 'a"b ratio', "/cache")
    write_request(tmp_path, request)
    assert read_request(tmp_path) == request
    assert read_reason(tmp_path) == ""
    write_reason(tmp_path, "because\nü")
    assert read_reason(tmp_path) == "because\nü"


def damaged(folder, damage):
    path = folder / "samples.npz"
    if damage == "cut short":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "text":
        path.write_text("not samples")
    else:
        with np.load(path) as file:
            arrays = dict(file)
        arrays["candidate_us"] = {"negative": -arrays["candidate_us"], "cut": arrays["candidate_us"][1:]}[damage]
        np.savez(path, **arrays)


@pytest.mark.parametrize("damage", ["cut short", "empty", "text", "negative", "cut"])
def test_damaged_samples_are_an_error_and_never_a_metric(tmp_path, damage):
    write_samples(tmp_path, of_samples([104, 106]))
    damaged(tmp_path, damage)
    with pytest.raises(ValueError, match=r"\S"):
        read_samples(tmp_path)
    with pytest.raises(ProcessFailed, match="what it handed back cannot be read"):
        processes._handed_over(tmp_path, 0)


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
    return run_bounded(
        [sys.executable, "-c", code], directory=output.parent, environment=os.environ, output=output, seconds=seconds
    )


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
    with pytest.raises(ProcessFailed, match=r"it was stopped because its time was up; the last that it wrote: \d+"):
        processes._handed_over(tmp_path, None)


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
    with pytest.raises(ProcessFailed, match=r"^it ended with exit status 3$"):
        processes._handed_over(tmp_path, 3)
    with pytest.raises(ProcessFailed, match=r"^it ended with SIGKILL$"):
        processes._handed_over(tmp_path, -signal.SIGKILL)


def test_samples_count_even_where_the_process_fell_over_afterwards(tmp_path):
    write_samples(tmp_path, of_samples([104, 106]))
    assert processes._handed_over(tmp_path, -signal.SIGSEGV).pairs == 2
    assert processes._handed_over(tmp_path, None).pairs == 2


def test_its_time_is_what_this_session_took_so_far_and_more(pytestconfig):
    launch = pytestconfig.stash[LAUNCH]
    before = time.monotonic() - launch.started
    assert processes.allowed_seconds(launch) >= 60 + 2 * before


@pytest.fixture
def launched(pytestconfig):
    """This session's config, as if it had been started otherwise."""
    launch = pytestconfig.stash[LAUNCH]

    def otherwise(**changes):
        pytestconfig.stash[LAUNCH] = dataclasses.replace(launch, **changes)
        return pytestconfig

    yield otherwise
    pytestconfig.stash[LAUNCH] = launch


def test_a_process_that_cannot_be_started_is_said(launched):
    config = launched(directory=Path("/does/not/exist"))
    with pytest.raises(ProcessFailed, match=r"^it could not be started \("):
        compare_again(config, Request("a", "a", "a"))


def test_options_end_where_the_command_line_says_so(launched, tmp_path):
    config = launched(arguments=("-v", "--", "-odd.py"), flags=("-P",))
    python, *line = processes.command(config, tmp_path)
    assert python == sys.executable
    assert line[:4] == ["-P", "-m", "pytest", "-v"]
    assert line[4] == f"{AGAIN}={tmp_path}"
    assert line[-2:] == ["--", "-odd.py"]


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", ""])
def test_a_number_of_processes_that_is_none_is_a_usage_error(project, value):
    result = project.runpytest_inprocess("--perf", f"--perf-processes={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*--perf-processes*must be a whole number of processes, 1 or more, got '{value}'*"])


def test_help_has_the_option_and_not_the_one_that_is_its_own(project):
    text = project.runpytest_inprocess("--help").stdout.str()
    assert "--perf-processes=N" in text
    assert AGAIN not in text
