import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.gpt2_numpy import numpy_logits, prompts, randomised

from perfsuite.workloads.gpt2 import (
    GPT2Config,
    decode_step,
    init_params,
    initialize_cache,
    logits,
    prefill,
    update_cache,
)

TINY = GPT2Config.tiny()
LENGTHS = (7, 3, 1)

jit_logits = jax.jit(logits, static_argnums=1)
jit_prefill = jax.jit(prefill, static_argnums=1)
jit_decode = jax.jit(decode_step, static_argnums=1)


@pytest.fixture(scope="module")
def params():
    return randomised(TINY)


@pytest.mark.parametrize(
    ("sizes", "parameters"),
    [
        # As published, with the embedding counted once: GPT-2, and GPT-2 medium.
        ({}, 124_439_808),
        ({"hidden_size": 1024, "num_layers": 24, "num_heads": 16}, 354_823_168),
    ],
)
def test_parameter_counts_are_the_published_ones(sizes, parameters):
    shapes = jax.eval_shape(lambda: init_params(GPT2Config.small(**sizes), jax.random.key(0)))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == parameters


def test_logits_are_those_of_the_paper_computed_in_numpy(params):
    ids, _ = prompts(TINY, (9, 9))
    expected = np.stack([numpy_logits(params, TINY, row) for row in ids])
    actual = jit_logits(params, TINY, ids)
    assert actual.dtype == jnp.float32
    assert np.abs(actual - expected).max() < 1e-4
    assert np.std(expected) > 0.5  # so that 1e-4 is a small difference


def test_prefill_and_decode_give_each_row_the_logits_of_its_own_whole_sequence(params):
    ids, lengths = prompts(TINY, LENGTHS, width=8)
    more, _ = prompts(TINY, (4,) * len(LENGTHS), seed=1)
    scores, cache = jit_prefill(params, TINY, ids, lengths, initialize_cache(TINY, len(LENGTHS), 12))
    sequences = [list(row[:length]) for row, length in zip(ids, lengths, strict=True)]
    for step in range(5):
        expected = np.stack([numpy_logits(params, TINY, sequence)[-1] for sequence in sequences])
        assert np.abs(scores - expected).max() < 1e-4
        assert cache.lengths.tolist() == [len(sequence) for sequence in sequences]
        if step < 4:
            scores, cache = jit_decode(params, TINY, more[:, step], cache)
            sequences = [[*sequence, token] for sequence, token in zip(sequences, more[:, step], strict=True)]


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.1), ("float16", 0.01)])
def test_activations_and_cache_are_in_the_dtype_asked_for(params, dtype, tolerance):
    config = dataclasses.replace(TINY, activation_dtype=dtype)
    ids, lengths = prompts(TINY, (6,))
    scores, cache = jit_prefill(params, config, ids, lengths, initialize_cache(config, 1, 8))
    expected = numpy_logits(params, TINY, ids[0])[-1]
    assert {array.dtype for array in cache.keys + cache.values} == {jnp.dtype(dtype)}
    assert scores.dtype == jnp.float32
    error = np.abs(scores[0] - expected).max() / np.std(expected)
    assert 1e-5 < error < tolerance  # above: the dtype was used at all


def test_update_cache_writes_behind_what_each_row_holds_and_leaves_the_rest():
    cache = dataclasses.replace(initialize_cache(TINY, 2, 6), lengths=jnp.array([1, 3]))
    keys = jnp.ones((2, 2, TINY.num_heads, TINY.head_size))
    new = update_cache(cache, 1, keys, 2 * keys)
    written = np.asarray(new.values[1]).reshape(2, TINY.num_heads, 6, TINY.head_size)[:, 0, :, 0]
    assert written.tolist() == [[0, 2, 2, 0, 0, 0], [0, 0, 0, 2, 2, 0]]
    assert np.array_equal(np.asarray(new.keys[1]) * 2, new.values[1])
    assert not np.any(new.keys[0])
    assert new.lengths.tolist() == [1, 3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 100, "num_heads": 3}, r"hidden_size \(100\) must be a multiple of num_heads \(3\)"),
        ({"activation_dtype": "int8"}, "activation_dtype must be"),
    ],
)
def test_configuration_that_makes_no_model_is_an_error_naming_the_field(changes, message):
    with pytest.raises(ValueError, match=message):
        GPT2Config.small(**changes)


def test_a_cache_that_does_not_fit_is_an_error_with_the_numbers(params):
    ids, lengths = prompts(TINY, (6,))
    with pytest.raises(ValueError, match="ids are 6 wide, but the cache has 5 slots"):
        prefill(params, TINY, ids, lengths, initialize_cache(TINY, 1, 5))
    with pytest.raises(ValueError, match="one batch size"):
        prefill(params, TINY, ids, lengths, initialize_cache(TINY, 2, 8))
    with pytest.raises(ValueError, match=r"lengths must be in 1..6, .* row 0 has 0"):
        prefill(params, TINY, ids, np.array([0]), initialize_cache(TINY, 1, 8))
    _, full = jit_prefill(params, TINY, ids, lengths, initialize_cache(TINY, 1, 6))
    with pytest.raises(ValueError, match=r"cache must be empty, has lengths \[6\]"):
        prefill(params, TINY, ids, lengths, full)
    with pytest.raises(ValueError, match=r"cache is full: lengths \[6\] of 6 slots"):
        decode_step(params, TINY, jnp.array([1]), full)
    with pytest.raises(ValueError, match=r"length must be in 1..64 .*, got 65"):
        initialize_cache(TINY, 1, 65)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        initialize_cache(TINY, 0, 8)


def test_ids_and_sequences_that_do_not_fit_are_errors_with_the_numbers(params):
    with pytest.raises(ValueError, match=r"65 wide, but GPT2Config.max_positions is 64"):
        logits(params, TINY, jnp.zeros((1, 65), jnp.int32))
    with pytest.raises(ValueError, match=r"(ids|token) must be from 0 to 96, got 97"):
        logits(params, TINY, jnp.array([[1, 97]]))
    with pytest.raises(ValueError, match="ids must be integers, got float32"):
        logits(params, TINY, jnp.ones((1, 2)))
    with pytest.raises(ValueError, match=r"neither empty, got shape \(1, 0\)"):
        logits(params, TINY, jnp.zeros((1, 0), jnp.int32))
    with pytest.raises(ValueError, match=r"(ids|token) must be from 0 to 96, got -1"):
        decode_step(params, TINY, jnp.array([-1]), initialize_cache(TINY, 1, 4))
