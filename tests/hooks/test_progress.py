"""What takes long: told by the instruments to a listener, shown on a terminal and nowhere else."""

import contextlib
import itertools
import os
import re
import select
import subprocess
import sys
import threading
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from support.fakes import FakeBlocks, takes

from perfsuite.gate import baseline_file
from perfsuite.hooks.progress import ProgressLine, progress_words, wanted
from perfsuite.measure import progress
from perfsuite.measure.call import call
from perfsuite.measure.compiles.warmup import warm
from perfsuite.measure.program import compilation
from perfsuite.measure.program.compilation import compile_call
from perfsuite.measure.progress import Progress, listening, sampling, waiting
from perfsuite.measure.targets import cache as facts_cache
from perfsuite.measure.timing import comparison, timing

THREAD = "perfsuite progress"


def threads():
    return [thread.name for thread in threading.enumerate() if thread.name == THREAD]


@pytest.fixture
def hasty(monkeypatch):
    """Everything is told of at once, and again after a moment."""
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.01)


@pytest.fixture
def clock(monkeypatch):
    """Seconds that only the test moves."""
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


# Telling.


def test_with_no_listener_nothing_is_started_and_a_loop_has_nothing_to_call(monkeypatch):
    monkeypatch.setattr(threading, "Thread", None)
    with waiting("compiling step"):
        pass
    with sampling("comparing", 5) as told:
        assert told is None


def test_waiting_is_told_of_by_a_thread_until_it_is_over(hasty):
    told = []
    enough = threading.Event()

    def listener(now):
        told.append(now)
        if len(told) == 3:
            enough.set()

    with listening(listener):
        with waiting("compiling step", usual=lambda: 209.0):
            assert enough.wait(30)
            assert threads() == [THREAD]
        assert threads() == [], "nothing is left that could wake while something is timed"
    *during, end = told
    assert end is None
    assert {(now.what, now.most_seconds, now.usual_seconds) for now in during} == {("compiling step", None, 209.0)}
    seconds = [now.seconds for now in during]
    assert seconds == sorted(seconds)


def test_what_is_over_soon_is_not_told_of():
    told = []
    with listening(told.append), waiting("compiling step", usual=lambda: told.append("asked")):
        pass
    assert told == []


def test_waiting_that_ends_with_an_error_is_over_too(hasty):
    told = []
    seen = threading.Event()
    with listening(lambda now: (told.append(now), seen.set())), contextlib.suppress(KeyError), waiting("compiling"):
        seen.wait(30)
        raise KeyError
    assert told[-1] is None
    assert threads() == []


def test_of_two_waits_the_inner_one_is_told(hasty):
    told = []
    inner = threading.Event()

    def listener(now):
        told.append(now and now.what)
        if now and now.what == "waiting for a lock":
            inner.set()

    with listening(listener), waiting("compiling"), waiting("waiting for a lock"):
        assert inner.wait(30)
        begun = told.index("waiting for a lock")
        threading.Event().wait(0.1)
        assert set(told[begun:]) == {"waiting for a lock"}


def test_a_loop_tells_once_a_second_after_two_and_in_its_own_thread(clock):
    told = []
    with listening(lambda now: told.append((now, threading.current_thread()))), sampling("comparing", 30) as tell:
        for tenth in range(1, 51):
            clock.seconds = tenth / 10
            tell()
        assert threads() == []
    *during, end = told
    assert end[0] is None
    assert [now.seconds for now, _ in during] == [2.0, 3.0, 4.0, 5.0]
    assert {now[0::2] for now, _ in during} == {("comparing", 30)}
    assert {thread for _, thread in told} == {threading.current_thread()}


def test_a_loop_that_ends_soon_tells_nothing(clock):
    told = []
    with listening(told.append), sampling("comparing", 30) as tell:
        clock.seconds = 1.9
        tell()
    assert told == []


def test_a_listener_is_told_only_inside(clock):
    told = []
    with contextlib.suppress(KeyError), listening(told.append):
        raise KeyError
    with sampling("comparing", 30) as tell:
        assert tell is None


# Instruments.


@pytest.fixture
def blocks(monkeypatch):
    blocks = FakeBlocks().install(monkeypatch, comparison, bare=True)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: blocks.seconds))
    return blocks


def compared(blocks):
    """A comparison of 12 simulated seconds that nothing settles, and the order of its blocks."""
    sides = call(takes(50_000, 51_000, 70_000, name="a")), call(takes(49_000, 60_000, name="b"))
    blocks.order.clear()
    blocks.seconds = 0.0
    made = comparison.compare_calls(*sides, seconds=12, settled=lambda *_: False, seed=1)
    return made, list(blocks.order)


def test_a_comparison_tells_how_far_it_is_between_its_windows(blocks):
    told = []
    with listening(lambda now: told.append((now, len(blocks.order)))):
        made, order = compared(blocks)
    *during, end = told
    assert end[0] is None
    assert {now.what for now, _ in during} == {"comparing a with b"}
    assert {now.most_seconds for now, _ in during} == {12}
    gaps = [after[0].seconds - before[0].seconds for before, after in itertools.pairwise(during)]
    assert 5 <= len(during) <= 11
    assert min(gaps) >= progress.EVERY_SECONDS
    assert all((blocks_run - 2) % (2 * made.window) == 0 for _, blocks_run in during), "never inside a window"
    assert len(order) == 2 * made.pairs + 2 * (made.window > 1)


