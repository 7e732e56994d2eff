"""`perfsuite.processes.group`: what the processes of a session exchange, as threads of one process."""

import contextlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest
from support import coordination
from support.coordination import all_at_once

from perfsuite.gate.baseline import Baselines, Entry
from perfsuite.gate.baseline_file import BaselineError
from perfsuite.gate.baseline_format import encode
from perfsuite.gate.environment import Environment
from perfsuite.measure import peers
from perfsuite.measure.timing.block import Sample
from perfsuite.processes import group as group_module
from perfsuite.processes.group import ProcessesDifferError
from perfsuite.processes.shared_baselines import shared_baselines


@pytest.fixture(scope="module")
def clients():
    with coordination.clients(4) as made:
        yield made


@pytest.fixture
def ended(monkeypatch):
    """The exit statuses of processes that exited at once: here there is one process for all of them."""
    statuses = []
    monkeypatch.setattr(group_module, "GRACE_SECONDS", 0.05)
    monkeypatch.setattr(group_module, "STUCK_SECONDS", 0.2)
    monkeypatch.setattr(group_module.os, "_exit", statuses.append)
    yield statuses
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.cancel()  # it must not find the real one
            thread.join()


@pytest.fixture
def groups(clients, ended):
    """Makes as many members of a session as are asked for."""
    with contextlib.ExitStack() as sessions:
        yield lambda count: sessions.enter_context(coordination.groups(clients, count))


class Unreachable:
    """A client whose service has ended."""

    def __getattr__(self, name):
        def fails(*arguments, **options):
            raise jax.errors.JaxRuntimeError("UNAVAILABLE: failed to connect to all addresses")

        return fails


def kill(group):
    """As the system does when a process ends."""
    for line in group._lines.values():
        line.hang_up()


def test_every_process_gets_what_all_of_them_give(groups):
    four = groups(4)
    assert (
        all_at_once(four, lambda group: group.exchange("a", {"from": group.process}))
        == [[{"from": process} for process in range(4)]] * 4
    )
    assert all_at_once(four, lambda group: group.agreed(10.5 + group.process)) == [10.5] * 4


def test_of_each_sample_the_slowest_process_counts_and_is_named(groups):
    three = groups(3)
    times = [[[1.0, 2.0], [1.0, 9.0]], [[3.0, 4.0], [1.5, 1.0]], [[2.0, 7.5], [0.5, 3.0]]]
    assert all_at_once(three, lambda group: group.slowest(times[group.process])) == [[[3.0, 7.5], [1.5, 9.0]]] * 3
    assert {group.last_to_return[-1] for group in three} == {"process 1 was the last to return in 2 of 2 samples"}


def test_the_instruments_ask_the_group_only_while_it_measures(groups):
    first, second = groups(2)
    assert peers.alone()
    assert peers.agreed(5) == 5
    asked = threading.Thread(target=lambda: (second.agreed(0), second.slowest([[5.0, 1.0]])))
    asked.start()
    with peers.together(first):
        assert not peers.alone()
        assert peers.agreed(3) == 3
        assert peers.slowest([Sample(2.0, 4.0)]) == [Sample(5.0, 4.0)]
    asked.join()
    assert peers.alone()
    assert peers.slowest([Sample(2.0, 4.0)]) == [Sample(2.0, 4.0)]


def test_a_sparing_decision_is_made_once_in_so_many_questions(groups):
    first, second = groups(2)
    asked = threading.Thread(target=lambda: [second.agreed(None) for _ in range(2)])
    asked.start()
    answers = iter([True, False])
    with peers.together(first):
        sparing = peers.Sparing(every=3)
        assert [sparing.going_on(lambda: next(answers)) for _ in range(6)] == [True] * 5 + [False]
    asked.join()
    alone = peers.Sparing(every=3)
    assert [alone.going_on(lambda: False) for _ in range(2)] == [False] * 2


def test_processes_that_exchange_something_else_are_named_in_each(groups):
    found = all_at_once(groups(2), lambda group: group.exchange(f"test {group.process}", note="oops" * group.process))
    assert all(isinstance(each, ProcessesDifferError) for each in found)
    assert (
        str(found[0]) == "the processes of the session do not do the same: process 0: test 0; process 1: test 1 (oops)"
    )


def test_what_process_0_finds_is_given_in_all(groups):
    assert all_at_once(groups(2), lambda group: group.only_writer(lambda: [group.process], list[int])) == [[0], [0]]


