"""The suite's gates of model surgery and start-up: red with a regression planted from outside.

That they are green without one is what `pytest --perf tests/perf` shows.
"""

import re

import jax
import pytest
from support.own_baselines import judged_here

pytestmark = pytest.mark.skipif(jax.device_count() < 8, reason="the baselines are of eight devices")

SUITE = "tests/perf/test_model_surgery.py::"
HOST_CALLS = SUITE + "test_host_calls_of_a_surgery[paths-4]"
AGAINST_ONE_BY_ONE = SUITE + "test_building_the_nodes_on_the_paths[4-250]"
ONE_REPLACEMENT = SUITE + "test_one_replacement_costs_the_same_in_a_model_of_any_size"
SAME_PROGRAM = SUITE + "test_program_of_a_start_up_is_the_same_however_transformed[4]"
MEMORY = SUITE + "test_no_device_needs_more_than_its_part_of_the_model[None]"
COLLECTIVES = SUITE + "test_collectives_of_a_sharded_step[None]"

WHOLE_TREE = """
from perfsuite.workloads.surgery import replacing, transforms
monkeypatch.setattr(transforms, "replace_on_paths", replacing.replace_at_once)
monkeypatch.setattr(module, "replace_on_paths", replacing.replace_at_once)
"""
"""What is built is the whole tree again."""

ANOTHER_PROGRAM = """
import jax
from perfsuite.workloads.surgery import transforms
original = transforms.replace_on_paths
changed = lambda *args: jax.tree.map(lambda leaf: leaf + 1, original(*args))
monkeypatch.setattr(transforms, "replace_on_paths", changed)
"""

OPTIMIZER_ON_ALL_DEVICES = """
from perfsuite.workloads.surgery import start_up
original = start_up.shard
whole = lambda tree, at: tree if isinstance(tree, start_up.Optimizer) else original(tree, at)
monkeypatch.setattr(start_up, "shard", whole)
"""

WRONG_SPLIT = """
from perfsuite.workloads.surgery import tensor_parallel
monkeypatch.setattr(tensor_parallel, "row_parallel", tensor_parallel.column_parallel)
"""
"""The end of a residual branch split by output features: every device needs the others' features."""

PLANTED = {
    HOST_CALLS: (WHOLE_TREE, r"paths host calls is [\d,]+ calls, \S+ \(\S+ %\) over the baseline [\d,]+ calls"),
    AGAINST_ONE_BY_ONE: (WHOLE_TREE, r"paths/one by one ratio to return is .* x \[.*\]"),
    ONE_REPLACEMENT: (WHOLE_TREE, r"paths to return per unit is .* us/unit"),
    SAME_PROGRAM: (ANOTHER_PROGRAM, r'assert texts\["paths"\] == texts\["batched"\]'),
    MEMORY: (OPTIMIZER_ON_ALL_DEVICES, r"assert program.peak_bytes <= 1.1 \* held"),
    COLLECTIVES: (WRONG_SPLIT, r'assert {each.what for each in program.collectives} <= {"all-reduce"}'),
}
"""What is planted for each test, and what it says."""

PLUGIN = """
import pytest

PLANTS = {plants!r}

@pytest.fixture(autouse=True)
def plant(request, monkeypatch):
    exec(PLANTS[request.node.nodeid], {{"monkeypatch": monkeypatch, "module": request.module}})
"""
"""All in one process, each planted for the length of its test."""


def test_planted_regressions_turn_the_suite_red(run_suite):
    plants = {test: plant for test, (plant, _) in PLANTED.items()}
    judged = judged_here(PLANTED)
    status, output = run_suite(*judged, plugin=PLUGIN.format(plants=plants))
    assert status == pytest.ExitCode.TESTS_FAILED, output
    for test in judged:
        assert f"FAILED {test}" in output
        assert re.search(PLANTED[test][1], output), output
