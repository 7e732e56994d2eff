"""`dispatches`: the programs of one call, counted by hand and beside the runs that XLA's own profiler shows."""

import concurrent.futures
import re

import jax
import pytest
from support.program_calls import PROGRAMS, X, step

from perfsuite import call
from perfsuite.measure.runtime.dispatches import dispatches

EXECUTION = re.compile(r"\w+Executable::(Execute \(.*\)|ExecuteHelperOnSingleDevice)")
"""What XLA's profiler calls one run of a program on a CPU, on all its devices or on one."""


def executed(function, *args, folder):
    """How many programs a warm call runs, as XLA's own profiler has it."""
    for _ in range(2):
        jax.block_until_ready(function(*args))
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(folder, profiler_options=options):
        jax.block_until_ready(function(*args))
        jax.effects_barrier()
    (path,) = folder.rglob("*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(path)).planes
    return sum(
        bool(EXECUTION.fullmatch(event.name)) for plane in planes for line in plane.lines for event in line.events
    )


@pytest.mark.parametrize("kind", PROGRAMS)
def test_programs_are_counted_by_name_and_equal_what_xla_runs(kind, tmp_path):
    make_call, by_program, by_operation = PROGRAMS[kind]
    counted = dispatches(make_call())
    if kind != "pmap":  # which does not pass on the name of a lambda
        assert counted.by_program == by_program
    if by_operation is not None:
        assert counted.by_operation == by_operation
    made = make_call()

    def run(*_):
        return made.run()

    assert counted.total == executed(run, folder=tmp_path)


def test_the_user_s_line_of_every_program_is_named():
    def body(x):
        y = step(x)
        return step(x) + y

    counted, first = dispatches(call(body, X)), body.__code__.co_firstlineno
    here = counted.runs[0].location.rpartition(":")[0]
    assert [(run.program, run.location) for run in counted.runs] == [
        ("step", f"{here}:{first + 1}"),
        ("step", f"{here}:{first + 2}"),
        ("add", f"{here}:{first + 2}"),
    ]
    assert here.endswith("test_dispatches.py")
    assert str(counted).startswith(f"step (2) at {here}:{first + 1}, {here}:{first + 2}; eager: add (1) at")


def test_metrics_are_two_counts_with_the_programs_as_detail():
    jitted, eager = dispatches(call(lambda x: -step(x) - step(x), X)).metrics("loop")
    assert (jitted.name, jitted.value, jitted.unit, jitted.kind) == ("loop dispatches", 2, "programs", "count")
    assert (jitted.detail, eager.detail) == ({"step": 2}, {"negative": 1, "subtract": 1})
    assert (eager.name, eager.value, eager.unit) == ("loop eager operations", 2, "operations")


def test_a_pool_of_threads_that_was_there_before_is_counted():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(step, X).result()
        counted = dispatches(call(lambda x: pool.submit(step, x).result(), X))
        assert counted.by_program == {"step": 1}
        # Tracing takes from a thread the hook of all threads, and it gets that back.
        transforming = jax.vmap(step)
        counted = dispatches(call(lambda x: pool.submit(lambda: (transforming(x[None]), step(x))).result(), X))
        assert counted.by_program == {"step": 2}
