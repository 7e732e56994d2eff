"""`measure.traces`: what a recorded block says about where its time went.

CPU traces are real ones. No accelerator was at hand: the traces of GPUs and TPUs are made by hand, after the names in
XLA's sources, and are read from files by the same `jax.profiler.ProfileData`.
"""

import gc
import gzip
import itertools
import json
import re
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfsuite.measure.call import call
from perfsuite.measure.compiles.warmup import warm
from perfsuite.measure.errors import MeasurementError, RecompilationError
from perfsuite.measure.profiler import trace_recording
from perfsuite.measure.profiler.trace_growth import Profile, grew, in_words, profile_of
from perfsuite.measure.profiler.trace_recording import profiles, record, trace_call
from perfsuite.measure.profiler.trace_times import idle_share, merged, without
from perfsuite.measure.profiler.traces import read_trace


@jax.jit
def product(x):
    return jnp.tanh(x @ x)


@jax.jit
def ordered(x):
    return jnp.sort(x)


SQUARE = jnp.ones((500, 500))
LONG = jnp.arange(200_000.0)


@pytest.fixture
def trace_of(tmp_path):
    """The trace of what `block` does, which is warm unless it is meant to compile."""

    def trace(block):
        with record(tmp_path, perfetto=False) as recording:
            block()
        return read_trace(recording.path)

    return trace


# Real traces of the CPU.


def test_a_device_that_waits_for_the_host_is_idle():
    busy = trace_call(call(product, SQUARE))
    pause = 3 * busy.wall_us / busy.runs / 1e6

    def with_a_pause(x):
        y = product(x).block_until_ready()
        time.sleep(pause)
        return y

    paused = trace_call(call(with_a_pause, SQUARE))
    # Nine pauses lie between the first operation and the last.
    assert paused.idle_share * (paused.wall_us / 1e6) > 9 * pause * 0.9
    assert busy.idle_share < paused.idle_share / 2


def test_the_longest_operation_of_a_product_is_the_product_by_its_name_in_the_compiled_program():
    text = product.lower(SQUARE).compile().as_text()
    entry = text[text.index("ENTRY") :]
    name = re.search(r"%(\S+) = .*jit\(product\)/dot_general", entry)[1]
    longest = trace_call(call(product, SQUARE), runs=7).longest[0]
    assert (longest.name, longest.module, longest.count) == (name, "jit_product", 7)


def test_a_loop_does_not_take_the_time_of_its_body():
    loop = jax.jit(lambda x: jax.lax.fori_loop(0, 5, lambda _, v: jnp.tanh(v @ v), x))
    operations = trace_call(call(loop, SQUARE), runs=2).operations
    took = {operation.name.split(".")[0]: operation for operation in operations}
    assert operations[0].count == 10, "the product, five times a run"
    assert took["while"].count == 2
    assert took["while"].us < operations[0].us / 10


def test_operations_side_by_side_are_counted_once_in_the_devices_time(trace_of):
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

    trace = trace_of(both)
    assert trace.device_us < 0.8 * sum(operation.us for operation in trace.operations)
    assert trace.device_us <= trace.wall_us


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


def test_a_second_product_in_the_step_is_what_grew():
    def make(body):
        def step(x):
            return body(jnp.tanh(x @ x), x)

        return call(jax.jit(step), SQUARE)

    before, after = profiles(make(lambda y, x: y), make(lambda y, x: y @ x @ x), us=1e4)
    line = grew(before, after)[0]
    assert re.fullmatch(r"jit_step: \w+: [\d.e+]+ -> [\d.e+]+ us a run \(\+[\d.e+]+\), 1 -> 3 times", line)


# Recording.


def test_two_recordings_within_a_second_are_two_files_and_the_newest_is_read(tmp_path):
    product(SQUARE).block_until_ready()
    with record(tmp_path) as first:
        product(SQUARE).block_until_ready()
    with record(tmp_path) as second:
        product(product(SQUARE)).block_until_ready()
    assert first.path != second.path
    assert [read_trace(path).operations[0].count for path in (first.path, second.path, tmp_path)] == [1, 2, 2]


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
        with record(tmp_path, perfetto=False):
            product(SQUARE).block_until_ready()
            raise error("stop")

    with pytest.raises(error, match="stop"):
        failing()
    assert read_trace(tmp_path).operations[0].count == 1
    with record(tmp_path, perfetto=False):
        product(product(SQUARE)).block_until_ready()
    assert read_trace(tmp_path).operations[0].count == 2


