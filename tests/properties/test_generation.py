"""Whatever the prompts, their padding and the buckets: the same tokens, and a program a bucket."""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.gpt2_numpy import numpy_greedy, randomised

from perfsuite.workloads.gpt2 import GPT2Config
from perfsuite.workloads.gpt2.generation import generate

pytestmark = pytest.mark.usefixtures("quick_to_compile")

TINY = GPT2Config.tiny(num_layers=1, max_positions=24)
PARAMS = randomised(TINY)
FEW = settings(max_examples=6, deadline=None)


@st.composite
def batches(draw, lengths=st.lists(st.integers(1, 6), min_size=1, max_size=3)):  # noqa: B008, a strategy is a value
    """Ids and lengths, with up to three columns of padding beyond the longest prompt."""
    lengths = draw(lengths)
    width = max(lengths) + draw(st.integers(0, 3))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    return rng.integers(0, TINY.vocab_size, (len(lengths), width)), np.array(lengths)


@FEW
@given(batches())
def test_a_batch_gives_each_prompt_the_tokens_it_has_alone(batch):
    tokens = generate(PARAMS, TINY, *batch, 4)
    for row, length, mine in zip(*batch, tokens, strict=True):
        assert mine.tolist() == numpy_greedy(PARAMS, TINY, row[:length], 4)


@FEW
@given(batches(), st.integers(-1000, 1000), st.integers(0, 5), st.sampled_from([None, 12, 24]))
def test_neither_padding_nor_cache_length_changes_tokens(batch, filler, columns, cache_length):
    ids, lengths = batch
    other = np.pad(ids, ((0, 0), (0, columns)))
    other[np.arange(other.shape[1]) >= lengths[:, None]] = filler
    tokens = generate(PARAMS, TINY, ids, lengths, 4)
    assert np.array_equal(generate(PARAMS, TINY, other, lengths, 4, cache_length=cache_length), tokens)


ONE_BUCKET = dataclasses.replace(TINY, norm_epsilon=2e-5)
"""No other test's configuration, so that its programs are compiled here."""
COMPILED = set()


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(5, 8), min_size=2, max_size=4), st.sampled_from([3, 7]), st.booleans())
def test_a_bucket_is_one_program_for_every_prompt_length_in_it(compile_counter, lengths, count, stop):
    with compile_counter.count() as counted:
        for length in lengths:
            ids = np.ones((1, length), int)
            generate(PARAMS, ONE_BUCKET, ids, [length], count, buckets=(4, 8, 16), stop_token=96 if stop else None)
    assert counted.compiles == (count not in COMPILED)
    COMPILED.add(count)
