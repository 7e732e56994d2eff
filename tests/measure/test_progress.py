"""`measure.progress`: instruments tell a listener what takes long, and nothing is started without one."""

import contextlib
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
from perfsuite.measure.compiles.warmup import warm
from perfsuite.measure.program import compilation
from perfsuite.measure.program.compilation import compile_call
from perfsuite.measure.progress import listening, sampling, waiting
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
    burn_in = timed(order) - 2 * made.pairs
    windows = [timed(order[:blocks_run]) - burn_in for _, blocks_run in during]
    assert all(blocks_run % (2 * made.window) == 0 for blocks_run in windows), "never inside a window"
    assert burn_in >= 2


def timed(order):
    """How many of the blocks count: not those that a side runs first where the sides change."""
    return sum(before == now for before, now in itertools.pairwise(order))


def test_a_listener_changes_nothing_of_a_comparison(blocks):
    alone, order = compared(blocks)
    with listening(lambda now: None):
        told, told_order = compared(blocks)
    assert order == told_order
    assert (alone.ratio, alone.pairs) == (told.ratio, told.pairs)


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
