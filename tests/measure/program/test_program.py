"""What a program's facts come to: memory, what limits it, and which operations one kernel holds."""

import dataclasses

import pytest
from support.compiled_texts import ORIGIN, TEXTS, read

from perfsuite.measure.hlo.hlo_module import Frame
from perfsuite.measure.program.program import Operation
from perfsuite.measure.targets.target import Rates

TRAIN = read(TEXTS["train_v5e"])
RATES = Rates(peak_flops={"bf16": 100.0}, memory_bandwidth=10.0, source="https://example.org")


def known(memory_bytes=None, **changes):
    origin = dataclasses.replace(ORIGIN, memory_bytes=memory_bytes, rates=RATES)
    return dataclasses.replace(read(TEXTS["sharded_cpu"], origin=origin), **changes)


def test_the_peak_has_each_byte_once():
    program = known()
    assert program.peak_bytes == 1000 + (300 - 200) + 50 + 7 == sum(program.memory_use.values())
    assert len(program.memory_use) == 4


@pytest.mark.parametrize(
    ("memory", "fits", "margin"), [(1157, True, 0), (1156, False, -1), (2000, True, 843), (None, None, None)]
)
def test_a_program_fits_where_its_peak_does(memory, fits, margin):
    assert (known(memory).fits, known(memory).margin_bytes) == (fits, margin)


def test_the_bound_is_the_largest_time():
    program = known(flops=1001.0, bytes_accessed=100.0, products=(), collectives=())
    assert program.bounds == {"compute": 10.01, "memory": 10.0}
    assert (program.bound, program.bound_seconds) == ("compute", 10.01)
    assert known(flops=999.0, bytes_accessed=100.0, products=()).bound == "memory"


def test_what_collectives_move_counts_where_the_rates_are_published():
    moved = (Operation("all-reduce", "", None, 600, runs=2),)
    sent = (Operation("all-reduce", "", None, 30, runs=5),)
    program = known(flops=0.0, bytes_accessed=1.0, products=(), collectives=moved, cross_slice_collectives=sent)
    assert program.bound == "memory"
    rates = dataclasses.replace(RATES, link_bandwidth=4.0, network_bandwidth=0.4)
    program = dataclasses.replace(program, rates=rates)
    assert program.bounds == {"compute": 0.0, "memory": 0.1, "links": 300.0, "network": 375.0}
    assert program.bound == "network"


def test_fuses_gives_the_kernels_that_hold_all_names():
    both = TRAIN.fuses("dot_general", "select_n")
    assert both
    assert set(both) == {one for one in TRAIN.fusions if {"dot_general", "select_n"} <= one.names}
    assert 0 < len(both) < len(TRAIN.fuses("dot_general"))
    assert repr(both).startswith(f"<{len(both)} kernels: /project/programs.py:")


def test_a_line_that_moves_is_the_same_part():
    def at(line, function="Model.__call__.<locals>.attention", file="/a/bert.py"):
        return Operation("copy", "jit(f)/copy", Frame(file, line, function), 8).part

    assert at(1) == at(2) == at(1, file="/b/bert.py") == "copy in attention (bert.py)"
    assert len({at(1), at(1, function="mlp"), at(1, file="/a/gpt.py")}) == 3


def test_fuses_says_where_the_operations_are_instead():
    none = TRAIN.fuses("dot_general", "no_such_primitive")
    assert not none
    first = TRAIN.fuses("dot_general")[0].where
    assert repr(none).startswith(f"<no kernel has all of them; dot_general: {first}")
    assert repr(none).endswith("no_such_primitive: in none>")
