"""`measure.runtime.transfers`: what moves between host and device, what calls back, and where that is forbidden."""

import itertools
import operator
import os
import pickle
import threading

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from perfsuite.measure.call import call
from perfsuite.measure.errors import MeasurementError, TransferError
from perfsuite.measure.private.execution import sees_numpy
from perfsuite.measure.runtime.transfers import count_transfers, forbid_transfers, transfers_of

HERE = os.path.relpath(__file__)
X = jnp.arange(4.0)
ONE = jnp.float32(1)
INTEGER = jnp.int32(1)
HOST = np.ones(4, np.float32)


@jax.jit
def step(state, batch, rate=1.0):
    return jax.tree.map(lambda leaf: leaf + batch.sum() * rate, state)


@jax.jit
def ignoring(x, unused):
    return x + 1


def doubled(x):
    return np.asarray(x) * 2


def look(x):
    pass


@jax.jit
def with_pure_callback(x):
    return jax.pure_callback(doubled, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@jax.jit
def with_io_callback(x):
    return io_callback(doubled, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@jax.jit
def with_debug_print(x):
    jax.debug.print("mean {}", x.mean())
    return x + 1


@jax.jit
def with_debug_callback(x):
    jax.debug.callback(look, x)
    return x + 1


@jax.jit
def without_callback(x):
    return x + 1


def fresh():
    """An array that nobody has read, and its scalar."""
    return without_callback(X)


def fresh_scalar():
    return without_callback(ONE)


TO_DEVICE = {
    "a NumPy array": (lambda: step(X, HOST), "`step` was called with a NumPy array at args[1]"),
    "a NumPy scalar": (lambda: step(X, X, np.float32(2)), "`step` was called with a number at args[2]"),
    "a Python float": (lambda: step(X, X, 0.5), "`step` was called with a Python float at args[2]"),
    "a Python int by name": (lambda: step(X, X, rate=2), "`step` was called with a Python int at kwargs['rate']"),
    "in a tree": (lambda: step({"a": X, "b": HOST}, X), "`step` was called with a NumPy array at args[0]['b']"),
    "a number in an operation": (lambda: X * 2.5, "a Python float in an operation outside jit"),
    "a NumPy array in an operation": (lambda: X + HOST, "a NumPy array in an operation outside jit"),
    "jnp.asarray": (lambda: jnp.asarray(HOST), "in an operation outside jit"),
    "jnp.ones": (lambda: jnp.ones(4), "a number in an operation outside jit"),
    "jnp.full": (lambda: jnp.full(4, 2.5), "a Python float in an operation outside jit"),
    "jax.vmap of a jitted function": (
        lambda: jax.vmap(step, (0, None, None))(X, HOST, ONE),
        "`step` was called with a NumPy",
    ),
    "an index": (lambda: X[1], "outside jit"),
}

TO_HOST = {
    "float": (lambda: float(fresh_scalar()), "float(x)"),
    "int": (lambda: int(fresh_scalar()), "int(x)"),
    "complex": (lambda: complex(fresh_scalar()), "complex(x)"),
    "bool": (lambda: bool(fresh_scalar()), "bool(x)"),
    "if": (lambda: 1 if fresh_scalar() < ONE else 0, "bool(x), as in `if x:`"),
    "range": (lambda: operator.index(without_callback(INTEGER)), "index(x)"),
    "tolist": (lambda: fresh().tolist(), "tolist(x)"),
    "print": (lambda: print(fresh()), "str(x)"),
    "repr": (lambda: repr(fresh()), "repr(x)"),
    "an f-string": (lambda: f"{fresh_scalar():.2f}", "format(x)"),
    "pickle": (lambda: pickle.dumps(fresh()), "pickle"),
}

if sees_numpy():
    TO_HOST |= {
        "item": (lambda: fresh_scalar().item(), "item(x)"),
        "np.asarray": (lambda: np.asarray(fresh()), "np.asarray(x)"),
        "np.stack": (lambda: np.stack([fresh()]), "np.stack(x)"),
    }

CALLBACKS = {
    "pure_callback": (with_pure_callback, "jax.pure_callback"),
    "io_callback": (with_io_callback, "io_callback"),
    "debug.callback": (with_debug_callback, "jax.debug.print or jax.debug.callback"),
    "debug.print": (with_debug_print, "jax.debug.print or jax.debug.callback"),
}

SILENT = {
    "arrays only": lambda: step(X, X, ONE),
    "an argument that the program does not read": lambda: ignoring(X, 3.0),
    "an attribute": lambda: (X.shape, X.dtype, X.nbytes, len(X), X.sharding),
    "waiting": lambda: jax.block_until_ready(fresh()),
    "the same operation on arrays": lambda: X * ONE,
    "iteration on one device": lambda: list(X),
    "a method": lambda: X.mean(),
    "a comparison without if": lambda: ONE < ONE,
    "a program without callbacks": lambda: without_callback(X),
    "a static number": lambda: STATIC(X, 2),
    "filter_jit, whose numbers are static": lambda: FILTERED(X, 2),
}
STATIC = jax.jit(operator.mul, static_argnums=1)
FILTERED = eqx.filter_jit(lambda x, n: x * n)

parametrized = pytest.mark.parametrize


def cases(found: dict) -> pytest.MarkDecorator:
    values = [value if isinstance(value, tuple) else (value,) for value in found.values()]
    return parametrized(("go", "cause")[: len(values[0])], values, ids=found.keys())


# Host to device.


@cases(TO_DEVICE)
def test_what_moves_to_the_device_raises_with_its_cause_and_line(go, cause):
    go()
    line = f"{HERE}:{go.__code__.co_firstlineno}"
    with pytest.raises(TransferError) as caught, forbid_transfers():
        go()
    error = caught.value
    assert cause in error.cause
    assert (error.direction, error.location) == ("host_to_device", line)
    with pytest.raises(Exception, match="Disallowed host-to-device"), jax.transfer_guard_host_to_device("disallow"):
        go()  # JAX forbids it too


@cases(TO_DEVICE)
def test_what_moves_to_the_device_counts_once_whether_jax_knows_the_call_or_not(go, cause):
    for _ in range(2):
        with count_transfers() as counted:
            go()
        assert (counted.host_to_device, counted.device_to_host, counted.callbacks, counted.explicit) == (1, 0, 0, 0)


def test_every_argument_of_the_host_counts():
    for _ in range(2):  # JAX's first sight of the call, and its fast path
        with count_transfers() as counted:
            step({"a": HOST, "b": HOST}, X, 0.5)
        assert counted.host_to_device == 3
    assert sorted(event.cause.rpartition(" at ")[2] for event in counted.events) == [
        "args[0]['a']",
        "args[0]['b']",
        "args[2]",
    ]


@eqx.filter_jit
def filtered(model, batch):
    return jax.tree.map(lambda leaf: leaf + batch["ids"].sum(), model)


def test_the_arguments_of_filter_jit_are_named_as_they_were_passed():
    filtered(X, {"ids": HOST})
    with count_transfers() as counted:
        filtered(X, {"ids": HOST})
    assert [event.cause for event in counted.events] == ["`filtered` was called with a NumPy array at args[1]['ids']"]


def sharded(of):
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2])
    return jax.device_put(of, jax.sharding.NamedSharding(mesh, jax.P("x")))


