"""The command line beside pytest's: what each command says of itself, and that none is slow to start."""

import subprocess
import sys

import pytest
from support.git_project import ISOLATED, GitProject, count, ratio

from perfsuite.commands import main, read_arguments

HEAVY = ("jax", "numpy", "scipy", "equinox", "jinja2", "filelock")


def help_of(capsys, *arguments):
    """What is printed with --help."""
    with pytest.raises(SystemExit) as stopped:
        main([*arguments, "--help"])
    assert stopped.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", ["init", "program", "show", "diff", "against"])
def test_help_of_a_command_fits_a_terminal_and_has_examples(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    text = help_of(capsys, command)
    assert f"usage: perfsuite {command} " in text
    assert f"\n  perfsuite {command} " in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("arguments", [[], ["nope"], ["show", "a", "b", "c"]], ids=str)
def test_an_unknown_command_is_refused_with_the_usage(capsys, arguments):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage: perfsuite" in capsys.readouterr().err


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A project whose ini file names the folder of its baselines, seen from a folder below its root."""
    project = GitProject.here(tmp_path, monkeypatch)
    (tmp_path / "pytest.ini").write_text("[pytest]\nperf_baselines = kept/here\n")
    project.save({"compiles": count(2)})
    (tmp_path / "kept").mkdir()
    project.git("mv", "baselines", "kept/here")
    project.git("commit", "--quiet", "--message=Elsewhere")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    return tmp_path / "kept/here/cpu.json"


def test_without_arguments_show_names_the_files_of_the_project(elsewhere, capsys):
    assert main(["show"]) == 0
    assert capsys.readouterr().out.startswith("../kept/here/cpu.json: cpu, 1 metric of 1 test\n")
    elsewhere.unlink()
    assert main(["show"]) == 2
    assert capsys.readouterr().err == (
        "perfsuite show: ../kept/here: no baseline file in this folder: pytest --perf-save writes them\n"
    )


def test_without_arguments_diff_compares_the_files_of_the_project_with_head(elsewhere, capsys):
    assert main(["diff"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 pass"
    elsewhere.write_text(elsewhere.read_text().replace('"value": 2', '"value": 3'))
    assert main(["diff", "--fail-on-worse"]) == 1
    assert "1 fail" in capsys.readouterr().out


def test_two_dashes_end_the_options_where_nothing_goes_to_pytest():
    assert read_arguments(["show", "--", "-odd-.json"]).file == "-odd-.json"
    assert read_arguments(["against", "HEAD", "--", "-k", "step"]).pytest_arguments == ["-k", "step"]


def test_a_configuration_that_pytest_refuses_is_an_error_with_its_words(elsewhere, capsys):
    (elsewhere.parents[2] / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    assert main(["show"]) == 2
    assert "--no-such-option" in capsys.readouterr().err


def test_an_interrupt_prints_no_traceback(monkeypatch):
    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("perfsuite.commands.show.run", interrupted)
    assert main(["show", "file.json"]) == 130


def test_reading_commands_import_no_heavy_package(tmp_path):
    project = GitProject(tmp_path)
    for value in range(8):
        project.save({"compiles": count(value), "slower": ratio(1.0 + value)})
    runs = [["show", "baselines/cpu.json"], ["diff", "HEAD~3"]]
    code = (
        "import sys\nfrom perfsuite.commands import main\n"
        f"for run in {runs!r}:\n    assert main(run) == 0\n"
        f"sys.exit(str(sorted({{*{HEAVY}}} & {{*sys.modules}}) or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "\n"), done.stderr


@pytest.mark.parametrize(
    ("terminal", "environment", "colors"),
    [(True, {}, True), (False, {}, False), (True, {"NO_COLOR": "1"}, False), (True, {"TERM": "dumb"}, False)],
)
def test_colours_are_for_terminals_that_want_them(tmp_path, monkeypatch, capsys, terminal, environment, colors):
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**ISOLATED, **environment}.items():
        monkeypatch.setenv(name, value)
    GitProject(tmp_path).write({"compiles": count(2)})
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    main(["show", str(tmp_path / "baselines" / "cpu.json")])
    assert ("\x1b[1m" in capsys.readouterr().out) == colors
