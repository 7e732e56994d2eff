"""Model surgery and start-up over a mesh. docs/workloads/surgery.md has the measurements.

The lab note behind it made one `equinox.tree_at` for each of 24 replacements, 68 us a leaf each, and was 7.6 times
faster with one for all. Building new nodes on the paths, and nothing else, is faster than both.
"""

import statistics
from functools import partial

import equinox as eqx
import jax
import numpy as np
import pytest

from perfsuite import Budget, call
from perfsuite.measure.program.program_diff import program_differences
from perfsuite.measure.timing.scaling import line_fit
from perfsuite.workloads.surgery import (
    apply_transforms,
    apply_transforms_batched,
    apply_transforms_one_by_one,
    bert_tensor_parallel_plan,
)
from perfsuite.workloads.surgery.replacing import replace_at_once, replace_on_paths, replace_one_by_one
from perfsuite.workloads.surgery.transforms import find_replacements

from .abstract_steps import TARGET, flat_step, shapes, zeros
from .conftest import DROPOUT, UNLIKE
from .surgery_work import (
    KEY,
    LADDER,
    Clock,
    bert,
    first_run,
    mesh_of_all_devices,
    rung,
    shard_bytes,
    start_by_hand,
    start_up,
)

pytestmark = pytest.mark.perf(tolerance=UNLIKE)

APPLY = {
    "one by one": apply_transforms_one_by_one,
    "batched": apply_transforms_batched,
    "paths": apply_transforms,
}
REPLACE = {"one by one": replace_one_by_one, "batched": replace_at_once, "paths": replace_on_paths}
SIZES = [2, 4, 8, 16, 32, 48]


@pytest.fixture
def surgery(perf_size):
    """`surgery(layers)`: a BERT of so many layers, and what the plan puts where, checked to give one tree in all ways."""

    def make(layers):
        config = bert(layers, perf_size)
        model, plan = zeros(config), bert_tensor_parallel_plan(config)
        replacements = find_replacements(model, plan, strict=True)
        assert len(replacements) == 6 * layers
        return model, plan, replacements

    return make


def assert_same_tree(first, *others):
    for other in others:
        assert jax.tree.structure(other) == jax.tree.structure(first)
        assert all(mine is theirs for mine, theirs in zip(*map(jax.tree.leaves, (other, first)), strict=True))


def replacing(replace, model, replacements):
    # Paths are no arguments: a dict of JAX's keys cannot be sorted, so it is no pytree.
    return call(partial(replace, replacements=replacements), model)


def flatten_and_unflatten(tree):
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, leaves)


def test_one_tree_at_for_all_replacements(perf, surgery):
    """The lab note's metric."""
    model, _, replacements = surgery(4)
    assert_same_tree(*(replace(model, replacements) for replace in REPLACE.values()))
    calls = replacing(replace_at_once, model, replacements), replacing(replace_one_by_one, model, replacements)
    perf.compare(*calls, Budget(ratio=1 / 7.6), until="return", name="batched/one by one")


@pytest.mark.first
@pytest.mark.parametrize(("layers", "least"), [(4, 250), (12, 700)])
def test_building_the_nodes_on_the_paths(perf, surgery, layers, least):
    model, _, replacements = surgery(layers)
    assert_same_tree(*(replace(model, replacements) for replace in REPLACE.values()))
    calls = replacing(replace_on_paths, model, replacements), replacing(replace_one_by_one, model, replacements)
    perf.compare(*calls, Budget(ratio=1 / least), until="return", name="paths/one by one")


@pytest.mark.parametrize("layers", [4, 12])
def test_building_the_nodes_on_the_paths_against_building_all(perf, surgery, layers):
    model, _, replacements = surgery(layers)
    calls = replacing(replace_on_paths, model, replacements), call(flatten_and_unflatten, model)
    perf.compare(*calls, Budget(ratio=0.7), until="return", name="paths/flatten and unflatten")


@pytest.mark.parametrize(("layers", "how"), [(4, "batched"), (4, "paths"), (12, "paths")])
def test_whole_surgery(perf, surgery, layers, how):
    """With what all have in common: finding the sub-modules, matching, transforming, checking."""
    model, plan, _ = surgery(layers)
    calls = call(APPLY[how], model, plan), call(apply_transforms_one_by_one, model, plan)
    perf.compare(*calls, Budget(ratio=1), until="return", name=f"{how}/one by one")


# Not of twelve layers one by one: that is the reference, and 1.8 million calls to count, three times over.
@pytest.mark.parametrize(("how", "layers"), [(how, 4) for how in APPLY] + [("batched", 12), ("paths", 12)])
def test_host_calls_of_a_surgery(perf, surgery, how, layers):
    model, plan, _ = surgery(layers)
    perf.host_calls(call(APPLY[how], model, plan), name=how)


@pytest.fixture
def one_replacement(surgery):
    """Makes the call that replaces one sub-module of a model with so many layers, and counts the model's leaves."""

    def maker(replace):
        def make_call(layers):
            model, _, replacements = surgery(layers)
            path, new = next(iter(replacements.items()))
            return replacing(replace, model, {path: new}), len(jax.tree.leaves(model))

        return make_call

    return maker


