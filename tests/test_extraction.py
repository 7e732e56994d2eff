import itertools
import weakref

import jax
import numpy as np
import pytest
from qwen2_numpy import numpy_qwen2, random_state_dict

from perfsuite.workloads.batching import fixed_size_batches
from perfsuite.workloads.extraction import extract, make_extractor
from perfsuite.workloads.qwen2 import Qwen2, Qwen2Config
from perfsuite.workloads.qwen2_weights import from_state_dict, weight_table

NARROW = Qwen2Config.tiny(vocab_size=50, num_layers=3, max_positions=32)
MODEL = Qwen2(NARROW)
LAYERS = (2, 0)
BUCKETS = (4, 8)


@pytest.fixture(scope="module")
def weights():
    return random_state_dict(NARROW, weight_table(NARROW))


@pytest.fixture(scope="module")
def params(weights):
    return from_state_dict(NARROW, weights)


@pytest.fixture(scope="module")
def extractor():
    return make_extractor(MODEL, LAYERS)


def sequences(*lengths):
    rng = np.random.default_rng(0)
    return [rng.integers(0, NARROW.vocab_size, length).tolist() for length in lengths]


def samples(extractor, params, batches, **kwargs):
    return [sample for done in extract(extractor, params, batches, **kwargs) for sample in done.samples()]


class FakeArray:
    """Says when it is started, copied and read."""

    def __init__(self, name, events):
        self.name, self.events = name, events
        events.append(f"start {name}")

    def copy_to_host_async(self):
        self.events.append(f"copy {self.name}")

    def __array__(self, dtype=None, copy=None):
        self.events.append(f"read {self.name}")
        return np.zeros((1, 1, 4, 1))


def fake_events(batches, **kwargs):
    """What happens to the arrays of a pipeline, and when their batches are in the caller's hands."""
    events: list[str] = []
    stream = fixed_size_batches([[i] for i in range(batches)], 1, length=4, pad_id=0)
    for done in extract(lambda params, ids, mask: FakeArray(ids[0, 0], events), None, stream, **kwargs):
        events.append(f"use {done.batch.ids[0, 0]}")
    return events


def test_each_sample_has_the_activations_of_the_report_without_padding(extractor, params, weights):
    texts = sequences(3, 8, 1, 4, 2)
    found = samples(extractor, params, fixed_size_batches(texts, 2, length=BUCKETS, pad_id=49))
    assert [index for index, _ in found] == [0, 1, 2, 3, 4]
    for (_, values), text in zip(found, texts, strict=True):
        np.testing.assert_allclose(values, numpy_qwen2(NARROW, weights, text)[1][list(LAYERS)], rtol=1e-4, atol=1e-4)


def test_the_next_batch_is_started_and_its_copy_asked_for_before_this_one_is_handed_over():
    assert fake_events(3) == [
        *("start 0", "copy 0", "start 1", "copy 1", "read 0", "use 0"),
        *("start 2", "copy 2", "read 1", "use 1", "read 2", "use 2"),
    ]


@pytest.mark.parametrize("ahead", [0, 1, 2, 5])
def test_so_many_batches_are_under_way_and_each_is_copied_and_read_once(ahead):
    events = fake_events(4, ahead=ahead)
    assert events.index("use 0") - events[: events.index("use 0")].count("read 0") == 2 * min(ahead + 1, 4)
    assert sorted(events) == sorted(f"{what} {i}" for what in ("start", "copy", "read", "use") for i in range(4))


def test_a_handed_over_batch_leaves_the_device():
    """Only the batches under way are kept; else a pipeline would hold one more than it says."""
    alive: list[weakref.ref] = []

    def fake(params, ids, mask):
        array = FakeArray(ids[0, 0], [])
        alive.append(weakref.ref(array))
        return array

    stream = fixed_size_batches([[i] for i in range(6)], 1, length=4, pad_id=0)
    kept = [sum(ref() is not None for ref in alive) for _ in extract(fake, None, stream)]
    assert kept == [1, 1, 1, 1, 1, 0]


def test_batches_are_read_no_further_than_needed(extractor, params):
    stream = fixed_size_batches(itertools.cycle([[1, 2]]), 2, length=BUCKETS, pad_id=0)
    first = next(extract(extractor, params, stream))
    assert first.batch.indices.tolist() == [0, 1]
    assert next(stream).indices.tolist() == [4, 5]


def test_no_batches_give_no_activations(extractor, params):
    assert samples(extractor, params, []) == []


def test_a_stream_of_any_lengths_compiles_nothing_once_each_length_is_warm(extractor, params, compile_counter):
    def stream(texts):
        return fixed_size_batches(texts, 2, length=BUCKETS, pad_id=0)

    samples(extractor, params, stream(sequences(*BUCKETS)[:1]))
    samples(extractor, params, stream(sequences(*BUCKETS)))
    texts = sequences(*np.random.default_rng(1).integers(1, 9, 31))
    with compile_counter.forbid():
        found = samples(extractor, params, stream(texts))
    assert [values.shape[1] for _, values in found] == [len(text) for text in texts]


def test_a_length_that_was_not_warmed_compiles_once(params, compile_counter):
    fresh = make_extractor(MODEL, (0,))
    batches = list(fixed_size_batches(sequences(3, 2, 3), 1, length=4, pad_id=0))
    with compile_counter.count() as counted:
        samples(fresh, params, batches)
    assert (counted.traces, counted.compiles) == (1, 1)


def test_parameters_are_not_donated_and_serve_again(extractor, params):
    batches = list(fixed_size_batches(sequences(3, 4), 2, length=BUCKETS, pad_id=0))
    first, again = (samples(extractor, params, batches) for _ in range(2))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(params))
    assert all(np.array_equal(a, b) for (_, a), (_, b) in zip(first, again, strict=True))


def test_a_batch_is_one_array_in_which_a_sample_is_one_block(extractor, params):
    (done,) = extract(extractor, params, fixed_size_batches(sequences(4, 2), 2, length=BUCKETS, pad_id=0))
    assert done.values.shape == (2, len(LAYERS), 4, NARROW.hidden_size)
    for row, (_, values) in enumerate(done.samples()):
        assert np.shares_memory(values, done.values)
        assert done.values[row].flags.c_contiguous


def test_layers_that_there_are_not_are_errors():
    with pytest.raises(ValueError, match="layers must be numbers from 0 to 2, got 3"):
        make_extractor(MODEL, (0, 3))
    with pytest.raises(ValueError, match="layers must name at least one layer"):
        make_extractor(MODEL, ())


def test_ids_that_there_are_not_are_an_error_before_anything_runs(extractor, params, compile_counter):
    stream = fixed_size_batches([[1, 50]], 2, length=3, pad_id=0)
    with compile_counter.forbid(), pytest.raises(ValueError, match="ids must be from 0 to 49, got 50"):
        samples(extractor, params, stream)
    stream = fixed_size_batches([[1]], 2, length=3, pad_id=-100)
    with pytest.raises(ValueError, match="ids must be from 0 to 49, got -100"):
        samples(extractor, params, stream)


def test_a_negative_ahead_is_an_error_at_once(extractor, params):
    with pytest.raises(ValueError, match="ahead must not be negative, got -1"):
        extract(extractor, params, [], ahead=-1)
