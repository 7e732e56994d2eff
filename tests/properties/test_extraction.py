"""Extraction in a pipeline gives what the plain ways give, whatever the batches; and a cache changes nothing."""

import dataclasses
import functools
import uuid

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.qwen2_numpy import numpy_qwen2, random_state_dict
from support.qwen2_weights import from_state_dict

from perfsuite.workloads.extraction import (
    ActivationStore,
    StoreError,
    StoreIdentity,
    extract,
    extract_naive,
    extract_to,
    fixed_size_batches,
    make_extractor,
)
from perfsuite.workloads.qwen2 import Qwen2, Qwen2Config
from perfsuite.workloads.qwen2.weights import weight_table

pytestmark = pytest.mark.usefixtures("quick_to_compile")

CONFIG = Qwen2Config.tiny(vocab_size=30, hidden_size=32, num_layers=2, intermediate_size=48, max_positions=16)
MODEL = Qwen2(CONFIG)
WEIGHTS = random_state_dict(CONFIG, weight_table(CONFIG))
LENGTHS = (2, 5)


@functools.cache
def params():
    return from_state_dict(CONFIG, WEIGHTS)


@functools.cache
def extractor(layers):
    """One for all examples: its programs are compiled once."""
    return make_extractor(MODEL, layers)


def extracted(layers, batches, **kwargs):
    return [sample for done in extract(extractor(layers), params(), batches, **kwargs) for sample in done.samples()]


def tokens(lengths):
    return lengths.flatmap(lambda n: st.lists(st.integers(0, CONFIG.vocab_size - 1), min_size=n, max_size=n))


def texts(lengths, max_size=7):
    return st.lists(tokens(lengths), max_size=max_size)


def choices_of_layers():
    return st.sampled_from([(0,), (1,), (1, 0)])


def pad_ids():
    return st.integers(0, CONFIG.vocab_size - 1)


def assert_close(actual, expected, tolerance=1e-4):
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=tolerance, atol=tolerance)


# Few shapes, and few examples: without jit every shape costs a second, and every call a tenth.
@settings(max_examples=3)
@given(texts(st.sampled_from(LENGTHS), max_size=4), st.integers(1, 2), choices_of_layers(), pad_ids())
def test_the_pipeline_gives_what_the_naive_way_gives(sequences, batch_size, layers, pad_id):
    batches = fixed_size_batches(sequences, batch_size, length=LENGTHS, pad_id=pad_id)
    fast = extracted(layers, batches)
    slow = list(extract_naive(MODEL, params(), sequences, batch_size, layers))
    assert [index for index, _ in fast] == [index for index, _ in slow]
    for (_, mine), (_, reference) in zip(fast, slow, strict=True):
        assert_close(mine, reference, 1e-5)


@settings(max_examples=20)
@given(
    texts(st.integers(1, 6)),
    st.integers(1, 3),
    st.sampled_from([6, (2, 6), (1, 3, 6)]),
    choices_of_layers(),
    pad_ids(),
    st.integers(0, 3),
)
def test_the_pipeline_gives_every_sample_the_reports_activations(sequences, batch_size, length, layers, pad_id, ahead):
    batches = fixed_size_batches(sequences, batch_size, length=length, pad_id=pad_id)
    found = extracted(layers, batches, ahead=ahead)
    assert [index for index, _ in found] == list(range(len(sequences)))
    for (_, mine), sequence in zip(found, sequences, strict=True):
        assert_close(mine, numpy_qwen2(CONFIG, WEIGHTS, sequence)[1][list(layers)])


class InterruptedRunError(Exception):
    pass


def store_all(path, layers, sequences, batch_size, *, chunk=1, dtype="", stop=None, **kwargs):
    """A run of `extract_to` that ends by itself, or at its `stop`-th batch."""
    calls = []

    def step(*args):
        calls.append(args)
        if len(calls) - 1 == stop:
            raise InterruptedRunError
        return extractor(layers).step(*args)

    identity = StoreIdentity(CONFIG, layers, len(sequences), 6, chunk, "some", "some", dtype)
    run = dataclasses.replace(extractor(layers), step=step)
    done = extract_to(ActivationStore.create_or_open(path, identity), run, params(), sequences, batch_size, **kwargs)
    return len(calls), done


@settings(max_examples=15)
@given(
    texts(st.integers(1, 6)),
    st.sampled_from([(1, 1), (2, 1), (2, 2), (3, 1), (3, 3)]),
    st.sampled_from([6, (2, 6), (1, 3, 6)]),
    choices_of_layers(),
    pad_ids(),
    st.sampled_from(["float32", "bfloat16", "float16"]),
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=4),
)
def test_a_run_interrupted_anywhere_any_number_of_times_stores_what_a_whole_one_does(
    sequences, sizes, length, layers, pad_id, dtype, interruptions
):
    """Every sample once, bit for bit; and no batch is computed that was stored."""
    batch_size, chunk = sizes
    batches = -(-len(sequences) // batch_size)
    path = f"memory://{uuid.uuid4()}"
    run = functools.partial(
        store_all, path, layers, sequences, batch_size, chunk=chunk, dtype=dtype, length=length, pad_id=pad_id
    )
    ended = False
    for stop, ahead, prefetch in interruptions:
        left = batches - len({int(index) // batch_size for index, _ in there(path)})
        if ended := ended or stop >= left:
            calls, _ = run(stop=stop, ahead=ahead, prefetch=prefetch)
            assert calls == left
        else:
            with pytest.raises(InterruptedRunError):
                run(stop=stop, ahead=ahead, prefetch=prefetch)
    before = dict(there(path))
    _, done = run()
    assert (done.computed, done.skipped) == (len(sequences) - len(before), len(before))
    found = dict(ActivationStore.open(path))
    whole = dict(extracted(layers, fixed_size_batches(sequences, batch_size, length=length, pad_id=pad_id)))
    assert list(found) == list(whole) == list(range(len(sequences)))
    for index, values in whole.items():
        assert found[index].tobytes() == values.astype(jnp.dtype(dtype)).tobytes()
        assert before.get(index, found[index]).tobytes() == found[index].tobytes()


def there(path):
    """The samples that a store has, if there is one."""
    try:
        return list(ActivationStore.open(path))
    except StoreError:
        return []


@given(
    texts(st.integers(1, 9), max_size=20), st.integers(1, 6), st.sampled_from([9, (4, 9), (2, 3, 12), None]), pad_ids()
)
def test_batches_hold_every_token_of_every_sequence_once_and_in_order(sequences, batch_size, length, pad_id):
    batches = list(fixed_size_batches(sequences, batch_size, length=length, pad_id=pad_id))
    assert len(batches) == -(-len(sequences) // batch_size)
    found = [
        (batch.indices[row], batch.ids[row, : batch.lengths[row]].tolist())
        for batch in batches
        for row in np.flatnonzero(batch.rows)
    ]
    assert found == list(enumerate(sequences))
    for batch in batches:
        assert np.all(batch.ids[~batch.mask] == pad_id)
        assert np.array_equal(batch.mask.sum(1), batch.lengths)
        assert not batch.lengths[~batch.rows].any()
