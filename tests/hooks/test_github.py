"""In GitHub Actions: annotations at the lines of the tests, and the report in the step summary."""

import dataclasses
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from report.test_markdown import a_test, metric, report

from perfsuite.gate.verdict import Verdict
from perfsuite.hooks import github
from perfsuite.hooks.github import Actions, annotations, append_summary, workflow_command
from perfsuite.measure.serialise import plain
from perfsuite.session.fresh import Request

ROOT = Path("/checkout/repository/project")
WORKSPACE = Path("/checkout/repository")


def understood(line):
    """A workflow command as the runner reads it: (command, properties, message)."""
    level, properties, message = re.fullmatch(r"::(\w+) ([^:]*)::(.*)", line).groups()
    named = dict(each.split("=", 1) for each in properties.split(","))
    for name, value in named.items():
        for escaped, letter in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
            value = value.replace(escaped, letter)
        named[name] = value
    for escaped, letter in (("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        message = message.replace(escaped, letter)
    return level, named, message


@settings(max_examples=200)
@given(*[st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp"]) | st.sampled_from("%:,\r\n"))] * 3)
@example("100 %0A", "a%2Cb", "%25")
def test_a_command_is_one_line_and_says_what_it_was_given(message, title, file):
    line = workflow_command("error", message, title=title or "t", file=file, line=3)
    assert len(line.splitlines()) == 1
    named = {"file": file, "line": "3"} if file else {}
    assert understood(line) == ("error", named | {"title": title or "t"}, message)


def test_control_characters_do_not_reach_the_log():
    line = workflow_command("error", "\x1b[31mred\x1b[0m\x00 \u2028", title="a\x1bb")
    assert line.isprintable()
    assert "red" in line


def test_a_failure_is_annotated_at_the_line_that_it_blames():
    failed = dataclasses.replace(a_test(outcome="failed", message="m"), blamed=("models/model.py", 42))
    ((_, named, _),) = annotated(failed)
    assert (named["file"], named["line"]) == ("project/models/model.py", "42")


def test_a_very_long_message_is_cut():
    assert len(workflow_command("error", "x" * 100_000, title="t")) < 5000


def annotated(*tests, root=ROOT, workspace=WORKSPACE, **fields):
    return [understood(line) for line in annotations(report(*tests), root, workspace, **fields)]


def test_a_failure_is_an_error_at_its_line_seen_from_the_repository():
    ((level, named, message),) = annotated(
        a_test("tests/test_a.py::test_step[tpu]", "failed", "step is 2\nfirst: look")
    )
    assert (level, message) == ("error", "step is 2"), "the log and the summary have the rest"
    assert named == {"file": "project/tests/test_a.py", "line": "7", "title": "perfsuite: test_step[tpu] failed"}


def test_a_test_that_is_left_undecided_is_a_notice_that_says_what_settles_it():
    open_ = metric("a", Verdict.INCONCLUSIVE, note="a is 1.5\nto settle it: more seconds")
    ((level, named, message),) = annotated(a_test(metrics=(metric(), open_)))
    assert (level, named["line"], message) == ("notice", "7", "a is 1.5\nto settle it: more seconds")
    assert len(annotated(a_test(outcome="failed", message="m", metrics=(open_,)))) == 1, "a failure says it already"


def test_passes_improvements_and_new_metrics_are_no_annotations():
    assert annotated(a_test(metrics=(metric(), metric("b", Verdict.IMPROVED), metric("c", Verdict.NEW)))) == []


def test_more_failures_than_are_shown_are_named_in_the_last():
    tests = [a_test(f"t::test_{number}", "failed", "m") for number in range(12)]
    found = annotated(*tests)
    assert len(found) == github.MOST_ANNOTATIONS == 10
    assert found[-1][1] == {"title": "perfsuite: 3 more tests failed"}
    assert found[-1][2].splitlines() == ["t::test_9", "t::test_10", "t::test_11"]
    assert len(annotated(*tests[:10])) == 10


@pytest.mark.parametrize("workspace", [None, Path("/elsewhere")])
def test_a_file_outside_of_the_repository_is_named_in_full(workspace):
    ((_, named, _),) = annotated(a_test(outcome="failed", message="m"), workspace=workspace)
    assert named["file"] == "/checkout/repository/project/tests/test_a.py"


@pytest.mark.parametrize("value", [None, "", "false", "1"])
def test_outside_of_github_actions_there_is_nothing(value):
    assert Actions.of({} if value is None else {"GITHUB_ACTIONS": value}) is None


# The summary.


def test_a_report_that_github_would_refuse_leaves_what_the_step_wrote_before(tmp_path):
    path = tmp_path / "summary.md"
    append_summary(path, "x" * (github.MOST_BYTES - 2000))
    append_summary(path, "y" * 2000)
    head, _, line = path.read_text().partition("\n")
    assert set(head) == {"x"}
    assert "pytest --perf-report=DIR" in line
    assert path.stat().st_size <= github.MOST_BYTES


@pytest.fixture
def actions(monkeypatch, project):
    """A step of GitHub Actions whose repository is the folder above the project: the path of its summary."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(project.path.parent))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.path / "summary.md"))
    return project.path / "summary.md"


COUNTS = """
def test_other():
    assert False

def test_counts(perf):
    perf.record("calls", {}, unit="calls", kind="count")
"""


def test_a_regression_is_annotated_and_in_the_summary(project, actions):
    project.makepyfile(test_a=COUNTS.format(7))
    saved = project.runpytest_inprocess("--perf-save")
    assert "::error" not in saved.stdout.str()
    assert "1 recorded (1 new)" in actions.read_text()
    project.makepyfile(test_a=COUNTS.format(8))
    result = project.runpytest_inprocess("--perf")
    file = f"file={project.path.name}/test_a.py,line=5,"  # the call that made the metric
    lines = [line for line in result.outlines if line.startswith("::")]
    assert len(lines) == 1, "of other tests nothing is said"
    assert lines[0].startswith(
        f"::error {file}title=perfsuite%3A test_counts failed::calls is 8 calls, +1 (+14.3 %25) over the baseline 7"
    )
    before, _, after = actions.read_text().partition("1 of 1 test failed")
    assert "1 recorded (1 new)" in before
    assert "calls is 8 calls" in after


def test_a_test_that_is_gone_is_a_failure_in_every_report(project, actions):
    project.makepyfile(test_a=COUNTS.format(7))
    project.runpytest_inprocess("--perf-save")
    project.makepyfile(test_a=COUNTS.format(7).replace("test_counts", "test_the_counts"))
    result = project.runpytest_inprocess("--perf", "--perf-report=report", "--junitxml=junit.xml")
    result.assert_outcomes(passed=1, failed=2)
    message = "test_a.py::test_counts is gone, or without perf: "
    (annotation,) = [line for line in result.outlines if line.startswith("::error")]
    assert annotation.startswith(
        f"::error file={project.path.name}/test_a.py,title=perfsuite%3A test_counts failed::{message}"
    )
    assert "if it is test_a.py::test_the_counts now, rename it" in annotation
    cases = ET.parse(project.path / "junit.xml").getroot().iter("testcase")
    assert message in next(case for case in cases if case.get("name") == "test_counts").find("failure").get("message")
    assert message in actions.read_text()


def test_without_github_actions_nothing_is_written(project, actions, monkeypatch):
    monkeypatch.delenv("GITHUB_ACTIONS")
    project.makepyfile(test_a=COUNTS.format(7))
    result = project.runpytest_inprocess("--perf", "--perf-strict")
    assert not [line for line in result.outlines if line.startswith("::")]
    assert not actions.exists()


def test_a_summary_that_cannot_be_written_is_a_warning(project, actions, perf_test):
    actions.mkdir()
    perf_test("perf.record('calls', 7, unit='calls', kind='count')")
    result = project.runpytest_inprocess("--perf")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["perfsuite: the step summary */summary.md cannot be written (Is a directory)"])


def test_another_plugin_that_annotates_failures_is_left_to_do_it(project, actions):
    name = "pytest_github_actions_annotate_failures"
    project.makepyfile(**{"test_a": COUNTS.format(7), name: ""})
    result = project.runpytest_inprocess("--perf", "--perf-strict", "-p", name)
    assert not [line for line in result.outlines if line.startswith("::error")]
    assert "calls has no baseline" in actions.read_text()


def test_a_process_that_makes_a_comparison_again_writes_nothing(project, actions, tmp_path):
    project.makepyfile(test_a=COUNTS.format(7))
    asked = Request("test_a.py::test_counts", "test_a.py::test_counts", "ratio")
    (tmp_path / "request.json").write_text(json.dumps(plain(asked)))
    result = project.runpytest_inprocess("--perf", f"--perf-again={tmp_path}", "--perf-strict")
    assert not [line for line in result.outlines if line.startswith("::")]
    assert not actions.exists()


def test_under_xdist_the_main_process_alone_writes(project, actions, monkeypatch):
    pytest.importorskip("xdist")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # it starts twice as fast without the other plugins
    project.makepyfile(test_a=COUNTS.format(7))
    plugins = ("-p", "perfsuite.plugin", "-p", "xdist")
    result = project.runpytest_subprocess("--perf", "--perf-strict", "-n1", *plugins)
    assert len([line for line in result.outlines if line.startswith("::error ")]) == 1
    assert actions.read_text().count("## perfsuite:") == 1
