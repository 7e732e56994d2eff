"""`perfsuite.session.group`: a session of several processes, as threads of one process."""

import contextlib
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from support import coordination
from support.coordination import all_at_once
from support.git_project import TEST, count

from perfsuite.gate.baseline import Baselines
from perfsuite.gate.baseline_file import BaselineError, encode
from perfsuite.gate.environment import Environment
from perfsuite.measure import peers
from perfsuite.measure.metric import Metric
from perfsuite.measure.private.coordination import Store
from perfsuite.measure.timing.block import Sample
from perfsuite.options import read_options
from perfsuite.session import group as group_module
from perfsuite.session.group import GroupHooks, ProcessesDifferError, accept, meet, reach


@pytest.fixture(scope="module")
def clients():
    with coordination.clients(4) as made:
        yield made


@pytest.fixture
def stores(clients, request):
    """The store as several processes see it."""
    return [Store(client, request.node.name) for client in clients]


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


def kill(group):
    """As the system does when a process ends."""
    for line in group._lines.values():
        line.shutdown(socket.SHUT_RDWR)


def stderr_of(group, path):
    """The file `path`, where `group` now writes what it says on its process's own stderr.

    Not capfd: it reads from the place where the other threads write next, so it can lose what they say meanwhile.
    """
    with path.open("ab") as file:
        os.dup2(file.fileno(), group._stderr)
    return path


def wait_until(happened):
    deadline = time.monotonic() + 10
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# What they exchange.


def test_every_process_gets_what_all_of_them_give(groups):
    four = groups(4)
    found = all_at_once(four, lambda group: group.exchange("a", {"from": group.process}))
    assert found == [[{"from": process} for process in range(4)]] * 4
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


def test_processes_that_exchange_something_else_are_named_in_each(groups):
    found = all_at_once(groups(2), lambda group: group.exchange(f"test {group.process}", note="oops" * group.process))
    assert all(isinstance(each, ProcessesDifferError) for each in found)
    assert str(found[0]).endswith("process 0: test 0; process 1: test 1 (oops)")


def test_the_worst_of_each_metric_counts_in_all_processes_and_differing_counts_are_named(groups):
    two = groups(2)

    def metrics(process):
        made = [
            Metric("calls", 10 + process, "x", "count", "lower"),
            Metric("hits", 10 + process, "x", "count", "higher"),
            Metric("bytes", 5, "x", "size", "lower"),
            Metric("note", 10 + process, "x", "info", "lower"),
        ]
        return {each.title: each for each in made}

    for worst in all_at_once(two, lambda group: group.worst("test_a", metrics(group.process))):
        assert [each.value for each in worst.values()] == [11, 10, 5, 10]
    assert [each.partition(" differs")[0] for each in two[0].differences] == ["test_a: calls", "test_a: hits"]


def options_for(folder):
    return SimpleNamespace(baselines=folder, targets=(), save=False)


def test_all_processes_have_the_baselines_of_process_0(groups, tmp_path):
    path = tmp_path / "cpu.json"
    path.write_bytes(encode(Baselines("cpu", {TEST: {"m": count(7)}})))
    two = groups(2)
    folders = [tmp_path, tmp_path / "none"]
    for files in all_at_once(two, lambda group: group.baselines(options_for(folders[group.process]))):
        assert files["cpu"].get(TEST, "m").value == 7


