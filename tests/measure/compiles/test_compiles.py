"""Compiles are counted and forbidden wherever they happen, and nothing else is touched by it."""

import contextlib
import functools
import gc
import os
import pickle
import queue
import warnings
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import jits
from support.compiling import LONG, SHORT, doubling, python_calls, run_in_thread
from support.jits import each_jit, plain

from perfsuite.measure.compiles import compiles
from perfsuite.measure.errors import MeasurementError, RecompilationError

HERE = os.path.relpath(__file__)


def line_of_call(jit) -> str:
    return os.path.relpath(jits.__file__) if jit is plain else HERE


@each_jit
def test_events_say_where_and_why_and_are_counted_by_function(jit):
    step = doubling(jit)
    with compiles.count() as counted:
        for argument in (SHORT, SHORT, LONG):
            step(argument)
    assert (counted.traces, counted.lowerings, counted.compiles, counted.cache_hits) == (2, 2, 2, 0)
    assert counted.by_function == {"<lambda>": compiles.FunctionCompiles(2, 2, 2)}
    assert counted.seconds > 0
    first, second = counted.events[:3], counted.events[3:]
    assert [event.stage for event in first] == ["trace", "lower", "compile"]
    assert {event.changes for event in first} == {()}
    assert {event.changes for event in second} == {("args[0]: shape was (3,), is (4,)",)}
    assert {event.location.rpartition(":")[0] for event in counted.events} == {line_of_call(jit)}


@each_jit
def test_a_refused_call_compiles_nothing_and_the_error_says_what_began_first(jit):
    step = doubling(jit)
    with pytest.raises(RecompilationError) as raised, compiles.forbid():
        step(SHORT)
    assert (raised.value.function, raised.value.stage) == ("<lambda>", "trace")
    assert str(raised.value).startswith(f"`<lambda>` was traced at {line_of_call(jit)}:")
    assert not getattr(raised.value, "__notes__", [])
    with compiles.count() as counted:
        step(SHORT)
    assert (counted.traces, counted.compiles) == (0, 1)


def test_the_error_of_a_compile_is_that_of_its_own_call_though_a_trace_alone_was_refused_before():
    traced, called = jax.jit(lambda x: x * 2), jax.jit(lambda x: x + 1)

    def run():
        jax.eval_shape(traced, SHORT)
        called(SHORT)

    with pytest.raises(RecompilationError) as raised, compiles.forbid() as watch:
        run()
    first, second = (str(error) for error, _ in watch.errors)
    assert first != second == str(raised.value)


@each_jit
@pytest.mark.parametrize("stage", ["trace", "lower", "compile"])
def test_after_a_refusal_the_call_compiles_once(jit, stage):
    """JAX itself traces or lowers a call again in every run, where an error has ended its trace or its lowering."""
    step = doubling(jit)
    first, second = (jax.device_put(SHORT, device) for device in jax.devices()[:2])
    known, refused = {"trace": (SHORT, LONG), "lower": (SHORT, first), "compile": (first, second)}[stage]
    step(known)
    with pytest.raises(RecompilationError) as raised, compiles.forbid():
        step(refused)
    assert raised.value.stage == stage
    assert (step(refused) == refused * 2).all()
    with compiles.forbid():
        step(refused)
        step(known)


@pytest.mark.parametrize(
    "transform",
    [
        jax.grad,
        lambda fn: lambda x: jax.vjp(fn, x)[1](jnp.float32(1)),
        lambda fn: jax.vmap(lambda x: fn(x[None])),
        lambda fn: lambda x: jax.jvp(jax.grad(fn), (x,), (x,)),
        lambda fn: lambda x: jax.lax.scan(lambda carry, y: (carry + fn(y[None]), None), 0.0, x)[0],
    ],
    ids=["grad", "vjp", "vmap", "hvp", "scan"],
)
def test_after_refusals_under_a_transformation_as_many_traces_are_cached(transform):
    def fresh():
        return transform(jax.jit(lambda x: (x * x * 3).sum()))

    def traces(step):
        step(LONG)
        with compiles.count() as counted:
            step(LONG)
        return counted.traces + counted.inner_traces, counted.compiles

    expected, step = traces(fresh()), fresh()
    for _ in range(2):
        with pytest.raises(RecompilationError), compiles.forbid():
            step(LONG)
    assert traces(step) == expected


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
    step, swallowed = doubling(), []

    def swallow(argument):
        try:
            step(argument)
        except Exception as error:
            swallowed.append(error)

    with pytest.raises(RecompilationError, match="1 more like it") as raised, compiles.forbid():
        list(map(swallow, (SHORT, LONG)))
    assert len(swallowed) == 2
    assert raised.value not in swallowed
    assert raised.value.function == "<lambda>"


