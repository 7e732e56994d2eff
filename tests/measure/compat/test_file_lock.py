"""A lock of a file: one holder at a time. `tests/measure/targets/test_cache.py` kills a holder."""

import threading

import pytest

from perfsuite.measure.compat.file_lock import LockedTooLong, file_locked


def is_held(path) -> bool:
    try:
        with file_locked(path, 0):
            return False
    except LockedTooLong:
        return True


def test_one_holder_at_a_time_and_the_file_stays(tmp_path):
    path = tmp_path / "lock"
    with file_locked(path, 0):
        assert is_held(path)
        assert not is_held(tmp_path / "another")
    assert not is_held(path)
    assert path.exists()


def test_a_thread_waits_for_another(tmp_path):
    path = tmp_path / "lock"
    order = []

    def second():
        with file_locked(path, 60):
            order.append("second")

    waiting = threading.Thread(target=second)
    with file_locked(path, 0):
        waiting.start()
        waiting.join(0.1)
        order.append("first")
    waiting.join()
    assert order == ["first", "second"]


def test_a_file_that_cannot_be_opened_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError), file_locked(tmp_path / "no/lock", 0):
        pytest.fail("held")
