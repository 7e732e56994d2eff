"""The table in docs/migrating.md of what other tools see: each row, but for what the page itself runs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

chex = pytest.importorskip("chex")


@jax.jit
def step(state, batch):
    return state + batch.mean(), batch.sum()


def test_equinox_raises_for_a_new_shape():
    @eqx.filter_jit
    @eqx.debug.assert_max_traces(max_traces=1)
    def counted(x):
        return x + 1

    counted(jnp.zeros(3))
    with pytest.raises(RuntimeError, match="can only be traced 1 times"):
        counted(jnp.zeros(4))


def test_equinox_does_not_see_a_lambda_that_a_loop_makes_anew_and_chex_does():
    def train(steps, watched):
        for _ in range(steps):
            jax.jit(watched(lambda x: x - 1))(jnp.zeros(3))

    train(3, eqx.debug.assert_max_traces(max_traces=1))
    chex.clear_trace_counter()
    with pytest.raises(AssertionError, match="traced > 1 times"):
        train(3, chex.assert_max_traces(n=1))


@pytest.mark.parametrize("change", [lambda batch: batch[:48], lambda batch: jax.device_put(batch, jax.devices()[0])])
def test_no_tracing_raises_and_does_not_say_why(change):
    state, batch = jnp.zeros(8), jnp.ones(64)
    step(state, batch)
    other = change(batch)
    with jax.no_tracing(True):
        step(state, batch)
        with pytest.raises(RuntimeError, match=r"re-tracing function step .* but 'no_tracing' is set"):
            step(state, other)


def test_explained_cache_misses_logs_a_new_shape_and_nothing_for_a_committed_argument(caplog):
    state, batch, ragged = jnp.zeros(8), jnp.ones(64), jnp.ones(47)
    step(state, batch)
    with jax.explain_cache_misses(True):
        step(state, ragged)
        assert "at batch, now f32[47] and before f32[" in caplog.text
        caplog.clear()
        step(state, jax.device_put(batch, jax.devices()[0]))
    assert caplog.text == ""
