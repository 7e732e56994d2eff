"""`perfsuite against`: its command line, and what it refuses before it starts."""

import argparse

import pytest
from support.against import command

from perfsuite.commands import CommandError, against


def test_what_follows_the_dashes_is_pytests():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    against.add_arguments(commands.add_parser("against"))
    given = ["against", "a==1", "b==2", "--from", "a==0", "--rounds=4", "--", "tests", "-k", "x", "--", "y"]
    options = parser.parse_args(given)
    assert (options.specs, options.before, options.rounds) == (["a==1", "b==2"], ["a==0"], 4)
    assert options.pytest_arguments == ["tests", "-k", "x", "--", "y"]
    assert parser.parse_args(["against", "a==1"]).pytest_arguments == []


@pytest.mark.parametrize("bad", ["--rounds=1", "--rounds=-2", "--rounds=x", "--minutes=0", "--seconds=nan"])
def test_bad_numbers(bad, capsys):
    with pytest.raises(SystemExit):
        command("a==1", bad)
    assert bad.partition("=")[2] in capsys.readouterr().err


def test_a_bad_spec_is_an_error_before_anything_is_made():
    with pytest.raises(CommandError, match='"jax=1" names no package'):
        command("jax=1")


def test_a_file_that_cannot_be_written_is_an_error_before_minutes_of_work(tmp_path):
    with pytest.raises(CommandError, match=r"--json .*make it first"):
        command("jax==1", f"--json={tmp_path / 'none' / 'found.json'}")