def test_a_stage_without_a_compile_is_raised_when_the_context_closes():
    step = doubling()
    for stage, begin in (("trace", lambda: step.trace(SHORT)), ("lower", lambda: step.lower(SHORT))):
        with pytest.raises(RecompilationError) as raised, compiles.forbid():
            begin()
        assert raised.value.stage == stage
    doubling()(LONG)  # and not at the next compile
    lowered = step.lower(SHORT)
    with pytest.raises(RecompilationError) as raised, compiles.forbid():
        lowered.compile()
    assert raised.value.stage == "compile"


def test_an_error_in_another_thread_reaches_both():
    step = doubling()
    raised_there = queue.Queue()

    def compile_elsewhere():
        try:
            step(SHORT)
        except RecompilationError as error:
            raised_there.put(error)

    with pytest.raises(RecompilationError, match=r"(?s)was traced at .*in thread 'feeder'"), compiles.forbid():
        run_in_thread(compile_elsewhere, name="feeder")
    assert raised_there.get_nowait().stage == "trace"


def test_an_exception_while_tracing_passes_through_with_what_was_refused():
    def fails(x):
        raise KeyError("traced")

    with pytest.raises(KeyError, match="traced") as raised, compiles.forbid() as forbidden:
        jax.jit(fails)(SHORT)
    assert (forbidden.traces, forbidden.compiles) == (1, 0)
    assert any("`fails` was traced at" in note for note in raised.value.__notes__)


def test_a_refused_call_keeps_no_array_alive_while_the_context_is_open():
    step, alive = doubling(), []

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


def test_errors_survive_pickling():
    """pytest-xdist and process pools send errors from one process to another."""
    error = RecompilationError("message", function="step", stage="trace", changes=("args[0]: dtype was a, is b",))
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.function, copy.stage, copy.changes) == ("message", "step", "trace", error.changes)


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
            doubling()(SHORT)
        with compiles.count() as second:
            doubling()(SHORT)
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
    assert (first.compiles, first.cache_hits) == (1, 0)
    assert (second.compiles, second.cache_hits) == (1, 1)


def loss(x):
    return (x * x).sum()


class Model(eqx.Module):
    weight: jax.Array

    @eqx.filter_jit
    def __call__(self, x):
        return self.weight + x

    def predict(self, x):
        return jax.jit(lambda y: y * self.weight)(x)


class Trainer:
    def __init__(self, x=None):
        if x is not None:
            self(x)

    def __call__(self, x):
        return jax.jit(lambda y: y * 4)(x)


def scaled(rate, x):
    return jax.jit(lambda y: y * rate)(x)


def logged(fn):
    @functools.wraps(fn)
    def wrapper(*args):
        return fn(*args)

    return wrapper


def another(x):
    return jax.jit(lambda y: y * 3)(x)


def kinds():
    """Callables of every kind that compile when they are called, by name."""
    model = Model(jnp.ones(()))
    return {
        "an Equinox module": model,
        "its method": model.predict,
        "an object": Trainer(),
        "a class": Trainer,
        "a partial": functools.partial(scaled, 2),
        "a decorated jitted function": logged(jax.jit(lambda x: x * 6)),
        "a gradient": jax.grad(lambda x: loss(jax.jit(lambda y: y * 7)(x))),
        "a mapped function": jax.vmap(lambda x: scaled(2, x)),
    }


@pytest.mark.parametrize("kind", kinds())
def test_every_kind_of_callable_can_be_named(kind):
    fn = kinds()[kind]
    with compiles.forbid(only=[fn]):  # another function may compile
        logged(another)(SHORT)
        logged(jax.jit(lambda x: x * 8))(SHORT)
        jax.grad(lambda x: loss(another(x)))(SHORT)
    with pytest.raises(RecompilationError), compiles.forbid(only=[fn]):
        fn(SHORT)


@pytest.mark.parametrize("nothing", [len, np.add, [].append, object, "step"])
def test_what_no_stack_shows_is_refused(nothing):
    with pytest.raises(TypeError, match=r"only=\[...\]"):
        compiles.forbid(only=[nothing]).__enter__()