def test_a_listener_changes_nothing_of_a_comparison(blocks):
    alone, order = compared(blocks)
    with listening(lambda now: None):
        told, told_order = compared(blocks)
    assert order == told_order
    assert (alone.ratio, alone.pairs, alone.looks) == (told.ratio, told.pairs, told.looks)


def test_a_compile_tells_what_it_took_the_last_time_when_its_code_was_another(hasty, monkeypatch, tmp_path):
    monkeypatch.setattr(compilation, "REMEMBERED_SECONDS", 0.0)

    def step(factor):
        def step(x):
            return x * factor

        return call(jax.jit(step), jnp.ones(3))

    told = []
    with listening(told.append):
        first = compile_call(step(2.0), cache=tmp_path)
        during = [now for now in told if now is not None]
        assert {(now.what, now.usual_seconds) for now in during} == {("compiling step", None)}
        told.clear()
        compile_call(step(3.0), cache=tmp_path)
    during = [now for now in told if now is not None]
    assert {now.usual_seconds for now in during} == {first.origin.compile_seconds}
    assert told[-1] is None


def test_the_seconds_of_short_compiles_are_not_kept(tmp_path):
    compile_call(call(jax.jit(lambda x: x + 1), jnp.ones(3)), cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


# Showing.


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
        (True, {"TERM": "xterm"}, {"verbose": -1}, True),
        (True, {"TERM": "xterm"}, {"capture": "sys"}, True),
        (False, {"TERM": "xterm"}, {}, False),
        (False, {"TERM": "dumb"}, {}, True),
        (False, {}, {}, True),
        (False, {"TERM": "xterm", "CI": "true"}, {}, True),
        (False, {"TERM": "xterm"}, {"worker": True}, True),
        (False, {"TERM": "xterm"}, {"capture": "no"}, True),
        (False, {"TERM": "xterm"}, {"capture": "tee-sys"}, True),
        (False, {"TERM": "xterm"}, {"verbose": -2}, True),
    ],
)
def test_it_is_shown_to_a_person_alone(expected, environment, options, is_terminal):
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
    line = ProgressLine(pipe.end, columns=lambda: 40, session_words=lambda: "calibrating: ")
    line(Progress("comparing \x1b[2J\u4e2d\u6587 with " + "b" * 100, 3.0, 9.0))
    text = shown_text(pipe.written())
    assert len(text) == 39
    assert text.startswith("calibrating: comparing ?[2J\\u4e2d")
    assert text.endswith("...")


def test_a_terminal_too_narrow_gets_nothing(pipe):
    line = ProgressLine(pipe.end, columns=lambda: 10)
    line(Progress("compiling", 3.0))
    line(None)
    assert pipe.written() == ""


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


def test_into_a_pipe_nothing_is_written(project, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    project.makepyfile(test_long=LONG.replace("progress.FIRST", "assert progress._listener is None\nprogress.FIRST"))
    before = progress.FIRST_SECONDS, progress.EVERY_SECONDS
    try:
        result = project.runpytest_inprocess("--perf", "-p", "no:cacheprovider")
    finally:
        progress.FIRST_SECONDS, progress.EVERY_SECONDS = before
    result.assert_outcomes(passed=1)
    assert "compiling" not in result.stdout.str()


def test_timing_tells_how_far_it_is(monkeypatch):
    blocks = FakeBlocks().install(monkeypatch, timing)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: blocks.seconds))
    told = []
    with listening(told.append):
        timing.time_call(call(takes(50_000, 80_000, name="a")), seconds=6, least_samples=1000)
    *during, end = told
    assert end is None
    assert {now[0::2] for now in during} == {("timing a", 6)}
    assert [int(now.seconds) for now in during] == [2, 3, 4, 5]


def test_warming_is_told_of(hasty):
    told = []

    def slow(x):
        threading.Event().wait(0.1)
        return x

    with listening(told.append):
        warm(slow, over=[(1.0,)])
    assert {now and now.what for now in told} == {"warming slow", None}
    assert threads() == []


@pytest.mark.parametrize("module", [facts_cache, baseline_file])
def test_waiting_for_a_lock_is_told_of(hasty, tmp_path, module):
    """The lock is another thread's, which keeps it until it was seen that somebody waits."""
    told = []
    held, seen = threading.Event(), threading.Event()

    def listener(now):
        told.append(now)
        if now is not None:
            seen.set()

    def lock():
        if module is facts_cache:
            return facts_cache.locked(tmp_path, "key")
        return baseline_file._locked(tmp_path / "cpu.json", 30.0)

    def hold():
        with lock():
            held.set()
            seen.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(30)
    with listening(listener), lock():
        pass
    holder.join()
    assert {now.what.split(" that ")[0] for now in told if now} == {"waiting for another process"}
    assert told[-1] is None
