"""BERT train steps for the suite: built, compiled and checked against each other once a session."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from perfsuite import call
from perfsuite.measure.call import Call
from perfsuite.measure.compiles.warm import warm
from perfsuite.workloads import training
from perfsuite.workloads.bert import BertConfig, BertForMaskedLM, masked_lm_loss
from perfsuite.workloads.training.cached_jit import cached_filter_jit

DROPOUT = {
    "no-dropout": {"dropout": 0.0, "attention": "fused"},
    "dropout": {"dropout": 0.1, "attention": "eager"},
}
"""The two configurations of the lab note behind docs/workloads/bert.md."""

UNLIKE = 0.3
"""Tolerance of a ratio between Python and C++ work, which a busy machine slows unequally: `filter_jit` over the flat
step was 3.8 and 3.9 in quiet runs, 2.8 and 3.0 beside two busy processes (2-core x86-64 machine)."""

ADAMW = optax.adamw(1e-4)
TRIVIAL = optax.GradientTransformation(ADAMW.init, lambda grads, state, params=None: (grads, state))
"""AdamW's state and none of its work, for what a step costs when there is nothing to compute."""


def trivial_loss(model, batch, key):
    """Reads every parameter and computes next to nothing."""
    leaves = jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))
    return sum(jnp.ravel(leaf)[0] for leaf in leaves), {}


@dataclasses.dataclass(frozen=True)
class Workload:
    """A BERT configuration with the shape of its batches."""

    config: BertConfig
    batch_size: int
    sequence: int

    def batch(self) -> dict[str, jax.Array]:
        """One masked-LM batch of this shape."""
        (made,) = training.mlm_batches(self.config.vocab_size, self.batch_size, buckets=(self.sequence,), num_batches=1)
        return {name: jnp.asarray(values) for name, values in made.items()}


def workload(name: str, size: str, **changes: Any) -> Workload:
    """BERT "tiny", "base" or "large". The small size keeps the structure and narrows the arrays."""
    config = getattr(BertConfig, name)(**changes)
    if size == "small":
        return Workload(config.narrowed(), batch_size=2, sequence=16)
    return Workload(dataclasses.replace(config, activation_dtype="bfloat16"), batch_size=64, sequence=512)


class Steps:
    """Every variant of one workload's train step. Each variant compiles once, however many calls are made of it."""

    def __init__(
        self,
        made: Workload,
        loss: Callable = masked_lm_loss,
        tx: optax.GradientTransformation = ADAMW,
        model: BertForMaskedLM | None = None,
    ):
        self.workload = made
        self.tx = tx
        self.loss = loss
        self.key = jax.random.key(1)
        self.batch = made.batch()
        self.compile_seconds: dict[str, float] = {}
        self._model = BertForMaskedLM(made.config, key=jax.random.key(0)) if model is None else model
        self._makers: dict[str, Callable[[], Call]] = {}
        self._reference: list[np.ndarray] | None = None

    @property
    def tree(self) -> Any:
        """The model with its optimizer's state, as modules."""
        return self._model, self._opt_state()

    @property
    def leaves(self) -> int:
        """The arrays of model and optimizer state."""
        return len(_arrays(self.tree))

    def call(self, variant: str) -> Call:
        """A call with a state of its own, which it carries. The first one of a variant is checked against the floor."""
        if variant not in self._makers:
            make = self._makers[variant] = self._maker(variant)
            first = make()
            self.compile_seconds[variant] = warm(first.fn, over=[first]).compile_seconds
            self._check(make())
        return self._makers[variant]()

    def cold_call(self, variant: str) -> Call:
        """A call that was neither compiled nor checked."""
        return self._maker(variant)()

    def _maker(self, variant: str) -> Callable[[], Call]:
        batch, key, tx, loss = self.batch, self.key, self.tx, self.loss
        if variant in ("filter_jit", "cached_filter_jit"):
            jit = {"filter_jit": eqx.filter_jit, "cached_filter_jit": cached_filter_jit}[variant]
            step = training.make_filter_train_step(loss, tx, jit=jit)
            return lambda: call(step, self.model(), self._opt_state(), batch, key, carry=2)
        if variant == "optimizer":
            step = training.make_train_step(loss)
            return lambda: call(
                step,
                self.model(),
                training.Optimizer.create(tx, self.model()),
                batch,
                key,
                carry=2,
            )
        if variant == "partition":
            made = training.make_train_step_with_partition(loss, tx, self.model())
            start = made.params, made.opt_state
            return lambda: call(made.step, *self._copy(start), batch, key, carry=2)
        if variant == "flat":
            step = training.make_flat_train_step(loss, tx)
            return lambda: call(step, training.TrainState.create(tx, self.model()), batch, key, carry=1)
        if variant == "list":
            floor = training.make_list_train_step(loss, tx, self.model())
            return lambda: call(floor.step, self._copy(floor.arrays), batch, key, carry=1)
        raise ValueError(f"no variant {variant!r}")

    def _check(self, made: Call) -> None:
        """A speed-up over a step that computes something else would be worth nothing: two updates, bit for bit."""
        for _ in range(2):
            outputs = made.run()
        state = [np.asarray(leaf) for leaf in _arrays(outputs)]
        if self._reference is None:
            self._reference = state
        for mine, reference in zip(state, self._reference, strict=True):
            np.testing.assert_array_equal(mine, reference)

    def model(self) -> BertForMaskedLM:
        """A copy of the model, for a step that donates it."""
        return self._copy(self._model)

    def _opt_state(self) -> Any:
        return self.tx.init(eqx.filter(self._model, eqx.is_inexact_array))

    @staticmethod
    def _copy(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.copy(leaf) if eqx.is_array(leaf) else leaf, tree)


