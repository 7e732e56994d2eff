"""`measure.trace`: recording a block or a call, and where its time went.

The traces of the CPU are real, but for those made by hand, in microseconds. No accelerator was at hand: the events of
GPUs and TPUs have the names that XLA's sources give them.
"""

import gc
import gzip
import itertools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.traces import LONG, SQUARE, of_step, on_cpu, ordered, over, product

from perfsuite.measure.call import call
from perfsuite.measure.errors import MeasurementError, RecompilationError
from perfsuite.measure.trace import affordable_runs, read_trace, trace_block, trace_call

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


def test_a_call_that_runs_nothing_on_a_device_is_an_error_with_a_reason():
    with pytest.raises(MeasurementError, match=r"xplane\.pb: no device ran an operation in this trace"):
        trace_call(call(lambda: None))


@pytest.mark.parametrize(("us", "runs"), [(0.0, 10), (10, 10), (2e5, 5), (0.9e6, 1), (2e6, 1)])
def test_a_long_call_is_traced_in_fewer_runs(us, runs):
    assert affordable_runs(us) == runs


# What a trace says.


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


def test_what_is_in_flight_when_the_block_ends_belongs_to_it_and_not_to_the_next():
    ordered(LONG).block_until_ready()
    product(SQUARE).block_until_ready()
    with trace_block() as first:
        kept = [ordered(LONG) for _ in range(3)]
    kept += [ordered(LONG) for _ in range(3)]
    with trace_block() as second:
        kept += [product(SQUARE)]
    assert {operation.module for operation in first.trace.operations} == {"jit_ordered"}
    assert {operation.module for operation in second.trace.operations} == {"jit_product"}


# Made by hand: the files are read by the same `jax.profiler.ProfileData` as real ones.


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


def times(trace):
    return {operation.name: (operation.us, operation.count) for operation in trace.operations}


def test_times_are_unions_and_the_idle_share_is_between_the_first_operation_and_the_last(write_trace):
    lines = {
        "python": [("perfsuite: block", 0, 90, {}), ("PjitFunction(step)", 0, 8, {})],
        "tf_XLAEigen/1": [on_cpu("dot.1", 10, 20), on_cpu("add.2", 70, 20)],
        "tf_XLAEigen/2": [on_cpu("dot.2", 20, 20), on_cpu("dot.2", 75, 5, device=1)],
    }
    trace = read_trace(write_trace({"/host:CPU": lines}))
    assert (trace.wall_us, trace.device_us, trace.runs) == (90, 50, 1)
    assert trace.idle_share == pytest.approx(30 / 80)
    assert times(trace) == {"dot.1": (20, 1), "dot.2": (25, 2), "add.2": (20, 1)}


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"hello", lambda data: b""])
def test_a_damaged_file_is_named(tmp_path, write_trace, damage):
    path = write_trace({"/host:CPU": {"python": [("PjitFunction(f)", 0, 1, {})] * 30}})
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(MeasurementError, match=f"{path}: the trace is (damaged|empty)"):
        read_trace(path)


def test_an_operation_that_goes_on_in_other_threads_lasts_until_the_next_one_of_its_program(write_trace):
    lines = {"tf_XLAPjRtCpuClient/1": [on_cpu("tanh.1", 0, 10, flow=7)]}
    # XLA tells the end of `tanh.1` only when the thread that ended it has run what comes next.
    lines["tf_XLAEigen/1"] = [on_cpu("dot.1", 30, 20, flow=8), over("dot.1", 49, 8), over("tanh.1", 52, 7)]
    trace = read_trace(write_trace({"/host:CPU": lines}))
    assert (trace.device_us, trace.idle_share) == (52, 0)
    assert times(trace) == {"tanh.1": (30, 1), "dot.1": (20, 1)}


def test_a_gpus_streams_are_read_once_without_copies_from_the_host(write_trace):
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


def test_the_metrics_are_of_a_run(write_trace):
    python = [("perfsuite: block", 0, 100, {}), ("perfsuite: run", 0, 10, {}), ("perfsuite: run", 10, 10, {})]
    operations = [on_cpu(f"exp.{n}", 20 + n, 0.5) for n in range(11)]
    operations += [on_cpu("dot", 40, 10), on_cpu("dot", 60, 10)]
    trace = read_trace(write_trace({"/host:CPU": {"python": python, "x": operations}}))
    metrics = trace.metrics("step")
    assert {metric.kind for metric in metrics} == {"info"}
    assert [(metric.name, metric.value, metric.unit) for metric in metrics] == [
        ("step trace device", 12.75, "us"),
        ("step trace wall", 50, "us"),
        ("step trace idle share", pytest.approx(0.49), "share"),
    ]
    assert [(each.name, each.us) for each in trace.longest[:2]] == [("dot", 20), ("exp.0", 0.5)]
    assert (len(trace.longest), len(trace.operations)) == (10, 12)
