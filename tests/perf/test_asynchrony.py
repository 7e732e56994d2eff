"""Which train steps return before the device is done, so that the host's next work hides behind the device's.

`equinox.filter_jit` waits for the device on every call, whatever the model: it reads a marker array that the program
returns, to raise what `equinox.error_if` found (equinox 0.13.8, `_jit.py`).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest

from perfsuite import call
from perfsuite.measure.timing.waits import asynchrony
from perfsuite.workloads import training
from perfsuite.workloads.training.cached_jit import cached_filter_jit

PRODUCTS = 8
WIDTH = {"small": 500, "full": 8000}


class Chain(eqx.Module):
    """A few large products: much work for the device, next to none for the host."""

    weight: jax.Array

    def __call__(self, x):
        for _ in range(PRODUCTS):
            x = x @ self.weight
        return x


def loss(model, batch, key):
    return jnp.sum(model(batch)), None


@pytest.fixture
def model_and_batch(perf_size):
    width = WIDTH[perf_size]
    return Chain(jnp.eye(width)), jnp.ones((width, width))


@pytest.mark.parametrize(
    ("variant", "waits"), [("filter_jit", True), ("cached_filter_jit", False), ("partition", False), ("flat", False)]
)
def test_step_returns_before_the_device_is_done(perf, model_and_batch, variant, waits):
    model, batch = model_and_batch
    tx = optax.sgd(1e-3)
    if variant == "flat":
        step = call(
            training.make_flat_train_step(loss, tx), training.TrainState.create(tx, model), batch, None, carry=1
        )
    elif variant == "partition":
        step, params, opt_state, _ = training.make_train_step_with_partition(loss, tx, model)
        step = call(step, params, opt_state, batch, None, carry=2)
    else:
        jit = eqx.filter_jit if variant == "filter_jit" else cached_filter_jit
        step = call(training.make_filter_train_step(loss, tx, jit=jit), model, tx.init(model), batch, None, carry=2)
    if waits:
        made = asynchrony(step, seconds=1)
        assert made.waits
        assert "equinox/_jit.py" in made.where
        perf.record(f"{variant} returns at", made.share, unit="of the time to ready", kind="info")
    else:
        assert perf.stays_async(step, name=variant).waits is False
