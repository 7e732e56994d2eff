"""`--perf-trace`: which traces are kept, where, what is shown of them, and what they leave alone."""

import json
import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import assume, example, given

from perfsuite.measure.trace import read_trace
from perfsuite.session.records import LONGEST_PART, trace_folder

INSTRUMENTS = """
import pytest
from steps import *

twice = jax.jit(lambda x: x @ x)
square = jnp.ones((8, 8))

def test_time(perf):
    perf.time(call(twice, square), name="product")

@pytest.mark.parametrize("side", ["a/b", "c"])
def test_compare(perf, side):
    training = call(step, state(), batch(), carry=1)
    perf.compare(training, call(step, state(), batch(), carry=1), name="pair")
    jax.block_until_ready(training.run())

def test_host_calls(perf):
    perf.host_calls(call(twice, square), name="product")

def test_warm(perf):
    warm = perf.warm(twice, over=[(square,), (jnp.ones((5, 5)),)], name="product")
    with perf.no_compiles():
        warm(square)

def test_scaling(perf):
    perf.scaling(lambda size: (call(twice, square), size), [1, 2, 4], metric="host_calls", name="rows")

def test_nothing(perf):
    perf.record("metric", 3, unit="things", kind="count")
"""


def operations_below(folder):
    """Of the only trace there."""
    (file,) = folder.rglob("*.xplane.pb")
    return read_trace(file).operations


def test_every_instrument_that_runs_something_leaves_its_trace_with_metrics_and_changes_no_baseline(project):
    project.makepyfile(test_all=INSTRUMENTS)
    result = project.runpytest_inprocess("--perf-save", "--perf-seconds=0.05", "--perf-trace=out/traces")
    result.assert_outcomes(passed=7)
    result.stdout.fnmatch_lines(
        [
            "*= perfsuite traces =*",
            "test_all.py::test_time",
            "  product: device * us, wall * us, idle share * (10 runs): *",
            "    * us      1 x  jit_*lambda*: *",
            "  pair, candidate: *",
            "  pair, reference: *",
            "6 traces below out/traces: open a perfetto_trace.json.gz with https://ui.perfetto.dev, or *",
        ]
    )
    root = project.path / "out/traces/test_all.py"
    folders = ["test_time/product", "test_host_calls/product"]
    folders += [f"test_compare{side}/pair/{part}" for side in ("_a_b-*", "-c") for part in ("candidate", "reference")]
    for folder in folders:
        (found,) = root.glob(folder)
        assert len(list(found.glob("plugins/profile/*/perfetto_trace.json.gz"))) == 1
        assert operations_below(found)
    metrics = json.loads((project.path / "baselines/cpu.json").read_text())["metrics"]
    names = {name for test in metrics.values() for name in test}
    assert "time:product to ready" in names
    assert not {name for name in names if name.startswith("trace")}


def test_without_the_option_nothing_is_traced_or_shown(project, perf_test, monkeypatch):
    perf_test(
        "import perfsuite.instruments.tracing as traced",
        "traced.trace_call = None",
        "x = batch()",
        "double = jax.jit(lambda x: x * 2)",
        "perf.time(call(double, x))",
        "perf.compare(call(double, x), call(double, x))",
        "perf.host_calls(call(double, x))",
        "perf.warm(double, over=[(x,)])",
    )
    monkeypatch.setattr("perfsuite.instruments.tracing.trace_call", None)  # put back what the nested session sets
    result = project.runpytest_inprocess("--perf", "--perf-seconds=0.05")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*traces*")


def test_a_call_that_runs_nothing_on_a_device_is_noted_and_passes(project, perf_test):
    perf_test("perf.host_calls(call(len, [1]))")
    result = project.runpytest_inprocess("--perf", "--perf-trace=traces")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["  len: no metrics (*no device ran an operation*): test_step.py/test_step/len"])


def test_a_test_with_a_trace_of_its_own_is_left_alone(project, perf_test):
    perf_test("with jax.profiler.trace('own'):", "    perf.host_calls(call(jax.jit(lambda x: x + 1), batch()))")
    result = project.runpytest_inprocess("--perf", "--perf-trace=traces")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["  *: no metrics (* a trace is being recorded already*"])
    assert operations_below(project.path / "own")


def test_an_error_in_a_traced_run_is_a_note(project, perf_test):
    perf_test(
        "import traceback",
        "def sometimes(x):",
        "    if any(frame.f_globals.get('__name__') == 'perfsuite.measure.trace' for frame, _ in traceback.walk_stack(None)):",
        "        raise RuntimeError('not\\n while traced')",
        "    return x + 1",
        "perf.host_calls(call(sometimes, batch()))",
    )
    result = project.runpytest_inprocess("--perf", "--perf-trace=traces")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["  sometimes: no metrics (RuntimeError: not while traced): *"])


# perf.trace.

EXPLICIT = [
    "double = jax.jit(lambda x: x * 2)",
    "double(batch()).block_until_ready()",
    "trace = perf.trace(call(double, batch()), runs=3, name='call')",
    "assert trace.operations[0].count == 3",
    "perf.record('idle share', trace.idle_share, unit='share', kind='ratio')",
]


def test_traces_that_the_test_asks_for_are_metrics_without_a_gate_and_leave_no_file(project, perf_test, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(project.mkdir("temporary")))
    perf_test(*EXPLICIT)
    result = project.runpytest_inprocess("--perf", "-v")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["  call trace device * us * info", "  call trace idle share * share * info"])
    result.stdout.no_fnmatch_line("*perfsuite traces*")
    assert not list(project.path.rglob("*.xplane.pb"))


def test_they_are_kept_with_the_option(project, perf_test):
    perf_test(*EXPLICIT)
    result = project.runpytest_inprocess("--perf", "--perf-trace=traces")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["  call: * (3 runs): *", "1 trace below traces: *"])
    assert operations_below(project.path / "traces/test_step.py/test_step/call")[0].count == 3


# Folders and records.


IDS = st.tuples(
    st.sampled_from(["test_a.py", "../b/test_a.py", "c[d]/test_a.py"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
).map("::".join)


@given(IDS, IDS)
@example("test_a.py::test[a]b]", "test_a.py::test-a]b")
@example("test_a.py::test[a-b]", "test_a.py::test[a/b]")
@example("test_a.py::" + "x" * 300, "test_a.py::" + "x" * 299)
@example("test_a.py::test[..]", "test_a.py::test[.]")
def test_folders_stay_below_the_root_fit_a_file_system_and_differ(one, other):
    paths = [trace_folder(Path("/t"), test, "step") for test in (one, other)]
    for path in paths:
        below = path.relative_to("/t").parts
        assert all(part.isascii() and part.strip(".") and len(part) <= LONGEST_PART for part in below)
        assert not set("".join(below)) & set('/\\:*?"<>|[]\0\n ')
    # An identifier has no hyphen, so `test[a]` may take the name `test-a`.
    assume("-" not in one + other or "[" not in one + other)
    assume(_parts(one) != _parts(other))
    assert paths[0] != paths[1]


def _parts(test):
    path, _, inside = test.partition("::")
    function, bracket, rest = inside.partition("[")
    parts = [*path.replace("\\", "/").split("/"), *function.split("::")]
    parts[-1] += bracket + rest
    return [part for part in parts if part]
