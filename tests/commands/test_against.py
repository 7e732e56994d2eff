"""`perfsuite against`: its command line, and what it refuses before it starts."""

import argparse
import re

import pytest
from support.against import run_command

from perfsuite.commands import CommandError, against, main


def test_what_follows_the_dashes_is_pytests():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    against.add_arguments(commands.add_parser("against"))
    given = ["against", "main", "--with", "a==1", "b==2", "--base-with", "a==0", "--minutes=4"]
    options = parser.parse_args([*given, "--", "tests", "-k", "x", "--", "y"])
    assert (options.revision, options.head, options.base, options.minutes) == ("main", ["a==1", "b==2"], ["a==0"], 4)
    assert options.pytest_arguments == ["tests", "-k", "x", "--", "y"]
    assert parser.parse_args(["against"]).pytest_arguments == []


@pytest.mark.parametrize("bad", ["--minutes=0", "--seconds=nan", "--time=some"])
def test_bad_numbers(bad, capsys):
    with pytest.raises(SystemExit):
        run_command(against, bad)
    assert bad.partition("=")[2] in capsys.readouterr().err


def test_a_bad_spec_is_an_error_before_anything_is_made():
    with pytest.raises(CommandError, match='"jax=1" names no package'):
        run_command(against, "--with", "jax=1")


def test_a_file_that_cannot_be_written_is_an_error_before_minutes_of_work(tmp_path):
    with pytest.raises(CommandError, match=r"--json .*make it first"):
        run_command(against, f"--json={tmp_path / 'none' / 'found.json'}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "is not in a git repository"),
        (["v9"], "is not in a git repository"),
    ],
)
def test_what_cannot_be_compared_is_an_error_and_leaves_nothing(arguments, message, tmp_path, monkeypatch, capsys):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "file").touch()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["against", *arguments]) == 2
    assert re.search(rf"^perfsuite against: .*{message}", capsys.readouterr().err, re.MULTILINE)
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["file"]
