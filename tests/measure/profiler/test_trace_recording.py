"""`measure.profiler.trace_recording`: recording a block, and tracing a call."""

import gc
import gzip
import itertools
import json

import jax
import numpy as np
import pytest
from support.traces import SQUARE, product

from perfsuite.measure.call import call
from perfsuite.measure.compiles.warmup import warm
from perfsuite.measure.errors import MeasurementError, RecompilationError
from perfsuite.measure.profiler.trace_recording import affordable_runs, trace_block, trace_call
from perfsuite.measure.profiler.traces import read_trace

# Blocks.


def test_two_blocks_within_a_second_are_two_files(tmp_path):
    product(SQUARE).block_until_ready()
    with trace_block(tmp_path) as first:
        product(SQUARE).block_until_ready()
    with trace_block(tmp_path) as second:
        product(product(SQUARE)).block_until_ready()
    assert first.trace.path != second.trace.path
    assert [traced.trace.operations[0].count for traced in (first, second)] == [1, 2]


def test_the_perfetto_trace_holds_the_same_operations(tmp_path):
    trace = trace_call(call(product, SQUARE), directory=tmp_path)
    (perfetto,) = tmp_path.rglob("perfetto_trace.json.gz")
    events = json.loads(gzip.decompress(perfetto.read_bytes()))["traceEvents"]
    assert sum(event.get("name") == trace.longest[0].name for event in events) == trace.longest[0].count
    assert trace.path.parent == perfetto.parent
    assert not [event for event in events if event.get("name", "").startswith("$")], "calls of Python functions"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_block_that_fails_is_recorded_and_the_next_one_too(tmp_path, error):
    product(SQUARE).block_until_ready()

    def failing():
        with trace_block(tmp_path):
            product(SQUARE).block_until_ready()
            raise error("stop")

    with pytest.raises(error, match="stop"):
        failing()
    (file,) = tmp_path.rglob("*.xplane.pb")
    assert read_trace(file).operations[0].count == 1
    with trace_block() as traced:
        product(product(SQUARE)).block_until_ready()
    assert traced.trace.operations[0].count == 2


@pytest.mark.parametrize("outer", [trace_block, jax.profiler.trace])
def test_a_trace_in_a_trace_is_refused_and_the_outer_one_goes_on(tmp_path, outer):
    product(SQUARE).block_until_ready()
    with outer(tmp_path / "outer"):
        with pytest.raises(MeasurementError, match="inner: a trace is being recorded already"):
            trace_block(tmp_path / "inner").__enter__()
        product(SQUARE).block_until_ready()
    (file,) = (tmp_path / "outer").rglob("*.xplane.pb")
    assert read_trace(file).operations[0].count == 1


def test_a_directory_that_cannot_be_written_is_refused_before_the_profiler_starts(tmp_path):
    product(SQUARE).block_until_ready()
    (tmp_path / "file").write_text("")
    with pytest.raises(MeasurementError, match=r"file.below: no trace can be written here"):
        trace_block(tmp_path / "file" / "below").__enter__()
    with trace_block():
        product(SQUARE).block_until_ready()


# Tracing a call.


def test_a_compile_in_a_traced_run_is_an_error_and_no_trace():
    sizes = itertools.count(1)

    def step():
        if (size := next(sizes)) > 3:
            jax.jit(lambda x: x + 1)(np.ones(size))

    with pytest.raises(RecompilationError):
        trace_call(call(step))
    assert gc.isenabled()
    with trace_block():
        product(SQUARE).block_until_ready()


def test_a_donated_state_is_carried_and_given_back():
    step = jax.jit(lambda state: state @ state * 0.001, donate_argnums=0)
    state = SQUARE + 1
    training = call(step, state, carry=1)
    assert trace_call(training, runs=4).longest[0].count == 4
    assert state.is_deleted(), "CPU donates: without that this test shows nothing"
    training.run().block_until_ready()


def test_a_warmed_function_is_traced_and_leaves_no_file():
    trace = trace_call(call(warm(product, over=[(SQUARE,)]), SQUARE), runs=1)
    assert (trace.runs, trace.path) == (1, None)


def test_the_collector_is_off_in_every_run_and_on_afterwards():
    collecting = []

    def step(x):
        collecting.append(gc.isenabled())
        return product(x)

    trace_call(call(step, SQUARE), runs=3)
    assert collecting[-3:] == [False] * 3
    assert gc.isenabled()


def test_a_call_that_is_to_run_less_than_once_is_refused():
    with pytest.raises(ValueError, match=r"trace_call\(product, runs=...\): runs must be 1 or more, got 0"):
        trace_call(call(product, SQUARE), runs=0)


def test_a_call_that_runs_nothing_on_a_device_is_an_error_with_a_reason():
    with pytest.raises(MeasurementError, match=r"xplane\.pb: no device ran an operation in this trace"):
        trace_call(call(lambda: None))


@pytest.mark.parametrize(("us", "runs"), [(0.0, 10), (10, 10), (2e5, 5), (0.9e6, 1), (2e6, 1)])
def test_a_long_call_is_traced_in_fewer_runs(us, runs):
    assert affordable_runs(us) == runs
