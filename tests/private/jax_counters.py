"""Runs JAX's own tests and compares perfsuite's counts of traces, lowerings and compiles with JAX's, test by test.

    pytest -p tests.private.jax_counters -c /dev/null path/to/jax/tests/api_test.py

The tests must be those of the installed jax (`git checkout jax-v0.10.2`). The last lines name the tests where the counts
differ, and messages that are not whole.

JAX's tests count events of one thread; here they are counted in all threads, as perfsuite does. JAX's event of a compile
also comes where JAX's cache of compiled programs has the answer and nothing is compiled: these are subtracted.
"""

from collections import Counter

import pytest
from jax._src import compiler, util

from perfsuite.measure.compiles import compiles

EVENTS = {
    "traces": "trace_to_jaxpr",
    "lowerings": "lower_jaxpr_to_module",
    "compiles": "pxla_cached_compilation",
}
"""The events behind `count_jit_tracing_cache_miss` and the others of `jax._src.test_util`."""

events: Counter[str] = Counter()
totals: Counter[str] = Counter()
differ: list[str] = []
problems: Counter[str] = Counter()


def pytest_collection_finish() -> None:
    describe, compile_program = compiles._call_that_compiles, compiler.compile_or_get_cached
    hear = util.test_event_listener  # of jax._src.test_util, which the tests have imported

    def described(*args, **options):
        call = describe(*args, **options)
        totals["messages"] += 1
        if call.cause.problem:
            problems[call.cause.problem] += 1
        return call

    def compiling(*args, **options):
        events["compiled"] += 1
        return compile_program(*args, **options)

    def listener(name, *args):
        events[name] += 1
        hear(name, *args)

    compiles._call_that_compiles = described
    compiler.compile_or_get_cached = compiling
    util.test_event_listener = listener


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    before = events.copy()
    try:
        with compiles.count() as ours:
            return (yield)
    finally:
        totals["tests"] += 1
        theirs = {name: events[event] - before[event] for name, event in EVENTS.items()}
        answered = theirs["compiles"] - (events["compiled"] - before["compiled"])
        theirs["compiles"] -= answered
        totals.update(theirs, answered=answered)
        counted = ours.traces + ours.inner_traces, ours.lowerings, ours.compiles
        for mine, (name, expected) in zip(counted, theirs.items(), strict=True):
            if mine != expected:
                differ.append(f"{item.nodeid}: {name} {mine}, JAX counts {expected}")


def pytest_terminal_summary(terminalreporter) -> None:
    terminalreporter.write_line(f"perfsuite beside JAX: {dict(totals)}")
    terminalreporter.write_line(f"{len(differ)} counts differ, {sum(problems.values())} messages are not whole")
    for line in [*differ, *(f"{count} x {problem}" for problem, count in problems.items())]:
        terminalreporter.write_line(line)