@pytest.mark.parametrize("outer", [record, jax.profiler.trace])
def test_a_trace_in_a_trace_is_refused_and_the_outer_one_goes_on(tmp_path, outer):
    product(SQUARE).block_until_ready()
    with outer(tmp_path / "outer"):
        with pytest.raises(MeasurementError, match="inner: a trace is being recorded already"):
            record(tmp_path / "inner").__enter__()
        product(SQUARE).block_until_ready()
    assert read_trace(tmp_path / "outer").operations[0].count == 1


def test_a_directory_that_cannot_be_written_is_refused_before_the_profiler_starts(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MeasurementError, match=r"file.below: no trace can be written here"):
        record(tmp_path / "file" / "below").__enter__()
    with record(tmp_path, perfetto=False):
        pass


# Tracing a call.


def test_a_compile_in_a_traced_run_is_an_error_and_no_trace(tmp_path):
    sizes = itertools.count(1)

    def step():
        if (size := next(sizes)) > 3:
            jax.jit(lambda x: x + 1)(np.ones(size))

    with pytest.raises(RecompilationError):
        trace_call(call(step))
    assert gc.isenabled()
    with record(tmp_path, perfetto=False):
        pass


def test_a_donated_state_is_carried_and_given_back():
    step = jax.jit(lambda state: state @ state * 0.001, donate_argnums=0)
    state = SQUARE + 1
    training = call(step, state, carry=1)
    assert trace_call(training, runs=4).longest[0].count == 4
    assert state.is_deleted(), "CPU donates: without that this test shows nothing"
    training.run().block_until_ready()


def test_a_donated_state_survives_an_exception_in_the_middle():
    step = jax.jit(lambda state: state + 1, donate_argnums=0)
    runs = itertools.count()

    def sometimes(state):
        if next(runs) == 5:
            raise KeyboardInterrupt("stop")
        return step(state)

    training = call(sometimes, SQUARE + 1, carry=1)
    with pytest.raises(KeyboardInterrupt, match="stop"):
        trace_call(training)
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


# Files that are no traces.


def test_a_directory_without_a_trace_is_named(tmp_path):
    with pytest.raises(MeasurementError, match=f"{tmp_path}: no trace"):
        read_trace(tmp_path)


def test_a_path_that_is_not_there_is_named(tmp_path):
    with pytest.raises(MeasurementError, match="nowhere: there is no such trace"):
        read_trace(tmp_path / "nowhere")


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"hello", lambda data: b""])
def test_a_damaged_file_is_named(tmp_path, write_trace, damage):
    path = write_trace({"/host:CPU": {"python": [("PjitFunction(f)", 0, 1, {})] * 30}})
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(MeasurementError, match=f"{path}: the trace is (damaged|empty)"):
        read_trace(path)


# Traces made by hand, in microseconds.


@pytest.fixture
def write_trace(tmp_path):
    """Write an XPlane file: {plane: {line: [(event, start_us, us, {stat: value})]}}."""
    numbers = itertools.count()

    def write(planes):
        text = []
        for plane, lines in planes.items():
            every = [event for events in lines.values() for event in events]
            names = {name: n for n, name in enumerate(dict.fromkeys(event[0] for event in every), 1)}
            stats = {name: n for n, name in enumerate(dict.fromkeys(stat for event in every for stat in event[3]), 1)}
            text.append(f"planes {{ name: {json.dumps(plane)}")
            for field, ids in (("event_metadata", names), ("stat_metadata", stats)):
                text += [
                    f"{field} {{ key: {n} value {{ id: {n} name: {json.dumps(name)} }} }}" for name, n in ids.items()
                ]
            for n, (line, events) in enumerate(lines.items()):
                text.append(f"lines {{ id: {n} name: {json.dumps(line)} timestamp_ns: 1000")
                for name, start, us, values in events:
                    text.append(
                        f"events {{ metadata_id: {names[name]} offset_ps: {int(start * 1e6)} duration_ps: {int(us * 1e6)}"
                    )
                    for stat, value in values.items():
                        kind = "int64_value" if isinstance(value, int) else "str_value"
                        text.append(f"stats {{ metadata_id: {stats[stat]} {kind}: {json.dumps(value)} }}")
                    text.append("}")
                text.append("}")
            text.append("}")
        path = tmp_path / f"{next(numbers)}.xplane.pb"
        path.write_bytes(jax.profiler.ProfileData.text_proto_to_serialized_xspace("\n".join(text)))
        return path

    return write