def test_an_argument_that_goes_to_several_devices_counts_once():
    spread = sharded(X)
    for _ in range(3):
        with count_transfers() as counted:
            step(spread, HOST)
        assert counted.host_to_device == 1
    assert counted.events[0].cause == "`step` was called with a NumPy array at args[1]"


# Device to host.


@cases(TO_HOST)
def test_what_is_read_by_the_host_raises_with_its_cause_and_line(go, cause, capsys):
    go()
    line = f"{HERE}:{go.__code__.co_firstlineno}"
    with pytest.raises(TransferError) as caught, forbid_transfers():
        go()
    error = caught.value
    assert error.cause.startswith(cause)
    assert (error.direction, error.location) == ("device_to_host", line)


def test_iteration_over_an_array_on_several_devices_reads_it():
    spread = sharded(X)
    with count_transfers() as counted:
        list(spread)
    assert {event.cause for event in counted.events if not event.explicit} == {"iter(x)"}


def test_an_array_that_is_read_twice_moves_once():
    value = fresh_scalar()
    with count_transfers() as counted:
        assert [float(value), float(value)] == [2.0, 2.0]
        assert float(fresh_scalar()) == 2.0
    assert counted.device_to_host == 2


# Neither.


@cases(SILENT)
def test_what_moves_nothing_is_silent(go):
    go()
    with forbid_transfers(), count_transfers() as counted:
        go()
    assert counted.events == ()


# Explicit.

