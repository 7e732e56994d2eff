"""`measure.profiler.trace_events`: what the events of traces mean. These traces are made by hand, in microseconds.

No accelerator was at hand: the events of GPUs and TPUs have the names that XLA's sources give them.
"""

import pytest
from support.traces import of_step, on_cpu, over

from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.profiler.traces import read_trace


def times(trace):
    return {operation.name: (operation.us, operation.count) for operation in trace.operations}


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"hello", lambda data: b""])
def test_a_damaged_file_is_named(tmp_path, write_trace, damage):
    path = write_trace({"/host:CPU": {"python": [("PjitFunction(f)", 0, 1, {})] * 30}})
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(MeasurementError, match=f"{path}: the trace is (damaged|empty)"):
        read_trace(path)


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


def test_a_copy_between_devices_is_not_one_to_a_device(write_trace):
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
