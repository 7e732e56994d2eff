"""`gate.baseline_file`: a file is read whole or refused, and never half written."""

import contextlib
import errno
import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path

import pytest
from support.closed_folders import closed

from perfsuite.gate.baseline import Baselines, Entry
from perfsuite.gate.baseline_file import BaselineError, check_writable, load, parse, render, save
from perfsuite.gate.environment import Environment
from perfsuite.measure.metric import Interval

HERE = Environment("cpu", 1, "Xeon", "3.11.7", "0.10.2", "0.10.2", equinox="0.13.8")
STEP = "tests/perf/test_steps.py::test_flat"

COUNT = Entry(3, "compiles", "count", "measured", HERE)
METRICS = {
    STEP: {"ratio": Entry(1.06, "x", "ratio", "measured", HERE, Interval(1.05, 1.08), 300), "compiles": COUNT},
    "reported/step": {"time": Entry(133.5, "ms", "time", "reported", source="A paper")},
}
TEXT = render(Baselines("cpu", METRICS))


@pytest.fixture
def path(tmp_path):
    """A file with `METRICS` in it."""
    path = tmp_path / "cpu.json"
    path.write_text(TEXT, newline="\n")
    return path


@contextlib.contextmanager
def refused(path, *words, line=None):
    """The body raises a `BaselineError` with these words, and leaves the file and its folder as they were."""
    before = {file.name: file.read_bytes() for file in path.parent.iterdir() if file.is_file()}
    with pytest.raises(BaselineError) as caught:
        yield
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert caught.value.line == line, message
    if line is not None:
        assert message.startswith(f"{path}:{line}: ")
    after = {file.name: file.read_bytes() for file in path.parent.iterdir() if file.is_file()}
    assert after == before


# Reading.


def test_what_was_saved_is_loaded(path):
    assert load(path) == Baselines("cpu", METRICS)


def test_a_byte_order_mark_does_no_harm(path):
    path.write_text("\ufeff" + TEXT, encoding="utf-8")
    assert load(path) == Baselines("cpu", METRICS)


def test_a_missing_file_has_no_metrics(tmp_path):
    assert load(tmp_path / "tpu-v5e.json") == Baselines("tpu-v5e")


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (TEXT[: len(TEXT) // 2], 9, ["cut short", "git checkout"]),
        (TEXT.replace(' "device"', '<<<<<<< HEAD\n "device"'), 3, ["unresolved merge conflict"]),
        (TEXT.replace("133.5", "NaN"), 9, ["NaN"]),
        (TEXT.replace('"schema": 3', '"schema": 4'), 2, ["newer perfsuite"]),
        (TEXT.replace('"device": "cpu"', '"device": "tpu-v5e"'), 3, ["metrics of 'tpu-v5e'"]),
        ("", 1, ["empty"]),
    ],
    ids=["cut in half", "merge conflict", "not a number", "newer", "of another device", "empty"],
)
def test_a_damaged_file_is_refused_and_never_overwritten(path, text, line, words):
    path.write_text(text, newline="")
    with refused(path, *words, line=line):
        load(path)
    with refused(path, *words, line=line):
        save(path, {STEP: {"compiles": COUNT}}, trim={STEP}, gone={"reported/step"})


def test_a_file_that_is_not_utf8_is_refused(path):
    path.write_bytes(TEXT.encode().replace(b"A paper", b"A p\xe4per"))
    with refused(path, "not UTF-8", line=9):
        load(path)
    path.write_bytes(TEXT.encode("utf-16"))
    with refused(path, "not UTF-8", line=1):
        save(path, {STEP: {"compiles": COUNT}})


def test_a_folder_in_the_files_place_is_refused(tmp_path):
    path = tmp_path / "cpu.json"
    path.mkdir()
    with refused(path, str(path), "this is a folder"):
        load(path)
    with refused(path, "this is a folder"):
        save(path, {STEP: {"compiles": COUNT}})


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes on this system")
def test_a_pipe_in_the_files_place_is_refused_and_not_waited_for(tmp_path):
    path = tmp_path / "cpu.json"
    os.mkfifo(path)
    with refused(path, str(path), "this is a pipe", "--perf-baselines"):
        load(path)
    with refused(path, "this is a pipe"):
        save(path, {STEP: {"compiles": COUNT}})


def test_a_path_that_leads_through_a_file_is_refused(path):
    with refused(path, "cannot be read (Not a directory)"):
        load(path / "cpu.json")


# Saving.


def test_the_first_save_makes_folder_and_file(tmp_path):
    path = tmp_path / "a" / "b" / "cpu.json"
    result = save(path, METRICS)
    assert path.read_text() == TEXT
    assert (len(result.created), result.written, result.untouched, result.path) == (3, True, 0, path)


def test_saving_the_same_again_rewrites_nothing(path):
    before = path.stat()
    result = save(path, METRICS, trim=set(METRICS))
    assert (len(result.kept), result.written) == (3, False)
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_saving_nothing_makes_no_file(tmp_path):
    assert not save(tmp_path / "new" / "cpu.json", {}).written
    assert not list(tmp_path.iterdir())


