"""`perfsuite.measure.private.transfer_internals`: which transfers and callbacks an observer is told of."""

import inspect
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.private_names import taken_away

from perfsuite.measure.private import capabilities
from perfsuite.measure.private import transfer_internals as internals
from perfsuite.measure.private.names import Moved, Name

X = jnp.arange(4.0)


class Observer:
    """Keeps what it observes."""

    def __init__(self):
        self.events = []

    def moved_to_device(self, value, frame, *, explicit):
        self.events.append(("to device", explicit))

    def called(self, jitted, args, kwargs, frame):
        self.events.append(("called", jitted.__name__, args, kwargs))

    def moved_to_host(self, value, frame, *, explicit):
        self.events.append(("to host", explicit))

    def called_back(self, kind, function):
        self.events.append((kind, internals.callback_function(function)))


@pytest.fixture
def events():
    observer = Observer()
    with internals.observing(observer):
        yield observer.events


def test_all_names_are_where_they_were():
    assert capabilities.TRANSFERS.lost() == ""


@pytest.mark.parametrize(
    ("name", "other", "message"),
    [
        ("_PUT", Name("jax._src.lib", "xla_client.make_cpu_client"), "jax.device_put(x) is not seen as an explicit"),
        ("_VALUE", Name("jax._src.array", "ArrayImpl.global_shards"), "float(x) is not seen as an implicit"),
    ],
)
def test_a_function_that_moves_nothing_any_more_is_seen(name, other, message, monkeypatch):
    monkeypatch.setattr(internals, name, other)
    with pytest.raises(Moved) as error:
        internals.probe()
    assert str(error.value) == f"{message} transfer"


@pytest.mark.parametrize("guard", ["disallow", "disallow_explicit"])
def test_the_probe_works_where_transfers_are_forbidden(guard):
    with jax.transfer_guard(guard):
        internals.probe()


def test_without_its_names_a_callback_has_no_function():
    def mine(x):
        return x

    flat = types.SimpleNamespace(callback_func=mine)
    assert internals.callback_function(flat) == ("", mine)
    with taken_away(internals._FUNCTION):
        assert internals.callback_function(flat) == ("", None)


def test_an_array_that_was_fetched_to_stay_says_so():
    assert not internals.fetched(X + 1)


needs_buffer = pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 has no __buffer__")


@needs_buffer
@pytest.mark.parametrize(
    ("read", "times"),
    [
        (lambda: np.asarray(X), 1),
        (lambda: np.array(X), 1),
        (lambda: np.array([X, X]), 2),
        (lambda: np.stack([X, X]), 2),
        (lambda: np.testing.assert_array_equal(X, X), 2),
    ],
    ids=["asarray", "array", "array of a list", "stack", "testing"],
)
def test_a_read_by_numpy_is_observed(events, read, times):
    read()
    assert events[:times] == [("to host", False)] * times, "NumPy reads arrays without what is replaced"


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="from Python 3.12 on, NumPy's reads are seen")
def test_a_read_by_numpy_is_not_observed_on_python_3_11(events):
    assert np.asarray(X).nbytes == memoryview(X).nbytes == 16
    np.stack([X, X])
    assert events == [], "docs/instruments/transfers.md says that these reads are not seen"


@needs_buffer
def test_every_read_in_place_is_observed_from_python_3_12_on(events):
    losses = np.zeros(4)
    losses[:] = X
    np.add(X, 1)
    assert events == [("to host", False)] * 2
    with pytest.raises(BufferError, match="perfsuite counts transfers here"):
        memoryview(X)


def test_the_buffer_of_an_array_is_its_own_again_afterwards():
    with internals.observing(Observer()):
        pass
    assert np.asarray(memoryview(X)).tolist() == [0, 1, 2, 3]
    assert np.shares_memory(np.asarray(X), memoryview(X))


def test_explicit_scopes_are_observed(events):
    jax.device_put(np.ones(3))
    jax.device_get(X)
    message = "guard_lib.thread_local_state() has no `explicit_device_put` or `explicit_device_get` any more"
    assert {entry for entry in events if entry[0] != "called"} == {("to device", True), ("to host", True)}, message


def test_calls_on_the_fast_path_are_observed(events):
    def step(x, n):
        return x * n

    jitted = jax.jit(step)
    jitted(X, 2.0)
    assert events == [("to device", False)], "`xla_client.batched_device_put` is not what moves arguments any more"
    events.clear()
    jitted(X, 2.0)
    assert [entry[:2] for entry in events] == [("called", "step")], "`api._post_hook_state` is not called any more"
    assert events[0][2] == (X, 2.0)


def test_callbacks_lead_to_the_users_function(events, capfd):
    def mine(x):
        return np.asarray(x)

    @jax.jit
    def step(x):
        jax.debug.callback(mine, x)
        jax.debug.print("x {}", x)
        return jax.pure_callback(mine, x, x)

    jax.block_until_ready(step(X))
    jax.effects_barrier()
    found = [entry for entry in events if entry[0].startswith("jax.")]
    assert len(found) == 3, "the functions that run callbacks have moved"
    assert ("jax.pure_callback", ("", mine)) in found
    assert ("jax.debug", ("", mine)) in found
    assert ("jax.debug", ("x {}", None)) in found, "`debugging._format_print_callback` has moved"


def test_an_unknown_callback_has_no_function():
    assert internals.callback_function(len) == ("", None)


def test_what_is_replaced_has_the_arguments_that_are_used():
    pure, ordered = (internals._CALLBACKS[each].get() for each in ("jax.pure_callback", "io_callback"))
    assert next(iter(inspect.signature(pure).parameters)) == "args"
    assert "callback" in inspect.signature(ordered).parameters
