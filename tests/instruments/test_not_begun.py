"""Functions that return before any of their code has run: every instrument refuses them, and none says that they are free."""

LOOPS = """
import asyncio
import jax
import jax.numpy as jnp

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
"""

INSTRUMENTS = [
    "perf.host_calls({0})",
    "perf.dispatches({0})",
    "perf.fast_path({0})",
    "perf.transfers({0})",
    "perf.memory({0})",
    "perf.first_call({0})",
    "perf.time({0})",
    "perf.compare({0}, call(step, X))",
    "perf.compare(call(step, X), {0})",
    "perf.scaling(lambda size: {0}, over=(1, 2, 4))",
    "perf.stays_async({0})",
    "perf.stalls({0})",
    "perf.trace({0})",
    "perf.warm(batches, over=[{0}])",
    "perf.warm(batches, over=[(X,)])",
]


def test_every_instrument_refuses_a_generator_function(project):
    project.makepyfile(
        loops=LOOPS,
        test_loops="from loops import *\nfrom perfsuite import call\n"
        + "\n".join(
            f"def test_{number}(perf):\n    {line.format('call(batches, X)')}"
            for number, line in enumerate(INSTRUMENTS)
        ),
    )
    result = project.runpytest_inprocess("--perf", "--tb=line")
    result.assert_outcomes(failed=len(INSTRUMENTS))
    said = [line for line in result.outlines if "MeasurementError: batches returns a generator" in line]
    assert len(said) >= len(INSTRUMENTS), result.stdout.str()


def test_the_message_says_what_to_do_and_that_is_measured(project):
    said = {
        "batches": "list(batches(*args))",
        "serve": "asyncio.run(serve(*args))",
        "stream": "asyncio.run(drain(*args))",
    }
    tests = [
        f"""
def test_{name}(perf):
    perf.dispatches(call({name}, X))

def test_{name}_instead(perf):
    assert perf.dispatches(call(lambda *args: {instead}, X)).total in (1, 3)
"""
        for name, instead in said.items()
    ]
    project.makepyfile(loops=LOOPS, test_loops="from loops import *\nfrom perfsuite import call\n" + "".join(tests))
    result = project.runpytest_inprocess("--perf", "-W", "error")
    result.assert_outcomes(passed=3, failed=3)
    result.stdout.fnmatch_lines_random([f"*MeasurementError: {name} returns *{said[name]}*" for name in said])
