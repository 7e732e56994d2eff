"""--perf-calibrate: what it runs, what it says, what it writes; and that it can fail."""

import contextlib
import functools
import itertools
import os
import types
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfsuite.gate.calibration_file import load_calibration
from perfsuite.hooks.calibration import names_compare
from perfsuite.measure.timing import calibrating
from perfsuite.measure.timing import load as neighbours
from perfsuite.measure.timing.calibrating import Planted
from perfsuite.report.terminal.calibration import nothing_to_calibrate
from perfsuite.session import calibrating as calibrating_mode

CALIBRATE = ("--perf-calibrate", "--perf-calibrate-minutes=0.03", "--perf-seconds=0.05")
COMPARE = "perf.compare(call(step, state(), batch(), carry=1), mine, Budget(ratio=1e-9), name='s/s')"
BODY = [
    "mine = call(step, state(), batch(), carry=1)",
    "perf.host_calls(call(lambda *args: step(*args), state(), batch(), carry=1), budget=Budget(host_calls=0))",
    f"ratio = {COMPARE}.ratio.value",
    "assert ratio > 0",
    "mine.run()",
]
"""The reference donates its state, and no budget could be kept."""


@pytest.fixture
def started(monkeypatch):
    """The busy processes that were started in this process."""
    made = []

    class Popen(neighbours.subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr(neighbours, "subprocess", SimpleNamespace(**{**vars(neighbours.subprocess), "Popen": Popen}))
    return made


@pytest.fixture
def two_neighbours(monkeypatch):
    """Whatever the machine has: a core more is a process more to start."""
    monkeypatch.setattr(calibrating_mode, "cores", lambda: 2)


@pytest.fixture
def time_for_builds(monkeypatch):
    """A clock that goes on by half a second whenever it is read: 6 s are enough, however slow the machine is."""
    ticks = itertools.count()
    monkeypatch.setattr(calibrating_mode, "time", SimpleNamespace(monotonic=lambda: next(ticks) / 2))
    monkeypatch.setattr(calibrating_mode, "_STARTING", 0.0)
    return ("--perf-calibrate", "--perf-calibrate-minutes=0.1", "--perf-seconds=0.2")


def of(project):
    return load_calibration(project.path / "baselines/calibration-cpu.json")


def test_the_table_is_printed_the_file_written_and_no_budget_matters(
    project, perf_test, started, two_neighbours, time_for_builds
):
    perf_test(*BODY, test_other="def test_other(): raise RuntimeError('no perf test')")
    result = project.runpytest_inprocess(*time_for_builds)
    result.assert_outcomes(passed=1, deselected=1)
    result.stdout.fnmatch_lines(
        [
            "perfsuite: calibrating for about 0.1 minutes, into baselines/calibration-cpu.json; nothing is gated",
            "workload * machine * A/A gates * false alarms * 99 in 100* builds",
            "test_step.py::test_step",
            "  s/s to ready * quiet *",
            "  s/s to ready * busy *",
            "in all * quiet *",
            "in all * busy *",
            "promised: a gate raises a false alarm at most once in 1000",
            "busy: 2 processes computing all the time, one on each core",
            "* false alarms in * A/A gates (*): the rate is below * (95 %, Clopper and Pearson)",
            "fewer than 10 builds are too few to say by what two of the same code differ: gates take 2 %; *",
            "written: baselines/calibration-cpu.json",
        ]
    )
    quiet, busy = of(project)
    assert (quiet.busy, busy.busy) == (False, True)
    for each in (quiet, busy):
        assert each.found.gates >= 1
        assert each.workload == "s/s to ready"
    assert started
    assert all(process.poll() is not None for process in started)
    # A session that saves takes no notice of it.
    perf_test("perf.record('metric', 3, unit='things', kind='count')", test_other="")
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=1)
    assert {path.name for path in (project.path / "baselines").glob("*.json")} == {"calibration-cpu.json", "cpu.json"}
    assert of(project) == [quiet, busy]


def test_fresh_processes_build_both_sides_anew_and_their_ratios_scatter(
    project, perf_test, monkeypatch, two_neighbours, time_for_builds
):
    """A candidate that is twice as slow in this process, and not in others."""
    monkeypatch.setenv("BUILDER", str(os.getpid()))
    perf_test(
        "import os, time",
        "slow = os.environ['BUILDER'] == str(os.getpid())",
        "candidate = call(lambda: [step(state(), batch()) for _ in range(1 + slow)])",
        "perf.compare(candidate, call(lambda: [step(state(), batch())]), name='a/b')",
    )
    result = project.runpytest_inprocess(*time_for_builds)
    result.assert_outcomes(passed=1)
    quiet, busy = of(project)
    assert quiet.builds.count >= 2
    assert quiet.builds.spread > 0.1
    assert busy.builds is None
    result.stdout.fnmatch_lines([f"  a/b to ready * quiet * {quiet.builds.count}: *"])


def test_a_test_that_fresh_processes_cannot_run_is_named(
    project, perf_test, monkeypatch, two_neighbours, time_for_builds
):
    monkeypatch.setenv("BUILDER", str(os.getpid()))
    perf_test("import os", "assert os.environ['BUILDER'] == str(os.getpid()), 'elsewhere'", *BODY)
    result = project.runpytest_inprocess(*time_for_builds)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["a fresh process gave no ratio of s/s to ready: *AssertionError: elsewhere*"])
    assert {each.builds for each in of(project)} == {None}


