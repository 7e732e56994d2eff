"""`perfsuite.processes.members`: how the processes of a session meet, and the connections between them."""

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support import coordination

from perfsuite.measure.private.coordination import Store
from perfsuite.processes import members
from perfsuite.processes.members import Lifeline, Member, connect, meet


@pytest.fixture(scope="module")
def clients():
    with coordination.clients(3) as made:
        yield made


@pytest.fixture
def stores(clients, request):
    """The store as three processes see it."""
    return [Store(client, request.node.name, serves=process == 0) for process, client in enumerate(clients)]


def test_the_processes_that_join_know_each_other(stores):
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda process: meet(stores[process], process, 3), range(3)))
    assert found[0] == found[1] == found[2]
    assert [member.process for member in found[0]] == [0, 1, 2]
    assert found[0][0].pid == os.getpid()


def test_a_process_that_does_not_join_is_named(stores, monkeypatch):
    monkeypatch.setattr(members, "JOIN_SECONDS", 0.1)
    with pytest.raises(pytest.UsageError, match=r"process 1 did not join within 0\.1 s: run the same pytest --perf in"):
        meet(stores[0], 0, 2)


def test_the_process_that_serves_the_store_has_a_line_to_every_other(stores):
    with ThreadPoolExecutor(3) as pool:
        lines = list(pool.map(lambda process: connect(stores[process], Member(process, "host", 7), 3), range(3)))
    assert [sorted(each) for each in lines] == [[1, 2], [0], [0]]
    lines[1][0].say("two\nlines")
    assert lines[0][1].hear() == "two lines"
    lines[0][2].say("to the other")
    assert lines[2][0].hear() == "to the other"
    lines[2][0].close()  # as the system does when a process ends
    assert lines[0][2].hear() is None
    for each in lines:
        for line in each.values():
            line.close()


def test_hanging_up_ends_a_wait_at_either_end():
    for side in (0, 1):
        lines = [Lifeline(each) for each in socket.socketpair()]
        with ThreadPoolExecutor(1) as pool:
            heard = pool.submit(lines[0].hear)
            threading.Timer(0.05, lines[side].hang_up).start()
            assert heard.result(timeout=10) is None
        for line in lines:
            line.close()


def test_a_stranger_is_not_let_in_and_keeps_nobody_out(stores):
    first, second = Member(0, "host", 7), Member(1, "host", 8)
    with ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(connect, stores[0], first, 2)
        _, port, token = stores[1].wait_for("server", 10.0, tuple[int, int, str])
        for said in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 40, b"", b"0" * len(token) + b":0000001"):
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(said)
        reached = connect(stores[1], second, 2)
        lines = accepted.result(timeout=20)
    assert list(lines) == [1]
    reached[0].say("it is me")
    assert lines[1].hear() == "it is me"
    for line in (*lines.values(), *reached.values()):
        line.close()


def test_a_process_that_cannot_be_reached_is_named(stores, monkeypatch):
    monkeypatch.setattr(members, "JOIN_SECONDS", 0.1)
    needs = r"has no connection \(.+\): perfsuite needs a TCP connection from every process to the one that runs JAX's"
    with pytest.raises(pytest.UsageError, match=rf"process 0 \(host, pid 7\) {needs}"):
        connect(stores[0], Member(0, "host", 7), 2)
    # That server is closed now.
    with pytest.raises(pytest.UsageError, match=rf"process 1 \(host, pid 8\) {needs}"):
        connect(stores[1], Member(1, "host", 8), 2)
