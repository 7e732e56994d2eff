"""Functions that return before any of their code has run: every instrument refuses them, and none says that they are free."""

LOOPS = """
import asyncio
import jax
import jax.numpy as jnp
from perfsuite import call

step = jax.jit(lambda x: x + 1)
X = jnp.ones(3)

def batches(x):
    for _ in range(3):
        yield step(x)

async def serve(x):
    return step(x)

async def stream(x):
    yield step(x)

async def drain(x):
    return [each async for each in stream(x)]

REFUSED = call(batches, X)
"""

REFUSING = [
    "perf.host_calls(REFUSED)",
    "perf.dispatches(REFUSED)",
    "perf.fast_path(REFUSED)",
    "perf.transfers(REFUSED)",
    "perf.memory(REFUSED)",
    "perf.first_call(REFUSED)",
    "perf.time(REFUSED)",
    "perf.compare(REFUSED, call(step, X))",
    "perf.compare(call(step, X), REFUSED)",
    "perf.scaling(lambda size: (REFUSED, size), [1, 2, 4])",
    "perf.stays_async(REFUSED)",
    "perf.stalls(REFUSED)",
    "perf.trace(REFUSED)",
    "perf.warm(batches, over=[REFUSED])",
    "perf.warm(batches, over=[(X,)])",
    "perf.dispatches(call(serve, X))",
    "perf.dispatches(call(stream, X))",
]
INSTEAD = ["list(batches(*args))", "asyncio.run(serve(*args))", "asyncio.run(drain(*args))"]


def test_every_instrument_refuses_what_has_not_begun_and_measures_what_the_message_advises(project):
    lines = [*REFUSING, *(f"assert perf.dispatches(call(lambda *args: {each}, X)).total in (1, 3)" for each in INSTEAD)]
    tests = [f"def test_{number}(perf):\n    {line}\n" for number, line in enumerate(lines)]
    project.makepyfile(loops=LOOPS, test_loops="from loops import *\n" + "".join(tests))
    result = project.runpytest_inprocess("--perf", "--tb=line", "-rN", "-W", "error")
    result.assert_outcomes(failed=len(REFUSING), passed=len(INSTEAD))
    refusals = [line for line in result.outlines if line.startswith("E ") and "has not run when" in line]
    assert len(refusals) == len(REFUSING)
    assert all(any(each in line for line in refusals) for each in INSTEAD)
