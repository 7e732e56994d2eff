import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from perfsuite.workloads.bert import BertConfig, BertForMaskedLM, masked_lm_loss
from perfsuite.workloads.training import (
    Optimizer,
    TrainState,
    make_filter_train_step,
    make_flat_train_step,
    make_list_train_step,
    make_train_step,
    make_train_step_with_partition,
    mlm_batches,
)
from perfsuite.workloads.training.cached_jit import cached_filter_jit

TX = optax.adamw(1e-2)
KEY = jax.random.key(7)
STEPS = ("filter", "optimizer", "cached", "cached optimizer", "partition", "flat", "list")
ASYNCHRONOUS = ("cached", "cached optimizer", "partition", "flat", "list")


class Small(eqx.Module):
    """Two layers, an integer array, and things that are no arrays."""

    first: eqx.nn.Linear
    second: eqx.nn.Linear
    calls: jax.Array
    activation: Any
    scale: float
    name: str = eqx.field(static=True)

    def __init__(self):
        first, second = jax.random.split(jax.random.key(0))
        self.first = eqx.nn.Linear(3, 4, key=first)
        self.second = eqx.nn.Linear(4, 1, key=second)
        self.calls = jnp.array(3)
        self.activation = jnp.tanh
        self.scale = 0.5
        self.name = "small"

    def __call__(self, x):
        return self.second(self.activation(self.first(x))) * self.scale


def loss_fn(model, batch, key):
    x, y = batch
    predicted = jax.vmap(model)(x)[:, 0]
    return jnp.mean((predicted - y) ** 2) + 1e-3 * jax.random.normal(key), {"predicted": predicted, "note": None}


@pytest.fixture
def batch():
    x = jax.random.normal(jax.random.key(1), (5, 3))
    return x, jnp.sum(x, axis=1)


@dataclasses.dataclass
class Running:
    """A step with what it carries, and how to see a model and an optimizer state in that."""

    step: Any
    carried: tuple
    trees: Any

    def run(self, *rest):
        outputs = self.step(*self.carried, *rest)
        self.carried = outputs[: len(self.carried)]
        return outputs[-1]


def start(name, *, model=None, loss_fn=loss_fn, tx=TX, wrt=eqx.is_inexact_array, donate=True):
    model = Small() if model is None else model
    if name in ("filter", "cached"):
        jit = cached_filter_jit if name == "cached" else eqx.filter_jit
        step = make_filter_train_step(loss_fn, tx, wrt=wrt, donate=donate, jit=jit)
        opt_state = Optimizer.create(tx, model, wrt).opt_state
        return Running(step, (model, opt_state), lambda model, opt_state: (model, opt_state))
    if name in ("optimizer", "cached optimizer"):
        jit = cached_filter_jit if name == "cached optimizer" else eqx.filter_jit
        step = make_train_step(loss_fn, donate=donate, jit=jit)
        carried = (model, Optimizer.create(tx, model, wrt))
        return Running(step, carried, lambda model, optimizer: (model, optimizer.opt_state))
    if name == "partition":
        made = make_train_step_with_partition(loss_fn, tx, model, wrt=wrt, donate=donate)
        trees = lambda params, opt_state: (eqx.combine(params, made.static), opt_state)
        return Running(made.step, (made.params, made.opt_state), trees)
    if name == "flat":
        step = make_flat_train_step(loss_fn, tx, wrt=wrt, donate=donate)
        return Running(step, (TrainState.create(tx, model, wrt),), lambda state: (state.model, state.opt_state))
    made = make_list_train_step(loss_fn, tx, model, wrt=wrt, donate=donate)
    return Running(made.step, (made.arrays,), lambda arrays: made.structure.join(arrays))


@functools.cache
def _made(name, donate):
    return start(name, donate=donate)


def shared(name, donate=True):
    """The same as `start(name, donate=donate)`, from its own copy of the state, compiled once for all tests."""
    made = _made(name, donate)
    copy = jax.tree.map(lambda leaf: jnp.copy(leaf) if eqx.is_array(leaf) else leaf, made.carried)
    return dataclasses.replace(made, carried=copy)


def bits(tree):
    return [
        (leaf.dtype, leaf.shape, np.asarray(leaf).tobytes()) for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_array))
    ]


class Compiles:
    """Counts of what JAX traced and compiled while the context was open."""

    def __enter__(self):
        self.seen = []
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        return self

    def __exit__(self, *_):
        jax.monitoring.unregister_event_duration_listener(self._listen)

    def _listen(self, event, duration, **details):
        if event.startswith("/jax/core/compile/"):
            self.seen.append((event, details.get("fun_name")))

    @property
    def compiled(self):
        return [function for event, function in self.seen if event.endswith("backend_compile_duration")]