def test_options_that_are_not_the_same_are_named_in_every_process(groups, pytestconfig):
    here = Environment("cpu", 4, "Xeon", "3.11.7", "0.10.2", "0.10.2", process_count=2)
    other_host = Environment("cpu", 4, "EPYC", "3.11.9", "0.10.2", "0.10.2", process_count=2)
    options = read_options(pytestconfig)
    for seconds, environment, alike in ((5.0, other_host, True), (2.0, here, False)):
        given = [(options._replace(seconds=5.0), here), (options._replace(seconds=seconds), environment)]
        found = all_at_once(groups(2), lambda group, given=given: group.check_alike(*given[group.process]))
        if alike:
            assert found == [None] * 2
        else:
            assert {type(each) for each in found} == {pytest.UsageError}
            assert all("--perf-seconds is 5.0 in process 0, 2.0 in process 1" in str(each) for each in found)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (["a"], "there are b in process 0 only"),
        (["a", "b", "c"], "there are c in process 1 only"),
        (["b", "a"], "there are the same ones in another order, or not all of them could be collected"),
    ],
)
def test_other_tests_are_named_in_every_process(groups, second, message):
    collected = [["a", "b"], second]

    def finish(group):
        items = [SimpleNamespace(nodeid=each) for each in collected[group.process]]
        GroupHooks(group).pytest_collection_finish(SimpleNamespace(items=items, testsfailed=0))

    found = all_at_once(groups(2), finish)
    assert all(isinstance(each, pytest.UsageError) for each in found)
    assert {str(each).partition("but ")[2] for each in found} == {message}


# How a session ends in all of them.


def test_an_error_of_process_0_ends_the_session_in_the_others_with_its_message(groups, ended, tmp_path):
    first, second = groups(2)
    path = tmp_path / "cpu.json"
    path.write_text("damaged")
    stderr = stderr_of(second, tmp_path / "stderr")
    with pytest.raises(BaselineError):
        first.baselines(options_for(tmp_path))
    wait_until(lambda: ended)
    assert ended == [2]
    assert "process 1: process 0 ended its session: " in stderr.read_text()
    assert "cpu.json:1: " in stderr.read_text()


def test_a_process_that_is_gone_ends_the_session_in_all_others(groups, ended, tmp_path):
    three = groups(3)
    said = [stderr_of(group, tmp_path / f"stderr {group.process}") for group in three]
    for group in three:
        group.doing = "test_a.py::test_step"
    kill(three[2])
    wait_until(lambda: len(ended) >= 2)
    assert set(ended) == {2}
    for process in (0, 1):
        message = said[process].read_text()
        assert f"perfsuite: process {process}: process 2 is gone" in message
        assert "ends in all 3 processes, during test_a.py::test_step; nothing is saved" in message


def test_after_the_last_exchange_every_process_may_end(groups, ended):
    two = groups(2)
    all_at_once(two, lambda group: group.exchange("the end", last=True))
    kill(two[1])
    two[0]._watch.join(10)
    assert ended == []


# How they meet.


def test_the_processes_that_join_know_each_other(stores):
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda process: meet(stores[process], process, 3), range(3)))
    assert found[0] == found[1] == found[2]
    assert found[0][2] == f"process 2 ({socket.gethostname()}, pid {os.getpid()})"


def test_a_process_that_does_not_join_or_has_another_perfsuite_is_named(stores, monkeypatch):
    monkeypatch.setattr(group_module, "JOIN_SECONDS", 0.1)
    with pytest.raises(TimeoutError, match="process 1 did not join"):
        meet(stores[0], 0, 2)
    stores[1].put("members/1", ["host", 5, "0.0.1"])
    with pytest.raises(pytest.UsageError, match=r"process 1 has perfsuite 0\.0\.1, process 0 has "):
        meet(stores[0], 0, 2)


def test_a_stranger_is_not_let_in_and_keeps_nobody_out(stores):
    with ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(accept, stores[0], 2)
        port, token = stores[1].wait_for("server", 10.0, tuple[int, str])
        for said in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 40, b"", b"0" * len(token) + b"0000001"):
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(said)
        reached = reach(stores[1], 1)
        lines = accepted.result(timeout=20)
    assert list(lines) == [1]
    reached[0].sendall(b"two\nlines")
    assert group_module.heard(lines[1]) == "two lines"
    reached[0].close()
    assert group_module.heard(lines[1]) == ""
    lines[1].close()
