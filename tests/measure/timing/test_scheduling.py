"""`measure.timing.scheduling`: the time that the operating system took away."""

import os
import time

import pytest
from support.busy import busy_neighbours
from support.one_processor import on_one_processor

from perfsuite.measure.timing import scheduling

NEEDS_SCHEDSTAT = pytest.mark.skipif(not scheduling.is_known(), reason="needs Linux's schedstat")


@NEEDS_SCHEDSTAT
def test_a_thread_that_is_kept_from_running_is_known_to_the_operating_system():
    with on_one_processor(), busy_neighbours(1):
        # The process's first, and last below: what this thread loses between two readings is then in the process's too.
        all_of_us, mine = scheduling.process_delay_ns(), scheduling.thread_delay_ns()
        hangs_at = time.monotonic() + 60
        while scheduling.thread_delay_ns() - mine < 20e6:
            assert time.monotonic() < hangs_at, "a neighbour on the same processor takes nothing away"
        assert scheduling.process_delay_ns() - all_of_us >= 20e6


@NEEDS_SCHEDSTAT
def test_the_process_has_the_delays_of_all_threads_but_for_the_one_left_out(tmp_path, monkeypatch):
    for thread, delay in (("1", 5), ("2", 70)):
        (tmp_path / thread).mkdir()
        (tmp_path / thread / "schedstat").write_text(f"900 {delay} 3\n")
    listdir, opened = os.listdir, open
    moved = lambda path: str(path).replace("/proc/self/task", str(tmp_path))
    monkeypatch.setattr(scheduling.os, "listdir", lambda path: listdir(moved(path)))
    monkeypatch.setattr("builtins.open", lambda path, *rest: opened(moved(path), *rest))
    assert scheduling.process_delay_ns() == 75
    assert scheduling.process_delay_ns(without=2) == 5


def test_sleep_is_no_time_that_was_taken_away():
    def lost_in_50_ms():
        before = scheduling.thread_delay_ns()
        time.sleep(0.05)
        return scheduling.thread_delay_ns() - before

    # The least of several: a neighbour can hold this thread up once, but not every time.
    assert min(lost_in_50_ms() for _ in range(20)) < 45e6


def test_where_the_system_counts_nothing_the_answer_is_zero(monkeypatch):
    monkeypatch.setattr(scheduling.os, "listdir", lambda path: ["1", "2"])
    monkeypatch.setattr("builtins.open", lambda *_: (_ for _ in ()).throw(FileNotFoundError()))
    assert scheduling.thread_delay_ns() == 0
    assert scheduling.process_delay_ns() == 0