def on_cpu(name, start, us, flow=None, module="jit_step", device=0, run=1):
    stats = {"hlo_op": name, "hlo_module": module, "run_id": run, "device_ordinal": device}
    return name, start, us, stats if flow is None else {**stats, "_p": flow}


def over(name, moment, flow):
    return f"end: {name}", moment, 0.1, {"_c": flow}


def of_step(name, hlo_op="dot.1", **stats):
    return {"hlo_op": hlo_op, "hlo_module": "jit_step", **stats} if hlo_op else stats


def times(trace):
    return {operation.name: (operation.us, operation.count) for operation in trace.operations}


def test_times_are_unions_and_the_idle_share_is_between_the_first_operation_and_the_last(write_trace):
    lines = {
        "python": [("PjitFunction(step)", 0, 8, {}), ("PjitFunction(step)", 1, 6, {}), ("PjitFunction(step)", 9, 1, {})]
    }
    lines["tf_XLAEigen/1"] = [on_cpu("dot.1", 10, 20), on_cpu("add.2", 70, 20)]
    lines["tf_XLAEigen/2"] = [on_cpu("dot.2", 20, 20)]
    trace = read_trace(write_trace({"/host:CPU": lines}))
    assert (trace.wall_us, trace.host_us, trace.device_us, trace.runs) == (90, 9, 50, 1)
    assert trace.idle_share == pytest.approx(30 / 80)
    assert times(trace) == {"dot.1": (20, 1), "dot.2": (20, 1), "add.2": (20, 1)}


def test_an_operation_that_goes_on_in_other_threads_lasts_until_the_next_one_of_its_program(write_trace):
    lines = {"tf_XLAPjRtCpuClient/1": [on_cpu("tanh.1", 0, 10, flow=7)]}
    # XLA tells the end of `tanh.1` only when the thread that ended it has run what comes next.
    lines["tf_XLAEigen/1"] = [on_cpu("dot.1", 30, 20, flow=8), over("dot.1", 49, 8), over("tanh.1", 52, 7)]
    trace = read_trace(write_trace({"/host:CPU": lines}))
    assert (trace.device_us, trace.idle_share) == (52, 0)
    assert [each.us for each in trace.devices] == [52]
    assert times(trace) == {"tanh.1": (32, 1), "dot.1": (20, 1)}


def test_an_operation_of_another_program_does_not_end_it(write_trace):
    lines = {
        "tf_XLAPjRtCpuClient/1": [on_cpu("tanh.1", 0, 10, flow=7)],
        "tf_XLAEigen/1": [on_cpu("dot.1", 30, 10, run=2), over("tanh.1", 52, 7)],
    }
    assert times(read_trace(write_trace({"/host:CPU": lines}))) == {"tanh.1": (52, 1), "dot.1": (10, 1)}


def test_waiting_for_a_program_in_the_dispatching_thread_is_no_dispatch(write_trace):
    python = [
        ("PjitFunction(step)", 0, 50, {}),
        on_cpu("copy", 10, 5),
        ("ThunkExecutor::Execute (wait for completion)", 15, 30, {}),
    ]
    trace = read_trace(write_trace({"/host:CPU": {"python": python}}))
    assert (trace.host_us, trace.device_us) == (15, 5)


def test_each_device_has_its_own_times(write_trace):
    lines = {
        "a": [on_cpu("dot.1", 0, 10), on_cpu("dot.1", 30, 10)],
        "b": [on_cpu("dot.1", 5, 15, device=10), on_cpu("add", 0, 1, device=2)],
    }
    trace = read_trace(write_trace({"/host:CPU": lines}))
    assert [(each.device, each.us, each.idle_share, each.operations) for each in trace.devices] == [
        ("CPU 0", 20, 0.5, 2),
        ("CPU 2", 1, 0, 1),
        ("CPU 10", 15, 0, 1),
    ]
    assert (trace.device_us, trace.idle_share) == (30, 0.25)


