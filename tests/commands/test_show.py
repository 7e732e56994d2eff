"""`perfsuite show`: a baseline file as people read it."""

import subprocess
import sys

import pytest
from support.git_project import HERE, ISOLATED, TEST, GitProject, ratio

from perfsuite.commands import main
from perfsuite.gate.baseline import Baselines, Entry, Revision
from perfsuite.gate.baseline_file import encode
from perfsuite.measure.metric import Interval

METRICS = {
    TEST: {
        "ratio": Entry(1.06, "x", "ratio", "measured", HERE, Interval(1.05, 1.08), 300),
        "flops": Entry(12_345_678, "FLOP", "size", "compiled"),
    },
    "tests/test_steps.py::test_other[a-b]": {
        "speed": Entry(42.0333, "tokens/s", "info", "measured", HERE, better="higher")
    },
    "reported/step": {"time": Entry(133.5, "ms", "time", "reported", source="A paper, table 2")},
}


@pytest.fixture
def file(tmp_path, monkeypatch):
    """`baselines/cpu.json` with `METRICS`, below the current folder."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "baselines" / "cpu.json"
    file.parent.mkdir()
    file.write_bytes(encode(Baselines("cpu", METRICS)))
    return file


def show(capsys, *arguments):
    """The lines that the command prints."""
    assert main(["show", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def refused(capsys, *arguments):
    """What the command says, having refused."""
    assert main(["show", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_the_files_of_a_project_are_those_for_the_installed_jax(file, capsys):
    of_this_jax = file.parent / "jax-0.10" / "cpu.json"
    of_this_jax.parent.mkdir()
    of_this_jax.write_bytes(encode(Baselines("cpu", {TEST: METRICS[TEST]})))
    assert show(capsys)[0] == "baselines/jax-0.10/cpu.json: cpu, 2 metrics of 1 test"
    (file.parent / "jax-newest").mkdir()
    assert "jax-newest: the name of a folder" in refused(capsys)


def test_a_file_is_shown_test_by_test_under_where_it_was_made(file, capsys):
    assert show(capsys, "baselines/cpu.json") == [
        "baselines/cpu.json: cpu, 4 metrics of 3 tests",
        "  1 x cpu (Xeon), python 3.11.7, jax 0.10.2, jaxlib 0.10.2, equinox 0.13.8: 2 metrics",
        "  no environment: 2 metrics",
        "",
        "metric   value              unit      kind                    provenance",
        "reported/step",
        "  time   133.5              ms        time                    reported: A paper, table 2",
        "tests/test_steps.py::test_flat",
        "  flops  12,345,678         FLOP      size                    compiled",
        "  ratio  1.06 [1.05, 1.08]  x         ratio                   measured",
        "tests/test_steps.py::test_other[a-b]",
        "  speed  42.03              tokens/s  info, higher is better  measured",
    ]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["flop"], ["flops"]),
        (["FLOPS"], ["flops"]),
        (["test_other[a-b]"], ["speed"]),
        (["*::test_flat"], ["flops", "ratio"]),
    ],
    ids=str,
)
def test_metrics_are_chosen_by_name(file, capsys, arguments, shown):
    lines = show(capsys, "baselines/cpu.json", *arguments)
    assert lines[0].startswith(f"baselines/cpu.json: cpu, {len(shown)} of 4 metrics of ")
    assert sorted(line.split()[0] for line in lines[5:] if line.startswith("  ")) == shown


def test_a_choice_of_nothing_is_refused(file, capsys):
    assert "no metric has this name" in refused(capsys, "baselines/cpu.json", "nope")
    assert "4 metrics" in show(capsys, "baselines/cpu.json")[0]


OLD, NEW = Revision("1a2b3c4d5e6f" + "0" * 28), Revision("9a8b7c6d5e4f" + "0" * 28, dirty=True)
OTHER = "tests/test_steps.py::test_other[a-b]"


def test_the_commit_of_the_last_save_is_one_line_where_all_tests_share_it(file, capsys):
    file.write_bytes(encode(Baselines("cpu", METRICS, {TEST: NEW, OTHER: NEW})))
    shown = show(capsys, "baselines/cpu.json")
    assert shown[1] == "  saved at 9a8b7c6d5e4f with changes"
    assert not any("saved at" in line for line in shown[2:])
    assert "  saved at 9a8b7c6d5e4f with changes" in show(capsys)


def test_a_file_of_a_revision_is_shown(file, capsys, monkeypatch):
    for name, value in ISOLATED.items():
        monkeypatch.setenv(name, value)
    project = GitProject(file.parent.parent)
    project.commit()
    file.write_bytes(b"damaged since")
    assert show(capsys, "HEAD:baselines/cpu.json")[0] == "HEAD:baselines/cpu.json: cpu, 4 metrics of 3 tests"
    monkeypatch.chdir(file.parent)
    assert show(capsys, "HEAD:./cpu.json")[0] == "HEAD:./cpu.json: cpu, 4 metrics of 3 tests"
    assert "(from here it may be HEAD:./cpu.json)" in refused(capsys, "HEAD:cpu.json")
    assert "git knows no revision 'nope'" in refused(capsys, "nope:baselines/cpu.json")
    assert "cpu.json:1: " in refused(capsys, "cpu.json")


def test_a_file_that_cannot_be_shown_is_named_with_the_files_that_can(file, capsys):
    assert "nope.json: no such file; there is baselines/cpu.json" in refused(capsys, "nope.json")
    assert "baselines is a folder: name a file in it; there is baselines/cpu.json" in refused(capsys, "baselines")
    file.write_text("{}")
    assert "baselines/cpu.json:1: no `schema`" in refused(capsys, "baselines/cpu.json")


def test_a_reader_that_goes_away_gets_no_traceback(file):
    metrics = {f"metric {number}": ratio(1.0 + number) for number in range(1500)}  # more than a pipe holds
    file.write_bytes(encode(Baselines("cpu", {TEST: metrics})))
    command = [sys.executable, "-m", "perfsuite", "show", "baselines/cpu.json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
    assert first.startswith(b"baselines/cpu.json: cpu, 1,500 metrics")
    assert (process.returncode, said) == (141, b"")
