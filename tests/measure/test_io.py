"""`io.write_atomically`: a reader sees the old file or the new one, and a failure leaves the old one."""

import os
import stat

import pytest

from perfsuite.measure.io import from_here, user_cache, write_atomically


@pytest.mark.parametrize(("content", "written"), [("é", b"\xc3\xa9"), (b"\x00", b"\x00"), ("\ud800", b"?")])
def test_the_file_has_the_content_and_nothing_lies_beside_it(tmp_path, content, written):
    path = tmp_path / "a.json"
    path.write_text("before")
    write_atomically(path, content)
    assert path.read_bytes() == written
    assert list(tmp_path.iterdir()) == [path]


def test_the_permissions_stay(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("before")
    path.chmod(0o640)
    write_atomically(path, "after")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_text("before")

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "after")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_below_the_working_directory_is_named_from_it(tmp_path, monkeypatch):
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    assert from_here(str(here / "models" / "bert.py")) == os.path.join("models", "bert.py")
    assert from_here(str(tmp_path / "bert.py")) == str(tmp_path / "bert.py")


def test_the_users_cache_is_where_other_programs_have_theirs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache() == tmp_path / "perfsuite"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_cache() == tmp_path / ".cache" / "perfsuite"
