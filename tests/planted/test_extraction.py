"""The suite's gates of activation extraction: red with a regression planted from outside.

That they are green without one is what `pytest --perf tests/perf` shows.
All regressions are planted in one process, each for the one test that is to see it.
"""

import re

import pytest
from support.own_baselines import judged_here

SUITE = "tests/perf/test_activation_extraction.py::"
COMPILES = SUITE + "test_a_ragged_stream_compiles_each_length_once_and_never_again"
HOST_CALLS = SUITE + "test_host_calls_of_a_batch"
MEMORY = SUITE + "test_memory_of_a_long_extraction_is_flat"
PROGRAM = SUITE + "test_program_has_the_layers_that_are_needed_and_no_head[11-None]"
SMALLER_PROGRAM = SUITE + "test_program_has_the_layers_that_are_needed_and_no_head[5-None]"
CAUGHT = {
    COMPILES: (
        "own_longest",
        r"RecompilationError: `extract_activations` was traced again at .*\n.*args\[1\]: shape was \(4, 32\), is \(4, \d+\)",
    ),
    HOST_CALLS: (
        "not_jitted",
        r"RecompilationError: `<lambda>` was traced again at perfsuite/workloads/qwen2/__init__.py",
    ),
    MEMORY: ("kept", r"AssertionError: \d\d\.\d batches more are in memory"),
    PROGRAM: ("head", r"assert products == pytest.approx"),
    SMALLER_PROGRAM: (
        "donated",
        r"assert not program.lost_donations\n.* assert not \(DonatedArgument\(path=\"args\[0\]\['params'\]",
    ),
}
"""What is planted for each test, and what it says."""

PLANTS = """
import dataclasses
import jax
import jax.numpy as jnp
import pytest
from perfsuite.workloads.extraction import activation_store
from perfsuite.workloads import extraction

def own_longest(module, patch):
    def batches(texts, batch_size, *, length, pad_id):
        made = extraction.fixed_size_batches(texts, batch_size, length=length, pad_id=pad_id)
        for batch in made:
            longest = batch.lengths.max()
            yield dataclasses.replace(batch, ids=batch.ids[:, :longest], mask=batch.mask[:, :longest])
    patch.setattr(module, "fixed_size_batches", batches)

def not_jitted(module, patch):
    def make(model, layers):
        def step(params, ids, mask):
            return jnp.stack(model.apply(params, ids, mask, layers=layers, method="hidden_states"), axis=1)
        return extraction.Extractor(model, layers, step)
    patch.setattr(module, "make_extractor", make)

def kept(module, patch):
    results = []
    write = activation_store.ActivationStore.write
    def keep(store, done):
        results.append(done)
        write(store, done)
    patch.setattr(activation_store.ActivationStore, "write", keep)

def head(module, patch):
    def make(model, layers):
        @jax.jit
        def step(params, ids, mask):
            logits, activations = model.apply(params, ids, mask, layers=layers)
            return jnp.stack(activations, axis=1), logits
        return extraction.Extractor(model, layers, step)
    patch.setattr(module, "make_extractor", make)

def donated(module, patch):
    def make(model, layers):
        made = extraction.make_extractor(model, layers)
        return dataclasses.replace(made, step=jax.jit(made.step, donate_argnums=0))
    patch.setattr(module, "make_extractor", make)

@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    with pytest.MonkeyPatch.context() as patch:
        globals()[PLANTED[item.nodeid]](item.module, patch)
        return (yield)
"""


def test_planted_regressions_turn_the_suite_red(run_suite):
    planted = {test: plant for test, (plant, _) in CAUGHT.items()}
    judged = judged_here(CAUGHT)
    status, output = run_suite(*judged, plugin=f"PLANTED = {planted!r}\n{PLANTS}")
    assert status == pytest.ExitCode.TESTS_FAILED, output
    for test in judged:
        assert f"FAILED {test}" in output
        name = test.rpartition("::")[2]
        section = output.partition(f"_ {name} _")[2].partition("\n____")[0]
        assert re.search(CAUGHT[test][1], section), output