@pytest.mark.parametrize("name", STEPS[1:])
def test_every_step_gives_the_reference_bit_for_bit(name, batch):
    reference, other = shared("filter"), shared(name)
    for seed in range(3):
        key = jax.random.key(seed)
        assert bits(reference.run(batch, key)) == bits(other.run(batch, key))
    expected, actual = reference.trees(*reference.carried), other.trees(*other.carried)
    assert bits(expected) == bits(actual)
    assert jax.tree.structure(expected[0]) == jax.tree.structure(actual[0])


@pytest.mark.parametrize("name", STEPS)
def test_first_step_compiles_one_program_named_train_step_and_the_second_none(name, batch):
    running = start(name)
    with Compiles() as first:
        running.run(batch, KEY)
    with Compiles() as later:
        running.run(batch, KEY)
        running.run(batch, KEY)
    assert first.compiled == ["jit(train_step)"]
    assert later.seen == []


@pytest.mark.parametrize("name", STEPS)
def test_donated_state_is_given_back_in_place_and_batch_and_key_are_not_donated(name, batch):
    running = shared(name)
    old = jax.tree.leaves(eqx.filter(running.carried, eqx.is_array))
    running.run(batch, KEY)
    assert all(leaf.is_deleted() for leaf in old)
    assert not any(leaf.is_deleted() for leaf in [*batch, KEY])
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(eqx.filter(running.carried, eqx.is_array)))


@pytest.mark.parametrize("name", STEPS)
def test_step_can_be_lowered_and_every_donated_buffer_is_used(name, batch):
    running = shared(name)
    compiled = running.step.lower(*running.carried, batch, KEY).compile()
    compiled = getattr(compiled, "compiled", compiled)
    donated = sum(leaf.nbytes for leaf in jax.tree.leaves(eqx.filter(running.carried, eqx.is_array)))
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes == donated


@pytest.mark.parametrize("name", STEPS)
def test_only_what_the_filter_selects_is_trained(name, batch):
    model = Small()
    wrt = eqx.tree_at(lambda m: m.second.weight, jax.tree.map(lambda _: False, model), True)
    running = start(name, model=model, wrt=wrt, donate=False)
    running.run(batch, KEY)
    trained, opt_state = running.trees(*running.carried)
    assert bits(trained.first) == bits(model.first)
    assert bits(trained.second.bias) == bits(model.second.bias)
    assert bits(trained.second.weight) != bits(model.second.weight)
    assert sum(leaf.size for leaf in jax.tree.leaves(opt_state) if leaf.ndim) == 2 * model.second.weight.size


@pytest.mark.parametrize("name", ["flat", "list"])
def test_optimizer_that_changes_its_states_structure_is_a_clear_error(name, batch):
    counting = optax.GradientTransformation(
        lambda params: {"steps": 0}, lambda grads, s, p=None: (grads, {"steps": s["steps"] + 1})
    )
    running = start(name, tx=counting)
    with pytest.raises(TypeError, match="structure or static leaves differ"):
        running.run(batch, KEY)


def busy_loss(model, batch, key):
    """Some hundred milliseconds of device work that the host need not wait for."""
    x = jnp.eye(600) + model.first.weight[0, 0]
    x = jax.lax.fori_loop(0, 20, lambda _, x: x @ x / 600, jax.lax.stop_gradient(x))
    loss, aux = loss_fn(model, batch, key)
    return loss + 0 * x[0, 0], aux


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_step_returns_before_the_device_is_done(name, batch):
    """Whether the result was ready when the call returned; a loaded machine may have it ready early once."""
    running = start(name, loss_fn=busy_loss)
    jax.block_until_ready(running.run(batch, KEY))
    still_running = []
    for _ in range(3):
        loss, _ = running.run(batch, KEY)
        still_running.append(not loss.is_ready())
        jax.block_until_ready(running.carried)
    assert any(still_running)


def test_filter_jit_waits_for_the_device(batch):
    """The reason for the others: should this fail one day, Equinox has stopped waiting."""
    running = start("filter", loss_fn=busy_loss)
    ready = []
    for _ in range(3):
        loss, _ = running.run(batch, KEY)
        ready.append(loss.is_ready())
    assert all(ready)


def test_bert_learns_masked_tokens():
    config = BertConfig.tiny(dropout=0.0).narrowed(num_layers=1)
    state = TrainState.create(TX, BertForMaskedLM(config, key=jax.random.key(0)))
    step = make_flat_train_step(masked_lm_loss, TX)
    losses = []
    for i, batch in enumerate(mlm_batches(config.vocab_size, 16, buckets=(32,), num_batches=40)):
        state, (loss, _) = step(state, batch, jax.random.key(i))
        losses.append(float(loss))
    assert losses[0] == pytest.approx(np.log(config.vocab_size), rel=0.05)
    assert np.mean(losses[-10:]) < 0.9 * losses[0]
