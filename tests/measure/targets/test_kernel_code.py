"""The code of kernels in the files of libtpu: how often each bundle runs in a step of the grid."""

import pytest

from perfsuite.measure.targets.kernel_code import KernelCode, occupancy, scheduled
from perfsuite.measure.targets.targets import target

UNITS = "MXU, VLOAD, VLOAD:FILL, VSTORE:SPILL"


def slots(*rows):
    return "\n".join(["== CAPACITY:", UNITS, "4 2 2 1", "== UTILIZATION:", *rows])


def listing(*lines):
    """The bundles of a kernel, with their addresses."""
    return "keys\n\n" + "\n".join(f"{hex(place) if place else '0':>6} {line}" for place, line in enumerate(lines))


def grid_loop(limit, *inner, windows="input window allocation for operator input 0"):
    """A kernel with 2 bundles before and 2 after what is inside of the loop of its grid."""
    return listing(
        f"  :  {{ %s1 = inlined_call_operand.hbm /* {windows} */  ;;  %s2_s0 = smov 0 }}",
        "LB: > { %s3_s0 = sphi %s2_s0, %s4_s0 /* iteration index, stage = 0 */ }",
        *inner,
        f"  : > {{ %s4_s0 = sadd.s32 1, %s3_s0  ;;  %p5_p0 = scmp.ge.s32.totalorder %s4_s0, {limit} }}",
        "  :  { %6 = sbr.rel (!%p5_p0) target = $region9 }",
    )


def loop(depth, name, limit, step=1, start="0"):
    """A loop of 4 bundles: its branch waits for one that is empty, and one is of what is around it."""
    inside, outside = ">" * depth, ">" * (depth - 1)
    return (
        f"  : {outside} {{ %s{name}0_s1 = smov (!%p7_p1), {start} }}",
        f"LB: {inside} {{ %s{name}1_s1 = sphi %s{name}0_s1, %s{name}2_s1 }}",
        f"  : {outside} {{ %s{name}2_s1 = sadd.s32 {step}, %s{name}1_s1 }}",
        f"  : {inside} {{ %p{name}3_p2 = scmp.ge.s32.totalorder %s{name}2_s1, {limit}  ;;  %8 = sbr.rel (!%p{name}3_p2) }}",
        "  :  {}",
    )


def code(text, row="1 2 1 0"):
    return scheduled(text, slots(*[row] * text.count("{")))


def test_what_runs_once_a_step():
    kernel = code(grid_loop(17, "  : > { %v1 = vld }"))
    assert (kernel.grid_steps, kernel.bundles, kernel.unknown_loops) == (16, 5, 0)
    assert kernel.unit_use == {"MXU": 0.25, "VLOAD": 1}
    assert (kernel.fills, kernel.spills) == (5, 0)
    assert code(grid_loop(17), "0 0 0 1").spills == 4


@pytest.mark.parametrize(
    ("windows", "steps"),
    [
        ("operand 0", 16),
        ("output window allocation for operator output 0", 15),
        ("input window allocation for operator input 0 :: output window allocation for operator output 0", 14),
    ],
)
def test_the_steps_in_which_a_grid_only_copies_are_no_steps(windows, steps):
    assert code(grid_loop(16, windows=windows)).grid_steps == steps


def test_a_grid_whose_size_depends_on_data_is_unknown():
    assert code(grid_loop("%s77_s7")).grid_steps is None


def test_a_kernel_without_a_grid_has_one_step():
    assert (code(listing(*loop(1, 2, 7))).grid_steps, code(listing(*loop(1, 2, 7))).bundles) == (1, 1 + 4 * 7)


@pytest.mark.parametrize(
    ("inner", "bundles"),
    [
        (loop(2, 2, 7), 4 + 1 + 4 * 7),
        (loop(2, 2, 41, step=4, start="1"), 4 + 1 + 4 * 10),
        (loop(2, 2, 7) + loop(2, 3, 5), 4 + 1 + 4 * 7 + 1 + 4 * 5),
        ((*loop(2, 2, 7)[:-1], *loop(3, 3, 5), "  : >> { %v1 = vld }"), 4 + 1 + 7 * (3 + 1 + 4 * 5 + 1)),
    ],
    ids=["one", "from 1 by 4", "two", "one in the other"],
)
def test_a_loop_counts_as_often_as_it_runs(inner, bundles):
    kernel = code(grid_loop(17, *inner))
    assert (kernel.grid_steps, kernel.bundles, kernel.unknown_loops) == (16, bundles, 0)


def test_a_loop_that_depends_on_data_counts_once_and_is_told():
    kernel = code(grid_loop(17, *loop(2, 2, "%s77_s7")))
    assert (kernel.grid_steps, kernel.bundles, kernel.unknown_loops) == (16, 4 + 5, 1)


@pytest.mark.parametrize("table", ["", slots("1 2 1 0"), slots(*["1 2 1"] * 4), slots(*["a b c d"] * 4)])
def test_a_file_of_another_shape_is_an_error(table):
    with pytest.raises((ValueError, LookupError)):
        scheduled(grid_loop(17), table)


@pytest.mark.parametrize(
    ("registers", "threads", "shared", "name", "share"),
    [
        (32, 128, 0, "gpu-h100", 1.0),
        (255, 128, 0, "gpu-h100", 8 / 64),  # 2 warps for each of 4 schedulers
        (90, 128, 0, "gpu-h100", 20 / 64),  # 96 registers of 32 threads: 5 warps for each
        (32, 128, 99 * 1024, "gpu-h100", 8 / 64),  # with 1 KiB of the driver's, 2 blocks
        (32, 32, 0, "gpu-t4", 16 / 32),  # 16 blocks at most
        (None, 128, 0, "gpu-h100", None),
    ],
)
def test_occupancy_is_what_registers_memory_and_blocks_allow(registers, threads, shared, name, share):
    kernel = KernelCode(registers=registers, threads=threads, shared_bytes=shared)
    assert occupancy(kernel, target(name).architecture) == share