def test_a_copy_between_devices_is_told_from_one_to_a_device(write_trace):
    python = [
        ("DevicePutWithSharding", 0, 10, {}),
        ("CopyToMemorySpace", 2, 3, {}),
        ("DevicePutWithSharding", 20, 4, {}),
        ("DevicePut", 21, 1, {}),
    ]
    trace = read_trace(write_trace({"/host:CPU": {"python": python, "x": [on_cpu("dot", 0, 1)]}}))
    assert [(each.name, each.count, each.us) for each in trace.transfers] == [
        ("between devices", 1, 10),
        ("to device", 1, 4),
    ]


def test_a_compile_whose_passes_are_not_traced_is_named_after_the_innermost_call_around_it(write_trace):
    python = [
        ("PjitFunction(outer)", 0, 95, {}),
        ("PjitFunction(step)", 5, 80, {}),
        ("backend_compile_and_load", 10, 70, {}),
        ("backend_compile_and_load", 100, 5, {}),
    ]
    trace = read_trace(write_trace({"/host:CPU": {"python": python, "x": [on_cpu("dot", 0, 1)]}}))
    assert [(each.module, each.us) for each in trace.compilations] == [("jit_step", 70), ("?", 5)]


def test_what_happens_meanwhile_in_another_thread_is_no_part_of_it(write_trace):
    python = [("backend_compile_and_load", 10, 10, {}), ("DevicePutWithSharding", 40, 10, {})]
    other = [("PjitFunction(other)", 0, 30, {}), ("CopyToMemorySpace", 42, 3, {})]
    trace = read_trace(write_trace({"/host:CPU": {"python": python, "python2": other, "x": [on_cpu("dot", 0, 1)]}}))
    assert [each.module for each in trace.compilations] == ["?"]
    assert [each.name for each in trace.transfers] == ["to device"]
    assert trace.host_us == 30


def test_compiles_are_named_and_in_order_whatever_the_order_of_their_threads(write_trace):
    lines = {
        "python": [("backend_compile_and_load", 50, 10, {}), on_cpu("dot", 0, 1)],
        "python2": [("backend_compile_and_load", 10, 80, {})],
        "compiler": [("fusion (jit_late)", 51, 1, {"module": "jit_late"})],
        "compiler2": [("fusion (jit_early)", 11, 1, {"module": "jit_early"})],
    }
    trace = read_trace(write_trace({"/host:CPU": lines}))
    assert [(each.module, each.us) for each in trace.compilations] == [("jit_early", 80), ("jit_late", 10)]


def test_launches_alone_are_no_operations_of_the_cpu(write_trace):
    launch = ("cuLaunchKernelEx", 0, 1, of_step("launch", correlation_id=5))
    with pytest.raises(MeasurementError, match="no device ran an operation"):
        read_trace(write_trace({"/host:CPU": {"python": [launch]}, "/device:GPU:0": {}}))


def test_kernels_that_overlap_on_a_stream_share_their_time(write_trace):
    kernels = [("a", 0, 10, of_step("a", "a.1")), ("b", 8, 12, of_step("b", "b.1")), ("c", 15, 1, of_step("c", "c.1"))]
    trace = read_trace(write_trace({"/device:GPU:0": {"Stream #1(Compute)": kernels}}))
    assert times(trace) == {"b.1": (11, 1), "a.1": (8, 1), "c.1": (1, 1)}
    assert trace.device_us == 20