# A slope of about 0 is never known to 1 % of itself, so all the time is always taken. After 2 s it is far below 0.2.
@pytest.mark.perf(seconds=2)
def test_one_replacement_costs_the_same_in_a_model_of_any_size(perf, one_replacement):
    make_call = one_replacement(replace_on_paths)
    perf.scaling(make_call, SIZES, budget=Budget(us_per_leaf=0.2), name="paths", tolerance=2.0)
    assert perf.scaling(make_call, SIZES, metric="host_calls", name="paths").per_unit.value == 0


def test_one_tree_at_costs_in_proportion_to_the_model(perf, one_replacement):
    make_call = one_replacement(replace_one_by_one)
    perf.scaling(make_call, SIZES, name="tree_at", tolerance=2.0)
    assert perf.scaling(make_call, SIZES, metric="host_calls", name="tree_at").r_squared >= 0.9999


def test_first_run_over_the_ladder(perf):
    """Trace, lower, compile and run, for each of the lab note's six models: "near-linear", 90 ms a transform on a TPU v4.

    The times are for people; the small size has three of the six. `test_first_calls.py` gates what they come from.
    """
    configs = [rung(layers, perf.size) for layers in (LADDER if perf.size == "full" else [*LADDER][:3])]
    first_runs = [first_run(config)[1] for config in configs]
    transforms = [6 * config.num_layers for config in configs]
    for config, seconds in zip(configs, first_runs, strict=True):
        perf.record(f"{config.num_layers} layers first run", seconds, unit="s", kind="info")
    slope, _, r_squared = line_fit(np.asarray(transforms, float), np.asarray(first_runs))
    perf.record("first run per transform", 1e3 * slope, unit="ms", kind="info")
    perf.record("first run R^2", r_squared, unit="1", kind="info", better="higher")


def lowered(config, apply):
    """The text of a start-up, and the milliseconds that its transforms took of tracing it."""
    clock = Clock()

    def timed(module, plan, **options):
        return clock("apply", partial(apply, **options), module, plan)

    return start_up(config, timed).lower(KEY).as_text(), clock.ms["apply"][0]


@pytest.mark.parametrize("layers", LADDER)
def test_program_of_a_start_up_is_the_same_however_transformed(perf, layers):
    """Only the time to trace differs. It is recorded for people; `test_whole_surgery` compares the same work in pairs."""
    config = rung(layers, perf.size)
    texts = {}
    for how, apply in APPLY.items():
        texts[how], ms = lowered(config, apply)
        perf.record(f"{how} while tracing", ms, unit="ms", kind="info")
    assert texts["paths"] == texts["batched"] == texts["one by one"]


def test_compiled_start_up(perf):
    config = bert(2, perf.size)
    batched, one_by_one = (
        perf.program(call(start_up(config, APPLY[how]), KEY), name=how) for how in ("batched", "one by one")
    )
    assert program_differences(batched, one_by_one) == ""


@pytest.mark.parametrize("target", [None, TARGET])
def test_no_device_needs_more_than_its_part_of_the_model(perf, target):
    """BERT-base as it is, and a third of its layers at the small size: it is compiled and not run."""
    config = bert(12 if perf.size == "full" else 4, "full")
    program = perf.program(call(start_up(config), KEY), target, name="start-up")
    held = shard_bytes(config)
    perf.record("bytes a device", held, unit="bytes", kind="size", target=target)
    assert program.peak_bytes <= 1.1 * held
    assert not program.collectives


def test_start_up_of_bert_base(perf):
    """The lab note's table: the phases one after the other, and all in one program, where they cost time while tracing.

    The small size keeps a third of the layers.
    """
    config = bert(12 if perf.size == "full" else 4, perf.size)
    eager, tracing = Clock(), Clock()
    for _ in range(3):
        by_hand = start_by_hand(config, eager)
    for phase, (_, *later) in eager.ms.items():  # the first time compiles
        perf.record(f"eager {phase}", statistics.median(later), unit="ms", kind="info")
    perf.record("eager total", sum(statistics.median(later) for _, *later in eager.ms.values()), unit="ms", kind="info")

    jax.jit(lambda: eqx.filter(start_by_hand(config, tracing), eqx.is_array)).lower()
    for phase, (once,) in tracing.ms.items():
        perf.record(f"tracing {phase}", once, unit="ms", kind="info")

    jitted, seconds = first_run(config)
    perf.record("jitted first run", 1e3 * seconds, unit="ms", kind="info")
    compiled = jitted(KEY)
    assert jax.tree.structure(compiled) == jax.tree.structure(by_hand)
    for mine, theirs in zip(*map(jax.tree.leaves, (compiled, by_hand)), strict=True):
        # A compiler may fuse the product with the standard deviation into the approximation before it.
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-7)
    calls = call(jitted, KEY), call(start_by_hand, config, Clock())
    del by_hand, compiled  # each is 4 GB at full size
    total = perf.compare(*calls, name="jitted/eager")
    perf.record("jitted later run", total.candidate_median_us / 1e3, unit="ms", kind="info")


@pytest.mark.parametrize("target", [None, TARGET])
def test_collectives_of_a_sharded_step(perf, target):
    """On the mesh of this machine and on as many chips: the sums of Megatron-LM, and of the gradients over the batch."""
    mesh = mesh_of_all_devices()
    made = shapes(perf.size, **DROPOUT["no-dropout"])
    program = perf.program(flat_step(made, (mesh.shape["data"], mesh.shape["model"])), target, name="sharded step")
    assert program.partitions == jax.device_count()
    assert {each.what for each in program.collectives} <= {"all-reduce"}
    assert not program.resharding
    assert not program.lost_donations