def test_all_processes_have_the_baselines_of_the_processor_of_process_0(groups, tmp_path):
    first, second = (
        Entry(value, "us", "time", "measured", Environment("cpu", 1, processor, "3.11.7", "0.10.2", "0.10.2"))
        for value, processor in ((9, "Xeon"), (5, "EPYC"))
    )
    path = tmp_path / "cpu.json"
    path.write_bytes(encode(Baselines("cpu", {"t": {"m": first}}, {}, {"EPYC": {"t": {"m": second}}})))

    def shared(group):
        processor = ("EPYC", "Xeon")[group.process]
        return shared_baselines(group, [path], processor, save=False)["cpu"].get("t", "m")

    assert all_at_once(groups(2), shared) == [second, second]


def test_an_error_of_process_0_ends_the_session_in_the_others_with_its_message(groups, ended):
    two = groups(2)

    def fails():
        raise BaselineError("cpu.json", "damaged", 3)

    first, second = all_at_once(two, lambda group: group.only_writer(fails, int))
    assert isinstance(first, BaselineError)
    assert isinstance(second, pytest.exit.Exception)
    assert "process 0 (host, pid 100) ended its session: cpu.json:3: damaged" in str(second)
    assert second.returncode == 2


def test_a_process_that_is_gone_ends_the_session_in_all_others(groups, ended):
    three = groups(3)
    for group in three:
        group.doing = "test_a.py::test_step"
    kill(three[2])  # nobody was waiting: as between two tests
    wait_until(lambda: len(ended) >= 2)
    for group in three[:2]:
        with pytest.raises(pytest.exit.Exception, match=r"process 2 \(host, pid 102\) is gone") as raised:
            group.check()
        assert raised.value.returncode == 2
        assert "ends in all 3 processes, during test_a.py::test_step; nothing is saved" in str(raised.value)
    assert set(ended) == {2}


def test_a_process_that_goes_while_others_wait_for_it_ends_their_waiting(groups, ended):
    two = groups(2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(two[0].exchange, "a")
        time.sleep(0.05)
        kill(two[1])
        assert "process 1 (host, pid 101) is gone" in str(waiting.exception(timeout=10))


def own_stderr(group, path):
    """The file `path`, where `group` now writes what it says on its process's own stderr.

    Not capfd: it reads from the place where the other threads write next, so it can lose what they say meanwhile.
    """
    with path.open("ab") as file:
        os.dup2(file.fileno(), group._stderr)
    return path


def test_a_process_whose_store_is_unreachable_exits_at_once(groups, ended, monkeypatch, tmp_path):
    monkeypatch.setattr(group_module, "GRACE_SECONDS", 60)
    _, second = groups(2)
    stderr = own_stderr(second, tmp_path / "stderr")
    second._store._client = Unreachable()
    with pytest.raises(pytest.exit.Exception, match=r"process 0 \(host, pid 100\) is gone"):
        second.exchange("a")
    assert ended[0] == 2
    assert "perfsuite: process 1: process 0 (host, pid 100) is gone" in stderr.read_text()


def test_without_process_0_the_others_exit_at_once_with_a_message(groups, ended, monkeypatch, tmp_path):
    monkeypatch.setattr(group_module, "GRACE_SECONDS", 60)
    first, second = groups(2)
    stderr = own_stderr(second, tmp_path / "stderr")
    kill(first)
    second._watch.join(10)
    assert ended[0] == 2
    assert "perfsuite: process 1: process 0 (host, pid 100) is gone" in stderr.read_text()


def test_the_process_that_serves_the_store_exits_last(groups, ended, monkeypatch):
    monkeypatch.setattr(group_module, "GRACE_SECONDS", 60)
    first, second = groups(2)
    first.leave("no")
    wait_until(lambda: second._over is not None)
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(first.go, 7)
        second.go(0)
        assert ended == [2]
        kill(second)
        going.result(timeout=10)
    assert 7 in ended


def test_after_the_last_exchange_every_process_may_end(groups, ended):
    two = groups(2)
    all_at_once(two, lambda group: group.exchange("the end", last=True))
    kill(two[1])
    two[0]._watch.join(10)
    assert two[0]._over is None
    assert ended == []


def test_a_process_that_is_waited_for_in_a_program_ends_the_session(groups, ended):
    two = groups(2)

    def failed(group):
        with group.ending_where_stuck("failed test_a (ValueError: no)"):
            group.exchange("the end of test_a")

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(failed, two[1])  # process 0 never comes
        message = str(found.exception(timeout=10))
    assert (
        "process 1 (host, pid 101) failed test_a (ValueError: no), and the others did not reach the end of that test"
        in message
    )
    wait_until(lambda: two[0]._over is not None)
    assert message == two[0]._over


def wait_until(happened):
    deadline = time.monotonic() + 10
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)
