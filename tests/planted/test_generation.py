"""The suite's gates of GPT-2's generation: red with a regression planted from outside.

That they are green without one is what `pytest --perf tests/perf` shows.
"""

import re

import pytest

SUITE = "tests/perf/test_gpt2_generation.py::"
COMPILES = SUITE + "test_compilations_over_generations_of_any_prompt_in_the_bucket[greedy-{}]"
STEPWISE, ONE_PROGRAM = COMPILES.format("generate_stepwise"), COMPILES.format("generate")
PROGRAM = SUITE + "test_program_of_a_token[None]"

GROWING = """
import dataclasses
import jax
import jax.numpy as jnp
from perfsuite.workloads.gpt2 import generation
from perfsuite.workloads import gpt2

generation.next_token = jax.jit(generation.next_token.__wrapped__, static_argnames=("config", "top_k"))
original = gpt2.update_cache

def longer(arrays, layer):
    more = jnp.zeros_like(arrays[layer][:, :1])
    return (*arrays[:layer], jnp.concatenate([arrays[layer], more], axis=1), *arrays[layer + 1:])

def update_cache(cache, layer, keys, values):
    grown = dataclasses.replace(cache, keys=longer(cache.keys, layer), values=longer(cache.values, layer))
    return original(grown, layer, keys, values)

gpt2.update_cache = update_cache
"""
"""The tokens stay right, and every step's cache is a slot longer."""

OWN_LENGTHS = """
from perfsuite.workloads.gpt2 import generation
for how in generation.generate, generation.generate_stepwise:
    how.__kwdefaults__["buckets"] = range(1, 1025)
"""
"""Prompts are padded to the longest, not to its bucket."""

WHOLE_PREFIX = """
import jax.numpy as jnp
from perfsuite.workloads import gpt2
original = gpt2.decode_step

def decode_step(params, config, token, cache):
    scores, cache = original(params, config, token, cache)
    prefix = jnp.zeros((len(token), cache.slots), jnp.int32)
    return scores + 0 * gpt2.logits(params, config, prefix)[:, -1], cache

gpt2.decode_step = decode_step
"""
"""Every step reads as many tokens as the cache has slots."""


@pytest.mark.parametrize(
    ("plugin", "caught"),
    [
        (
            GROWING,
            {
                STEPWISE: r"{'next_token': 5} != {'next_token': 1}",
                PROGRAM: r"AssertionError: the cache must be donated",
            },
        ),
        (
            OWN_LENGTHS + WHOLE_PREFIX,
            {
                ONE_PROGRAM: r"RecompilationError: `_generate` was traced again(.|\n)*shape was \(1, 1\), is \(1, 2\)",
                PROGRAM: r"AssertionError: a token must not be paid for by reading those before it again",
            },
        ),
    ],
    ids=["a cache that grows and is not donated", "prompts of their own lengths, and the whole prefix again"],
)
def test_a_planted_regression_turns_the_suite_red(run_suite, plugin, caught):
    status, output = run_suite(*caught, plugin=plugin)
    assert status == pytest.ExitCode.TESTS_FAILED, output
    for test, message in caught.items():
        assert f"FAILED {test}" in output
        assert re.search(message, output), output
