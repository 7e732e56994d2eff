"""What the suite's own pipelines bring to their jitted functions is warm before they run: docs/instruments/covers.md."""

import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from perfsuite.measure.compiles.warm import covers
from perfsuite.workloads.extraction import make_extractor
from perfsuite.workloads.extraction.sharded_extraction import make_sharded_extractor
from perfsuite.workloads.qwen2 import Qwen2

from .extraction_work import work

# Which shapes come is all that counts here, and not how fast a program is.
pytestmark = pytest.mark.usefixtures("quick_to_compile")

LENGTHS = (24, 48)
TEXTS = 100_000


@pytest.fixture(scope="module")
def qwen2():
    """One layer, of arrays that are compiled in no time."""
    made = work("small", layers=(0,), samples=130, batch_size=16)
    made = dataclasses.replace(made, config=dataclasses.replace(made.config, num_layers=1))
    return made, Qwen2(made.config), made.params()


def one_of_each(batches):
    return list({batch.ids.shape: batch for batch in batches}.values())


def test_ragged_texts_in_buckets_and_the_last_batch(perf, qwen2):
    made, model, params = qwen2
    extractor = make_extractor(model, made.layers)
    batches = list(made.batches(made.texts(), LENGTHS))
    assert not batches[-1].rows.all(), "the last batch must be smaller"
    warmed = perf.warm(extractor.step, over=[(params, batch.ids, batch.mask) for batch in one_of_each(batches)])
    inputs = [(params, batch.ids, batch.mask) for batch in batches]
    perf.covers(warmed, inputs)
    cut = (params, batches[-1].ids[:2], batches[-1].mask[:2])
    (uncovered,) = covers(warmed, [*inputs, cut]).uncovered
    assert uncovered.first == len(batches)


def test_several_devices(perf, qwen2):
    made, model, params = qwen2
    mesh = jax.make_mesh((jax.device_count(), 1), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    extractor = make_sharded_extractor(model, made.layers, mesh)
    params = extractor.place(params)
    batches = list(made.batches(made.texts()))
    inputs = [(params, *jax.device_put((batch.ids, batch.mask), extractor.rows)) for batch in batches]
    perf.covers(perf.warm(extractor.step, over=inputs[:1]), inputs)


def test_a_hundred_thousand_ragged_texts(perf):
    @jax.jit
    def step(params, ids):
        return params + ids.mean()

    def padded(text):
        size = next(length for length in LENGTHS if len(text) <= length)
        return np.pad(text, (0, size - len(text)))

    params = jnp.zeros(4)
    warmed = perf.warm(step, over=[(params, np.zeros(length, np.int32)) for length in LENGTHS])
    rng = np.random.default_rng(0)
    texts = [np.ones(length, np.int32) for length in rng.integers(1, LENGTHS[-1] + 1, TEXTS)]
    began = time.perf_counter()
    found = perf.covers(warmed, ((params, padded(text)) for text in texts))
    perf.record("100,000 texts", time.perf_counter() - began, unit="s", kind="info")
    assert (found.inputs, found.signatures, found.unused) == (TEXTS, len(LENGTHS), ())
