"""numpyro: an SVI update and a NUTS step under jit, handlers outside it, batches, and numbers in place of arrays."""

import jax
import jax.numpy as jnp
import pytest

from perfsuite import Budget, call

numpyro = pytest.importorskip("numpyro", reason="the project that is tried: pip install numpyro")

from numpyro import distributions as dist  # noqa: E402
from numpyro import handlers  # noqa: E402
from numpyro.infer import NUTS, SVI, Trace_ELBO  # noqa: E402
from numpyro.infer.autoguide import AutoNormal  # noqa: E402

DATA = jnp.cos(jnp.arange(64.0)).reshape(16, 4), jnp.arange(16) % 2


def model(data, labels=None, scale=1.0):
    weights = numpyro.sample("weights", dist.Normal(jnp.zeros(4), scale).to_event(1))
    with numpyro.plate("rows", data.shape[0]):
        numpyro.sample("labels", dist.Bernoulli(logits=data @ weights), obs=labels)


INFERENCE = SVI(model, AutoNormal(model), numpyro.optim.Adam(1e-2), Trace_ELBO())
KERNEL = NUTS(model)


@jax.jit
def nuts_step(state, data, labels):
    return KERNEL.sample(state, (data, labels), {})


def of_svi(function=None):
    # Copies: the guide keeps the arrays themselves, which a donated state would delete.
    state = jax.tree.map(jnp.copy, INFERENCE.init(jax.random.key(0), *DATA))
    return call(function or jax.jit(INFERENCE.update, donate_argnums=0), state, *DATA, carry=1)


def of_nuts():
    return call(nuts_step, KERNEL.init(jax.random.key(0), 100, None, DATA, {}), *DATA, carry=1)


@pytest.mark.parametrize("make", [of_svi, of_nuts], ids=["svi", "nuts"])
def test_a_step(perf, make):
    perf.host_calls(make())
    perf.fast_path(make(), budget=Budget(fast_path_misses=0))
    perf.transfers(make(), budget=Budget(transfers=0))
    perf.memory(make(), budget=Budget(leaked_arrays=0))
    perf.program(make())


def test_an_update_keeps_its_state_once(perf):
    perf.donation(of_svi(), budget=Budget(undonated=0))


def test_an_update_has_a_key_in_the_persistent_cache_for_each_order_of_its_sites(perf):
    """`Trace_ELBO` iterates over a set of their names. With hash seeds 0 and 1 the two have one order, with 2 another."""
    found = perf.cache_key(of_svi(), processes=3, budget=Budget())
    assert found.distinct == 2
    assert "numpyro/infer/elbo.py:275 in Trace_ELBO" in str(found), "numpyro 0.22.0"


def test_handlers_outside_jit_cost_the_host(perf):
    def density(data, labels):
        traced = handlers.trace(handlers.seed(model, jax.random.key(0))).get_trace(data, labels)
        return traced["labels"]["fn"].log_prob(labels).sum()

    perf.host_calls(call(density, *DATA), name="handlers")
    perf.host_calls(call(jax.jit(density), *DATA), name="handlers under jit", budget=Budget(host_calls=20))
