"""`perfsuite bisect`: its command line, and what it refuses before it starts."""

import argparse

import pytest
from support.bisecting import command

from perfsuite.commands import CommandError, bisect

METRIC = "test_a.py::test_step::step host calls"


def test_what_follows_the_dashes_is_pytests():
    parser = argparse.ArgumentParser()
    bisect.add_arguments(parser.add_subparsers().add_parser("bisect"))
    options = parser.parse_args(["bisect", "--good=a", "--bad", "b", METRIC, "--", "tests", "-k", "x"])
    assert (options.metric, options.good, options.bad) == (METRIC, "a", "b")
    assert options.pytest_arguments == ["tests", "-k", "x"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--good", "a", METRIC), "--good REV --bad REV"),
        (("--package", "jax", METRIC), "say --good VERSION and --bad VERSION"),
        (("--package", "jax", "--good", "1", "--bad", "x", METRIC), "Invalid version"),
        (("--good", "a", "--bad", "b", "step host calls"), "names no metric of a test"),
        (("--good", "a", "--bad", "b", "--json=no/such/folder/found.json", METRIC), "make it first"),
    ],
)
def test_bad_arguments_are_errors_before_anything_is_made(arguments, why, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(CommandError, match=why):
        command(*arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("bad", ["--rounds=1", "--rounds=0", "--seconds=nan"])
def test_bad_numbers(bad, capsys):
    with pytest.raises(SystemExit):
        command(METRIC, bad)
    assert bad.partition("=")[2] in capsys.readouterr().err


def test_a_folder_to_keep_things_in_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match=r"--keep .*file: cannot be used .*: choose another"):
        command("--good", "a", "--bad", "b", METRIC, f"--keep={tmp_path / 'file'}")
