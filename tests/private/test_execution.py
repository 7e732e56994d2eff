"""`measure.private.execution`: every run of a program, every transfer and every callback is seen."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfsuite.measure.private import execution

X = jnp.arange(4.0)


@jax.jit
def double(x):
    return 2 * x


@jax.jit
def printing(x):
    jax.debug.callback(lambda value: None, x)
    return 2 * x


@pytest.fixture
def runs():
    """The (name, whether it is an operation of JAX's) of every program that a function runs when it is warm."""

    def of(function, *args):
        jax.block_until_ready([function(*args) for _ in range(2)])
        seen = []
        with execution.observing_programs(lambda run: seen.append((run.name, run.operation))):
            jax.block_until_ready(function(*args))
        return seen

    return of


def test_a_program_has_a_key_and_a_text_while_it_runs():
    @jax.jit
    def drop(x, key):
        return x * jax.random.bernoulli(key, 0.9, x.shape)

    arguments, raw = (X, jax.random.key(0)), jax.random.PRNGKey(0)
    jax.block_until_ready([drop(*arguments) for _ in range(2)] + [drop(X, raw)])
    seen = []
    with execution.observing_programs(lambda run: seen.append((run.key(), run.text()))):
        for _ in range(2):
            drop(*arguments)
        drop(X, raw)
    (key, text), again, (other_key, other_text) = seen
    assert again == (key, text)
    assert (other_key, other_text) != (key, text)
    assert "bernoulli" in text
    assert __file__ not in text


def test_the_slow_path_runs_programs_through_execute_replicated(runs):
    assert runs(printing, X) == [("printing", False)], "`pxla.ExecuteReplicated.__call__` runs no program any more"


def test_an_operation_by_itself_is_jaxs_own(runs):
    assert runs(jax.lax.neg, X) == [("neg", True)]
    assert runs(jax.lax.cond, True, jnp.sin, jnp.cos, X)[-1] == ("cond", True)


def test_a_program_that_a_transformation_binds_has_its_name_from_the_frame(runs):
    named = ("double", False)
    assert runs(jax.vmap(double), X) == [named], "`pjit._pjit_call_impl` has no `name` and `jaxpr` any more"
    forward_and_backward = runs(jax.grad(lambda x: printing(x)[0]), X)
    assert forward_and_backward.count(("printing", False)) == 2, "`pjit._pjit_call_impl_python` has no `name` any more"


def test_a_program_compiled_ahead_of_time_has_its_name_from_the_executable(runs):
    assert runs(double.lower(X).compile(), X) == [("double", False)], "`Compiled._executable.unsafe_call` moved"
    assert runs(printing.lower(X).compile(), X) == [("printing", False)]


def test_a_check_for_nans_goes_on_and_what_it_checks_is_seen(runs):
    def checked(x):
        with jax.debug_nans(True):
            return double(x)

    assert runs(checked, X) == [("double", False)]
    with (
        execution.observing_programs(lambda run: None),
        pytest.raises(FloatingPointError),
        jax.debug_nans(True),
    ):
        jnp.log(double(-X))


def test_the_outputs_of_programs_are_told_and_tell_whether_they_are_ready():
    """The outputs are the objects that the call returns, through both ways to run a program."""
    for run in (double, printing, lambda x: x + 1):
        jax.block_until_ready([run(X), run(X)])
        told = []
        with execution.telling_outputs(told.append):
            output = run(X)
        assert [leaf for outputs in told for leaf in jax.tree.leaves(outputs)][-1] is output, run
        assert execution.is_ready(output.block_until_ready()), "`is_ready` of JAX's arrays has moved"

    @jax.jit
    def long(x):
        return jax.lax.fori_loop(0, 20, lambda _, x: x @ x, x)

    x = jnp.eye(1000)
    long(x).block_until_ready()
    seen = [execution.is_ready(long(x)) for _ in range(5)]
    assert not all(seen)
    assert hasattr(X, "is_ready"), "`is_ready` of JAX's arrays has moved"


@pytest.fixture
def events():
    """The transfers and callbacks of a test, as they come."""
    events = []
    with execution.observing(
        lambda value, frame, explicit: events.append(("to host", explicit)),
        lambda value, frame, explicit: events.append(("begun", explicit)),
        lambda value, frame, explicit: events.append(("to device", explicit)),
        lambda value, frame, explicit: events.append(("moved", explicit)),
        lambda jitted, args, *_: events.append(("called", jitted.__name__, args)),
        events.append,
    ):
        yield events


needs_buffer = pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 has no __buffer__")


@needs_buffer
@pytest.mark.parametrize("read", [np.asarray, np.array, lambda x: np.array([x, x]), lambda x: np.stack([x, x])])
def test_a_read_by_numpy_is_observed(events, read):
    read(X)
    assert events[:1] == [("to host", False)], "NumPy reads arrays without what is replaced"


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
    with execution.observing(*[lambda *_: None] * 6):
        pass
    assert np.shares_memory(np.asarray(X), memoryview(X))


def test_explicit_scopes_are_observed(events):
    jax.device_put(np.ones(3))
    jax.device_get(X)
    message = "guard_lib.thread_local_state() has no `explicit_device_put` or `explicit_device_get` any more"
    assert {entry for entry in events if entry[0] != "called"} == {
        ("to device", True),
        ("begun", True),
        ("to host", True),
    }, message


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
