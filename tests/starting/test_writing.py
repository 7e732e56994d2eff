"""Several files are written, or none of them."""

import pytest
from support.closed_folders import closed

from perfsuite.starting.project import StartError
from perfsuite.starting.writing import New, write_all


def test_a_failure_takes_back_what_was_written(tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("before")
    first = [New(tmp_path / "a/b/new", "new"), New(kept, "after", b"before")]
    with pytest.raises(StartError, match=r"kept/no: cannot be written .*; nothing was changed"):
        write_all([*first, New(kept / "no", "never")])
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert kept.read_text() == "before"
    write_all(first)
    assert ((tmp_path / "a/b/new").read_text(), kept.read_text()) == ("new", "after")


def test_a_folder_that_cannot_be_written_is_named():
    with closed(lambda folder: (folder / "pytest.ini").write_text("")) as folder:
        files = [New(folder / "pytest.ini", "[pytest]", b""), New(folder / "tests/test_it.py", "")]
        with pytest.raises(
            StartError, match=r"pytest\.ini: cannot be written \(Permission denied\); nothing was changed"
        ):
            write_all(files)
        assert (folder / "pytest.ini").read_text() == ""
