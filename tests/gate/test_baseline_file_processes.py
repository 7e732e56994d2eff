"""`gate.baseline_file` with several processes: none undoes another's save, and a killed one harms nothing."""

import contextlib
import errno
import fcntl
import os
import signal
import stat
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from support.started import starting

from perfsuite.gate.baseline import Entry
from perfsuite.gate.baseline_file import BaselineError, load, save
from perfsuite.gate.environment import Environment
from perfsuite.measure.io import LockedTooLong, folder_locked

HERE = Environment("cpu", 1, "Xeon", "3.11.7", "0.10.2", "0.10.2", equinox="0.13.8")
COUNT = Entry(3, "compiles", "count", "measured", HERE)
OLD = {"old": {"a": COUNT, "b": COUNT}}

PRELUDE = f"""
import os, sys, time
from pathlib import Path
from perfsuite.gate import baseline_file
from perfsuite.gate.baseline import Entry
from perfsuite.gate.baseline_file import BaselineError, save
from perfsuite.gate.environment import Environment

path = Path(sys.argv[1])
COUNT = Entry(3, "compiles", "count", "measured", {HERE!r})

def hang(*args, **kwargs):
    print("here", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def path(tmp_path):
    """A file with `OLD` in it."""
    save(tmp_path / "cpu.json", OLD)
    return tmp_path / "cpu.json"


@pytest.fixture
def start(path):
    """Start another Python process, with what a save needs imported and `path` defined."""
    with starting(PRELUDE, path) as start:
        yield start


def files_of(path):
    return sorted(file.name for file in path.parent.iterdir())


# Several processes at once.


def test_processes_that_save_at_once_lose_nothing(start, path):
    code = """
        for round in range(5):
            shared = {f"ME {round}": COUNT, "same": COUNT}
            save(path, {"t::ME": {f"f{round}": COUNT}, "t::all": shared})
    """
    for process in [start(code.replace("ME", me)) for me in "abcd"]:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
    after = load(path)
    assert after.metrics["old"] == OLD["old"]
    assert all(sorted(after.metrics[f"t::{me}"]) == [f"f{round}" for round in range(5)] for me in "abcd")
    assert len(after.metrics["t::all"]) == 21


def test_threads_that_save_at_once_lose_nothing(path):
    threads = [threading.Thread(target=save, args=(path, {"t": {name: COUNT}})) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(load(path).metrics["t"]) == ["a", "b", "c"]


def test_a_reader_sees_the_old_file_or_the_new_one_and_never_half(start, path):
    writer = start("""for i in range(40): save(path, {"t": {f"f{i}": COUNT}})""")
    while writer.poll() is None:
        seen = load(path)
        assert seen.metrics["old"] == OLD["old"]
        assert len(seen.metrics.get("t", {})) <= 40
    output, _ = writer.communicate()
    assert writer.returncode == 0, output
    assert len(load(path).metrics["t"]) == 40


@contextlib.contextmanager
def held_lock(path):
    held, done = threading.Event(), threading.Event()

    def hold():
        with folder_locked(path.parent, 0):
            held.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(30)
        yield
    finally:
        done.set()
        thread.join()


def test_a_lock_held_for_too_long_names_the_lock_and_what_to_do(path):
    before = path.read_bytes()
    with held_lock(path), pytest.raises(BaselineError) as caught:
        save(path, {"t": {"a": COUNT}}, lock_seconds=0.05)
    assert caught.value.path == path.parent
    assert str(caught.value).startswith(str(caught.value.path))
    assert "held the lock of this folder for 0.05 s: wait for its --perf-save to end, or stop it" in str(caught.value)
    assert path.read_bytes() == before
    assert save(path, {"t": {"a": COUNT}}).written


def test_reading_does_not_wait_for_the_lock(path):
    with held_lock(path):
        assert load(path).metrics == OLD


def test_where_no_folder_can_be_locked_a_file_in_the_temporary_folder_stands_for_it(path, monkeypatch, tmp_path):
    """By whatever name the folder goes."""
    real = fcntl.flock

    def as_nfs_does(opened, operation):
        if stat.S_ISDIR(os.fstat(opened).st_mode):
            raise OSError(errno.EBADF, "NFS locks no folder")
        real(opened, operation)

    monkeypatch.setattr("fcntl.flock", as_nfs_does)
    link = tmp_path / "link"
    link.symlink_to(path.parent)
    with folder_locked(path.parent, 0), pytest.raises(LockedTooLong), folder_locked(link, 0):
        pytest.fail("held twice")
    assert save(path, {"t": {"a": COUNT}}).written
    assert files_of(path) == ["cpu.json", "link"]


def test_a_folder_is_one_lock_by_whatever_name_it_goes(path, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(path.parent)
    with held_lock(path), pytest.raises(BaselineError, match="another process has held"):
        save(link / "cpu.json", {"t": {"a": COUNT}}, lock_seconds=0.05)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be another user")
def test_two_users_of_a_folder_meet_the_same_lock():
    folder = Path(tempfile.mkdtemp())  # pytest's own are closed to other users
    folder.chmod(0o777)
    try:
        with folder_locked(folder, 0):
            os.seteuid(65534)
            try:
                with pytest.raises(LockedTooLong), folder_locked(folder, 0):
                    pytest.fail("held twice")
            finally:
                os.seteuid(0)
    finally:
        folder.rmdir()


# Processes that come to grief.

HALF_WRITTEN = """
class Half:
    def __init__(self, file): self.file = file
    def __enter__(self): return self
    def __exit__(self, *error): self.file.close()
    def write(self, content):
        self.file.write(content[: len(content) // 2])
        self.file.flush()
        hang()
import perfsuite.measure.io as atomic
atomic.open = lambda *args: Half(open(*args))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signal that cannot be caught")
@pytest.mark.parametrize(
    ("prepare", "leaves_temporary"),
    [
        pytest.param("baseline_file.load = hang", False, id="holding the lock"),
        pytest.param(HALF_WRITTEN, True, id="half of the temporary file written"),
        pytest.param("os.fsync = hang", True, id="temporary file written and not synchronised"),
        pytest.param("os.replace = hang", True, id="before the rename"),
    ],
)
def test_a_process_killed_while_saving_harms_nothing(start, path, prepare, leaves_temporary):
    process = start(prepare + '\nsave(path, {"killed": {"a": COUNT}})')
    assert process.stdout.readline() == "here\n", process.stdout.read()
    with pytest.raises(BaselineError, match="another process has held the lock of this folder"):
        save(path, {"t": {"a": COUNT}}, lock_seconds=0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)

    assert any(name.endswith(".tmp") for name in files_of(path)) is leaves_temporary
    assert load(path).metrics["old"] == OLD["old"]
    # The lock has gone with the process.
    save(path, {"t": {"a": COUNT}}, lock_seconds=5)
    assert load(path).get("t", "a") == COUNT
    assert load(path).metrics["old"] == OLD["old"]
    assert files_of(path) == ["cpu.json"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on the size of files")
def test_a_write_that_the_system_refuses_leaves_the_file_as_it_was(start, path):
    before = path.read_bytes()
    process = start("""
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        try:
            save(path, {"t": {"a": COUNT}})
        except BaselineError as error:
            print(error)
    """)
    output, _ = process.communicate(timeout=30)
    assert "cpu.json: cannot be written (File too large), nothing was changed" in output
    assert path.read_bytes() == before
    assert files_of(path) == ["cpu.json"]
