"""Runs JAX's own tests and compares perfsuite's counts of traces, lowerings and compiles with JAX's, test by test.

    pytest -p tests.measure.compat.jax_counters -c /dev/null path/to/jax/tests/api_test.py

The tests must be those of the installed jax (`git checkout jax-v0.10.2`). JAX counts for one thread, and so tests that
start threads are left out. The last lines name the tests where the counts differ, and messages that are not whole.

JAX counts the programs that it asks its cache of compiled programs for. Those that this cache answers are not compiled,
and are subtracted.
"""

import threading
from collections import Counter

import pytest
from jax._src import compiler, test_util

from perfsuite.measure.compiles import compiles, listeners

COUNTERS = {
    "traces": test_util.count_jit_tracing_cache_miss,
    "lowerings": test_util.count_jit_and_pmap_lowerings,
    "compiles": test_util.count_jit_compilation_cache_miss,
}

totals: Counter[str] = Counter()
differ: list[str] = []
problems: Counter[str] = Counter()


def pytest_configure() -> None:
    describe = listeners._call_that_compiles

    def described(*args, **options):
        call = describe(*args, **options)
        totals["messages"] += 1
        if call.cause.problem:
            problems[call.cause.problem] += 1
        return call

    listeners._call_that_compiles = described
    compile_program = compiler.compile_or_get_cached

    def compiling(*args, **options):
        totals["programs"] += 1
        return compile_program(*args, **options)

    compiler.compile_or_get_cached = compiling


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    started = threading.Thread.start
    threads = []
    programs = totals["programs"]
    threading.Thread.start = lambda self: threads.append(self) or started(self)
    try:
        with compiles.count() as ours:  # noqa: SIM117
            with COUNTERS["traces"]() as traces, COUNTERS["lowerings"]() as lowerings, COUNTERS["compiles"]() as built:
                return (yield)
    finally:
        threading.Thread.start = started
        totals["tests"] += 1
        totals["with threads"] += bool(threads)
        counted = ours.traces + ours.inner_traces, ours.lowerings, ours.compiles
        programs = totals["programs"] - programs
        totals["answered by JAX's cache"] += 0 if threads else built() - programs
        expected = traces(), lowerings(), programs
        for name, mine, theirs in zip(COUNTERS, counted, expected, strict=True):
            totals[name] += theirs
            if mine != theirs and not threads:
                differ.append(f"{item.nodeid}: {name} {mine}, JAX counts {theirs}")


def pytest_terminal_summary(terminalreporter) -> None:
    terminalreporter.write_line(f"perfsuite beside JAX: {dict(totals)}")
    terminalreporter.write_line(f"{len(differ)} counts differ, {sum(problems.values())} messages are not whole")
    for line in [*differ, *(f"{count} x {problem}" for problem, count in problems.items())]:
        terminalreporter.write_line(line)