def test_under_a_transformation_the_function_is_known():
    step = jax.jit(lambda x: (x * 2).sum())
    with pytest.raises(RecompilationError), compiles.forbid(only=[step]):
        jax.grad(step)(SHORT)
    for jit in (eqx.filter_jit, nnx.jit):
        with compiles.forbid(only=[step]):
            jit(loss)(jnp.ones(3))


def test_listeners_of_others_stay_in_place():
    heard = []

    def listener(event, duration, **kwargs):
        heard.append(event)

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        with compiles.count():
            doubling()(SHORT)
        before = len(heard)
        doubling()(SHORT)
        assert len(heard) > before
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)


def test_removed_listeners_are_noticed_and_put_back():
    """`jax.monitoring.clear_event_listeners()` removes everybody's; this removes ours alone."""
    step = doubling()
    with pytest.raises(MeasurementError, match="removed perfsuite's monitoring listeners"), compiles.forbid():
        compiles._unregister()
    with compiles.observe():
        compiles._unregister()
        with compiles.count() as counted:
            step(SHORT)
    assert counted.compiles == 1


def test_nothing_is_called_on_the_hit_path():
    step = doubling()
    step(SHORT)
    step(SHORT)
    outside = python_calls(step, SHORT)
    with compiles.forbid(), compiles.count():
        assert python_calls(step, SHORT) == outside


@pytest.mark.parametrize("problem", [KeyboardInterrupt, RuntimeError])
def test_what_a_description_raises_is_forgotten_by_the_next_compile(problem, monkeypatch):
    """An interrupt ends the call; a fault of perfsuite's own does not even that."""
    step = doubling()
    with compiles.count() as counted:
        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            patch.setattr(compiles, "sighting_of", lambda site: (_ for _ in ()).throw(problem))
            step(SHORT)
        step(LONG)
    assert counted.compiles == (1 if problem is KeyboardInterrupt else 2)


def test_inputs_can_be_built_inside_by_their_own_thread_alone():
    step = doubling()
    step(SHORT)
    with compiles.count() as counted, compiles.forbid() as forbidden:
        with forbidden.building_inputs():
            doubling()(jnp.full((3,), 7.0, jnp.float32) * jnp.arange(3))
        step(SHORT)
    assert counted.events == ()

    def compile_elsewhere():
        with contextlib.suppress(RecompilationError):
            step(LONG)

    with pytest.raises(RecompilationError), compiles.forbid() as forbidden, forbidden.building_inputs():
        run_in_thread(compile_elsewhere)


TRACE_ANEW = {
    "trace": lambda x: jax.make_jaxpr(lambda y: y + 1)(x),
    "lower": lambda x: jax.jit(lambda y: y + 1).lower(x),
    "compile": lambda x: jax.jit(lambda y: y + 1)(x),
}


@pytest.mark.parametrize("stage", TRACE_ANEW)
def test_a_measured_call_may_trace_where_it_is_meant_to_and_never_compile(stage):
    with pytest.raises(RecompilationError), compiles.steady_state():
        TRACE_ANEW[stage](SHORT)
    refused = pytest.raises(RecompilationError) if stage == "compile" else contextlib.nullcontext()
    with compiles.tracing_allowed(True):
        with refused, compiles.steady_state():
            TRACE_ANEW[stage](SHORT)
        with pytest.raises(RecompilationError), compiles.forbid(), compiles.steady_state():
            TRACE_ANEW[stage](SHORT)


@pytest.mark.parametrize("context", [contextlib.nullcontext, compiles.count, compiles.forbid])
def test_jaxs_leak_checker_says_what_it_says_without_perfsuite(context):
    kept = []
    with pytest.raises(Exception, match="Leaked trace"), jax.checking_leaks(), context():
        jax.lax.scan(lambda carry, x: (kept.append(carry) or jnp.sin(carry), None), 1.0, jnp.arange(3.0))


def test_a_message_never_has_the_text_of_an_exception(monkeypatch):
    def describe(site):
        raise ValueError("the user's own words")

    monkeypatch.setattr(compiles, "sighting_of", describe)
    with pytest.raises(RecompilationError, match=r"describe the call \(ValueError\)") as raised, compiles.forbid():
        doubling()(SHORT)
    assert "words" not in str(raised.value)
