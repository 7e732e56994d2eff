"""A call lowered for the present device and for an absent TPU: donations, paths, host calls, wrappers."""

import re
import threading

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from perfsuite import MeasurementError, call
from perfsuite.measure.private.names import Name
from perfsuite.measure.program.lowering import HostCallbackError, lower_call
from perfsuite.workloads import training
from perfsuite.workloads.training.cached_jit import cached_filter_jit

PLATFORMS = (None, "tpu")
W, X = jnp.ones((4, 4)), jnp.ones(4)


def update(params, batch):
    return {"w": params["w"] + batch.sum()}, batch.mean()


def donations(lowered):
    return {donation.path: donation.parameter for donation in lowered.donations}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_donations_have_the_paths_of_the_call(platform):
    lowered = lower_call(call(jax.jit(update, donate_argnums=0), {"w": W}, X), platform)
    assert donations(lowered) == {"args[0]['w']": 0}
    assert lowered.donations[0].bytes == 64
    assert lowered.donations[0].array == "float32[4,4]"
    assert lowered.partitions == 1
    assert lowered.lower_seconds > 0


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("jit", [eqx.filter_jit, cached_filter_jit], ids=["filter_jit", "cached_filter_jit"])
def test_wrappers_that_rearrange_arguments_keep_the_paths(platform, jit):
    lowered = lower_call(call(jit(update, donate="all-except-first"), {"w": W}, batch=X), platform)
    assert list(donations(lowered)) == ["kwargs['batch']"]


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_projects_own_wrapper_keeps_the_paths(platform):
    model, tx = eqx.nn.Linear(4, 4, key=jax.random.key(0)), optax.sgd(0.1)

    def loss(model, batch, key):
        return jnp.sum(model(batch)), {}

    step = training.make_filter_train_step(loss, tx)
    state = tx.init(eqx.filter(model, eqx.is_inexact_array))
    lowered = lower_call(call(step, model, state, X, None, carry=2), platform)
    assert sorted(donations(lowered)) == ["args[0].bias", "args[0].weight"]


@pytest.mark.parametrize("platform", PLATFORMS)
def test_nnx(platform):
    model = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
    lowered = lower_call(call(nnx.jit(lambda model, x: model(x), donate_argnums=0), model, X), platform)
    assert len(lowered.donations) == 2


@pytest.mark.parametrize("platform", PLATFORMS)
def test_an_argument_that_the_program_drops_has_no_parameter(platform):
    def second(first, second, third):
        del first
        return second["w"] + 1, third["w"].sum()

    step = jax.jit(second, donate_argnums=(0, 1, 2))
    lowered = lower_call(call(step, {"w": W}, {"w": W + 1}, third={"w": W + 2}), platform)
    assert donations(lowered) == {"args[0]['w']": None, "args[1]['w']": 0, "kwargs['third']['w']": 1}


def test_static_arguments_are_no_parameters():
    step = jax.jit(lambda n, x: x * n, static_argnums=0, donate_argnums=1)
    assert donations(lower_call(call(step, 3, X))) == {"args[1]": 0}


def test_a_sharded_program_runs_on_all_its_devices():
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    x = jax.device_put(np.ones((4, 4), np.float32), jax.NamedSharding(mesh, jax.P("data", "model")))
    assert lower_call(call(jax.jit(lambda x: x @ x), x), "tpu").partitions == 4


def test_a_function_that_is_not_jitted_is_refused():
    with pytest.raises(MeasurementError, match=r"update.*wrap it in jax\.jit"):
        lower_call(call(update, {"w": W}, X))


def shout(x):
    jax.debug.print("{}", x)
    return jax.lax.scan(lambda c, _: (ask(c), None), x.sum(), None, length=3)


def ask(c):
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), jnp.float32), c)


def shout_from_each_device(x):
    for _ in range(2):
        jax.debug.callback(print, x, partitioned=True)
    return ask(x.sum())


def test_host_calls_are_lowered_for_a_tpu_that_is_not_here():
    lowered = lower_call(call(jax.jit(shout), X), "tpu")
    # What debug.print sends, and its answer; what pure_callback sends, and its answer.
    assert lowered.text.count('"stablehlo.send"') == 2
    assert lowered.text.count('"stablehlo.recv"') == 2


def test_the_error_checks_of_equinox_are_lowered_for_a_tpu_that_is_not_here():
    def checked(x):
        return eqx.error_if(x, x.sum() < 0, "the sum must be positive")

    assert '"stablehlo.recv"' in lower_call(call(eqx.filter_jit(checked), X), "tpu").text


def test_host_calls_that_a_tpu_cannot_make_are_named():
    with pytest.raises(HostCallbackError) as error:
        lower_call(call(jax.jit(shout_from_each_device), X), "tpu")
    message = str(error.value)
    assert "shout_from_each_device calls the host 3 times a step in a way that JAX does not lower for tpu" in message
    line = shout_from_each_device.__code__.co_firstlineno + 2
    assert re.search(rf"debug_callback at {re.escape(__file__)}:{line}:.*\(2 times\)\n", message)
    assert f"pure_callback at {__file__}:{ask.__code__.co_firstlineno + 1}:" in message


def test_lowering_elsewhere_is_left_alone():
    original = jax.stages.Traced.lower
    texts = []

    def other_thread():
        texts.append(jax.jit(lambda key: jax.random.bits(key, (128,))).lower(jax.random.key(0)).as_text())

    def while_lowering(x):
        thread = threading.Thread(target=other_thread)
        thread.start()
        thread.join()
        return x

    lower_call(call(jax.jit(while_lowering), X), "tpu")
    other_thread()
    assert texts[0] == texts[1], "lowered for the CPU, as it would be by itself"
    assert jax.stages.Traced.lower is original


def test_a_failure_puts_everything_back():
    replaced = Name("jax.stages", "Traced.lower"), Name("jax.interpreters.mlir", "ModuleContext.get_backend")
    original = [each.get() for each in replaced]
    with pytest.raises(HostCallbackError):
        lower_call(call(jax.jit(shout_from_each_device), X), "tpu")
    assert [each.get() for each in replaced] == original
