"""The log of what takes long: a line each half minute, for whoever sees the session, and for nobody else."""

import contextlib
import os
import sys
from types import SimpleNamespace

import pytest

from perfsuite.hooks.progress import ProgressLog, logged, progress_words
from perfsuite.measure.progress import Progress


@pytest.mark.parametrize(
    ("now", "text"),
    [
        (Progress("compiling step for tpu-v5e", 34.4), "compiling step for tpu-v5e: 34 s"),
        (Progress("comparing a with b", 12.0, 30.0), "comparing a with b: 12 of 30 s at most (40%)"),
        (Progress("comparing a with b", 31.0, 30.0), "comparing a with b: 31 of 30 s at most"),
        (Progress("comparing a with b", 2.0, 0.0), "comparing a with b: 2 of 0 s at most"),
    ],
)
def test_progress_in_words(now, text):
    assert progress_words(now) == text


@pytest.fixture
def pipe():
    """What was written so far into `end`."""
    ends = os.pipe()
    os.set_blocking(ends[0], False)

    def written():
        with contextlib.suppress(BlockingIOError):
            return os.read(ends[0], 65536).decode()
        return ""

    yield SimpleNamespace(end=ends[1], written=written)
    for end in ends:
        with contextlib.suppress(OSError):
            os.close(end)


def test_a_log_has_a_line_each_half_minute(pipe):
    now = 100.0
    log = ProgressLog(pipe.end, clock=lambda: now)
    log(Progress("compiling a", 29.0))
    assert pipe.written() == ""
    log(Progress("compiling \x1b[2J\u4e2d", 31.0))
    assert pipe.written() == "\nperfsuite: compiling ?[2J\\u4e2d: 31 s\n"
    log(None)
    now += 29.0
    log(Progress("compiling b", 60.0))
    assert pipe.written() == ""
    now += 1.0
    log(Progress("compiling b", 61.0))
    assert pipe.written() == "\nperfsuite: compiling b: 61 s\n"
    os.close(pipe.end)
    now += 60.0
    log(Progress("compiling b", 121.0))


@pytest.mark.parametrize(
    ("expected", "verbose", "facts"),
    [(True, 0, {}), (True, -1, {}), (False, 0, {"workerinput": {}}), (False, -2, {})],
)
def test_a_session_that_shows_anything_has_the_log(pipe, monkeypatch, expected, verbose, facts):
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(fileno=lambda: pipe.end))
    config = SimpleNamespace(option=SimpleNamespace(verbose=verbose), **facts)
    with logged(config) as listener:
        assert isinstance(listener, ProgressLog) is expected
