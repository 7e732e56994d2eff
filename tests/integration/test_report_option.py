"""`--perf-report=DIR`: what is written where, when, and what is said of it."""

import json
import os
from types import SimpleNamespace

import pytest
from support.report_samples import HEADER, metric, perf_test

from perfsuite.measure.installed import install
from perfsuite.report import files
from perfsuite.report.files import HTML, JSON, MARKDOWN, ReportError, write_report
from perfsuite.report.model import Report

NAMES = {HTML, JSON, MARKDOWN}

ALL = """
import pytest
from steps import *

def test_counts(perf):
    perf.record("fusions", {fusions}, unit="fusions", kind="count")
    perf.record("gone{fusions}", 1, unit="things", kind="count")

@pytest.mark.parametrize("sizes", [(1, 2, 4)], ids=["small"])
def test_scaling(perf, sizes):
    perf.scaling(lambda size: (call(lambda x: [len(x) for _ in range(size)], [1]), size), sizes, metric="host_calls")

def test_ratio(perf):
    def count(x): return [len(x) for _ in range(300)]
    # What one process sees in 50 ms was 0.74 once, on a busy machine: no baseline for 5 %.
    perf.compare(call(count, [1]), call(count, [2]), Budget(ratio=50.0), name="pair", tolerance=10.0)

def test_program(perf):
    perf.program(call(jax.jit(lambda x: {program}), batch()), name="program")

def test_budget(perf):
    perf.host_calls(call(lambda x: [len(x)] * 3, [1]), budget=Budget(host_calls=7 - {fusions}), name="lengths")

def test_assertion(perf):
    perf.record("before", 1, unit="things", kind="info")
    assert {fusions} == 5, "not five"

@pytest.fixture
def broken():
    raise RuntimeError("no data")

def test_error(perf, broken): pass

@pytest.mark.skip(reason="not today")
def test_skipped(perf): pass

def test_ordinary(): pass
"""


def report_in(folder) -> SimpleNamespace:
    """`report.json`, with the other three files and nothing beside them."""
    assert set(os.listdir(folder)) == NAMES
    return json.loads((folder / JSON).read_text(), object_hook=lambda values: SimpleNamespace(**values))


def test_a_session_that_saves_and_one_with_regressions(project):
    project.makepyfile(test_all=ALL.format(fusions=5, program="x * 2"))
    project.makeini("[pytest]\naddopts = --perf-seconds=0.05\npythonpath = .\n")  # with a cache, for the program
    result = project.runpytest_inprocess("--perf-save", "--perf-report=out/report")
    result.assert_outcomes(passed=7, errors=1, skipped=1)
    result.stdout.fnmatch_lines(["report: out/report/report.html"])
    report = report_in(project.path / "out/report")
    (saved,) = report.saved
    assert saved.path == "baselines/cpu.json"
    assert {change.action for change in saved.changes} == {"create"}
    assert len(saved.changes) == sum(map(len, saved_metrics(project)))
    assert report.header.exit_status == 1

    project.makepyfile(test_all=ALL.format(fusions=6, program="(x * 2).sum()"))
    result = project.runpytest_inprocess("--perf", "--perf-report=out/report")
    report = report_in(project.path / "out/report")
    tests = {test.test.partition("::")[2]: test for test in report.tests}
    assert {name: test.outcome for name, test in tests.items()} == {
        "test_counts": "failed",
        "test_scaling[small]": "passed",
        "test_ratio": "passed",
        "test_program": "failed",
        "test_budget": "failed",
        "test_assertion": "failed",
        "test_error": "error",
        "test_skipped": "skipped",
    }
    assert report.notes == []
    fusions, new, gone = tests["test_counts"].results
    assert (gone.verdict, gone.title) == ("missing", "gone5")
    assert (fusions.verdict, fusions.metric.value, fusions.baseline, fusions.limit) == ("fail", 6, 5, 5)
    assert (new.verdict, new.baseline) == ("new", None)
    assert tests["test_counts"].message.startswith("fusions is 6 fusions, +1 (+20 %) over the baseline 5 fusions")
    assert (tests["test_counts"].file, tests["test_counts"].line) == ("test_all.py", 4)
    (program,) = tests["test_program"].programs
    assert program.compared
    assert program.differences[0].startswith("flops: ")
    assert set(program.titles) == {result.title for result in tests["test_program"].results}
    (over,) = tests["test_budget"].results
    assert (over.source, over.verdict, over.limit) == ("budget", "fail", 1)
    assert over.cause
    assert tests["test_budget"].message == f"{over.reason}\nlikely cause: {over.cause}"
    assert [result.verdict for result in tests["test_assertion"].results] == ["not judged"]
    assert tests["test_assertion"].message.startswith("AssertionError: not five")
    assert tests["test_error"].message == "RuntimeError: no data"
    assert tests["test_skipped"].message == "not today"
    page, text = ((project.path / "out/report" / name).read_text() for name in (HTML, MARKDOWN))
    for name in tests:
        assert name in page
    assert "test_counts" in text


