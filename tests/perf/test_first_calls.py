"""What the first calls of the workloads take, in counts: the seconds of a compile differ from run to run.

Nothing here runs, but for GPT-2's generation. The lab note behind `surgery_work.LADDER` timed the compiles of six models.
"""

import jax
import jax.numpy as jnp
import pytest

from perfsuite import Budget, call
from perfsuite.workloads.extraction import make_extractor
from perfsuite.workloads.gpt2.generation import generate
from perfsuite.workloads.qwen2 import Qwen2
from perfsuite.workloads.surgery import apply_transforms, apply_transforms_one_by_one

from .abstract_steps import flat_step, shapes
from .conftest import DROPOUT
from .extraction_work import work
from .gpt2_work import model_of
from .surgery_work import KEY, LADDER, bert, rung, start_up

LINEAR = Budget(exponent=1.02)


@pytest.mark.parametrize("dropout", DROPOUT)
def test_a_bert_step(perf, dropout):
    perf.first_call(flat_step(shapes(perf.size, **DROPOUT[dropout])), compiles=False, name="step")


def test_a_bert_step_is_linear_in_its_layers(perf):
    def make_call(layers):
        return flat_step(shapes(perf.size, num_layers=layers, **DROPOUT["no-dropout"])), layers

    perf.scaling(make_call, [1, 2, 3], metric="trace_calls", name="step", budget=LINEAR)


def test_start_ups_over_the_ladder_are_linear_in_the_transforms(perf):
    """The lab note's table of compile times: "near-linear". It is, in what is traced for the compiler.

    Of the six models the smallest, one in the middle and the largest: a count has no noise.
    """

    def make_call(layers):
        config = rung(layers, perf.size)
        return call(start_up(config), KEY), 6 * config.num_layers

    perf.scaling(make_call, [min(LADDER), 24, max(LADDER)], metric="equations", name="start-up", budget=LINEAR)


@pytest.mark.parametrize(
    ("how", "apply", "most"), [("paths", apply_transforms, 1.05), ("one by one", apply_transforms_one_by_one, 2)]
)
def test_tracing_a_start_up(perf, how, apply, most):
    """One `tree_at` for each replacement passes over the whole model each time: in a larger one it is the first cost."""

    def make_call(layers):
        return call(start_up(bert(layers, perf.size), apply), KEY), layers

    scaling = perf.scaling(make_call, [1, 2, 4], metric="trace_calls", name=how, budget=Budget(exponent=most))
    assert (scaling.exponent.value > 1.2) == (how == "one by one")


def test_a_generation_with_gpt2(perf):
    counted = perf.first_call(model_of(perf.size, num_layers=1).call(generate, 4), name="generate")
    assert counted.constant_bytes < 1000, "the parameters are arguments"


def test_an_extraction_with_qwen2(perf):
    made = work(perf.size, layers=(1, 3))
    model = Qwen2(made.config)
    params = jax.eval_shape(model.init, KEY, jax.ShapeDtypeStruct((1, 1), jnp.int32))
    ids = jax.ShapeDtypeStruct((made.batch_size, made.longest), jnp.int32)
    mask = jax.ShapeDtypeStruct(ids.shape, jnp.bool_)
    extractor = make_extractor(model, made.layers)
    perf.first_call(call(extractor.step, params, ids, mask), compiles=False, name="extractor")
