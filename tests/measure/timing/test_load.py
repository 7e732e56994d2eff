"""`measure.timing.load`: what other processes use, and the processes that other tests keep busy."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.busy import busy_neighbours

from perfsuite.measure.timing import load
from perfsuite.measure.timing.load import Load, Usage, cores

NEEDS_PROC = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


def state_of(pid: int) -> list[str]:
    """State, parent and on of a process; a process that nobody has waited for yet is in state Z."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ["gone"]


def runs(pid: int) -> bool:
    return state_of(pid)[0] not in ("gone", "Z")


def ticks(pid: int) -> int:
    """Processor time in the user's code."""
    return int(state_of(pid)[11])


@NEEDS_PROC
def test_a_process_a_core_computes_until_the_body_ends():
    with busy_neighbours() as pids:
        assert len(set(pids)) == cores() >= 1
        deadline = time.monotonic() + 30
        while not all(ticks(pid) > 1 for pid in pids):  # a hundredth of a second each
            assert time.monotonic() < deadline, "they do not compute"
            time.sleep(0.01)
        assert all(map(runs, pids))
    assert not any(map(runs, pids))


@NEEDS_PROC
def test_none_is_left_when_this_process_is_killed():
    script = (
        "import time\nfrom support.busy import busy_neighbours\n"
        "with busy_neighbours(1) as pids:\n    print(*pids, flush=True)\n    time.sleep(600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        (pid,) = map(int, process.stdout.readline().split())
        assert runs(pid)
        os.kill(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while runs(pid):
        assert time.monotonic() < deadline, "it goes on without its parent"
        time.sleep(0.01)


@NEEDS_PROC
def test_what_other_processes_use_is_not_this_processs_own():
    before = load.usage()
    assert before is not None
    with busy_neighbours(cores()) as pids:
        began = [ticks(pid) for pid in pids]
        while sum(ticks(pid) - start for pid, start in zip(pids, began, strict=True)) < 50:  # half a second
            time.sleep(0.01)
    after = load.usage()
    assert after is not None
    tick = 1 / os.sysconf("SC_CLK_TCK")
    others = after.all_processes - before.all_processes - (after.own - before.own)
    assert others >= (50 - 2 * cores()) * tick


BEFORE = Usage(clock=10.0, all_processes=100.0, own=5.0, waited=1.0)


def after(seconds, own, others, waited):
    tick = cores() / os.sysconf("SC_CLK_TCK")
    used = BEFORE.all_processes + own + others + tick
    return Usage(BEFORE.clock + seconds, used, BEFORE.own + own, BEFORE.waited + waited)


@pytest.mark.parametrize(
    ("others", "waited", "part", "factor"),
    [
        (0.0, 8.0, 1.0, 1),  # its own threads waited for each other
        (0.5, 8.0, 1.0, 2),  # half of the machine was left
        (0.5, 0.0, 1.0, 1),  # what it did not want
        (0.9, 0.2, 1.0, 1.25),  # it lost a fifth of the time
        (0.9, 0.2, 0.5, 1 / 0.6),  # all of which may have been that half's
        (1.0, 8.0, 1.0, 1e9),
    ],
)
def test_a_call_is_slowed_by_what_others_use_and_no_more_than_it_waits(others, waited, part, factor):
    now = after(4.0, 0.3, others * 4.0 * cores(), waited * 4.0)
    assert now.slowed(BEFORE, part) == pytest.approx(factor)


def test_no_time_and_less_than_a_tick_slow_nothing():
    assert BEFORE.slowed(BEFORE, 1.0) == 1
    assert after(1.0, 0.5, -0.001, 9.0).slowed(BEFORE, 1.0) == 1


def test_a_system_that_does_not_say_and_a_group_have_no_load(monkeypatch):
    monkeypatch.setattr(load.peers, "alone", lambda: False)
    assert load.usage() is None
    nothing = Load()
    nothing.look()
    assert nothing.slowed() == 1


@pytest.fixture
def loaded(monkeypatch):
    """The factor where the others use these shares of the cores in one window after the other."""

    def slowed(*shares):
        seen = [BEFORE]
        for share in shares:
            last, seconds = seen[-1], 2 * load.WINDOW
            busy = (share + 1 / os.sysconf("SC_CLK_TCK") / seconds) * seconds * cores()
            seen.append(Usage(last.clock + seconds, last.all_processes + busy, last.own, last.waited + 9 * seconds))
        moments = iter(seen)
        monkeypatch.setattr(load, "usage", lambda: next(moments))
        made = Load()
        for now in seen[1:-1]:
            monkeypatch.setattr(load.time, "monotonic", lambda now=now: now.clock)
            made.look()
        return made.slowed()

    return slowed


def test_a_load_that_comes_and_goes_counts_where_it_is_there_for_a_quarter_of_the_time(loaded):
    assert loaded(0.5) == pytest.approx(2)
    assert loaded(0.5, 0.5, 0.5) == pytest.approx(2)
    assert loaded(0.5, 0, 0, 0) == pytest.approx(2)
    assert loaded(0.5, 0, 0, 0, 0) == 1
    assert loaded(0, 0.8, 0, 0.5, 0, 0, 0, 0) == pytest.approx(2)
    assert loaded(0, 0, 0) == 1


def test_of_factors_the_one_that_lasted_a_quarter_of_the_time_counts():
    assert load.lasting([(2.0, 1.0), (1.0, 5.0)]) == 1
    assert load.lasting([(1.0, 4.0), (3.0, 0.5), (2.0, 1.0)]) == 2
    assert load.lasting([]) == 1


def test_the_load_is_looked_at_now_and_then(monkeypatch):
    seen = []
    monkeypatch.setattr(load, "usage", lambda: seen.append(1) or Usage(100.0, 0, 0, 0))
    made = Load()
    for clock, looks in ((100.0, 1), (100.0 + 0.9 * load.WINDOW, 1), (100.0 + load.WINDOW, 2)):
        monkeypatch.setattr(load.time, "monotonic", lambda clock=clock: clock)
        made.look()
        assert len(seen) == looks


def test_the_work_of_the_allowed_cores_is_read_without_what_is_idle_or_counted_twice():
    tick = os.sysconf("SC_CLK_TCK")
    # user nice system idle iowait irq softirq steal guest guest_nice
    stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 4 1000 1000 8 16 32 1 2\ncpu1 64 0 0 5 5 0 0 0 0 0\nintr 5 6\n"
    assert load.busy_seconds(stat, {0}) * tick == pytest.approx(63)
    assert load.busy_seconds(stat, {0, 1}) * tick == pytest.approx(127)
    assert load.busy_seconds(stat, ()) == 0
