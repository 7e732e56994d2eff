"""Settings and ignored files: what is added, and that nothing else changes."""

from pathlib import Path

import pytest

from perfsuite.starting.project import StartError
from perfsuite.starting.settings import with_ignored, with_settings

WANTED = {"perf_baselines": "baselines", "pythonpath": ["src"]}
IN_TOML = 'perf_baselines = "baselines"\npythonpath = ["src"]\n'
IN_INI = "perf_baselines = baselines\npythonpath = src\n"


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("pyproject.toml", "", f"[tool.pytest.ini_options]\n{IN_TOML}"),
        ("pyproject.toml", "[project]\nname = 'a'", f"[project]\nname = 'a'\n\n[tool.pytest.ini_options]\n{IN_TOML}"),
        (
            "pyproject.toml",
            "[tool.pytest.ini_options]  # pytest\naddopts = '-q'\n[tool.b]\n",
            f"[tool.pytest.ini_options]  # pytest\n{IN_TOML}addopts = '-q'\n[tool.b]\n",
        ),
        ("pyproject.toml", "[tool.pytest]\naddopts = ['-q']\n", f"[tool.pytest]\n{IN_TOML}addopts = ['-q']\n"),
        ("pytest.toml", "[pytest]", f"[pytest]\n{IN_TOML}"),
        ("pytest.ini", "", f"[pytest]\n{IN_INI}"),
        ("pytest.ini", "[pytest]\naddopts =\n    -q\n", f"[pytest]\n{IN_INI}addopts =\n    -q\n"),
        ("tox.ini", "[tox]\r\na = b\r\n", "[tox]\r\na = b\r\n\r\n[pytest]\r\n" + IN_INI.replace("\n", "\r\n")),
        ("setup.cfg", "[tool:pytest]\n", f"[tool:pytest]\n{IN_INI}"),
    ],
)
def test_settings_are_added_to_the_section_that_pytest_reads(file, before, after):
    edited = with_settings(Path(file), before, WANTED)
    assert edited.text == after
    assert edited.added == ("perf_baselines", "pythonpath")
    assert with_settings(Path(file), after, WANTED).text == after


def test_what_is_set_stays_and_is_said():
    text = "[pytest]\nperf_baselines = kept\npythonpath = lib\n"
    edited = with_settings(Path("pytest.ini"), text, WANTED)
    assert (edited.text, edited.added) == (text, ())
    assert edited.left == ("pythonpath is 'lib' there; it needs 'src' too",)


@pytest.mark.parametrize(
    "text",
    ["tool.pytest.ini_options.addopts = '-q'\n", "[tool]\npytest.ini_options = {addopts = '-q'}\n"],
)
def test_a_table_that_takes_no_lines_is_left_and_said(text):
    edited = with_settings(Path("pyproject.toml"), text, WANTED)
    assert (edited.text, edited.added) == (text, ())
    assert edited.left[0].endswith('add perf_baselines = "baselines", pythonpath = ["src"]')


def test_a_head_inside_a_text_is_not_taken_for_one():
    text = "[a]\nb = '''\n[tool.pytest.ini_options]\n'''\n[tool.pytest.ini_options]\n"
    assert with_settings(Path("pyproject.toml"), text, WANTED).text == text


@pytest.mark.parametrize(("file", "text"), [("pyproject.toml", "[a\n"), ("pytest.ini", "a = b\n")])
def test_a_damaged_file_is_named(file, text):
    with pytest.raises(StartError, match=f"^{file}: it cannot be read .*: mend it first"):
        with_settings(Path(file), text, WANTED)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "a/\nb/\n"),
        ("# mine", "# mine\na/\nb/\n"),
        ("/a\r\n", "/a\r\nb/\r\n"),
        ("a/\nb/\n", "a/\nb/\n"),
    ],
)
def test_ignored_files_are_added_once(before, after):
    assert with_ignored(before, ["a/", "b/"]).text == after