def test_a_save_says_what_it_created_updated_trimmed_kept_and_left_alone(path):
    def count(value):
        return Entry(value, "compiles", "count", "measured", HERE)

    save(
        path, {"t": {"better": count(3), "worse": count(3), "same": count(3), "trim": count(3)}, "off": {"a": count(3)}}
    )
    new = {"better": count(2), "worse": count(4), "create": count(1), "keep": COUNT}
    new["same"] = Entry(3, "compiles", "count", "measured", HERE, detail={"f": 3})
    result = save(path, {"t": new}, trim={"t"})
    assert [change.name for change in result.created] == ["create", "keep"]
    assert [change.name for change in result.updated()] == ["better", "same", "worse"]
    for direction in ("better", "worse", "same"):
        assert [change.name for change in result.updated(direction)] == [direction]
    assert result.updated("not comparable") == []
    assert [change.name for change in result.trimmed] == ["trim"]
    assert (result.untouched, result.written) == (4, True)
    assert [change.name for change in save(path, {"t": new}).kept] == ["better", "create", "keep", "same", "worse"]
    assert load(path).get("off", "a") == count(3)


def test_an_environment_that_no_metric_refers_to_is_dropped(path):
    upgraded = Environment("cpu", 1, "Xeon", "3.11.7", "0.11.0", "0.11.0")
    save(path, {STEP: {"compiles": Entry(3, "compiles", "count", "measured", upgraded)}})
    assert HERE.id in path.read_text()
    assert upgraded.id in path.read_text()
    save(path, {}, gone={STEP})
    assert load(path).environments == {}


def test_the_file_keeps_its_permissions_and_a_new_one_has_the_users(path):
    path.chmod(0o640)
    save(path, {"t": {"a": COUNT}})
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    old = os.umask(0o027)
    try:
        save(path.with_name("gpu.json"), {"t": {"a": COUNT}})
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.with_name("gpu.json").stat().st_mode) == 0o640


def test_a_link_stays_a_link(path, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    real = shutil.move(path, elsewhere / "real.json")
    path.symlink_to(real)
    save(path, {"t": {"a": COUNT}})
    assert path.is_symlink()
    assert parse(real.read_text()).get("t", "a") == COUNT


def test_the_folder_that_a_link_leads_to_is_made(tmp_path):
    real, path = tmp_path / "not there yet" / "real.json", tmp_path / "cpu.json"
    path.symlink_to(real)
    save(path, {"t": {"a": COUNT}})
    assert path.is_symlink()
    assert parse(real.read_text()).get("t", "a") == COUNT


def test_leftovers_of_killed_processes_are_removed_and_other_files_are_not(path):
    leftover = path.with_name(".cpu.json.0badcafe.tmp")
    others = [path.with_name(name) for name in (".gpu.json.0badcafe.tmp", "cpu.json.tmp", ".cpu.json.note")]
    for file in [leftover, *others]:
        file.write_text("half")
    save(path, {"t": {"a": COUNT}})
    assert not leftover.exists()
    assert all(file.read_text() == "half" for file in others)


@pytest.mark.parametrize("function", ["fsync", "replace", "chmod"])
def test_a_full_disk_leaves_the_file_as_it_was(path, monkeypatch, function):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, refused(path, str(path), "No space left on device", "free some space"):
        patch.setattr(os, function, full)
        save(path, {"t": {"a": COUNT}})
    save(path, {"t": {"a": COUNT}})
    assert load(path).get("t", "a") == COUNT


def test_an_interrupt_while_writing_leaves_the_file_as_it_was(path, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(path, {"t": {"a": COUNT}})
    assert path.read_text() == TEXT
    assert sorted(file.name for file in path.parent.iterdir()) == ["cpu.json"]


# Folders that cannot be written to.


@pytest.fixture
def closed_folder():
    """A folder with baselines that this process may read and not write."""
    with closed(lambda folder: (folder / "cpu.json").write_text(TEXT, newline="\n")) as folder:
        yield folder


@pytest.mark.skipif(sys.platform == "win32", reason="folders have no permission bits on Windows")
def test_a_read_only_folder_is_refused_and_can_still_be_read(closed_folder):
    path = closed_folder / "cpu.json"
    assert load(path) == Baselines("cpu", METRICS)
    with refused(path, str(closed_folder), "Permission denied", "writable"):
        check_writable(path)
    with refused(path, str(closed_folder), "Permission denied", "writable"):
        save(path, {"t": {"a": COUNT}})
    with refused(path, str(closed_folder / "new"), "cannot be made (Permission denied)", "--perf-baselines"):
        save(closed_folder / "new" / "cpu.json", {"t": {"a": COUNT}})
    with refused(path, str(closed_folder / "new"), "cannot be made (Permission denied)"):
        check_writable(closed_folder / "new" / "cpu.json")


def test_a_file_in_the_folders_place_is_refused(path):
    with refused(path, str(path), "cannot be made"):
        check_writable(path / "cpu.json")
    with refused(path, "cannot be made"):
        save(path / "sub" / "cpu.json", {"t": {"a": COUNT}})


def test_check_writable_makes_the_folder_and_leaves_nothing_in_it(tmp_path):
    check_writable(tmp_path / "a" / "baselines" / "cpu.json")
    assert list((tmp_path / "a" / "baselines").iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="folders have no permission bits on Windows")
def test_a_link_into_a_folder_that_cannot_be_written_is_told_before_the_run(closed_folder):
    with tempfile.TemporaryDirectory() as open_folder:  # of whom the closed one is closed to
        path = Path(open_folder) / "linked.json"
        path.symlink_to(closed_folder / "cpu.json")
        with refused(path, str(closed_folder), "Permission denied", "writable"):
            check_writable(path)
