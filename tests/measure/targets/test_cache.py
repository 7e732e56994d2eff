"""What is kept is found again, and nothing that goes wrong with the cache fails a run."""

import gzip
import json
import os
import signal
import time
from pathlib import Path

import pytest
from support.closed_folders import closed
from support.started import starting

from perfsuite.measure.io import LockedTooLong, file_locked
from perfsuite.measure.targets import cache as facts_cache
from perfsuite.measure.targets.cache import locked, prune, read, write

KEY, OTHER = "ab" * 32, "cd" * 32
ENTRY = {"hlo": "HloModule é", "memory": {"temp_size_in_bytes": 3}}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "made" / "cache"


@pytest.fixture
def closed_folder():
    """A folder with an entry that this process may read and not write."""
    with closed(lambda folder: write(folder, KEY, ENTRY)) as folder:
        yield folder


def entry_file(folder: Path, key: str = KEY) -> Path:
    return folder / f"{key}.json.gz"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_entry_is_found_under_its_key_only(folder):
    assert read(folder, KEY) is None
    assert write(folder, KEY, ENTRY)
    assert read(folder, KEY) == ENTRY
    assert read(folder, OTHER) is None
    assert names(folder) == [f"{KEY}.json.gz"]
    assert gzip.decompress(entry_file(folder).read_bytes()), "one gzip'd file an entry"


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        flip,
        lambda content: gzip.compress(b"{"),
        lambda content: gzip.compress(b"[" * 100_000),
        lambda content: gzip.compress(json.dumps({**ENTRY, "key": OTHER}).encode()),
    ],
    ids=["short", "flipped", "json", "deep", "other key"],
)
def test_a_damaged_entry_is_absent_and_replaced(folder, damage):
    write(folder, KEY, ENTRY)
    path = entry_file(folder)
    path.write_bytes(damage(path.read_bytes()))
    assert read(folder, KEY) is None
    assert write(folder, KEY, ENTRY)
    assert read(folder, KEY) == ENTRY


def test_a_read_only_folder_is_read_and_otherwise_left_alone(closed_folder):
    assert read(closed_folder, KEY) == ENTRY
    assert not write(closed_folder, OTHER, ENTRY)
    with locked(closed_folder, OTHER):
        assert read(closed_folder, OTHER) is None
    assert not write(closed_folder / "new", OTHER, ENTRY)
    prune(closed_folder, 0)
    assert read(closed_folder, KEY) == ENTRY


@pytest.mark.parametrize("function", ["chmod", "replace"])
def test_a_full_disk_leaves_what_was_there(folder, monkeypatch, function):
    write(folder, KEY, ENTRY)

    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, function, fail)
    assert not write(folder, KEY, {"hlo": "new"})
    assert read(folder, KEY) == ENTRY
    assert names(folder) == [f"{KEY}.json.gz"]


def fill(folder: Path, count: int) -> list[str]:
    """Write entries of about 1 KB, the first used longest ago."""
    keys = [f"{number:064x}" for number in range(count)]
    for number, key in enumerate(keys):
        write(folder, key, {"noise": os.urandom(500).hex()})
        used = time.time() - 1000 + number
        os.utime(entry_file(folder, key), (used, used))
    return keys


def test_the_entries_used_longest_ago_go_first(folder):
    keys = fill(folder, 5)
    size = max(path.stat().st_size for path in folder.iterdir())
    assert read(folder, keys[0]), "this use makes it the newest"
    prune(folder, 3 * size)
    assert [key for key in keys if read(folder, key)] == [keys[0], keys[3], keys[4]]


PRELUDE = f"""
import sys, time
from pathlib import Path
from perfsuite.measure.targets import cache as facts_cache
from perfsuite.measure.targets.cache import locked, read, write

folder, KEY, ENTRY = Path(sys.argv[1]), {KEY!r}, {ENTRY!r}

def hang(*args, **kwargs):
    print("here", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def start(folder):
    """Start another Python process, with the cache's functions imported."""
    with starting(PRELUDE, folder) as start:
        yield start


def kill_when_here(process):
    assert process.stdout.readline() == "here\n", process.stdout.read()
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_a_killed_writer_leaves_no_entry_and_its_rest_is_removed_later(start, folder):
    kill_when_here(start("facts_cache.os.replace = hang; write(folder, KEY, ENTRY)"))
    assert read(folder, KEY) is None
    (left,) = names(folder)
    assert left.endswith(".tmp")
    prune(folder)
    assert names(folder) == [left], "it may belong to a writer that is at work"
    old = time.time() - 2 * facts_cache._ABANDONED_SECONDS
    os.utime(folder / left, (old, old))
    assert write(folder, KEY, ENTRY)
    assert names(folder) == [f"{KEY}.json.gz"]


def lock_is_held(folder: Path, key: str = KEY) -> bool:
    try:
        with file_locked(folder / f".{key[:3]}.lock", 0):
            return False
    except LockedTooLong:
        return True


def test_another_process_waits_for_the_lock_and_then_goes_on_without_it(start, folder):
    holder = start("with locked(folder, KEY): hang()")
    assert holder.stdout.readline() == "here\n"
    begin = time.monotonic()
    with locked(folder, KEY, seconds=0.3):
        assert time.monotonic() - begin >= 0.3
        assert holder.poll() is None
    with locked(folder, OTHER):
        assert lock_is_held(folder, OTHER), "another key has another lock, which is free"
    assert not lock_is_held(folder, OTHER)


def test_processes_that_write_and_read_at_once_never_see_half_an_entry(start, folder):
    code = """
    import os
    for turn in range(150):
        write(folder, KEY, {"text": os.urandom(50_000).hex()})
        entry = read(folder, KEY)
        assert entry is not None and len(entry["text"]) == 100_000, entry
    print("done")
    """
    for process in [start(code), start(code)]:
        assert process.communicate(timeout=60)[0] == "done\n"
    assert names(folder) == [f"{KEY}.json.gz"]
