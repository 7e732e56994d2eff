"""The suite itself, as CI runs it, on the real BERT step: red with a regression planted in the step.

That it is green without one is what `pytest --perf tests/perf` shows.
All regressions are planted in one process, each for the one test that is to see it, from outside: by a plugin that
wraps what `make_flat_train_step` returns. Nothing in the repository knows of them.
"""

import re

import pytest
from support.own_baselines import judged_here

RATIO = "tests/perf/test_host_overhead.py::test_flat_step_over_the_floor"
HOST_CALLS = "tests/perf/test_host_overhead.py::test_host_calls_of_a_step[flat]"
COMPILES = "tests/perf/test_compiles.py::test_a_steps_own_outputs_do_not_compile_it_again[flat]"

EXTRA_PASS = """
        return step(jax.tree.map(lambda leaf: leaf, state), batch, key)
"""

# Beside other processes a ratio that is little over its baseline is open: at a load of 6 on two cores, up to 3 times it.
# Over a budget it fails: `tests/integration/test_gating.py`.
TEN_TIMES = """
        start = time.perf_counter()
        out = step(state, batch, key)
        took = time.perf_counter() - start
        seen.append(took)
        end = start + took + 9 * statistics.median(seen[-20:])
        while time.perf_counter() < end:
            pass
        return out
"""

RECOMPILATION = """
        if next(runs) >= 5:
            batch = jax.device_put(batch, jax.devices()[0])
        return step(state, batch, key)
"""


PLANTED = {
    HOST_CALLS: (
        EXTRA_PASS,
        r"flat host calls is [\d,]+ calls, \S+ \(\S+ %\) over the baseline \d+ calls; more calls of .*<lambda> \(\+6\d\d\)",
    ),
    RATIO: (TEN_TIMES, r"flat/list ratio to return is .* x \[.*\](.|\n)*cause unknown: .*host calls against"),
    COMPILES: (RECOMPILATION, r"RecompilationError: `train_step` was .*(.|\n)*args\[1\].*uncommitted.*committed"),
}
"""What is planted for each test, and what it says: a pytree pass, ten times the time, a recompilation."""

PLUGIN = """
import functools, itertools, statistics, time
import jax
import pytest
from perfsuite.workloads import training

original = training.make_flat_train_step
planted = None

def wrap(step):
    runs, seen, plants = itertools.count(), [], {{}}
{plants}
    @functools.wraps(step)
    def train_step(state, batch, key):
        return plants[planted](state, batch, key)
    return train_step

training.make_flat_train_step = lambda *args, **kwargs: wrap(original(*args, **kwargs))

@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    global planted
    planted = item.nodeid
    return (yield)
"""

PLANT = """
    def plant(state, batch, key):{body}
    plants[{test!r}] = plant
"""


def test_planted_regressions_turn_the_suite_red_and_are_named(run_suite):
    plants = "".join(PLANT.format(body=body, test=test) for test, (body, _) in PLANTED.items())
    judged = judged_here(PLANTED)
    status, output = run_suite(*judged, plugin=PLUGIN.format(plants=plants))
    assert status == pytest.ExitCode.TESTS_FAILED, output
    for test in judged:
        assert f"FAILED {test}" in output
        assert re.search(PLANTED[test][1], output), output