def saved_metrics(project) -> list[dict]:
    return list(json.loads((project.path / "baselines/cpu.json").read_text())["metrics"].values())


def test_a_session_without_perf_tests_has_a_report(project):
    project.makepyfile("def test_it(): pass")
    result = project.runpytest_inprocess("--perf", "--perf-report=out")
    result.assert_outcomes(passed=1)
    report = report_in(project.path / "out")
    assert (report.tests, report.header.exit_status) == ([], 0)
    assert "No perf test ran" in (project.path / "out" / HTML).read_text()


def test_the_folder_is_seen_from_where_pytest_was_started(project, perf_test, monkeypatch):
    perf_test("perf.record('fusions', 3, unit='fusions', kind='count')")
    (project.path / "below").mkdir()
    monkeypatch.chdir(project.path / "below")
    result = project.runpytest_inprocess("--perf", "--perf-report=out", "..")
    report = report_in(project.path / "below/out")
    assert report.tests[0].test == "test_step.py::test_step"
    result.stdout.fnmatch_lines(["report: below/out/report.html"])


@pytest.mark.parametrize("name", ["a file", "a file/below"])
def test_a_folder_that_cannot_be_made_is_an_error_before_any_test(project, perf_test, name):
    perf_test("raise SystemExit('it ran')")
    (project.path / "a file").write_text("kept")
    result = project.runpytest_inprocess("--perf", f"--perf-report={name}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --perf-report: *{name}: no report can be written here (*): *another folder"])
    assert (project.path / "a file").read_text() == "kept"


def test_a_folder_in_the_place_of_the_page_is_an_error(tmp_path):
    (tmp_path / HTML).mkdir()
    with pytest.raises(ReportError, match=r"report\.html is a folder: move it away"):
        files.check_folder(tmp_path)


def test_a_missing_package_is_named_with_the_extra(project, perf_test, monkeypatch):
    perf_test("raise SystemExit('it ran')")
    monkeypatch.setattr(files.importlib.util, "find_spec", lambda name: None)
    result = project.runpytest_inprocess("--perf", "--perf-report=out")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: --perf-report: jinja2 is not installed: {install('report')}" in result.stderr.str()


def test_a_folder_that_goes_away_fails_the_session_and_loses_no_baseline(project, perf_test):
    perf_test(
        "import pathlib, shutil",
        "shutil.rmtree('out'), pathlib.Path('out').write_text('in the way')",
        "perf.record('fusions', 3, unit='fusions', kind='count')",
    )
    result = project.runpytest_inprocess("--perf-save", "--perf-report=out")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["--perf-report: *out: no report can be written here (*"])
    assert (project.path / "baselines/cpu.json").exists()


def test_a_report_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    write_report(Report(HEADER), tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in NAMES}

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(ReportError, match=r"no report can be written here \(No space left on device\)"):
        write_report(Report(HEADER, notes=("new",)), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_half_a_surrogate_pair_in_a_name_can_be_written(tmp_path):
    write_report(Report(HEADER, (perf_test("test_\ud800", metric()),)), tmp_path)
    assert "test_?" in (tmp_path / HTML).read_text()
    assert report_in(tmp_path).tests[0].test == "test_it.py::test_\ud800"


def test_a_trace_is_linked_from_the_report(project, perf_test):
    perf_test("perf.host_calls(call(jax.jit(lambda x: x + 1), batch()), name='add')")
    project.runpytest_inprocess("--perf", "--perf-report=out/report", "--perf-trace=out/traces").assert_outcomes(
        passed=1
    )
    folder = project.path / "out/report"
    (trace,) = report_in(folder).tests[0].traces
    assert trace.folder == "../traces/test_step.py/test_step/add"
    assert list((folder / trace.folder).glob("**/perfetto_trace.json.gz"))
    assert f'href="{trace.folder}"' in (folder / HTML).read_text()


def test_a_test_that_fails_in_its_body_and_after_it_is_one_test(project):
    project.makepyfile(
        """
        import pytest

        @pytest.fixture
        def broken():
            yield
            raise RuntimeError("after")

        def test_it(perf, broken):
            perf.record("metric", 1, unit="things", kind="count")
            raise ValueError("within")
        """
    )
    project.runpytest_inprocess("--perf", "--perf-report=out")
    (test,) = report_in(project.path / "out").tests
    assert (test.outcome, test.message) == ("failed", "ValueError: within\nRuntimeError: after")
    assert len(test.results) == 1
