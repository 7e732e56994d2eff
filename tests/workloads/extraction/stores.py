"""Activation stores for the tests of their modules: identities, random activations, and what a refusal leaves alone."""

import contextlib
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from perfsuite.workloads.extraction.activation_store import StoreError
from perfsuite.workloads.extraction.batching import BatchActivations, fixed_size_batches
from perfsuite.workloads.extraction.store_identity import StoreIdentity
from perfsuite.workloads.qwen2.config import Qwen2Config

CONFIG = Qwen2Config.tiny(hidden_size=16, num_layers=3)
LAYERS = (2, 0)
LENGTHS = (3, 1, 6, 2, 5, 4, 6, 1, 2, 3)
"""Tokens of ten samples: of two and a half chunks."""


def identity(**changes):
    fields = {"config": CONFIG, "layers": LAYERS, "samples": 10, "length": 6, "samples_per_chunk": 4}
    return StoreIdentity(**{**fields, "weights": "one", "inputs": "some", **changes})


def batches(batch_size=4, lengths=LENGTHS, dtype="float32", layers=LAYERS):
    """Random activations: at padding too, which nobody must ever see."""
    rng = np.random.default_rng(0)
    for batch in fixed_size_batches([[1] * n for n in lengths], batch_size, length=(3, 6), pad_id=0):
        shape = len(batch.ids), len(layers), batch.ids.shape[1], CONFIG.hidden_size
        yield BatchActivations(batch, rng.normal(size=shape).astype(jnp.dtype(dtype)))


def stored(store, done):
    """`store` after all of `done` was written."""
    with store:
        for one in done:
            store.write(one)
    return store


def samples(done):
    return {index: values.copy() for one in done for index, values in one.samples()}


def assert_holds(store, expected):
    """Those samples, bit for bit, and no others."""
    found = dict(store)
    assert found.keys() == expected.keys()
    for index, values in expected.items():
        assert found[index].dtype == values.dtype
        assert found[index].shape == values.shape
        assert found[index].tobytes() == values.tobytes()
    assert store.missing().tolist() == [i for i in range(len(store)) if i not in expected]


def files(folder):
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in Path(folder).rglob("*") if path.is_file()}


@contextlib.contextmanager
def refused(folder, *messages):
    """A `StoreError` with all the messages, and not a file is touched."""
    before = files(folder)
    with pytest.raises(StoreError) as error:
        yield
    assert all(message in str(error.value) for message in messages), str(error.value)
    assert "\n" not in str(error.value)
    assert "tensorstore_spec" not in str(error.value)
    assert files(folder) == before
