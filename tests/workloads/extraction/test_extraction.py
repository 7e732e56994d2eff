import dataclasses
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
import weakref
from pathlib import Path

import jax
import numpy as np
import pytest
from support.qwen2_numpy import numpy_qwen2, random_state_dict
from support.qwen2_weights import from_state_dict

from perfsuite.workloads.extraction import (
    ActivationStore,
    BatchActivations,
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


@pytest.fixture(scope="module")
def whole(extractor, params):
    """The samples of a run in one go."""
    store = new_store(f"memory://{uuid.uuid4()}", params)
    assert extract_to(store, extractor, params, TEXTS, 4, length=BUCKETS, pad_id=0) == Extracted(10, 0)
    return dict(store)


def assert_same(found, expected):
    found = dict(found)
    assert list(found) == list(expected)
    assert all(found[index].tobytes() == values.tobytes() for index, values in expected.items())


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


def test_a_store_gets_what_the_pipeline_gives(extractor, params, whole):
    found = samples(extractor, params, fixed_size_batches(TEXTS, 4, length=BUCKETS, pad_id=0))
    assert_same(found, whole)


@pytest.mark.parametrize("prefetch", [0, 1, 5])
@pytest.mark.parametrize("ahead", [0, 3])
def test_neither_prefetch_nor_ahead_changes_what_is_stored(extractor, params, whole, memory, ahead, prefetch):
    store = new_store(memory, params)
    extract_to(store, extractor, params, TEXTS, 4, length=BUCKETS, pad_id=0, ahead=ahead, prefetch=prefetch)
    assert_same(store, whole)


def test_a_complete_store_costs_neither_a_computation_nor_a_look_at_the_sequences(extractor, params, memory):
    class Unread(list):
        def __getitem__(self, index):
            raise AssertionError(f"sequence {index} was read")

    store = new_store(memory, params)
    extract_to(store, extractor, params, TEXTS, 4, pad_id=0)
    counted, calls = that_fails_at(extractor, -1, interrupt)
    assert extract_to(store, counted, params, Unread(TEXTS), 4, pad_id=0) == Extracted(0, 10)
    assert calls == []


@pytest.mark.parametrize("call", [0, 1, 2])
def test_after_an_interruption_the_same_call_computes_the_rest_alone(extractor, params, whole, memory, call):
    stopped, _ = that_fails_at(extractor, call, interrupt)
    with pytest.raises(KeyboardInterrupt):
        extract_to(new_store(memory, params), stopped, params, TEXTS, 4, length=BUCKETS, pad_id=0)
    store = new_store(memory, params)
    # The batch before the one that failed was under way, and had not been handed over.
    there = max(0, 4 * (call - 1))
    assert store.missing().tolist() == list(range(there, 10))
    counted, calls = that_fails_at(extractor, -1, interrupt)
    assert extract_to(store, counted, params, TEXTS, 4, length=BUCKETS, pad_id=0) == Extracted(10 - there, there)
    assert len(calls) == 3 - there // 4
    assert_same(store, whole)


def test_a_batch_of_which_the_store_has_a_part_is_computed_as_it_was(extractor, params, whole, memory):
    """Two chunks a batch; a process may be killed between them."""
    store = new_store(memory, params)
    first, *_ = extract(extractor, params, fixed_size_batches(TEXTS, 4, length=BUCKETS, pad_id=0))
    rows = first.batch.rows & (first.batch.indices >= 2)
    with store:
        store.write(BatchActivations(dataclasses.replace(first.batch, rows=rows), first.values))
    assert store.missing().tolist() == [0, 1, *range(4, 10)]
    assert extract_to(store, extractor, params, TEXTS, 4, length=BUCKETS, pad_id=0) == Extracted(10, 0)
    assert_same(store, whole)


def test_another_batch_size_may_end_what_was_begun(extractor, params, whole, memory):
    stopped, _ = that_fails_at(extractor, 2, interrupt)
    with pytest.raises(KeyboardInterrupt):
        extract_to(new_store(memory, params), stopped, params, TEXTS, 4, length=BUCKETS, pad_id=0)
    store = new_store(memory, params)
    assert extract_to(store, extractor, params, TEXTS, 2, pad_id=0) == Extracted(6, 4)
    for (index, found), (expected_index, expected) in zip(store, whole.items(), strict=True):
        assert index == expected_index
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


KILLED = f"""
import dataclasses, os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
import jax
jax.config.update("jax_num_cpu_devices", 8)
from workloads.extraction.test_extraction import *

params = from_state_dict(NARROW, random_state_dict(NARROW, weight_table(NARROW)))
stopped, _ = that_fails_at(make_extractor(MODEL, LAYERS), 3, lambda: os.kill(os.getpid(), signal.SIGKILL))
extract_to(new_store(sys.argv[1], params), stopped, params, TEXTS, 2, length=BUCKETS, pad_id=0)
"""


def test_a_killed_process_leaves_a_store_that_the_next_one_completes(tmp_path, extractor, params, memory):
    """Killed with batches on the device and chunks on their way. The next process is this one."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path], env=environment, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    store = new_store(tmp_path, params)
    there = sorted(set(range(10)) - set(store.missing().tolist()))
    # It had handed over four samples at most, and was killed before any more.
    assert len(there) <= 4
    counted, calls = that_fails_at(extractor, -1, interrupt)
    done = extract_to(store, counted, params, TEXTS, 2, length=BUCKETS, pad_id=0)
    assert done == Extracted(10 - len(there), len(there))
    assert len(calls) == done.computed // 2
    in_one_go = new_store(memory, params)
    extract_to(in_one_go, extractor, params, TEXTS, 2, length=BUCKETS, pad_id=0)
    assert_same(ActivationStore.open(tmp_path), dict(in_one_go))


def test_a_store_that_fails_ends_the_run_with_its_error_and_without_threads(extractor, params, tmp_path):
    before = set(threading.enumerate())
    store = new_store(tmp_path, params)
    (tmp_path / "activations" / "c").write_text("in the way")
    with pytest.raises(StoreError, match=r"samples 0 to 1 could not be written"):
        extract_to(store, extractor, params, TEXTS, 4, length=BUCKETS, pad_id=0)
    assert set(threading.enumerate()) == before
    (tmp_path / "activations" / "c").unlink()
    assert extract_to(store, extractor, params, TEXTS, 4, length=BUCKETS, pad_id=0).computed == 10


def test_a_sequence_that_is_none_ends_the_run_and_what_came_before_is_stored(extractor, params, memory):
    store = new_store(memory, params)
    texts = [*TEXTS[:6], [50], *TEXTS[7:]]
    with pytest.raises(ValueError, match="ids must be from 0 to 49, got 50"):
        extract_to(store, extractor, params, texts, 2, pad_id=0, ahead=0)
    assert store.missing().tolist() == [6, 7, 8, 9]


def test_nothing_accumulates_over_a_long_run(extractor, params, memory):
    """When a batch is begun, the one under way lives and those being written, but no other, device or host."""
    alive, found = weakref.WeakSet(), []

    class Values:
        def __init__(self, rows):
            self.values = np.zeros((rows, len(LAYERS), 8, NARROW.hidden_size), np.float32)
            alive.add(self)

        def copy_to_host_async(self):
            pass

        def __array__(self, dtype=None, copy=None):
            return np.asarray(OnHost(self))

    class OnHost:
        """Refers to the device's array, as jax's arrays on the host do on a CPU."""

        def __init__(self, owner):
            self.owner = owner
            self.__array_interface__ = owner.values.__array_interface__

    texts = [[1]] * 200
    store = new_store(memory, params, texts)

    def step(params, ids, mask):
        found.append(len(alive))
        deadline = time.monotonic() + 20
        while len(alive) > 1 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert len(alive) <= 1
        return Values(len(ids))

    fake = dataclasses.replace(extractor, step=step)
    extract_to(store, fake, params, texts, 2, pad_id=0, ahead=1)
    assert len(found) == 100
    # One under way, two being written.
    assert max(found) <= 3
    assert not alive


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 3}, "batch_size must be a multiple of the samples in a chunk of the store, 2, got 3"),
        ({"batch_size": 0}, "got 0"),
        ({"length": (4, 9)}, "length must be at most that of the store, 8, got 9"),
        ({"length": (4, 4)}, "length must be one or more increasing numbers"),
        ({"sequences": TEXTS[:9]}, "the number of sequences must be that of the store, 10, got 9"),
        ({"extractor": make_extractor(MODEL, (0, 2))}, r"the layers must be that of the store, \(2, 0\), got \(0, 2\)"),
        (
            {"extractor": make_extractor(Qwen2(dataclasses.replace(NARROW, rope_theta=1.0)), LAYERS)},
            r"the model's config must be that of the store, .*rope_theta=1000000\.0.* got .*rope_theta=1\.0",
        ),
        ({"ahead": -1}, "ahead must not be negative"),
        ({"prefetch": -1}, "depth must not be negative"),
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
