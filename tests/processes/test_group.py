"""`perfsuite.processes.group.Group`: what the processes of a session say to each other, as threads of one process."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from perfsuite.gate.baseline_file import BaselineError
from perfsuite.gate.environment import Environment
from perfsuite.hooks import distributed as distributed_hooks
from perfsuite.measure import peers
from perfsuite.measure.measurement import Metric
from perfsuite.measure.timing.block import Sample
from perfsuite.processes import group as distributed
from perfsuite.processes import transport as peer_lines
from perfsuite.processes.group import Group, ProcessesDifferError
from perfsuite.processes.transport import Invitation, Line, LineError, Member, accept_invitation


@pytest.fixture
def ended(monkeypatch):
    """The processes that were ended the hard way, as exit statuses: here there is one process for all of them."""
    statuses = []
    monkeypatch.setattr(distributed, "GRACE_SECONDS", 0.05)
    monkeypatch.setattr(distributed, "STUCK_SECONDS", 0.2)
    monkeypatch.setattr(distributed.os, "_exit", statuses.append)
    yield statuses
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.cancel()  # it must not find the real one
            thread.join()


@pytest.fixture
def groups(ended):
    """Makes as many members of a session as are asked for."""
    made = []

    def make(count):
        invitation = Invitation(everyone_here=True)
        members = [Member(process, "host", 100 + process) for process in range(count)]
        with ThreadPoolExecutor(count) as pool:
            others = [pool.submit(accept_invitation, invitation.words, member) for member in members[1:]]
            answers = invitation.answers(count)
            lines = [each.result() for each in others]
        assert [member for member, _, _ in answers] == members[1:]
        made.append(Group(members, members[0], [talk for _, talk, _ in answers], [line for *_, line in answers]))
        made.extend(
            Group(members, member, [talk], [silent]) for member, (talk, silent) in zip(members[1:], lines, strict=True)
        )
        return made

    yield make
    for group in made:
        group.end()
        hang_up(group)
    for group in made:
        group.close()


def hang_up(group):
    """As the system does when a process ends."""
    for line in (*group._talk, *group._silent):
        line.hang_up()


def all_at_once(groups, does):
    """What `does(group)` gives or raises in each."""
    with ThreadPoolExecutor(len(groups)) as pool:
        started = [pool.submit(does, group) for group in groups]
    return [each.exception() or each.result() for each in started]


def test_every_process_gets_what_all_of_them_give(groups):
    four = groups(4)
    assert (
        all_at_once(four, lambda group: group.exchange("a", {"from": group.process}))
        == [[{"from": process} for process in range(4)]] * 4
    )
    assert all_at_once(four, lambda group: group.agreed(10.5 + group.process)) == [10.5] * 4


def test_of_each_sample_the_slowest_process_speaks_and_is_named(groups):
    three = groups(3)
    times = [[[1.0, 2.0], [1.0, 9.0]], [[3.0, 4.0], [1.5, 1.0]], [[2.0, 7.5], [0.5, 3.0]]]
    assert all_at_once(three, lambda group: group.slowest(times[group.process])) == [[[3.0, 7.5], [1.5, 9.0]]] * 3
    assert {group.last_to_return[-1] for group in three} == {"process 1 was the last to return in 2 of 2 samples"}


def test_the_instruments_ask_the_group_within_and_nobody_else(groups):
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


def test_processes_that_come_with_something_else_are_told_of_each_other(groups):
    found = all_at_once(groups(2), lambda group: group.exchange(f"test {group.process}", note="oops" * group.process))
    assert all(isinstance(each, ProcessesDifferError) for each in found)
    assert (
        str(found[0]) == "the processes of the session do not do the same: process 0: test 0; process 1: test 1 (oops)"
    )


def test_what_is_found_by_process_0_alone_is_everybodys(groups):
    assert all_at_once(groups(2), lambda group: group.only_writer(lambda: [group.process])) == [[0], [0]]


def test_an_error_of_process_0_ends_the_session_in_the_others_with_its_message(groups, ended):
    two = groups(2)

    def fails():
        raise BaselineError("cpu.json", "damaged", 3)

    first, second = all_at_once(two, lambda group: group.only_writer(fails))
    assert isinstance(first, BaselineError)
    assert isinstance(second, pytest.exit.Exception)
    assert "process 0 (host, pid 100) ended its session: cpu.json:3: damaged" in str(second)
    assert second.returncode == 2


def test_a_process_that_is_gone_ends_the_session_in_all_others(groups, ended, capfd):
    three = groups(3)
    for group in three:
        group.doing = "test_a.py::test_step"
    hang_up(three[2])  # nobody was waiting: as between two tests
    wait_until(lambda: len(ended) >= 2)
    for group in three[:2]:
        with pytest.raises(pytest.exit.Exception, match=r"process 2 \(host, pid 102\) is gone") as raised:
            group.check()
        assert raised.value.returncode == 2
        assert "ends in all 3 processes (while at test_a.py::test_step); nothing is saved" in str(raised.value)
    assert set(ended) == {2}


def test_a_process_that_goes_while_others_wait_for_it_ends_their_waiting(groups, ended):
    two = groups(2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(two[0].exchange, "a")
        time.sleep(0.05)
        hang_up(two[1])
        assert "process 1 (host, pid 101) is gone" in str(waiting.exception(timeout=10))


def test_without_process_0_the_others_end_at_once(groups, ended, monkeypatch):
    monkeypatch.setattr(distributed, "GRACE_SECONDS", 60)
    two = groups(2)
    hang_up(two[0])
    wait_until(lambda: ended)
    assert ended[0] == 2


def test_after_the_last_exchange_everybody_may_go(groups, ended):
    two = groups(2)
    all_at_once(two, lambda group: group.exchange("the end", last=True))
    hang_up(two[1])
    time.sleep(0.1)
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
        "process 1 (host, pid 101) failed test_a (ValueError: no), and 0.2 s later the others had not come" in message
    )
    wait_until(lambda: two[0]._over is not None)
    assert message == two[0]._over


def test_a_stranger_is_not_let_in_and_keeps_nobody_out(ended):
    invitation = Invitation(everyone_here=True)
    address = ("127.0.0.1", invitation.words["port"])
    with ThreadPoolExecutor(3) as pool:
        answers = pool.submit(invitation.answers, 2)
        for said in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 8, b""):
            with socket.create_connection(address) as stranger:
                stranger.sendall(said)
        wrong = {**invitation.words, "token": "0" * 32}
        with pytest.raises(
            LineError, match=r"cannot reach process 0 at port \d+ of 127\.0\.0\.1 \(.*\): perfsuite needs"
        ):
            accept_invitation(wrong, Member(1, "host", 7))
        lines = accept_invitation(invitation.words, Member(1, "host", 8))
        ((member, talk, silent),) = answers.result(timeout=20)
    assert member == Member(1, "host", 8)
    for line in (*lines, talk, silent):
        line.close()


def test_a_process_that_does_not_come_is_named(monkeypatch):
    monkeypatch.setattr(peer_lines, "CONNECT_SECONDS", 0.1)
    with pytest.raises(LineError, match="process 1, 2 did not connect to process 0"):
        Invitation(everyone_here=True).answers(3)


def test_a_port_of_all_interfaces_names_addresses_to_reach_it_by(monkeypatch):
    invitation = Invitation(everyone_here=False)
    assert "127.0.0.1" in invitation.words["hosts"]
    assert socket.gethostname() in invitation.words["hosts"]
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(invitation.answers, 2)
        lines = accept_invitation({**invitation.words, "hosts": ["127.0.0.1"]}, Member(1, "host", 8))
        ((_, talk, silent),) = answers.result(timeout=20)
    lines[0].send({"a": [1.5, None, "\u00e9" * 100_000]})
    assert talk.receive() == {"a": [1.5, None, "\u00e9" * 100_000]}
    for line in (*lines, talk, silent):
        line.close()


def test_a_message_that_is_too_long_to_be_one_is_refused():
    one, other = connected_pair()
    one.sendall(b"\xff" * 8)
    with pytest.raises(LineError, match="is none of perfsuite's"):
        Line(other).receive()
    one.close()
    other.close()


HERE = Environment("cpu", 4, "Xeon", "3.11.7", "0.10.2", "0.10.2", process_count=2)


def session_with(**options):
    given = {
        "save": False,
        "strict": False,
        "only": False,
        "size": "small",
        "seconds": 5.0,
        "targets": (),
        "traces": None,
    }
    return SimpleNamespace(options=SimpleNamespace(**{**given, **options}), environment=HERE)


def test_options_that_are_not_the_same_are_named_in_every_process(groups):
    two = groups(2)
    sessions = [session_with(), session_with(seconds=2.0)]
    found = all_at_once(two, lambda group: distributed_hooks.check_alike(group, sessions[group.process]))
    assert {str(each) for each in found} == {
        "the processes of a session must be started alike, but --perf-seconds is 5.0 in process 0, 2.0 in process 1"
    }
    assert all_at_once(groups(2)[2:], lambda group: distributed_hooks.check_alike(group, sessions[0])) == [None] * 2


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (["a"], "there are b in process 0 only"),
        (["a", "b", "c"], "there are c in process 1 only"),
        (["b", "a"], "there are the same ones in another order, or not all of them could be collected"),
    ],
)
def test_other_tests_are_named_in_every_process(groups, second, message):
    two = groups(2)
    collected = [["a", "b"], second]

    def finish(group):
        items = [SimpleNamespace(nodeid=each) for each in collected[group.process]]
        hooks = distributed_hooks.DistributedHooks(group)
        hooks.pytest_collection_finish(SimpleNamespace(items=items, testsfailed=0))

    found = all_at_once(two, finish)
    assert all(isinstance(each, pytest.UsageError) for each in found)
    assert {str(each).partition("but ")[2] for each in found} == {message}


def test_of_each_metric_the_worst_is_everybodys_and_differing_counts_are_told(groups):
    two = groups(2)

    def metric(name, value, kind, better="lower"):
        return Metric(name, value, "x", kind, better)

    def metrics(process):
        made = [
            metric("calls", 10 + process, "count"),
            metric("hits", 10 + process, "count", "higher"),
            metric("bytes", 5, "size"),
            metric("note", 10 + process, "info"),
        ]
        return SimpleNamespace(metrics={each.title: each for each in made})

    of_both = [metrics(0), metrics(1)]
    all_at_once(two, lambda group: distributed_hooks.slowest_speaks(group, "test_a", of_both[group.process]))
    for each in of_both:
        assert [one.value for one in each.metrics.values()] == [11, 10, 5, 10]
    assert two[0].differences == [
        "test_a: calls differs: 10 in process 0, 11 in process 1; the worst one counts",
        "test_a: hits differs: 10 in process 0, 11 in process 1; the worst one counts",
    ]


@pytest.mark.parametrize(
    ("options", "named"), [({"processes": 2}, "--perf-processes"), ({"calibrate": 1.0}, "--perf-c")]
)
def test_options_of_a_process_alone_are_refused(groups, options, named):
    (group, _) = groups(2)
    registered = []
    config = SimpleNamespace(pluginmanager=SimpleNamespace(register=lambda *each: registered.append(each)))
    with pytest.raises(pytest.UsageError, match=f"{named}.* and jax.distributed contradict each other"):
        distributed_hooks.begin(group, config, SimpleNamespace(**{"processes": 1, "calibrate": None, **options}))
    assert registered[0][1] == "perfsuite-distributed"


def wait_until(happened):
    deadline = time.monotonic() + 10
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def connected_pair():
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    return one, other
