"""`program_of_all`: the facts of all programs that a call runs."""

import functools
from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from support.libtpu_needed import needs_libtpu
from support.program_calls import PROGRAMS, X

from perfsuite import call
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.program.compilation import compile_call
from perfsuite.measure.program.program_metrics import metrics_of
from perfsuite.measure.runtime.dispatches import dispatches
from perfsuite.measure.runtime.programs import program_of_all

NOT_LOWERED = ("ahead of time", "ahead of time with effects", "effects", "ordered effects")


@pytest.mark.parametrize("kind", [each for each in PROGRAMS if each not in (*NOT_LOWERED, "nothing", "device_put")])
def test_the_facts_of_a_call_are_those_of_every_program_that_it_runs(kind):
    make_call, *_ = PROGRAMS[kind]
    names = Counter(run.program for run in dispatches(make_call()).runs)
    if not names:
        pytest.skip("it runs no program")
    program = program_of_all(make_call())
    assert len(program.programs) == names.total()
    assert program.flops == sum(each.flops for each in program.programs)
    assert Counter(each.label for each in program.programs) == names


class Trainer:
    def __init__(self):
        self.weights = jnp.ones((8, 8))

    def epoch(self, batches, evaluations):
        """Donates its weights in each step, and adds up the losses outside jit."""
        total = 0.0
        for batch in batches:
            self.weights, loss = train(self.weights, batch)
            total += loss
        return [evaluate(self.weights, batch) for batch in batches[:evaluations]], total


@functools.partial(jax.jit, donate_argnums=0)
def train(weights, batch):
    return weights - 0.1 * (batch.T @ batch @ weights), jnp.mean(batch)


@jax.jit
def evaluate(weights, batch):
    return jnp.sum((batch @ weights) ** 2)


BATCHES = [jnp.ones((64, 8))] * 3


@pytest.mark.parametrize("target", [None, pytest.param("tpu-v5e", marks=needs_libtpu)])
def test_the_program_of_an_epoch_is_the_sum_of_its_programs_and_the_largest_of_their_peaks(target):
    program = program_of_all(call(Trainer().epoch, BATCHES, 2), target)
    calls = [
        call(train, jnp.ones((8, 8)), BATCHES[0]),
        call(evaluate, jnp.ones((8, 8)), BATCHES[0]),
        call(jax.jit(jnp.add), 0.0, X[0]),
    ]
    trained, evaluated, added = (compile_call(each, target).program() for each in calls)
    assert program.flops == 3 * trained.flops + 2 * evaluated.flops + 3 * added.flops
    assert len(program.fusions) == 3 * len(trained.fusions) + 2 * len(evaluated.fusions) + 3 * len(added.fusions)
    assert len(program.products) == 3 * len(trained.products) + 2 * len(evaluated.products) > 0
    assert len(program.reused_donations) == 3 * len(trained.reused_donations) == 3
    assert program.peak_bytes == max(trained.peak_bytes, evaluated.peak_bytes)
    assert program.target == target
    flops = next(metric for metric in metrics_of(program) if metric.name == "epoch flops")
    assert flops.detail == {"train": 3 * trained.flops, "evaluate": 2 * evaluated.flops, "add": 3 * added.flops}


@pytest.mark.parametrize("kind", NOT_LOWERED)
def test_a_program_that_cannot_be_lowered_again_is_refused_and_named(kind):
    made, by_program, _ = PROGRAMS[kind]
    (name,) = by_program
    looped = made()
    with pytest.raises(
        MeasurementError, match=rf"runs {name} at .*test_programs.py:\d+, which cannot be lowered again"
    ):
        program_of_all(call(lambda *args: looped.fn(*args), *looped.args), "tpu-v5e")


def test_a_call_that_runs_no_program_is_refused():
    with pytest.raises(MeasurementError, match="the call runs no program; jit its function"):
        program_of_all(call(lambda: 1))
