import jax
import numpy as np
import pytest
from support.gpt2_numpy import numpy_greedy, prompts, randomised

from perfsuite.workloads.gpt2 import GPT2Config, generation
from perfsuite.workloads.gpt2.generation import generate, generate_stepwise, generate_uncached

TINY = GPT2Config.tiny()
LENGTHS = (7, 3, 1)
COUNT = 6
CACHED = pytest.mark.parametrize("cached", [generate, generate_stepwise])


@pytest.fixture(scope="module")
def params():
    return randomised(TINY)


@pytest.fixture(scope="module")
def greedy(params):
    ids, lengths = prompts(TINY, LENGTHS)
    tokens = [numpy_greedy(params, TINY, row[:n], COUNT) for row, n in zip(ids, lengths, strict=True)]
    assert all(len(set(row)) > 2 for row in tokens)  # so that a wrong token would show
    return np.array(tokens)


@pytest.mark.parametrize("how", [generate, generate_stepwise, generate_uncached])
def test_greedy_tokens_are_those_of_the_paper_computed_in_numpy(params, greedy, how):
    assert np.array_equal(how(params, TINY, *prompts(TINY, LENGTHS), COUNT), greedy)


@CACHED
def test_rows_that_reached_the_stop_token_stay_there_and_others_go_on(params, greedy, cached):
    stop = int(greedy[0, 2])
    expected = greedy.copy()
    for row in expected:
        if stop in row:
            row[row.tolist().index(stop) :] = stop
    assert not np.all(expected[:, -1] == stop)
    tokens = cached(params, TINY, *prompts(TINY, LENGTHS), COUNT, stop_token=stop)
    assert np.array_equal(tokens, expected)


@CACHED
def test_generation_ends_early_when_all_rows_have_stopped(params, greedy, cached, monkeypatch):
    steps = []
    step = generation.gpt2.decode_step

    def watched(params, config, token, cache):
        jax.debug.callback(lambda token: steps.append(token), token)
        return step(params, config, token, cache)

    monkeypatch.setattr(generation.gpt2, "decode_step", watched)
    jax.clear_caches()
    ids, lengths = prompts(TINY, LENGTHS)
    count, stop = 30, int(greedy[0, 2])
    tokens = cached(params, TINY, ids[:1], lengths[:1], count, stop_token=stop)
    jax.effects_barrier()
    jax.clear_caches()
    first = greedy[0].tolist().index(stop)
    assert tokens.shape == (1, count)
    assert np.all(tokens[0, first:] == stop)
    assert len(steps) == first


def test_a_step_writes_its_cache_in_place(params, monkeypatch):
    caches, step = [], generation.next_token
    monkeypatch.setattr(
        generation, "next_token", lambda params, token, cache, *rest, **static: (
            caches.append(cache), step(params, token, cache, *rest, **static)
        )[1]
    )  # fmt: skip
    generate_stepwise(params, TINY, *prompts(TINY, (3,)), 3)
    assert all(leaf.is_deleted() for cache in caches for leaf in jax.tree.leaves(cache))
    assert len(caches) == 2


def test_sampling_is_the_same_in_one_program_and_step_by_step(params, greedy):
    arguments = *prompts(TINY, LENGTHS), COUNT
    how = {"temperature": 3.0, "top_k": 5, "key": jax.random.key(3)}
    tokens = generate(params, TINY, *arguments, **how)
    assert np.array_equal(tokens, generate_stepwise(params, TINY, *arguments, **how))
    assert not np.array_equal(tokens, greedy)


def test_sampled_tokens_follow_the_softmax_of_the_likeliest(params):
    from support.gpt2_numpy import numpy_logits

    ids = np.tile(prompts(TINY, (4,))[0], (2000, 1))
    tokens = generate(params, TINY, ids, np.full(2000, 4), 1, temperature=2.0, top_k=3, key=jax.random.key(0))
    scores = numpy_logits(params, TINY, ids[0])[-1] / 2.0
    likeliest = np.argsort(scores)[-3:]
    odds = np.exp(scores[likeliest] - scores.max())
    seen = np.bincount(np.asarray(tokens)[:, 0], minlength=TINY.vocab_size)
    assert seen[likeliest].sum() == 2000
    assert np.abs(seen[likeliest] / 2000 - odds / odds.sum()).max() < 0.05  # 4.5 standard deviations


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": [0, 3]}, r"lengths must be in 1..5, .* row 0 has 0"),
        ({"lengths": [5]}, "lengths must be 2 integers"),
        ({"ids": np.full((2, 5), 97)}, r"ids must be from 0 to 96, got 97"),
        (
            {"ids": np.zeros((2, 65), int), "lengths": [65, 1]},
            "prompt of 65 tokens, but GPT2Config.max_positions is 64",
        ),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ({"cache_length": 8}, r"prompt of 5 tokens and max_new_tokens \(4\) exceed cache_length \(8\)"),
        ({"temperature": 1.0}, "temperature 1.0 needs a key"),
        ({"buckets": (0, 8)}, r"buckets must be at least 1, got \(0, 8\)"),
    ],
)
@CACHED
def test_arguments_that_do_not_fit_are_errors_with_the_numbers(params, cached, changes, message):
    arguments = {"ids": np.ones((2, 5), int), "lengths": [5, 3], "max_new_tokens": 4, **changes}
    with pytest.raises(ValueError, match=message):
        cached(params, TINY, **arguments)


@pytest.mark.parametrize("length", [5, 32])
def test_step_by_step_another_prompt_or_number_of_tokens_compiles_nothing(params, compile_counter, length):
    assert isinstance(generate_stepwise(params, TINY, *prompts(TINY, (3,)), COUNT), jax.Array)
    with compile_counter.forbid():
        tokens = generate_stepwise(params, TINY, *prompts(TINY, (length,)), COUNT - 2)
    assert tokens.shape == (1, COUNT - 2)
