"""--perf-save: what it records, what it says, and that nothing on disk is lost whatever happens."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

METRICS = [
    "perf.host_calls(call(step, state(), batch(), carry=1))",
    "perf.time(call(step, state(), batch(), carry=1))",
    "perf.record('fusions', 3, unit='fusions', kind='count')",
    "perf.record('peak', 1000, unit='bytes', kind='size')",
]


def baselines(project) -> dict:
    return json.loads((project.path / "baselines/cpu.json").read_text())


def test_saving_twice_changes_no_count_size_or_provenance(project, perf_test):
    perf_test(*METRICS)
    result = project.runpytest_inprocess("--perf-save")
    result.stdout.fnmatch_lines(["baselines/cpu.json: 8 recorded (8 new), 0 kept"])
    first = baselines(project)
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=1)
    second = baselines(project)
    (before,), (after,) = first["metrics"].values(), second["metrics"].values()
    assert before.keys() == after.keys()
    for name, metric in before.items():
        assert metric["provenance"] == after[name]["provenance"] == "measured"
        if metric["kind"] in ("count", "size"):
            assert metric == after[name]


def test_saving_one_test_keeps_the_entries_of_the_others(project):
    body = "def test_{}(perf): perf.record('fusions', 3, unit='fusions', kind='count')"
    project.makepyfile(test_many="\n".join(body.format(name) for name in "abc"))
    project.runpytest_inprocess("--perf-save")
    result = project.runpytest_inprocess("--perf-save", "-k", "test_b")
    result.stdout.fnmatch_lines(["baselines/cpu.json: 0 recorded, 3 kept"])
    assert len(baselines(project)["metrics"]) == 3


def test_a_test_that_was_deleted_from_its_file_is_trimmed(project):
    body = "def test_{}(perf): perf.record('fusions', 3, unit='fusions', kind='count')"
    project.makepyfile(test_many="\n".join(body.format(name) for name in "abc"))
    project.runpytest_inprocess("--perf-save")
    project.makepyfile(test_many="\n".join(body.format(name) for name in "ab"))
    result = project.runpytest_inprocess("--perf-save", "-k", "test_a")
    result.stdout.fnmatch_lines(["*: 0 recorded, 1 removed, 2 kept"])
    assert set(baselines(project)["metrics"]) == {"test_many.py::test_a", "test_many.py::test_b"}


def test_tests_that_last_failed_leaves_out_keep_their_entries(project):
    project.makeini("[pytest]\npythonpath = .\n")
    body = "def test_{}(perf): perf.record('fusions', 3, unit='fusions', kind='count')"
    project.makepyfile(test_many="\n".join(body.format(name) for name in "ab"))
    project.runpytest_inprocess("--perf-save")
    project.makepyfile(test_many=f"{body.format('a')}\ndef test_b(perf): assert False, 'for now'")
    project.runpytest_inprocess("--perf").assert_outcomes(passed=1, failed=1)
    project.makepyfile(test_many="\n".join(body.format(name) for name in "ab"))
    project.runpytest_inprocess("--perf-save", "--lf").assert_outcomes(passed=1)
    assert set(baselines(project)["metrics"]) == {"test_many.py::test_a", "test_many.py::test_b"}


def test_a_failed_test_is_not_recorded(project, perf_test):
    perf_test("perf.record('fusions', 3, unit='fusions', kind='count')", "assert False")
    project.runpytest_inprocess("--perf-save").assert_outcomes(failed=1)
    assert not (project.path / "baselines/cpu.json").exists()


def test_a_metric_over_its_budget_is_not_recorded(project, perf_test):
    perf_test("perf.host_calls(call(lambda x: [len(x)] * 3, [1]), budget=Budget(host_calls=0))")
    project.runpytest_inprocess("--perf-save").assert_outcomes(failed=1)
    assert not (project.path / "baselines/cpu.json").exists()


@pytest.mark.parametrize("option", ["--perf", "--perf-save"])
def test_a_damaged_file_is_refused_and_left_as_it_was(project, perf_test, option):
    """Which damage there is: tests/gate/test_baseline_file.py."""
    perf_test("perf.record('fusions', 3, unit='fusions', kind='count')")
    project.runpytest_inprocess("--perf-save")
    path = project.path / "baselines/cpu.json"
    damaged = path.read_bytes()[:-20]
    path.write_bytes(damaged)
    result = project.runpytest_inprocess(option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*cpu.json:*"])
    assert path.read_bytes() == damaged


def test_a_folder_that_cannot_be_written_is_refused_before_anything_runs(project, perf_test):
    perf_test("raise RuntimeError('ran')")
    (project.path / "baselines").write_text("a file, where the folder should be")
    result = project.runpytest_inprocess("--perf-save")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*baselines*folder*"])
    assert "ran" not in result.stdout.str()


def test_a_disk_that_fills_up_while_saving_fails_the_session_and_keeps_the_file(project, perf_test, monkeypatch):
    perf_test("perf.record('fusions', 3, unit='fusions', kind='count')")
    project.runpytest_inprocess("--perf-save")
    before = (project.path / "baselines/cpu.json").read_bytes()
    perf_test("perf.record('fusions', 2, unit='fusions', kind='count')")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    result = project.runpytest_inprocess("--perf-save")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["no baseline was saved: *cpu.json*No space left on device*"])
    assert (project.path / "baselines/cpu.json").read_bytes() == before


def test_an_interrupted_session_saves_nothing(project, perf_test):
    perf_test("perf.record('fusions', 3, unit='fusions', kind='count')")
    project.makepyfile(test_zz="def test_interrupted(): raise KeyboardInterrupt")
    result = project.runpytest_inprocess("--perf-save", no_reraise_ctrlc=True)
    result.stdout.fnmatch_lines(["the session did not end by itself, so no baseline was saved"])
    assert not (project.path / "baselines/cpu.json").exists()


def session(project, *arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "pytest", "--perf-save", "-p", "no:cacheprovider", *arguments]
    return subprocess.Popen(command, cwd=project.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_two_sessions_that_save_at_once_lose_nothing(project):
    wait = """
    import pathlib, time
    def test_{0}(perf):
        pathlib.Path("{0}").touch()
        while not pathlib.Path("{1}").exists(): time.sleep(0.01)
        perf.record('fusions', 3, unit='fusions', kind='count')
    """
    project.makepyfile(test_left=wait.format("left", "right"), test_right=wait.format("right", "left"))
    sessions = [session(project, "test_left.py"), session(project, "test_right.py")]
    outputs = [each.communicate(timeout=60)[0] for each in sessions]
    assert [each.returncode for each in sessions] == [0, 0], outputs
    assert set(baselines(project)["metrics"]) == {"test_left.py::test_left", "test_right.py::test_right"}


def test_a_killed_session_leaves_the_file_as_it_was(project, perf_test):
    perf_test("perf.record('fusions', 3, unit='fusions', kind='count')")
    project.runpytest_inprocess("--perf-save")
    before = (project.path / "baselines/cpu.json").read_bytes()
    perf_test(
        "perf.record('fusions', 2, unit='fusions', kind='count')", "import time; open('reached', 'w'); time.sleep(60)"
    )
    running = session(project)
    reached = Path(project.path / "reached")
    while not reached.exists() and running.poll() is None:
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.communicate(timeout=30)
    assert (project.path / "baselines/cpu.json").read_bytes() == before
    perf_test("perf.record('fusions', 2, unit='fusions', kind='count')")
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=1)
    assert baselines(project)["metrics"]["test_step.py::test_step"]["fusions"]["value"] == 2
