"""Compiles are counted and forbidden wherever they happen, and nothing else is touched by it."""

import contextlib
import functools
import gc
import os
import pickle
import queue
import sys
import threading
import time
import warnings
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from support import jits
from support.jits import each_jit, plain

from perfsuite.measure.compiles import compiles
from perfsuite.measure.compiles import listeners as monitor
from perfsuite.measure.compiles.causes import HISTORY
from perfsuite.measure.errors import MeasurementError, RecompilationError

HERE = os.path.relpath(__file__)
SHORT, LONG = jnp.ones(3), jnp.ones(4)


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """After every test here no context is open and JAX calls no listener of perfsuite's, unless one was before."""
    HISTORY.forget()
    before = monitor.open_contexts(), monitor.is_heard()
    yield
    assert (monitor.open_contexts(), monitor.is_heard()) == before


def line_of_call(jit) -> str:
    return os.path.relpath(jits.__file__) if jit is plain else HERE


def made(jit=jax.jit, **options):
    return jit(lambda x: x * 2, **options)


@each_jit
def test_each_stage_is_counted_by_function(jit):
    def step(x):
        return x * 2

    jitted = jit(step)
    with compiles.count() as counted:
        jitted(SHORT)
        jitted(SHORT)
        jitted(LONG)
    assert (counted.traces, counted.lowerings, counted.compiles, counted.cache_hits) == (2, 2, 2, 0)
    assert counted.by_function == {"step": compiles.FunctionCompiles(2, 2, 2)}
    assert counted.seconds > 0


@each_jit
def test_a_warm_call_counts_nothing(jit):
    step = made(jit)
    step(SHORT)
    with compiles.count() as counted:
        step(SHORT)
    assert (counted.traces, counted.lowerings, counted.compiles) == (0, 0, 0)
    assert counted.events == ()


@each_jit
def test_events_say_where_and_why(jit):
    step = made(jit)
    with compiles.count() as counted:
        step(SHORT)
        step(LONG)
    first, second = counted.events[:3], counted.events[3:]
    assert [event.stage for event in first] == ["trace", "lower", "compile"]
    assert {event.changes for event in first} == {()}
    assert {event.changes for event in second} == {("args[0]: shape was (3,), is (4,)",)}
    assert {event.location.rpartition(":")[0] for event in counted.events} == {line_of_call(jit)}
    (one,), (other,) = ({int(event.location.rpartition(":")[2]) for event in events} for events in (first, second))
    assert other == one + (jit is not plain)


def test_committedness_and_device_are_counted_where_a_trace_counter_sees_nothing():
    step = made()
    first, second = (jax.device_put(SHORT, device) for device in jax.devices()[:2])
    step(SHORT)
    with compiles.count() as counted:
        step(first)
    assert (counted.traces, counted.lowerings, counted.compiles) == (0, 1, 1)
    with compiles.count() as counted:
        step(second)
    assert (counted.traces, counted.lowerings, counted.compiles) == (0, 0, 1)


def test_contexts_nest_and_each_counts_its_own():
    step = made()
    with compiles.count() as outer:
        step(SHORT)
        with compiles.count() as inner:
            step(LONG)
    assert (outer.compiles, inner.compiles) == (2, 1)
    with compiles.forbid(), compiles.count() as counted, compiles.forbid():
        step(SHORT)
    assert counted.compiles == 0
    with pytest.raises(RecompilationError), compiles.forbid(), compiles.count() as counted:
        step(jnp.ones((5,), jnp.float32, device=jax.devices()[0]))
    assert counted.traces + counted.lowerings >= 1


def test_a_count_goes_on_after_an_inner_context_closed():
    step = made()
    with compiles.count() as counted:
        with compiles.forbid():
            pass
        step(SHORT)
    assert counted.compiles == 1


@each_jit
def test_a_forbidden_compile_is_raised_before_its_work(jit):
    traced = []
    step = jit(lambda x: traced.append(x) or x)
    with pytest.raises(RecompilationError) as raised, compiles.forbid():
        step(SHORT)
    assert traced == []
    assert (raised.value.function, raised.value.stage) == ("<lambda>", "trace")
    assert str(raised.value).startswith(f"`<lambda>` was traced at {line_of_call(jit)}:")
    assert not getattr(raised.value, "__notes__", [])


