"""The history on a terminal: sparklines, and an output without blocks."""

import os
import subprocess
import sys

import pytest
from support.git_project import GitProject, count, ratio

from perfsuite.report.terminal.history import LETTERS, sparkline


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository, which is the current folder."""
    return GitProject.here(tmp_path / "project", monkeypatch)


def test_a_sparkline_has_a_letter_for_each_version():
    entries = [count(value) if value is not None else None for value in (None, 1, 1, 4, 8, None, 8)]
    assert sparkline(entries) == " ▁▁▄█ █"
    assert sparkline([count(3)] * 3, LETTERS) == "---"
    assert len(sparkline([count(value) for value in range(500)])) <= 40
    assert sparkline([ratio(-1.7e308, 0), ratio(1.7e308, 0)]) == "▁█"


def test_output_that_has_no_blocks_gets_letters(project):
    for value in (2, 3):
        project.save({"compiles": count(value)})
    command = [sys.executable, "-m", "perfsuite", "history"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert " _#  " in done.stdout
