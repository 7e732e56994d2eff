"""`measure.progress`: instruments tell a listener what takes long, and nothing is started without one."""

import itertools
import threading
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from support.fakes import FakeBlocks, takes

from perfsuite.gate import baseline_file
from perfsuite.measure import progress
from perfsuite.measure.call import call
from perfsuite.measure.program.compilation import compile_call
from perfsuite.measure.progress import listening, sampling, waiting
from perfsuite.measure.targets import cache as facts_cache
from perfsuite.measure.timing import comparison

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


def test_waiting_is_told_of_by_a_thread_until_it_is_over(hasty):
    told = []
    enough = threading.Event()

    def listener(now):
        told.append(now)
        if len(told) == 3:
            enough.set()

    with listening(listener):
        with waiting("compiling step"):
            assert enough.wait(30)
            assert threads() == [THREAD]
        assert threads() == [], "nothing is left that could wake while something is timed"
    *during, end = told
    assert end is None
    assert {(now.what, now.most_seconds) for now in during} == {("compiling step", None)}
    seconds = [now.seconds for now in during]
    assert seconds == sorted(seconds)


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


@pytest.fixture
def blocks(monkeypatch):
    blocks = FakeBlocks().install(monkeypatch, comparison, bare=True)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: blocks.seconds))
    return blocks


def test_a_comparison_tells_how_far_it_is_between_its_windows(blocks):
    reports = []
    sides = call(takes(50_000, 51_000, 70_000, name="a")), call(takes(49_000, 60_000, name="b"))
    blocks.order.clear()
    blocks.seconds = 0.0
    with listening(lambda now: reports.append((now, len(blocks.order)))):
        comparison_of_sides = comparison.compare_calls(*sides, seconds=12, settled=lambda *_: False, seed=1)
    *during, end = reports
    assert end[0] is None
    assert {(now.what, now.most_seconds) for now, _ in during} == {("comparing a with b", 12)}
    gaps = [after[0].seconds - before[0].seconds for before, after in itertools.pairwise(during)]
    assert min(gaps) >= progress.EVERY_SECONDS
    burn_in = timed(blocks.order) - 2 * comparison_of_sides.pairs
    windows = [timed(blocks.order[:blocks_run]) - burn_in for _, blocks_run in during]
    assert len(windows) >= 5
    assert all(blocks_run % (2 * comparison_of_sides.window) == 0 for blocks_run in windows), "never inside a window"


def timed(order):
    """How many of the blocks count: not those that a side runs first where the sides change."""
    return sum(before == now for before, now in itertools.pairwise(order))


def test_a_compile_tells_what_it_compiles(hasty):
    told = []
    heard = threading.Event()

    def step(x):
        assert heard.wait(30)
        return x * 2

    def listener(now):
        told.append(now)
        heard.set()

    with listening(listener):
        compile_call(call(jax.jit(step), jnp.ones(3)))
    *during, end = told
    assert {now.what for now in during} == {"compiling step"}
    assert end is None


@pytest.mark.parametrize(
    "lock",
    [lambda path: facts_cache.locked(path, "key"), lambda path: baseline_file._locked(path / "cpu.json", 30.0)],
    ids=["the cache of programs", "a baseline file"],
)
def test_waiting_for_a_lock_is_told_of(hasty, tmp_path, lock):
    """The lock is another thread's, which keeps it until it was seen that somebody waits."""
    reports = []
    held, waited = threading.Event(), threading.Event()

    def listener(now):
        reports.append(now)
        waited.set()

    def hold():
        with lock(tmp_path):
            held.set()
            waited.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(30)
    with listening(listener), lock(tmp_path):
        pass
    holder.join()
    assert {now.what.split(" that ")[0] for now in reports if now} == {"waiting for another process"}
    assert reports[-1] is None
