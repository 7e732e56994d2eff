"""`perfsuite.against.following`: how far the processes of the sides are."""

import threading
import time

from perfsuite.against import following
from perfsuite.against.environments import present
from perfsuite.against.runs import Tests
from perfsuite.against.sides import Side

TWO_TESTS = """
import os, pathlib, time

def test_first(perf):
    pass

def test_that_waits_until_the_first_was_told(perf):
    until = time.monotonic() + 60
    while not pathlib.Path(os.environ["TOLD"]).exists():
        assert time.monotonic() < until, "nobody told"
        time.sleep(0.01)

def test_without_the_fixture():
    pass
"""


def told(folders, enough):
    """What is said until the condition holds."""
    said, done = [], threading.Event()

    def say(text):
        said.append(text)
        if enough(said):
            done.set()

    with following.told(folders, say, every=0.001):
        assert done.wait(20), said
    return said


def test_each_side_is_told_by_its_name_and_only_where_it_went_on(tmp_path):
    folders = {"base": tmp_path / "base", "head": tmp_path / "head"}
    for folder in folders.values():
        folder.mkdir()
    following.note(folders["base"], 3, 10)

    def goes_on(said):
        following.note(folders["head"], min(len(said), 2), 10)
        return said[-1].endswith("2 of 10 at the head")

    assert told(folders, goes_on) == [
        "tests that ended: 3 of 10 at the base",
        "tests that ended: 3 of 10 at the base, 1 of 10 at the head",
        "tests that ended: 3 of 10 at the base, 2 of 10 at the head",
    ]


def test_output_that_nobody_reads_any_more_is_no_matter(tmp_path):
    """As that of `perfsuite against | head`."""
    tries = []

    def say(text):
        tries.append(text)
        following.note(tmp_path, len(tries), 10)
        raise BrokenPipeError

    following.note(tmp_path, 0, 10)
    with following.told({"base": tmp_path}, say, every=0.001):
        deadline = time.monotonic() + 20
        while len(tries) < 3:
            assert time.monotonic() < deadline


def test_a_side_that_notes_nothing_is_not_told(tmp_path):
    said = []
    with following.told({"base": tmp_path, "head": tmp_path / "missing"}, said.append, every=0.001):
        threading.Event().wait(0.05)
    assert said == []


def test_what_a_real_process_notes_is_told_while_it_runs(pytester, monkeypatch):
    pytester.makepyfile(test_two=TWO_TESTS)
    pytester.makeini("[pytest]")
    signal = pytester.path / "told"
    monkeypatch.setenv("TOLD", str(signal))
    monkeypatch.setattr(following, "EVERY_SECONDS", 0.01)
    said = []

    def say(text):
        said.append(text)
        signal.touch()

    [run] = Tests([], pytester.path / "runs", say=say).metrics(Side("head", present(), pytester.path))
    assert {outcome for outcome, _ in run.run.notes.tests.values()} == {"passed"}, run.run.notes.tests
    assert said[0] == "tests that ended: 1 of 2 at the head"