@each_jit
@pytest.mark.parametrize("stage", ["trace", "lower", "compile"])
def test_after_a_refusal_jax_works_as_fast_as_before(jit, stage):
    """JAX itself leaves a signature whose first call raised on its slow path, or compiles it in every call."""
    step = made(jit)
    first, second = (jax.device_put(SHORT, device) for device in jax.devices()[:2])
    known, refused = {"trace": (SHORT, LONG), "lower": (SHORT, first), "compile": (first, second)}[stage]
    step(known)
    step(known)
    warm_calls = python_calls(step, known)
    with pytest.raises(RecompilationError) as raised, compiles.forbid():
        step(refused)
    assert raised.value.stage == stage
    assert (step(refused) == refused * 2).all()
    step(known)
    with compiles.forbid():
        # nnx.jit makes a few more or less from call to call.
        assert python_calls(step, refused) <= warm_calls + 10
        assert python_calls(step, known) <= warm_calls + 10


def python_calls(fn, *args) -> int:
    calls = 0

    def profile(frame, event, arg):
        nonlocal calls
        calls += event == "call"

    sys.setprofile(profile)
    try:
        fn(*args)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("stage", ["trace", "lower", "compile"])
def test_a_refusal_loses_no_donated_argument(stage):
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    devices = jax.devices()
    step(jnp.zeros(3) + 0)
    step(jax.device_put(jnp.zeros(3), devices[0], may_alias=False))
    argument = {
        "trace": jnp.zeros(6),
        "lower": jax.device_put(jnp.zeros(6), devices[1], may_alias=False),
        "compile": jax.device_put(jnp.zeros(3), devices[1], may_alias=False),
    }[stage]
    if stage == "lower":
        step(jnp.zeros(6) + 0)
    with pytest.raises(RecompilationError) as raised, compiles.forbid():
        step(argument)
    assert raised.value.stage == stage
    assert not argument.is_deleted()
    assert step(argument).tolist() == [1.0] * argument.size
    assert argument.is_deleted()


def test_a_swallowed_error_is_raised_again_when_the_context_closes():
    step, swallowed = made(), []

    def swallow(argument):
        try:
            step(argument)
        except Exception as error:
            swallowed.append(error)

    with pytest.raises(RecompilationError) as raised, compiles.forbid():
        list(map(swallow, (SHORT, LONG)))
    assert raised.value not in swallowed
    assert "something caught it. 1 more like it." in str(raised.value)
    assert raised.value.function == "<lambda>"


def test_a_lowering_without_a_compile_is_raised_when_the_context_closes():
    step = made()
    traced = step.trace(SHORT)
    with pytest.raises(RecompilationError, match="was lowered"), compiles.forbid():
        traced.lower()
    lowered = step.lower(SHORT)
    with pytest.raises(RecompilationError, match="was compiled"), compiles.forbid():
        lowered.compile()


def run_in_thread(target, *args, name=None):
    thread = threading.Thread(target=target, args=args, name=name)
    thread.start()
    thread.join()


def test_an_error_in_another_thread_reaches_both():
    step = made()
    raised_there = queue.Queue()

    def compile_elsewhere():
        try:
            step(SHORT)
        except RecompilationError as error:
            raised_there.put(error)

    with pytest.raises(RecompilationError, match=r"(?s)was traced at .*in thread 'feeder'"), compiles.forbid():
        run_in_thread(compile_elsewhere, name="feeder")
    assert raised_there.get_nowait().stage == "trace"


def test_a_thread_whose_target_is_the_jitted_function_has_no_line():
    step = made()
    with compiles.count() as counted:
        run_in_thread(step, SHORT)
    assert counted.compiles == 1
    assert counted.events[0].location == "a thread that runs no code but JAX's"


