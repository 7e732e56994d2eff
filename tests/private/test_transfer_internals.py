"""`perfsuite.measure.private.transfer_internals`: which transfers and callbacks an observer is told of."""

import contextlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfsuite.measure.private import execution as internals
from perfsuite.measure.private.names import Moved, Name

X = jnp.arange(4.0)


@contextlib.contextmanager
def observed():
    """The events inside, as they come."""
    events = []
    with internals.observing(
        lambda value, frame, explicit: events.append(("to host", explicit)),
        lambda value, frame, explicit: events.append(("to device", explicit)),
        lambda jitted, args, *_: events.append(("called", jitted.__name__, args)),
        events.append,
    ):
        yield events


@pytest.fixture
def events():
    with observed() as events:
        yield events


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
        internals._probe_transfers()
    assert str(error.value) == f"{message} transfer"


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
    with observed():
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
    assert events == [("called", "step", (X, 2.0))], "`api._post_hook_state` is not called any more"


def test_callbacks_are_observed(events, capfd):
    @jax.jit
    def step(x):
        jax.debug.callback(lambda _: None, x)
        jax.debug.print("x {}", x)
        return jax.pure_callback(np.asarray, x, x)

    jax.block_until_ready(step(X))
    jax.effects_barrier()
    kinds = [entry for entry in events if isinstance(entry, str)]
    debug = "jax.debug.print or jax.debug.callback"
    assert sorted(kinds) == [debug, debug, "jax.pure_callback"], "the functions that run callbacks have moved"
