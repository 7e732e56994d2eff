"""`measure.profiler.traces`: what a recorded block says about where its time went, from real traces of the CPU."""

import re
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.traces import LONG, SQUARE, on_cpu, ordered, product

from perfsuite.measure.call import call
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.profiler.trace_recording import record, trace_call
from perfsuite.measure.profiler.traces import read_trace


@pytest.fixture
def trace_of(tmp_path):
    """The trace of what `block` does, which is warm unless it is meant to compile."""

    def trace(block):
        with record(tmp_path, perfetto=False) as recording:
            block()
        return read_trace(recording.path)

    return trace


def test_a_device_that_waits_for_the_host_is_idle():
    busy = trace_call(call(product, SQUARE))
    pause = 3 * busy.wall_us / busy.runs / 1e6

    def with_a_pause(x):
        y = product(x).block_until_ready()
        time.sleep(pause)
        return y

    paused = trace_call(call(with_a_pause, SQUARE))
    # Nine pauses, each as long as asked for or longer, lie between the first operation and the last.
    assert paused.idle_share * (paused.wall_us / 1e6) > 9 * pause


def test_an_operation_has_its_name_in_the_compiled_program():
    text = product.lower(SQUARE).compile().as_text()
    entry = text[text.index("ENTRY") :]
    name = re.search(r"%(\S+) = .*jit\(product\)/dot_general", entry)[1]
    trace = trace_call(call(product, SQUARE), runs=7)
    assert [(each.module, each.count) for each in trace.operations if each.name == name] == [("jit_product", 7)]


def test_the_body_of_a_loop_counts_once_an_iteration():
    loop = jax.jit(lambda x: jax.lax.fori_loop(0, 5, lambda _, v: jnp.tanh(v @ v), x))
    counts = {each.name.split(".")[0]: each.count for each in trace_call(call(loop, SQUARE), runs=2).operations}
    assert counts["while"] == 2
    assert max(counts.values()) == 10, "the product, five times a run"


def test_the_operations_of_two_threads_all_count_in_a_time_no_longer_than_their_sum(trace_of):
    ordered(LONG).block_until_ready()
    ready = threading.Barrier(2)

    def sort():
        ready.wait()
        ordered(LONG).block_until_ready()

    def both():
        threads = [threading.Thread(target=sort) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    one, two = trace_of(lambda: ordered(LONG).block_until_ready()), trace_of(both)
    counts = [{operation.name: operation.count for operation in trace.operations} for trace in (one, two)]
    assert counts[1] == {name: 2 * count for name, count in counts[0].items()}
    assert two.device_us <= min(two.wall_us, 1.001 * sum(operation.us for operation in two.operations))


def test_a_compile_in_the_block_is_counted_and_named(trace_of):
    product(SQUARE)

    def planted(x):
        return x[::2] * 3

    trace = trace_of(lambda: jax.jit(planted)(product(SQUARE)).block_until_ready())
    assert [compilation.module for compilation in trace.compilations] == ["jit_planted"]
    assert 0 < trace.compilations[0].us < trace.wall_us


def test_compiles_in_two_threads_at_once_are_both_named(trace_of):
    def first(x):
        return x[::3] - 1

    def second(x):
        return x[::5] - 1

    ordered(LONG).block_until_ready()

    def both():
        ordered(LONG).block_until_ready()
        threads = [threading.Thread(target=jax.jit(fn), args=(LONG,)) for fn in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    trace = trace_of(both)
    assert sorted(compilation.module for compilation in trace.compilations) == ["jit_first", "jit_second"]


def test_a_compile_is_no_dispatch(trace_of):
    def planted(x):
        return jnp.cumsum(x)[::7] * 3

    trace = trace_of(lambda: jax.jit(planted)(LONG).block_until_ready())
    (compilation,) = trace.compilations
    assert trace.host_us < trace.wall_us - compilation.us


def test_a_small_operation_in_the_calling_thread_is_the_devices_and_not_the_hosts(trace_of):
    in_caller = jax.jit(lambda x: x[:, ::2].T.copy())
    in_caller(SQUARE).block_until_ready()
    trace = trace_of(lambda: in_caller(SQUARE).block_until_ready())
    assert trace.device_us > 0
    assert trace.host_us + trace.device_us <= trace.wall_us


def test_transfers_that_the_host_asks_for_are_counted_by_their_direction(trace_of):
    product(SQUARE)

    def moving():
        for size in (3, 1000, 300_000):
            jax.device_put(np.ones(size, np.float32))
        float(jax.device_get(product(SQUARE))[0, 0])

    trace = trace_of(moving)
    counts = {transfer.name: transfer.count for transfer in trace.transfers}
    assert counts == {"to device": 3, "to host": 1, "to host, started": 1}
    assert all(transfer.us > 0 and transfer.bytes is None for transfer in trace.transfers)
    assert sum(metric.value for metric in trace.metrics("x") if metric.unit == "transfers") == 4


def test_a_warm_call_moves_and_compiles_nothing():
    trace = trace_call(call(product, SQUARE))
    assert (trace.compilations, trace.transfers, trace.copies) == ((), (), ())


def test_what_is_in_flight_when_the_block_ends_belongs_to_it_and_not_to_the_next(tmp_path):
    ordered(LONG).block_until_ready()
    product(SQUARE).block_until_ready()
    with record(tmp_path, perfetto=False) as first:
        kept = [ordered(LONG) for _ in range(3)]
    kept += [ordered(LONG) for _ in range(3)]
    with record(tmp_path, perfetto=False) as second:
        kept += [product(SQUARE)]
    assert {operation.module for operation in read_trace(first.path).operations} == {"jit_ordered"}
    assert {operation.module for operation in read_trace(second.path).operations} == {"jit_product"}


def test_a_directory_without_a_trace_is_named(tmp_path):
    with pytest.raises(MeasurementError, match=f"{tmp_path}: no trace"):
        read_trace(tmp_path)


def test_a_path_that_is_not_there_is_named(tmp_path):
    with pytest.raises(MeasurementError, match="nowhere: there is no such trace"):
        read_trace(tmp_path / "nowhere")


def test_the_metrics_are_a_run_and_gate_nothing(write_trace):
    python = [
        ("perfsuite: block", 0, 100, {}),
        ("perfsuite: run", 0, 10, {}),
        ("PjitFunction(step)", 1, 8, {}),
        ("perfsuite: run", 10, 10, {}),
        ("DevicePut", 11, 1, {}),
        ("np.asarray(jax.Array)", 12, 1, {}),
        ("ArrayImpl.copy_to_host_async", 14, 1, {}),
        ("backend_compile_and_load", 90, 2, {}),
    ]
    trace = read_trace(
        write_trace({"/host:CPU": {"python": python, "x": [on_cpu("dot", 20, 10), on_cpu("dot", 50, 10)]}})
    )
    metrics = trace.metrics("step")
    assert {metric.kind for metric in metrics} == {"info"}
    assert [(metric.name, metric.value, metric.unit) for metric in metrics] == [
        ("step trace host", 4, "us"),
        ("step trace device", 10, "us"),
        ("step trace wall", 50, "us"),
        ("step trace idle share", 0.5, "share"),
        ("step trace compilations", 1, "compiles"),
        ("step trace transfers", 2, "transfers"),
    ]
    assert [metric.detail for metric in metrics[4:]] == [{"?": 1}, {"to device": 1, "to host": 1}]