def test_threads_that_compile_at_the_same_time_are_all_counted():
    arguments = [jnp.ones(size) for size in range(5, 13)]
    functions = [made() for _ in arguments]
    barrier = threading.Barrier(len(arguments))

    def work(function, argument):
        barrier.wait()
        function(argument)
        function(argument)

    with compiles.count() as counted:
        threads = [threading.Thread(target=work, args=pair) for pair in zip(functions, arguments, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (counted.traces, counted.lowerings, counted.compiles) == (8, 8, 8)


def test_contexts_opened_and_closed_in_many_threads_leave_nothing():
    step = made()

    def work(size):
        argument = jnp.ones(size)
        for _ in range(20):
            with compiles.count(), compiles.observe():
                step(argument)

    threads = [threading.Thread(target=work, args=(size,)) for size in range(20, 26)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_an_exception_of_the_users_passes_through_unchanged():
    mine = ValueError("mine")
    step = made()

    def swallows_and_fails():
        with contextlib.suppress(RecompilationError):
            step(SHORT)
        raise mine

    for context in (compiles.forbid, compiles.count, compiles.observe):
        with pytest.raises(ValueError, match="mine") as raised, context():
            swallows_and_fails()
        assert raised.value is mine


def test_an_exception_while_tracing_passes_through_and_counts():
    def fails(x):
        raise KeyError("traced")

    with pytest.raises(KeyError, match="traced"), compiles.count() as counted:
        jax.jit(fails)(SHORT)
    assert (counted.traces, counted.compiles) == (1, 0)


@pytest.mark.parametrize("context", [compiles.count, compiles.forbid, compiles.observe])
def test_an_interrupt_leaves_nothing_registered(context):
    with pytest.raises(KeyboardInterrupt), context():
        raise KeyboardInterrupt


def test_an_interrupt_inside_the_listener_leaves_jax_and_the_counts_working(monkeypatch):
    def interrupted(site):
        raise KeyboardInterrupt

    step = made()
    with compiles.count() as counted:
        with monkeypatch.context() as patch:
            patch.setattr(monitor, "sighting_of", interrupted)
            with pytest.raises(KeyboardInterrupt):
                step(SHORT)
        step(SHORT)
    assert counted.compiles == 1


def test_a_listener_of_our_own_that_fails_does_not_fail_the_compile(monkeypatch):
    def broken(site):
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(monitor, "sighting_of", broken)
    step = made()
    with compiles.count() as counted:
        step(SHORT)
    assert counted.compiles == 1
    with pytest.raises(RecompilationError, match="could not describe the call: RuntimeError"), compiles.forbid():
        step(LONG)


def test_listeners_of_others_stay_in_place():
    heard = []

    def listener(event, duration, **kwargs):
        heard.append(event)

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        with compiles.count():
            made()(SHORT)
        before = len(heard)
        made()(SHORT)
        assert len(heard) > before
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)


def test_removed_listeners_are_noticed_and_put_back():
    """`jax.monitoring.clear_event_listeners()` removes everybody's; this removes ours alone."""
    step = made()
    with pytest.raises(MeasurementError, match="removed perfsuite's monitoring listeners"), compiles.forbid():
        monitor._unregister()
    with compiles.observe():
        monitor._unregister()
        with compiles.count() as counted:
            step(SHORT)
    assert counted.compiles == 1


def test_inputs_can_be_built_inside():
    step = made()
    step(SHORT)
    with compiles.count() as counted, compiles.forbid() as forbidden:
        with forbidden.building_inputs():
            argument = jnp.full((3,), 7.0, jnp.float32) * jnp.arange(3)
            made()(argument)
        step(argument)
    assert counted.events == ()


def test_after_building_inputs_compiles_are_forbidden_again():
    def build_and_compile(context):
        with context.building_inputs():
            made()(SHORT)
        made()(SHORT)

    with pytest.raises(RecompilationError), compiles.forbid() as forbidden:
        build_and_compile(forbidden)


def test_building_inputs_excuses_its_own_thread_only():
    step = made()

    def compile_elsewhere():
        with contextlib.suppress(RecompilationError):
            step(SHORT)

    with pytest.raises(RecompilationError), compiles.forbid() as forbidden, forbidden.building_inputs():
        run_in_thread(compile_elsewhere)


@pytest.mark.parametrize(
    ("operation", "name", "through"),
    [
        (lambda x: jnp.zeros((x.size, 3)), "broadcast_in_dim", " (in `zeros`)"),
        (lambda x: jnp.linalg.norm(x), "norm", ""),
        (lambda x: x[::2], "slice", " (in `__getitem__`)"),
        (lambda x: x.astype(jnp.float16), "convert_element_type", " (in `_astype`)"),
    ],
)
def test_an_eager_operation_is_called_one_and_inputs_are_to_be_built_before(operation, name, through):
    jax.clear_caches()
    operation(SHORT)
    with pytest.raises(RecompilationError) as raised, compiles.forbid():
        operation(LONG)
    message = str(raised.value)
    assert raised.value.function == name
    assert f"{through}\n  an eager operation: it runs outside any jitted function" in message
    assert "Build inputs before this context, or inside its .building_inputs()" in message


def test_an_eager_operation_inside_a_users_function_names_the_line_of_the_function():
    def build():
        return jnp.full((2, 3, 7), 1.5)

    with pytest.raises(RecompilationError) as raised, compiles.forbid():
        build()
    assert f"{HERE}:{build.__code__.co_firstlineno + 1}" in str(raised.value)


def test_hits_of_the_persistent_cache_are_counted_apart(tmp_path):
    from jax.experimental.compilation_cache import compilation_cache

    options = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: jax.config.values[name] for name in options}
    for name, value in options.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    try:
        with warnings.catch_warnings(), compiles.count() as first:
            warnings.simplefilter("ignore")
            made()(SHORT)
        with compiles.count() as second:
            made()(SHORT)
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
    assert (first.compiles, first.cache_hits) == (1, 0)
    assert (second.compiles, second.cache_hits) == (1, 1)


def test_a_refused_call_keeps_no_array_alive_while_the_context_is_open():
    step, alive = made(), []

    def refused():
        argument = jax.device_put(LONG, may_alias=False)
        with contextlib.suppress(RecompilationError):
            step(argument)
        return weakref.ref(argument)

    def refused_and_gone():
        reference = refused()
        gc.collect()
        alive.append(reference() is not None)

    with pytest.raises(RecompilationError), compiles.forbid():
        refused_and_gone()
    assert alive == [False]


def test_the_seconds_leave_out_what_the_listener_itself_takes(monkeypatch):
    slow = functools.partial(time.sleep, 0.3)
    real = monitor.sighting_of
    monkeypatch.setattr(monitor, "sighting_of", lambda site: slow() or real(site))
    with compiles.count() as counted:
        made()(SHORT)
    assert counted.seconds < 0.6


def test_forbidden_says_whether_a_compile_would_be_refused():
    assert not compiles.forbidden()
    with compiles.count():
        assert not compiles.forbidden()
    with compiles.forbid() as context:
        assert compiles.forbidden()
        with context.building_inputs():
            assert not compiles.forbidden()
    assert not compiles.forbidden()


def test_nothing_is_called_on_the_hit_path():
    step = made()
    step(SHORT)
    step(SHORT)
    outside = python_calls(step, SHORT)
    with compiles.forbid(), compiles.count():
        assert python_calls(step, SHORT) == outside


def test_observing_for_a_session_needs_no_with_statement():
    observing = compiles.observe()
    observing.__enter__()
    step = made()
    step(SHORT)
    with pytest.raises(RecompilationError, match=r"shape was \(3,\), is \(4,\)"), compiles.forbid():
        step(LONG)
    observing.__exit__(None, None, None)


def test_errors_survive_pickling():
    """pytest-xdist and process pools send errors from one process to another."""
    error = RecompilationError("message", function="step", stage="trace", changes=("args[0]: dtype was a, is b",))
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.function, copy.stage, copy.changes) == ("message", "step", "trace", error.changes)


def test_modules_jitted_by_their_class_are_counted_under_the_methods_name():
    class Model(eqx.Module):
        weight: jax.Array

        @eqx.filter_jit
        def apply(self, x):
            return self.weight * x

    class Network(nnx.Module):
        def __init__(self):
            self.weight = nnx.Param(SHORT)

        @nnx.jit
        def forward(self, x):
            return self.weight[...] * x

    with compiles.count() as counted:
        Model(SHORT).apply(SHORT)
        Network().forward(SHORT)
    assert counted.by_function == {name: compiles.FunctionCompiles(1, 1, 1) for name in ("apply", "forward")}
