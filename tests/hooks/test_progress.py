"""The progress line: it appears on a person's terminal, below pytest's own line, and nowhere else."""

import contextlib
import os
import re
import select
import subprocess
import sys
from types import SimpleNamespace

import pytest

from perfsuite.hooks.progress import ProgressLine, ProgressLog, progress_words, shown_below, wanted
from perfsuite.measure.progress import Progress


@pytest.mark.parametrize(
    ("now", "text"),
    [
        (Progress("compiling step for tpu-v5e", 34.4), "compiling step for tpu-v5e: 34 s"),
        (Progress("compiling step", 34.0, usual_seconds=208.6), "compiling step: 34 s (209 s last time)"),
        (Progress("comparing a with b", 12.0, 30.0), "comparing a with b: 12 of 30 s at most (40%)"),
        (Progress("comparing a with b", 31.0, 30.0), "comparing a with b: 31 of 30 s at most"),
        (Progress("comparing a with b", 2.0, 0.0), "comparing a with b: 2 of 0 s at most"),
    ],
)
def test_progress_in_words(now, text):
    assert progress_words(now) == text


def config(*, worker=False, capture="fd", verbose=0):
    made = SimpleNamespace(option=SimpleNamespace(capture=capture, verbose=verbose))
    if worker:
        made.workerinput = {}
    return made


@pytest.mark.skipif(os.name != "posix", reason="shown on POSIX terminals alone")
@pytest.mark.parametrize(
    ("expected", "environment", "options", "is_terminal"),
    [
        (True, {"TERM": "xterm-256color"}, {}, True),
        (True, {"TERM": "xterm"}, {"capture": "sys"}, True),
        (False, {"TERM": "xterm"}, {}, False),
        (False, {"TERM": "dumb"}, {}, True),
        (False, {}, {}, True),
        (False, {"TERM": "xterm", "CI": "true"}, {}, True),
        (False, {"TERM": "xterm"}, {"capture": "no"}, True),
        (False, {"TERM": "xterm"}, {"capture": "tee-sys"}, True),
    ],
)
def test_only_a_person_at_a_terminal_sees_it(expected, environment, options, is_terminal):
    assert wanted(config(**options), environment, is_terminal=is_terminal) is expected


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


def shown_text(written):
    """What is visible of a line that was written, without the sequences that place it."""
    return re.sub(r"\x1b(?:[D78]|\[[AKJ])|\r\n", "", written)


def test_a_line_is_written_below_and_what_comes_next_goes_where_pytest_was(pipe):
    line = ProgressLine(pipe.end, columns=lambda: 80)
    line(Progress("compiling", 3.0))
    assert pipe.written() == "\x1bD\x1b[A\x1b7\r\ncompiling: 3 s\x1b[K\x1b8"
    line(None)
    assert pipe.written() == "\x1b[J"
    line(None)
    assert pipe.written() == "", "what was not shown is not erased"


def test_a_line_never_wraps_and_has_no_control_characters(pipe):
    line = ProgressLine(pipe.end, columns=lambda: 40)
    line(Progress("comparing \x1b[2J\u4e2d\u6587 with " + "b" * 100, 3.0, 9.0))
    text = shown_text(pipe.written())
    assert len(text) == 39
    assert text.startswith("comparing ?[2J\\u4e2d")
    assert text.endswith("...")


def test_a_log_has_a_line_each_half_minute(pipe):
    now = 100.0
    log = ProgressLog(pipe.end, clock=lambda: now)
    log(Progress("compiling a", 29.0))
    assert pipe.written() == ""
    log(Progress("compiling a", 31.0))
    assert pipe.written() == "\nperfsuite: compiling a: 31 s\n"
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
    ("expected", "options"),
    [
        (True, {}),
        (True, {"verbose": -1}),
        (True, {"capture": "no"}),
        (False, {"worker": True}),
        (False, {"verbose": -2}),
    ],
)
def test_what_is_no_terminal_gets_the_log(pipe, monkeypatch, expected, options):
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(fileno=lambda: pipe.end))
    with shown_below(config(**options)) as listener:
        assert isinstance(listener, ProgressLog) is expected


def test_a_terminal_that_is_gone_fails_nothing(pipe):
    line = ProgressLine(pipe.end, columns=lambda: 80)
    os.close(pipe.end)
    line(Progress("compiling", 3.0))
    line(None)


def test_a_debugger_has_the_terminal_for_itself(pipe):
    line = ProgressLine(pipe.end, columns=lambda: 80)
    line(Progress("compiling", 3.0))
    line.pytest_enter_pdb()
    assert pipe.written().endswith("\x1b[J")
    line(Progress("compiling", 4.0))
    assert pipe.written() == ""
    line.pytest_leave_pdb()
    line(Progress("compiling", 5.0))
    assert "compiling: 5 s" in pipe.written()


LONG = """
import time
import jax
import jax.numpy as jnp
from perfsuite import call
from perfsuite.measure import progress

progress.FIRST_SECONDS = progress.EVERY_SECONDS = 0.05

def slow(x):
    time.sleep(0.3)
    return x + 1

def test_long(perf):
    perf.program(call(jax.jit(slow), jnp.ones(3)))
"""


def on_a_terminal(project, environment):
    """The exit status of pytest, and what it writes on a pseudo-terminal of 80 columns."""
    import fcntl
    import pty
    import struct
    import termios

    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "pytest", "--perf", "-p", "perfsuite.plugin", "-p", "no:cacheprovider"]
    with subprocess.Popen(command, cwd=project.path, env=environment, stdin=its, stdout=its, stderr=its) as process:
        os.close(its)
        written = b""
        with contextlib.suppress(OSError):  # the end of a pseudo-terminal is an error
            while select.select([ours], [], [], 300)[0] and (read := os.read(ours, 65536)):
                written += read
        os.close(ours)
    return process.returncode, written.decode()


@pytest.mark.skipif(sys.platform != "linux", reason="needs a pseudo-terminal")
def test_on_a_real_terminal_the_line_comes_and_goes(project):
    project.makepyfile(test_long=LONG)
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "GITHUB_ACTIONS")}
    environment |= {"TERM": "xterm", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    status, written = on_a_terminal(project, environment)
    assert status == 0, written
    assert "1 passed" in written
    assert "test_long.py \x1bD\x1b[A\x1b7" in written
    before, _, after = written.rpartition("\x1b8")
    assert "compiling slow: 0 s\x1b[K" in before
    assert after.startswith("\x1b[J"), "it is erased before pytest goes on"
    assert "compiling" not in after