EXPLICIT = {
    "device_put": (lambda: jax.device_put(HOST), "host_to_device", "jax.device_put"),
    "device_get": (lambda: jax.device_get(fresh()), "device_to_host", "jax.device_get"),
    "copy_to_host_async": (lambda: fetch_later(fresh()), "device_to_host", "copy_to_host_async(x)"),
}


def fetch_later(x):
    x.copy_to_host_async()
    return np.asarray(x)


@parametrized(("go", "direction", "cause"), EXPLICIT.values(), ids=EXPLICIT.keys())
def test_an_explicit_transfer_is_allowed_and_counted_apart(go, direction, cause):
    go()
    with forbid_transfers(), count_transfers() as counted:
        go()
    assert (counted.host_to_device, counted.device_to_host, counted.explicit) == (0, 0, 1)
    assert (counted.events[0].direction, counted.events[0].cause) == (direction, cause)
    assert not any(counted.by_line.values())
    with pytest.raises(TransferError) as caught, forbid_transfers(explicit=True):
        go()
    assert caught.value.direction == direction


# Reads that the host waits for.


@jax.jit
def four(x):
    return x + 1, x + 2, x + 3, x + 4


def after_all_have_begun(x):
    for value in (values := four(x)):
        value.copy_to_host_async()
    return [value.tolist() for value in values]


READS = {
    "one by one": (lambda x: [jax.device_get(value) for value in four(x)], 4),
    "at once": (lambda x: jax.device_get(four(x)), 1),
    "begun before": (after_all_have_begun, 1),
    "implicit": (lambda x: [value.tolist() for value in four(x)], 4),
    "twice": (lambda x: [(value := four(x)[0]).tolist(), value.tolist()], 1),
    "two batches": (lambda x: [jax.device_get(four(x)), jax.device_get(four(x))], 2),
    "not read": (lambda x: [value.copy_to_host_async() for value in four(x)], 0),
}


@parametrized(("go", "waits"), READS.values(), ids=READS.keys())
def test_reads_that_wait_count_and_those_whose_copies_began_together_are_one(go, waits):
    counted = transfers_of(call(go, X))
    assert counted.blocking_reads == len(counted.waits) == waits
    assert len(counted.waits_in_words().splitlines()) >= bool(waits)


# Device to device.


def on(device):
    return jax.device_put(X, jax.devices()[device])


MOVED = "an array of other devices"
MOVES = {
    "an argument of another sharding": (lambda: step(X, sharded(X)), f"a jitted function was called with {MOVED}"),
    "an argument of another device": (lambda: step(X, on(1)), f"`step` was called with {MOVED} at args[0]"),
    "an argument of a jitted function under jax.vmap": (
        lambda: jax.vmap(step, (0, None))(X, sharded(X)),
        f"`step` was called with {MOVED}",
    ),
    "an operation": (lambda: X + sharded(X), f"{MOVED} in an operation outside jit"),
}


@cases(MOVES)
def test_an_array_that_goes_to_other_devices_is_forbidden_and_counted(go, cause):
    go()
    for _ in range(2):
        with count_transfers() as counted:
            go()
        assert (counted.device_to_device, counted.host_to_device, counted.total) == (1, 0, 1)
    with pytest.raises(TransferError, match="once, before the loop") as caught, forbid_transfers():
        go()
    assert caught.value.cause == cause
    assert (caught.value.direction, caught.value.what) == ("device_to_device", "float32[4]")
    assert caught.value.location == f"{HERE}:{go.__code__.co_firstlineno}"


def test_an_array_that_goes_to_another_device_is_counted_in_a_call_that_donates():
    add = jax.jit(lambda state, batch: state + batch.sum(), donate_argnums=0)
    batch = jnp.ones(4)
    state = add(on(1), batch)
    with count_transfers() as counted:
        add(state, batch)
    assert [event.direction for event in counted.events] == ["device_to_device"]


def test_an_array_that_the_code_sends_to_other_devices_or_that_stays_is_no_implicit_transfer():
    spread, one = sharded(X), on(1)
    with forbid_transfers(), count_transfers() as counted:
        step(spread, spread)
        step(one, one)
        jax.device_put(one, jax.devices()[2])
    assert [(event.direction, event.explicit) for event in counted.events] == [("device_to_device", True)]


# Callbacks.


