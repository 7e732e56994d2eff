"""A user's project in which a transfer, a callback, a leak and a forgotten donation were planted, as pytest shows it."""

import pytest

STEPS = """
import jax
import jax.numpy as jnp
import numpy as np
from perfsuite import Budget, call

losses = []

@jax.jit
def update(state, batch):
    return jax.tree.map(lambda leaf: leaf + batch.sum(), state), batch.mean()

donated = jax.jit(update, donate_argnums=0)

@jax.jit
def shouting(state, batch):
    jax.debug.print("loss {}", batch.mean())
    return update(state, batch)

def reading(state, batch):
    state, loss = update(state, batch)
    if float(loss) > 1e9:
        raise ValueError
    return state, loss

def hoarding(state, batch):
    state, loss = update(state, batch)
    losses.append(loss)
    return state, loss

def state():
    return {"kernel": jnp.zeros((4, 4))}

BATCH = jnp.ones(4)
HOST = np.ones(4, np.float32)
"""

TESTS = """
from steps import *

def test_quiet(perf):
    quiet = call(donated, state(), BATCH, carry=1)
    assert perf.transfers(quiet, budget=Budget(transfers=0, blocking_reads=0)).total == 0
    perf.memory(quiet, steps=9, budget=Budget(leaked_arrays=0, leaked_bytes=0, cyclic_bytes=0, programs=0))
    perf.donation(quiet, budget=Budget(undonated=0))
    with perf.no_transfers(), perf.count_transfers() as counted:
        quiet.run()
    assert counted.events == ()

def test_host_batch(perf):
    perf.transfers(call(update, state(), HOST, carry=1), budget=Budget(transfers=0))

def test_read_loss(perf):
    perf.transfers(call(reading, state(), BATCH, carry=1), budget=Budget(transfers=0))

def test_reads_one_by_one(perf):
    one_by_one = call(lambda x: [jax.device_get(leaf) for leaf in update(x, BATCH)], state()["kernel"])
    perf.transfers(one_by_one, budget=Budget(transfers=0, blocking_reads=1))

def test_callback(perf):
    perf.transfers(call(shouting, state(), BATCH, carry=1), budget=Budget(transfers=0))

def test_forbidden(perf):
    made = state()
    with perf.no_transfers():
        reading(made, BATCH)

def test_leak(perf):
    perf.memory(call(hoarding, state(), BATCH, carry=1), steps=9, budget=Budget(leaked_arrays=0))

def test_in_cycles(perf):
    def step(state):
        cycle = [donated(state, BATCH)]
        cycle.append(cycle)
        return cycle[0][0]

    perf.memory(call(step, state(), carry=1), steps=9, budget=Budget(leaked_arrays=0, cyclic_bytes=0))

def test_compiles(perf):
    sizes = iter(range(5, 100))
    step = call(lambda: update({}, np.ones(next(sizes), np.float32)))
    perf.memory(step, steps=9, budget=Budget(leaked_arrays=0, programs=0))

def test_not_donated(perf):
    perf.donation(call(update, state(), BATCH, carry=1), budget=Budget(undonated=0))
"""

BASELINES = """
from steps import *

BEFORE = True

def test_transfers(perf):
    perf.transfers(call(update if BEFORE else reading, state(), BATCH, carry=1), name="step")

def test_memory(perf):
    perf.memory(call(update if BEFORE else hoarding, state(), BATCH, carry=1), steps=9, name="step")

def test_donation(perf):
    perf.donation(call(donated if BEFORE else update, state(), BATCH, carry=1), name="step")
"""


@pytest.fixture
def planted(project: pytest.Pytester) -> pytest.Pytester:
    project.makepyfile(steps=STEPS)
    return project


def test_each_plant_turns_its_test_red_and_is_named_and_the_quiet_step_is_green(planted):
    planted.makepyfile(test_steps=TESTS)
    result = planted.runpytest_inprocess("--perf")
    result.assert_outcomes(passed=1, failed=9)
    result.stdout.fnmatch_lines_random(
        [
            "*update transfers and callbacks is 1 transfer, over the budget of 0 transfers*",
            "*likely cause: host to device transfer of float32[[]4[]] at *: `update` was called with a NumPy array at "
            "args[[]1[]]: put it on the device before the step, with jax.device_put*",
            "*likely cause: device to host transfer of float32[[][]] at steps.py:21: float(x): the host waits for it*",
            "*lambda blocking reads is 2 reads, +100 % over the budget of 1 read*",
            "*likely cause: waits for float32[[]4,4[]] at test_steps.py:*: jax.device_get",
            "*fetch all at once: one jax.device_get of a tuple waits once",
            "*likely cause: callback of jax.debug.print or jax.debug.callback: the program calls Python in each run*",
            "*TransferError: device to host transfer of float32[[][]] at steps.py:21: float(x): the host waits for it*",
            "*hoarding leaked arrays is 1 array a step, over the budget of 0 arrays a step*",
            "*likely cause: float32[[][]]: 1 more a step (4 bytes each), made at steps.py:*, held by a list of length *, "
            "module global `*.losses`*",
            "*step cyclic bytes is 4 bytes a step, over the budget of 0 bytes a step*",
            "*float32[[][]]: 4 bytes a step wait in a cycle for Python's collector, made at test_steps.py:*, held by a *",
            "*lambda programs is 1 program a step, over the budget of 0 programs a step*",
            "*likely cause: update at test_steps.py:* is compiled in each step, and JAX keeps the program: pad what *",
            "*update undonated arrays is 1 array, over the budget of 0 arrays*",
            "*likely cause: args[[]0[]][[]'kernel'[]] float32[[]4,4[]] (64 bytes): not donated; jit the step with "
            "donate_argnums for argument 0*",
        ]
    )


def test_each_plant_fails_against_the_baselines_of_the_step_before(planted):
    planted.makepyfile(test_steps=BASELINES)
    planted.runpytest_inprocess("--perf-save").assert_outcomes(passed=3)
    planted.runpytest_inprocess("--perf").assert_outcomes(passed=3)
    planted.makepyfile(test_steps=BASELINES.replace("BEFORE = True", "BEFORE = False"))
    result = planted.runpytest_inprocess("--perf")
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines_random(
        [
            "*step device to host transfers is 1 transfer, +1 over the baseline 0 transfers; grew: float32[[][]]: float(x) "
            "(+1) at steps.py:21*",
            "*step leaked arrays is 1 array a step, +1 over the baseline 0 arrays a step*",
            "*likely cause: float32[[][]]: 1 more a step*module global `*.losses`*",
            "*step undonated arrays is 1 array, +1 over the baseline 0 arrays*",
            "also worse: step undonated bytes 0 -> 64 bytes (args[[]0]*",
        ]
    )
