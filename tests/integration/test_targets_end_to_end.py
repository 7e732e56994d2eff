"""Metrics compiled for a device that is not here, end to end: their file, their gate, and what the terminal says.

The metrics are made up; `perf.program` makes real ones. Every planted regression has its control.
"""

import json

import pytest

COMPILED = """
from perfsuite.measure.metric import Metric

def collectives(perf, target="tpu-v5e", **parts):
    places = {name.replace("_", "-"): f"model.py:{len(name)} in attention" for name in parts}
    detail = {name.replace("_", "-"): number for name, number in parts.items()}
    total = sum(parts.values())
    made = Metric("step collectives", total, "collectives", "count", detail=detail, target=target, places=places)
    perf._state.recorder.add(made)
"""


@pytest.fixture
def compiled_test(project, perf_test):
    """Write a perf test of these lines, which can call `collectives(perf, all_gather=2)`."""

    def write(*lines: str) -> None:
        perf_test("from compiled import collectives", *lines, compiled=COMPILED)

    return write


def metrics(project, device: str) -> dict:
    return json.loads((project.path / f"baselines/{device}.json").read_text())["metrics"]


def test_a_collective_too_many_fails_and_names_its_part_and_place(project, compiled_test):
    compiled_test("collectives(perf, all_gather=2, all_reduce=1)")
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=1)
    project.runpytest_inprocess("--perf", "--perf-strict").assert_outcomes(passed=1)
    compiled_test("collectives(perf, all_gather=3, all_reduce=1)")
    result = project.runpytest_inprocess("--perf", "-v")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "step collectives @ tpu-v5e is 4 collectives, +1 (+33.3 %) over the baseline 3 collectives; "
            "grew: all-gather (+1) at model.py:10 in attention",
            "  step collectives @ tpu-v5e * 4 collectives * 3 * fail",
        ]
    )


def test_a_part_that_only_moved_in_the_source_changes_no_file(project, compiled_test):
    compiled_test("collectives(perf, all_gather=2)")
    project.runpytest_inprocess("--perf-save")
    before = (project.path / "baselines/tpu-v5e.json").read_bytes()
    assert b"model.py" not in before
    (project.path / "compiled.py").write_text(COMPILED.replace("model.py:", "model.py:1"))
    result = project.runpytest_inprocess("--perf-save")
    result.stdout.fnmatch_lines(["baselines/tpu-v5e.json: 0 recorded, 1 kept"])
    assert (project.path / "baselines/tpu-v5e.json").read_bytes() == before


def test_one_run_saves_the_files_of_both_devices(project, compiled_test):
    compiled_test("collectives(perf, all_gather=2)", "collectives(perf, target=None, copy=1)")
    result = project.runpytest_inprocess("--perf-save", "-v")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "  step collectives @ tpu-v5e * 2 *",
            "  step collectives  * 1 *",
            "2 metrics of *",
            "baselines/cpu.json: 1 recorded (1 new), 0 kept",
            "baselines/tpu-v5e.json: 1 recorded (1 new), 0 kept",
        ]
    )
    ((test, there),) = metrics(project, "tpu-v5e").items()
    here = metrics(project, "cpu")[test]
    assert {name: (entry["value"], entry["provenance"]) for name, entry in here.items()} == {
        "step collectives": (1, "measured")
    }
    assert there["step collectives"]["provenance"] == "compiled"
    assert there["step collectives"]["detail"] == {"all-gather": 2}


PARAMETRISED = """
from compiled import collectives
def test_program(perf, perf_target): collectives(perf, perf_target, all_gather=2)
"""


def test_each_target_has_a_test_a_file_and_a_line_in_the_header(project, compiled_test):
    project.makepyfile(test_inner=PARAMETRISED, compiled=COMPILED)
    options = ["--perf-target=tpu-v5e", "--perf-target=tpu-v6e"]
    project.runpytest_inprocess("--perf-save", *options).assert_outcomes(passed=2)
    for name in ("tpu-v5e", "tpu-v6e"):
        assert list(metrics(project, name)) == [f"test_inner.py::test_program[{name}]"]
    result = project.runpytest_inprocess("--perf", "-v", "--perf-strict", *options)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "perfsuite: baselines baselines/cpu.json (no metrics yet: *), size small",
            "perfsuite: tpu-v5e: baselines/tpu-v5e.json (1 metric)",
            "perfsuite: tpu-v6e: baselines/tpu-v6e.json (1 metric)",
            "test_inner.py::test_program[[]tpu-v5e[]]",
            "  step collectives * pass",
            "test_inner.py::test_program[[]tpu-v6e[]]",
            "  step collectives * pass",
        ]
    )


@pytest.mark.parametrize("option", ["--perf", "--perf-save"])
def test_a_damaged_file_of_a_target_that_is_named_is_a_usage_error(project, compiled_test, option):
    compiled_test("collectives(perf, all_gather=2)")
    project.runpytest_inprocess("--perf-save")
    path = project.path / "baselines/tpu-v5e.json"
    path.write_text(path.read_text()[:-20])
    result = project.runpytest_inprocess(option, "--perf-target=tpu-v5e")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *tpu-v5e.json:*"])


def test_a_test_without_its_targets_compiler_is_skipped_and_fails_under_strict(project, compiled_test):
    compiled_test("perf._state.session.unavailable('libtpu is not installed')")
    result = project.runpytest_inprocess("--perf", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * libtpu is not installed"])
    result = project.runpytest_inprocess("--perf", "--perf-strict")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["libtpu is not installed (--perf-strict)"])