def test_a_side_that_is_always_slower_is_shown_as_false_alarms_and_fails(
    project, perf_test, monkeypatch, two_neighbours
):
    first = []

    def biased(inner, wait, slowdown):
        first.append(1)
        return Planted(inner, wait, slowdown + 2.0 * (len(first) % 2))

    monkeypatch.setattr(calibrating, "Planted", biased)
    perf_test(*BODY)
    result = project.runpytest_inprocess("--perf-calibrate", "--perf-calibrate-minutes=0.08", "--perf-seconds=2")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["that is more often than the promised 1 in 1000: do not trust this machine's gates until*"]
    )
    assert sum(each.found.alarms for each in of(project)) >= 2


INTERRUPTED = """
import os
from perfsuite.measure.timing import calibrating, load as neighbours
from perfsuite.session import calibrating as mode

trial, alone = calibrating.Workload.trial, neighbours.busy_neighbours
mode.cores = lambda: 2

def noted(count):
    found = alone(count)
    class Noted:
        def __enter__(self):
            with open("pids", "w") as file:
                print(*(pids := found.__enter__()), file=file)
            return pids
        def __exit__(self, *error):
            return found.__exit__(*error)
    return Noted()

def interrupted(self, *args, **kwargs):
    if os.path.exists("pids"):
        raise KeyboardInterrupt
    return trial(self, *args, **kwargs)

mode.busy_neighbours = noted
calibrating.Workload.trial = interrupted
"""


def test_an_interrupted_calibration_writes_nothing_and_leaves_no_process(project, perf_test):
    perf_test(*BODY, conftest=INTERRUPTED)
    result = project.runpytest_subprocess(*CALIBRATE)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*the session did not end by itself, so no calibration was saved*"])
    assert not list((project.path / "baselines").glob("*.json"))
    pids = list(map(int, (project.path / "pids").read_text().split()))
    assert len(pids) == 2
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # as it should be, unless it was taken anew
            assert b"busy" not in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--perf-calibrate", "--perf-save"], "*--perf-calibrate and --perf-save contradict each other*"),
        (["--perf-calibrate", "--perf-strict"], "*--perf-calibrate and --perf-strict contradict each other*"),
        (["--perf-calibrate", "-n2"], "*--perf-calibrate*pytest-xdist*add `-n 0`*"),
        (["--perf-calibrate-minutes=0"], "*--perf-calibrate-minutes*must be a number of minutes above zero, got '0'*"),
        (["--perf-calibrate-minutes=inf"], "*must be a number of minutes above zero, got 'inf'*"),
    ],
)
def test_what_contradicts_it_is_refused(project, perf_test, arguments, message):
    if "-n2" in arguments:
        pytest.importorskip("xdist")
    perf_test(*BODY)
    result = project.runpytest_inprocess(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])
    assert not (project.path / "baselines").exists()


def test_a_damaged_calibration_is_an_error_at_once_and_is_left_alone(project, perf_test):
    perf_test("raise RuntimeError(perf.compare)")
    (project.path / "baselines").mkdir()
    path = project.path / "baselines/calibration-cpu.json"
    path.write_text("{half")
    result = project.runpytest_inprocess(*CALIBRATE)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *calibration-cpu.json:1: *"])
    assert path.read_text() == "{half"


@pytest.mark.parametrize(
    ("line", "outcomes", "message"),
    [
        ("perf.record('a', 1, unit='x', kind='count')", {"deselected": 1}, "(1 test that does not name it was left out)"),
        ("perf.compare", {"passed": 1}, "nothing to calibrate: no test of this session called perf.compare"),
    ],
)  # fmt: skip
def test_a_session_without_a_comparison_says_so(project, perf_test, line, outcomes, message):
    perf_test(line)
    result = project.runpytest_inprocess(*CALIBRATE)
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.assert_outcomes(**outcomes)
    assert message in result.stdout.str()
    assert not list((project.path / "baselines").glob("*.json"))


# Which tests run.


def through_a_helper(perf):
    named_inside(perf)


def named_inside(perf):
    def body():
        return perf.compare(1, 2)

    return body()


def recursive(perf):
    recursive(perf)


def without(perf):
    perf.time(os.getpid)


def wrapping(function):
    @functools.wraps(function)
    def wrapped(*args):
        return function(*args)

    return wrapped


decorated = wrapping(named_inside)


def through_a_decorator(perf):
    decorated(perf)


nameless = [].append  # its `__module__` is None


def without_a_module(perf):
    nameless(perf)


class InAClass:
    """A test class whose helper compares."""

    def check(self, perf):
        perf.compare(1, 2)

    def test(self, perf):
        self.check(perf)


@pytest.mark.parametrize(
    ("function", "cls", "expected"),
    [
        (named_inside, None, True),
        (through_a_helper, None, True),
        (InAClass.test, InAClass, True),
        (through_a_decorator, None, True),
        (without_a_module, None, False),
        (recursive, None, False),
        (without, None, False),
        (None, None, False),
    ],
)
def test_tests_that_reach_compare_by_name_are_the_ones_that_run(function, cls, expected):
    assert names_compare(SimpleNamespace(function=function, cls=cls)) is expected


def test_a_function_of_a_module_that_is_named_is_looked_into():
    module = types.ModuleType("helpers")
    module.check = named_inside
    function = types.FunctionType((lambda perf: helpers.check(perf)).__code__, {"helpers": module})  # noqa: F821
    assert names_compare(SimpleNamespace(function=function, cls=None))


def test_tests_that_are_left_out_are_counted_as_one_counts():
    assert nothing_to_calibrate(0).endswith("called perf.compare")
    assert nothing_to_calibrate(1).endswith(" (1 test that does not name it was left out)")
    assert nothing_to_calibrate(2).endswith(" (2 tests that do not name it were left out)")