def test_a_gpus_streams_are_read_once_with_the_bytes_of_their_copies(write_trace):
    details = "kind_src:pageable kind_dst:device size:4096 dest:0 async:1"
    compute = [
        ("ampere_sgemm_128x64", 0, 10, of_step("kernel")),
        ("splitKreduce_kernel", 10, 2, of_step("kernel")),
        ("loop_tanh_fusion", 20, 5, of_step("kernel", "loop_tanh_fusion")),
        ("my_kernel", 30, 1, {"kernel_details": "regs:32"}),
        (
            "MemcpyD2D",
            31,
            2,
            of_step("copy", "copy.4", memcpy_details="kind_src:device kind_dst:device size:64 dest:0 async:1"),
        ),
        ("MemoryAlloc", 200, 1, {"memalloc_details": "kind:device num_bytes:64"}),
    ]
    other = [
        ("MemcpyH2D", 100, 50, {"memcpy_details": details}),
        ("MemcpyH2D", 150, 50, {"memcpy_details": details}),
        ("nccl_all_reduce", 8, 10, of_step("kernel", "all-reduce.1")),
    ]
    planes = {
        "/device:GPU:0": {
            "Stream #13(Compute,MemcpyD2D)": compute,
            "Stream #14(MemcpyH2D)": other,
            "XLA Ops": [("dot.1", 0, 12, {"hlo_op": "dot.1"})],
            "CUPTI overhead": [("Buffer flush", 300, 9, {})],
        },
        "/device:GPU:1": {"Stream #13(Compute)": [("ampere_sgemm_128x64", 3, 1, of_step("kernel"))]},
        "/host:CPU": {
            "python": [("cuLaunchKernelEx", 0, 1, of_step("launch", correlation_id=5)), on_cpu("host_work", 400, 9)]
        },
    }
    trace = read_trace(write_trace(planes))
    assert times(trace) == {
        "dot.1": (13, 3),
        "all-reduce.1": (10, 1),
        "loop_tanh_fusion": (5, 1),
        "copy.4": (2, 1),
        "my_kernel": (1, 1),
    }
    assert trace.operations[0].module == "jit_step"
    assert (trace.device_us, trace.idle_share) == (26, pytest.approx(7 / 33))
    assert [(each.device, each.us) for each in trace.devices] == [("GPU 0", 26), ("GPU 1", 1)]
    assert [(each.name, each.count, each.us, each.bytes) for each in trace.copies] == [
        ("MemcpyD2D", 1, 2, 64),
        ("MemcpyH2D", 2, 100, 8192),
    ]


def test_a_tpus_operations_are_named_and_belong_to_their_modules(write_trace):
    ops = [
        ("%while.5 = (s32[], f32[8]{0}) while(%tuple)", 0, 40, {}),
        ("%fusion.3 = bf16[8,8]{1,0} fusion(%p0, %p1)", 5, 30, {}),
        ("%copy.1 = f32[8]{0} copy(%x)", 60, 9, {}),
        ("%copy.9 = f32[8]{0} copy(%x)", 90, 1, {}),
    ]
    tpu = {
        "XLA Modules": [("jit_step(123456789)", 0, 50, {}), ("jit_eval(42)", 55, 20, {})],
        "XLA Ops": ops,
        "Async XLA Ops": [("%copy-start = (f32[8]) copy-start(%x)", 40, 20, {})],
        "Steps": [("0", 0, 100, {})],
    }
    trace = read_trace(write_trace({"/device:TPU:0": tpu, "/device:TPU:0 SparseCore 0": {"XLA Ops": ops}}))
    assert [(str(each), each.us) for each in trace.operations] == [
        ("jit_step: fusion.3", 30),
        ("jit_step: while.5", 10),
        ("jit_eval: copy.1", 9),
        ("copy.9", 1),
    ]
    assert (trace.device_us, trace.idle_share) == (50, pytest.approx(41 / 91))
    assert [each.device for each in trace.devices] == ["TPU 0"]


# What grew.


@pytest.fixture
def steps(write_trace):
    """A trace of two runs that each ran these operations for as many microseconds."""

    def trace(module="jit_step", **us):
        events, now = [], 0
        for name, each in [*us.items()] * 2:
            events.append(on_cpu(name.replace("_", "."), now, each, module=module))
            now += each
        runs = [("perfsuite: run", 0, 1, {}), ("perfsuite: run", 2, 1, {})]
        return read_trace(write_trace({"/host:CPU": {"python": runs, "x": events}}))

    return trace


def test_what_grew_is_said_a_run_and_the_most_grown_first(steps):
    before = steps(dot_1=100, tanh_2=50, exp_3=10, add_4=20)
    after = steps(dot_7=60, dot_8=60, tanh_2=90, exp_3=10, sort_5=30)
    assert grew(profile_of(before), profile_of(after)) == [
        "jit_step: tanh: 50 -> 90 us a run (+40), 1 times",
        "jit_step: sort: 0 -> 30 us a run (+30), 0 -> 1 times",
        "jit_step: dot: 100 -> 120 us a run (+20), 1 -> 2 times",
    ]


