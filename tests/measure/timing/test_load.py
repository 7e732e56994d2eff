"""`measure.timing.load`: busy while the body runs, gone afterwards, whatever happens."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.timing import load as neighbours
from perfsuite.measure.timing.load import busy_neighbours, cores

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
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_none_is_left_when_the_body_raises(error):
    with pytest.raises(error), busy_neighbours(2) as pids:
        raise error
    assert not any(map(runs, pids))


@NEEDS_PROC
def test_none_is_left_when_one_of_them_cannot_be_started(monkeypatch):
    started = []

    def popen(*args, **kwargs):
        if started:
            raise OSError("no more processes")
        started.append(subprocess_popen(*args, **kwargs))
        return started[0]

    subprocess_popen = subprocess.Popen
    monkeypatch.setattr(neighbours.subprocess, "Popen", popen)
    with pytest.raises(OSError, match="no more processes"), busy_neighbours(2):
        pass
    assert started[0].poll() is not None


def test_one_that_ends_at_once_is_an_error(monkeypatch):
    monkeypatch.setattr(neighbours, "_BUSY", "pass")
    with pytest.raises(MeasurementError, match="a busy process could not be started with"), busy_neighbours(1):
        pass


@NEEDS_PROC
def test_none_is_left_when_this_process_is_killed():
    script = (
        "import time\nfrom perfsuite.measure.timing.load import busy_neighbours\n"
        "with busy_neighbours(1) as pids:\n    print(*pids, flush=True)\n    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        (pid,) = map(int, process.stdout.readline().split())
        assert runs(pid)
        os.kill(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while runs(pid):
        assert time.monotonic() < deadline, "it goes on without its parent"
        time.sleep(0.01)
