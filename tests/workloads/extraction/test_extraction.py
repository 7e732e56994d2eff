import dataclasses
import threading
import uuid
import weakref

import jax
import numpy as np
import pytest
from support.qwen2_numpy import random_state_dict
from support.qwen2_weights import from_state_dict

from perfsuite.workloads.extraction import (
    ActivationStore,
    Extracted,
    StoreError,
    StoreIdentity,
    extract,
    extract_to,
    fixed_size_batches,
    make_extractor,
)
from perfsuite.workloads.qwen2 import Qwen2, Qwen2Config
from perfsuite.workloads.qwen2.weights import weight_table

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


def test_a_stream_of_any_lengths_compiles_nothing_once_each_length_is_warm(extractor, params, compile_counter):
    def stream(texts):
        return fixed_size_batches(texts, 2, length=BUCKETS, pad_id=0)

    samples(extractor, params, stream(sequences(*BUCKETS)[:1]))
    samples(extractor, params, stream(sequences(*BUCKETS)))
    texts = sequences(*np.random.default_rng(1).integers(1, 9, 31))
    with compile_counter.forbid():
        found = samples(extractor, params, stream(texts))
    assert [values.shape[1] for _, values in found] == [len(text) for text in texts]


def test_ids_that_there_are_not_are_an_error_before_anything_runs(extractor, params, compile_counter):
    stream = fixed_size_batches([[1, 50]], 2, length=3, pad_id=0)
    with compile_counter.forbid(), pytest.raises(ValueError, match="ids must be from 0 to 49, got 50"):
        samples(extractor, params, stream)
    stream = fixed_size_batches([[1]], 2, length=3, pad_id=-100)
    with pytest.raises(ValueError, match="ids must be from 0 to 49, got -100"):
        samples(extractor, params, stream)


# Into a store

TEXTS = sequences(3, 8, 1, 4, 2, 7, 5, 6, 8, 1)
ABOUT = {"samples_per_chunk": 2, "length": 8}


def new_store(path, params, texts=TEXTS, **changes):
    """The store of `texts`, with whatever is in it."""
    fields = {"config": NARROW, "layers": LAYERS, "params": params, "sequences": texts}
    return ActivationStore.create_or_open(path, StoreIdentity.of(**{**fields, **ABOUT, **changes}))


@pytest.fixture
def memory():
    return f"memory://{uuid.uuid4()}"


def that_fails_at(extractor, call, fail):
    """`extractor`, but its call number `call`, from 0, is `fail()`. And how often it was called."""
    calls = []

    def step(*args):
        calls.append(len(calls))
        if calls[-1] == call:
            fail()
        return extractor.step(*args)

    return dataclasses.replace(extractor, step=step), calls


def interrupt():
    raise KeyboardInterrupt


def test_a_complete_store_costs_neither_a_computation_nor_a_look_at_the_sequences(extractor, params, memory):
    class Unread(list):
        def __getitem__(self, index):
            raise AssertionError(f"sequence {index} was read")

    store = new_store(memory, params)
    extract_to(store, extractor, params, TEXTS, 4, pad_id=0)
    counted, calls = that_fails_at(extractor, -1, interrupt)
    assert extract_to(store, counted, params, Unread(TEXTS), 4, pad_id=0) == Extracted(0, 10)
    assert calls == []


def test_a_batch_of_which_the_store_has_a_part_is_computed_whole(extractor, params, memory):
    stopped, _ = that_fails_at(extractor, 1, interrupt)
    with pytest.raises(KeyboardInterrupt):
        extract_to(new_store(memory, params), stopped, params, TEXTS, 2, pad_id=0, ahead=0)
    store = new_store(memory, params)
    assert store.missing().tolist() == list(range(2, 10))
    assert extract_to(store, extractor, params, TEXTS, 4, pad_id=0) == Extracted(10, 0)
    assert not store.missing().size


def test_a_store_that_fails_ends_the_run_with_its_error_and_without_threads(extractor, params, tmp_path):
    before = set(threading.enumerate())
    store = new_store(tmp_path, params)
    (tmp_path / "activations" / "c").write_text("in the way")
    with pytest.raises(StoreError, match=r"samples 0 to 1 could not be written"):
        extract_to(store, extractor, params, TEXTS, 4, length=BUCKETS, pad_id=0)
    assert set(threading.enumerate()) == before
    (tmp_path / "activations" / "c").unlink()
    assert extract_to(store, extractor, params, TEXTS, 4, length=BUCKETS, pad_id=0).computed == 10


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 3}, "batch_size must be a multiple of the samples in a chunk of the store, 2, got 3"),
        ({"length": (4, 9)}, "length must be at most that of the store, 8, got 9"),
        ({"sequences": TEXTS[:9]}, "the number of sequences must be that of the store, 10, got 9"),
        ({"extractor": make_extractor(MODEL, (0, 2))}, r"the layers must be that of the store, \(2, 0\), got \(0, 2\)"),
    ],
)
def test_what_does_not_fit_the_store_is_an_error_before_anything_runs(extractor, params, memory, changes, message):
    stopped, calls = that_fails_at(extractor, -1, interrupt)
    arguments = {"extractor": stopped, "params": params, "sequences": TEXTS, "batch_size": 4, "pad_id": 0}
    store = new_store(memory, params)
    with pytest.raises(ValueError, match=message):
        extract_to(store, **{**arguments, **changes})
    assert calls == []
    assert store.missing().size == 10


def test_other_weights_or_inputs_are_other_activations(extractor, params, memory):
    extract_to(new_store(memory, params), extractor, params, TEXTS, 4, pad_id=0)
    others = jax.tree.map(lambda leaf: np.asarray(leaf) * 2, params)
    with pytest.raises(StoreError, match=r"holds other activations: weights 'sha256:.*', not 'sha256:.*'"):
        new_store(memory, others)
    with pytest.raises(StoreError, match="holds other activations: inputs 'sha256:"):
        new_store(memory, params, TEXTS[::-1])


def test_a_negative_ahead_is_an_error_at_once(extractor, params):
    with pytest.raises(ValueError, match="ahead must not be negative, got -1"):
        extract(extractor, params, [], ahead=-1)


def test_a_sequence_that_is_none_ends_the_run_and_what_came_before_is_stored(extractor, params, memory):
    store = new_store(memory, params)
    texts = [*TEXTS[:6], [50], *TEXTS[7:]]
    with pytest.raises(ValueError, match="ids must be from 0 to 49, got 50"):
        extract_to(store, extractor, params, texts, 2, pad_id=0, ahead=0)
    assert store.missing().tolist() == [6, 7, 8, 9]