def test_operations_that_are_only_numbered_anew_or_hardly_slower_did_not_grow(steps):
    assert grew(profile_of(steps(dot_1=100, tanh=50)), profile_of(steps(dot_9=101, tanh_3=51))) == []


def test_functions_of_two_names_are_held_against_each_other_by_their_operations(steps):
    before, after = steps(module="jit_plain", dot=100, tanh=50), steps(module="jit_slow", dot=100, tanh=90)
    assert grew(profile_of(before), profile_of(after)) == ["jit_slow: tanh: 50 -> 90 us a run (+40), 1 times"]


def test_what_one_trace_alone_says_did_not_grow_unless_it_runs_more_often(steps):
    before = profile_of(*(steps(dot=us, exp=20) for us in (100, 130, 105)))
    assert grew(before, profile_of(*(steps(dot=us, exp=20) for us in (140, 120, 135)))) == []
    assert grew(before, profile_of(*(steps(dot=us, exp=20) for us in (140, 131, 135)))) == [
        "jit_step: dot: 105 -> 135 us a run (+30), 1 times"
    ]
    twice = profile_of(*(steps(dot_1=us / 2, dot_2=us / 2, exp=20) for us in (140, 120, 135)))
    assert grew(before, twice) == ["jit_step: dot: 105 -> 135 us a run (+30), 1 -> 2 times"]


def test_the_message_has_the_sums_the_ten_most_grown_and_what_takes_less(steps):
    before = profile_of(steps(dot=100, **{f"exp{n}": 10 + n for n in range(12)}))
    after = profile_of(steps(dot=40, **{f"exp{n}": 20 + 2 * n for n in range(12)}))
    lines = in_words(before, after, "old -> new").splitlines()
    assert lines[0] == ("traced, a run (old -> new): host 0 -> 0 us, device 286 -> 412 us, idle share 0.000 -> 0.000")
    assert lines[1] == "  grew: jit_step: exp11: 21 -> 42 us a run (+21), 1 times"
    assert len(lines) == 1 + 10 + 1
    assert lines[-1] == "  less: jit_step: dot (-60)"
    assert in_words(after, after).splitlines()[1:] == ["  no operation on the device grew"]


def test_of_one_profile_alone_the_ten_longest_operations_are_said(steps):
    lines = in_words(None, profile_of(steps(**{f"exp{n}": 10 + n for n in range(12)}))).splitlines()
    assert lines[0] == "traced, a run: host 0 us, device 186 us, idle share 0.000; the longest operations:"
    assert lines[1] == "  jit_step: exp11: 21 us, 1 times"
    assert len(lines) == 1 + 10


def test_a_profile_survives_being_kept(steps):
    profile = profile_of(steps(dot=100, tanh=3), steps(dot=110, exp=1))
    assert Profile.from_dict(json.loads(json.dumps(profile.to_dict()))) == profile


@pytest.mark.parametrize(
    ("us", "taken", "runs"), [(10, 3, 10), (2e4, 3, 10), (1e5, 3, 3), (0.9e6, 3, 1), (2e6, 1, 1), (0.0, 3, 10)]
)
def test_a_long_call_is_traced_in_fewer_runs(us, taken, runs, steps, monkeypatch):
    seen = []
    trace = steps(dot=1)
    monkeypatch.setattr(trace_recording, "trace_call", lambda call, runs: seen.append((call, runs)) or trace)
    assert len(profiles("a", "b", us=us)) == 2
    assert seen == [("a", runs), ("b", runs)] * taken, "in turns"


# The metrics.


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


def test_spans_are_joined_and_taken_off_each_other():
    assert merged([(5, 6), (0, 2), (1, 3), (3, 4), (1, 2)]) == [(0, 4), (5, 6)]
    assert without([(0, 10), (20, 30)], [(5, 22), (25, 26), (40, 50)]) == 5 + 8 - 1
    assert idle_share([(0, 1), (3, 4)]) == 0.5
    assert idle_share([(1, 1)]) == 0
