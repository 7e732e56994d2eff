"""Training must compile once a declared shape, whatever the data brings; and what each step takes to compile."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfsuite import Budget
from perfsuite.workloads import training

BUCKETS = (8, 12, 16)
VARIANTS = ("filter_jit", "optimizer", "cached_filter_jit", "partition", "flat", "list")


# The tests that time these steps compile them too, for a quiet machine: here they do it once for all.
quiet = pytest.mark.perf(quiet=True)


@quiet
@pytest.mark.parametrize("variant", VARIANTS)
def test_compile_seconds(perf, plain_steps, variant):
    plain_steps.call(variant)
    perf.record(f"{variant} compile seconds", plain_steps.compile_seconds[variant], unit="s", kind="info")


@quiet
@pytest.mark.parametrize("variant", ["filter_jit", "partition"])
def test_compile_seconds_with_dropout(perf, dropout_steps, variant):
    dropout_steps.call(variant)
    perf.record(f"{variant} compile seconds", dropout_steps.compile_seconds[variant], unit="s", kind="info")


def test_training_over_every_bucket_compiles_each_once_and_never_again(perf, make_steps):
    tiny = make_steps("tiny")
    batches = [
        {name: jnp.asarray(values) for name, values in batch.items()}
        for batch in training.mlm_batches(tiny.workload.config.vocab_size, 2, buckets=BUCKETS, num_batches=24)
    ]
    of_each_bucket = {batch["input_ids"].shape[1]: batch for batch in batches}
    assert set(of_each_bucket) == set(BUCKETS), "the length distribution must reach every bucket"
    step = training.make_flat_train_step(tiny.loss, tiny.tx)
    state = training.TrainState.create(tiny.tx, tiny.model())
    over = [(state, batch, tiny.key) for batch in of_each_bucket.values()]
    warm = perf.warm(step, over, budget=Budget(compiles=len(BUCKETS)))
    perf.record("compiles to warm", warm.compiles, unit="compiles", kind="count")
    perf.covers(warm, ((state, batch, tiny.key) for batch in batches))
    with perf.no_compiles():
        for batch in batches:
            state, (loss, _) = warm(state, batch, tiny.key)
    assert np.isfinite(jax.device_get(loss))


@quiet
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_steps_own_outputs_do_not_compile_it_again(perf, plain_steps, variant):
    """A carried state must come back as it went in: dtype, weak type, sharding, committedness."""
    carried = plain_steps.call(variant)
    with perf.no_compiles():
        for _ in range(3):
            carried.run()