def _arrays(tree: Any) -> list[jax.Array]:
    return [leaf for leaf in jax.tree.leaves(tree) if eqx.is_array(leaf)]


@pytest.fixture(autouse=True, scope="module")
def _warm_compilers(warm_compilers):
    """One process compiles for all tests (`tests/support/warm_compilers.py`)."""


@pytest.fixture(scope="session")
def program_cache(request: pytest.FixtureRequest) -> Path | None:
    """Where perfsuite keeps the facts of programs, for programs that are planted here and belong in no baseline."""
    cache = getattr(request.config, "cache", None)
    return None if cache is None else Path(cache.mkdir("perfsuite"))


@pytest.fixture(scope="session")
def make_steps(perf_size: str) -> Callable[..., Steps]:
    """`make_steps("base", dropout=0.0)`: the steps of one configuration, made once a session.

    With `trivial=True` they have the same arrays and nothing to compute.
    """
    made: dict[tuple, Steps] = {}

    def make(name: str, *, trivial: bool = False, **changes: Any) -> Steps:
        key = (name, trivial, *sorted(changes.items()))
        if key not in made:
            work = (trivial_loss, TRIVIAL) if trivial else (masked_lm_loss, ADAMW)
            made[key] = Steps(workload(name, perf_size, **changes), *work)
        return made[key]

    return make


@pytest.fixture
def dropout_steps(make_steps, perf_size) -> Steps:
    """BERT-base with dropout and eager attention. Two of its layers at the small size: all 12 took 8.1 s to compile."""
    layers = 2 if perf_size == "small" else BertConfig.base().num_layers
    return make_steps("base", num_layers=layers, **DROPOUT["dropout"])


@pytest.fixture
def plain_steps(make_steps) -> Steps:
    """BERT-base without dropout."""
    return make_steps("base", **DROPOUT["no-dropout"])


@pytest.fixture
def trivial_steps(make_steps) -> Steps:
    """The arrays of BERT-base and of its AdamW state, with nothing to compute: host time is all there is."""
    return make_steps("base", trivial=True)


def pytest_collection_modifyitems(items):
    """Run what is marked `first` first.

    Building some nodes of a tree over again takes 60 us, and 0.0034 of the reference in a new process. After the tests
    of host overhead, which leave their models and programs behind, it was 0.0038 to 0.0044 (2-core x86-64 machine).
    """
    items.sort(key=lambda item: item.get_closest_marker("first") is None)
