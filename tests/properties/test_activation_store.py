"""Whatever is written in whatever order, a store holds it bit for bit, and nothing else."""

import uuid

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfsuite.workloads.extraction.activation_store import ActivationStore
from perfsuite.workloads.extraction.batching import Batch, BatchActivations
from perfsuite.workloads.extraction.store_identity import StoreIdentity, inputs_fingerprint
from perfsuite.workloads.qwen2.config import Qwen2Config

DTYPES = ("float32", "bfloat16", "float16")


def config(dtype):
    return Qwen2Config.tiny(hidden_size=8, num_layers=3, activation_dtype=dtype)


@st.composite
def identities(draw):
    return StoreIdentity(
        config=config(draw(st.sampled_from(DTYPES))),
        layers=tuple(draw(st.lists(st.integers(0, 2), min_size=1, max_size=4))),
        samples=draw(st.integers(0, 12)),
        length=draw(st.integers(1, 5)),
        samples_per_chunk=draw(st.integers(1, 5)),
        weights="some",
        inputs="some",
    )


def random_bits(rng, shape, dtype):
    """Any number of the dtype, denormal numbers, infinities and NaN of every kind included."""
    size = jnp.dtype(dtype).itemsize
    return rng.integers(0, 256, (*shape[:-1], shape[-1] * size), np.uint8).view(dtype)


def batch_of(identity, chunks, rng):
    """Some chunks in one batch, between rows of padding."""
    per_chunk = identity.samples_per_chunk
    indices = [-1]
    for chunk in chunks:
        indices += range(chunk * per_chunk, min((chunk + 1) * per_chunk, identity.samples))
        indices += [-1] * int(rng.integers(0, 2))
    indices = np.array(indices, np.int64)
    lengths = np.where(indices >= 0, rng.integers(1, identity.length + 1, len(indices)), 0).astype(np.int32)
    length = int(rng.integers(lengths.max(initial=1), identity.length + 1))
    mask = np.arange(length) < lengths[:, None]
    batch = Batch(np.zeros(mask.shape, np.int32), mask, lengths, indices, indices >= 0)
    shape = len(indices), len(identity.layers), length, identity.config.hidden_size
    return BatchActivations(batch, random_bits(rng, shape, jnp.dtype(identity.config.activation_dtype)))


@given(identities(), st.integers(1, 3), st.integers(0, 2**32 - 1), st.data())
def test_a_store_holds_each_sample_that_was_written_and_no_other(identity, in_flight, seed, data):
    chunks = range(-(-identity.samples // identity.samples_per_chunk))
    written = data.draw(st.lists(st.sampled_from(chunks), unique=True)) if chunks else []
    parts = data.draw(st.integers(1, 3))
    path, rng, expected = f"memory://{uuid.uuid4()}", np.random.default_rng(seed), {}
    with ActivationStore.create_or_open(path, identity, in_flight=in_flight) as store:
        for at in range(0, len(written), parts):
            done = batch_of(identity, written[at : at + parts], rng)
            store.write(done)
            expected.update(done.samples())
    again = ActivationStore.open(path)
    assert again.identity == identity
    assert again.missing().tolist() == [i for i in range(identity.samples) if i not in expected]
    found = dict(again)
    assert list(found) == sorted(expected)
    for index, values in expected.items():
        for sample in (found[index], again.read(index)):
            assert (sample.shape, sample.dtype) == (values.shape, values.dtype)
            assert sample.tobytes() == values.tobytes()


@given(identities(), identities())
def test_a_store_is_opened_again_by_an_equal_identity_alone(identity, other):
    assert StoreIdentity.from_json(identity.to_json()) == identity
    assert bool(identity.differences(other)) == (identity != other)
    assert not identity.differences(StoreIdentity.from_json(identity.to_json()))


@given(*[st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=4)] * 2)
def test_inputs_have_the_same_fingerprint_only_if_they_are_the_same(some, others):
    assert (inputs_fingerprint(some) == inputs_fingerprint(others)) == (some == others)
