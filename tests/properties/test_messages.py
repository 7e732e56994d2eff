"""What another process of a `jax.distributed` session writes may be anything: it is read, or the session ends clearly.

`PERFSUITE_FUZZ=10000 pytest tests/properties/test_messages.py` tries more of it.
"""

import contextlib
import functools
import json
import os
import re
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.git_project import count

from perfsuite.gate.baseline import Baselines
from perfsuite.gate.baseline_file import BaselineError
from perfsuite.gate.baseline_format import render
from perfsuite.measure.metric import Interval, Metric
from perfsuite.measure.private.coordination import Store, ValueUnreadable
from perfsuite.measure.serialise import plain
from perfsuite.processes import group as group_module
from perfsuite.processes.group import Group, ProcessesDifferError
from perfsuite.processes.members import Lifeline, Member, connect, meet
from perfsuite.processes.shared_baselines import shared_baselines
from properties.edits import EXAMPLES, contents, outcome

fuzzed = settings(
    max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
MEMBERS = [Member(0, "one", 10), Member(1, "other", 11)]


class Client:
    """Gives what a test says for each key, and keeps nothing. As JAX's client it decodes what is there."""

    def __init__(self, content: bytes):
        self._content = content

    def key_value_set(self, key, value, allow_overwrite):
        assert isinstance(json.loads(value), dict | list)

    def blocking_key_value_get(self, key, milliseconds):
        return self._content.decode()

    def key_value_delete(self, key):
        pass


@pytest.fixture
def at_once(monkeypatch):
    """A session that ends in a test ends no process."""
    monkeypatch.setattr(group_module, "_timer", lambda *args: None)
    monkeypatch.setattr(group_module.os, "_exit", lambda status: None)


@contextlib.contextmanager
def group(process: int, content: bytes):
    """One of two processes, for which `content` is all that the other one writes."""
    mine, others = socket.socketpair()
    store = Store(Client(content), "tests", serves=process == 0)
    with open(os.devnull, "w") as quiet:
        made = Group(MEMBERS, process, store, {1 - process: Lifeline(mine)})
        os.dup2(quiet.fileno(), made._stderr)
    try:
        yield made
    finally:
        made.end()
        made.close()
        others.close()


METRICS = plain([Metric("step ratio", 1.5, "x", "ratio", interval=Interval(1.4, 1.6), samples=30)])
BASELINES = render(Baselines("cpu", {"a::b": {"step": count(7)}}))
KINDS = {
    "metrics": (METRICS, list[Metric]),
    "options": ({"seconds": 1.0, "jax": "0.10.2"}, dict),
    "tests": ([["a::b"], 0], tuple[list[str], int]),
    "outcome": (["failed", "why"], tuple[str, str]),
    "status": (1, int),
}


def messages(what: str, process: int, given: object) -> st.SearchStrategy[bytes]:
    """What process 1 - `process` may write in an exchange."""
    message = {"what": what, "given": given, "note": ""}
    return contents(message if process == 0 else [message, message])


def exchanged(function, *args, **options) -> object:
    """What an exchange gives; None where the session ends, or the processes differ, in words that say so."""
    refusals = (ProcessesDifferError, pytest.exit.Exception)
    gave, error = outcome(refusals, functools.partial(function, *args, **options))
    if isinstance(error, pytest.exit.Exception):
        assert re.search("cannot be read|messages of 2|too deep", str(error))
        assert "run the same version of perfsuite in all processes" in str(error)
    return gave


@fuzzed
@given(data=st.data(), process=st.sampled_from((0, 1)), name=st.sampled_from(sorted(KINDS)))
def test_a_message_of_another_process_is_read_or_ends_the_session(data, process, name, at_once):
    value, kind = KINDS[name]
    content = data.draw(messages(name, process, value))
    with group(process, content) as made:
        gave = exchanged(made.exchange, name, value, kind=kind if kind is not dict else dict[str, object])
    assert gave is None or len(gave) == 2
    for each in gave or ():
        assert isinstance(each, getattr(kind, "__origin__", kind))
        assert name != "metrics" or all(isinstance(metric, Metric) for metric in each)


@fuzzed
@given(data=st.data(), process=st.sampled_from((0, 1)), value=st.sampled_from((True, 7, 1.5)))
def test_a_decision_is_of_the_type_that_is_asked_for(data, process, value, at_once):
    content = data.draw(messages("a decision in the start of the session", process, value))
    with group(process, content) as made:
        agreed = exchanged(made.agreed, value)
    assert agreed is None or isinstance(agreed, type(value)) or (type(value), type(agreed)) == (float, int)
    assert agreed is None or process == 1 or agreed is value


@fuzzed
@given(data=st.data(), process=st.sampled_from((0, 1)))
def test_samples_are_lists_of_numbers(data, process, at_once):
    samples = [[1.5, 2.5], [3.5, 1.5]]
    content = data.draw(messages("the samples of the start of the session", process, samples))
    with group(process, content) as made:
        slowest = exchanged(made.slowest, samples)
    assert slowest is None or [len(each) for each in slowest] == [2, 2]
    assert all(isinstance(number, int | float) for each in slowest or () for number in each)


@fuzzed
@given(data=st.data())
def test_baselines_of_process_0_are_read_or_refused(data, at_once):
    content = data.draw(messages("what process 0 found at the start of the session", 1, {"cpu": BASELINES}))
    with group(1, content) as made:
        found, error = outcome(
            BaselineError, exchanged, functools.partial(shared_baselines, made, [Path("cpu.json")], "Xeon", save=False)
        )
    if error:
        assert " of process 0" in str(error)
    assert all(isinstance(each, Baselines) for each in (found or {}).values())


@fuzzed
@given(content=contents(["host", 100]))
def test_another_member_is_one_or_refused(content):
    store = Store(Client(content), "tests", serves=True)
    found, error = outcome(ValueUnreadable, meet, store, 0, 2)
    assert "cannot be read" in str(error) if error else len(found) == 2
    for each in found or ():
        assert (type(each.host), type(each.pid)) == (str, int)


@fuzzed
@given(content=contents([0, 4321, "ab" * 16]))
def test_an_odd_address_of_the_server_is_refused(content, monkeypatch):
    def create_connection(address, timeout):
        if not 0 <= address[1] <= 65535:
            raise OverflowError("getsockaddrarg: port must be 0-65535.")
        raise ConnectionRefusedError("nobody listens")

    monkeypatch.setattr(socket, "create_connection", create_connection)
    store = Store(Client(content), "tests", serves=False)
    _, error = outcome((pytest.UsageError, ValueUnreadable), connect, store, MEMBERS[1], 2)
    assert "has no connection" in str(error) or "cannot be read" in str(error)


@fuzzed
@given(said=st.binary(max_size=50) | st.text(max_size=50).map(str.encode))
def test_the_reason_of_another_process_is_one_line(said):
    mine, other = socket.socketpair()
    with mine, other:
        other.sendall(said)
        other.shutdown(socket.SHUT_WR)
        heard = Lifeline(mine).hear()
    assert heard is None or heard.isprintable()