@cases(CALLBACKS)
def test_a_callback_that_runs_is_forbidden_and_named(go, cause, capfd):
    jax.block_until_ready(go(X))
    jax.effects_barrier()
    with pytest.raises(TransferError) as caught, forbid_transfers():
        go(X)
    assert (caught.value.direction, caught.value.what, caught.value.location) == ("callback", cause, "")


@cases(CALLBACKS)
def test_callbacks_count_once_a_run_and_what_they_read_does_not(go, cause, capfd):
    go(X)
    with count_transfers() as counted:
        go(X)
        go(X)
    assert (counted.callbacks, counted.device_to_host, counted.host_to_device, counted.explicit) == (2, 0, 0, 0)


# The contexts.


def run(thread: threading.Thread) -> None:
    thread.start()
    thread.join()


def test_another_thread_is_watched_too_and_told_when_the_context_closes():
    value = fresh_scalar()
    failed: list[TransferError] = []

    def read() -> None:
        try:
            float(value)
        except TransferError as error:
            failed.append(error)

    thread = threading.Thread(target=read)
    with pytest.raises(TransferError) as caught, forbid_transfers():
        run(thread)
    assert [error.cause for error in (*failed, caught.value)] == ["float(x)"] * 2


def test_the_hook_of_jax_debug_nans_goes_on_working():
    with jax.debug_nans(True), count_transfers(), pytest.raises(FloatingPointError):
        jnp.log(-ONE)


def test_a_thread_that_was_in_debug_nans_is_watched_all_the_same():
    with jax.debug_nans(True):
        step(X, HOST)
    with count_transfers() as counted:
        step(X, HOST)
    assert counted.host_to_device == 1


class Odd:
    """A tree, without paths once `broken` has something."""

    def __init__(self, leaf):
        self.leaf = leaf


def paths(odd):
    if broken:
        raise KeyError("no path")
    return [(jax.tree_util.GetAttrKey("leaf"), odd.leaf)], None


broken: list[bool] = []
jax.tree_util.register_pytree_with_keys(Odd, paths, lambda _, leaves: Odd(*leaves), lambda odd: ((odd.leaf,), None))


def test_a_tree_without_paths_does_not_raise_out_of_the_users_call():
    summed = jax.jit(lambda odd, times: odd.leaf.sum() * times, static_argnums=1)
    summed(Odd(HOST), 1)
    broken.append(True)
    with count_transfers(), forbid_transfers():
        total = summed(Odd(HOST), 1)
    assert total == HOST.sum()


# One call.


def noisy(state, batch):
    state = step(state, batch)
    loss = state.sum()
    if loss > ONE:
        pass
    return state, loss


def test_the_transfers_of_a_call():
    counted = transfers_of(call(noisy, X, HOST, carry=1))
    assert (counted.host_to_device, counted.device_to_host, counted.callbacks, counted.explicit) == (1, 1, 0, 0)
    assert counted.total == 2
    assert counted.by_line["device_to_host"] == {f"{HERE}:{noisy.__code__.co_firstlineno + 3}": 1}
    to_device, to_host, moved, back, explicit, reads = counted.metrics("noisy")
    assert (to_device.name, to_device.value, to_device.kind) == ("noisy host to device transfers", 1, "count")
    assert to_device.detail == {"float32[4]: `step` was called with a NumPy array at args[1]": 1}
    assert to_host.places == {
        "bool[]: bool(x), as in `if x:` or `while x < y:`": f"{HERE}:{noisy.__code__.co_firstlineno + 3}"
    }
    assert (moved.value, back.value, back.detail, explicit.value) == (0, 0, None, 0)
    assert (reads.value, reads.unit, reads.places) == (1, "reads", to_host.places)


@pytest.mark.parametrize("runs_before", range(2))
def test_what_moves_every_second_time_counts(runs_before):
    runs = itertools.count(runs_before)

    def logs_every_second_time(state):
        state = step(state, X, ONE)
        if next(runs) % 2:
            float(state[0])
        return state

    step(X, X, ONE)[0].block_until_ready()
    assert transfers_of(call(logs_every_second_time, X, carry=1)).device_to_host == 1


def test_another_number_of_transfers_each_time_is_an_error():
    runs = itertools.count()

    def logs_more(state):
        for _ in range(next(runs)):
            float(step(state, X, ONE)[0])
        return state

    with pytest.raises(MeasurementError, match=r"logs_more: the transfers differ from run to run \(\d+, \d+, \d+\)"):
        transfers_of(call(logs_more, X))
