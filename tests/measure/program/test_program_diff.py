"""What changed between two programs, in lines."""

import dataclasses

import pytest
from support.compiled_texts import TEXTS, computation, module, read

from perfsuite.measure.hlo.costs import Cost
from perfsuite.measure.program.program_diff import program_differences

FACTS = {name: read(text) for name, text in TEXTS.items()}


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_equal_programs_have_no_differences(name):
    assert program_differences(FACTS[name], read(TEXTS[name])) == ""
    # Neither where it runs nor how long its compiler took is a difference of the program.
    other = dataclasses.replace(FACTS[name], label="other", compiler="another", compile_seconds=9.0, cached=True)
    assert program_differences(FACTS[name], other) == ""


KERNEL = computation(
    "kernel",
    "%p = f32[8,16]{1,0} parameter(0)",
    '%x = f32[8,16]{1,0} exponential(%p), metadata={op_name="jit(f)/exp" source_file="m.py" source_line=3}',
    '%y = f32[8,16]{1,0} tanh(%x), metadata={op_name="jit(f)/tanh" source_file="m.py" source_line=4}',
)
ALONE = [
    computation(
        name,
        f"%{name}p = f32[8,16]{{1,0}} parameter(0)",
        f'%{name}x = f32[8,16]{{1,0}} {opcode}(%{name}p), metadata={{op_name="jit(g)/{primitive}" source_file="m.py" source_line={line}}}',
    )
    for name, opcode, primitive, line in (("one", "exponential", "exp", 13), ("two", "tanh", "tanh", 14))
]
TOGETHER = module('%k = f32[8,16]{1,0} fusion(%a), kind=kLoop, calls=%kernel, metadata={op_name="jit(f)/tanh"}', KERNEL)
APART = module(
    """
    %k = f32[8,16]{1,0} fusion(%a), kind=kLoop, calls=%one, metadata={op_name="jit(g)/exp"}
    %l = f32[8,16]{1,0} fusion(%k), kind=kLoop, calls=%two, metadata={op_name="jit(g)/tanh"}
    """,
    *ALONE,
)


def test_a_kernel_that_split_is_told_with_its_place_whatever_the_function_is_called():
    assert program_differences(read(TOGETHER), read(APART)).splitlines() == [
        "bytes accessed: 1,024 -> 2,048 (+100.00%)",
        "launches: 1 -> 2 (+100.00%)",
        "fusions: 1 -> 2 (+100.00%)",
        "+ 1 x kLoop fusion in m.py: m.py:14",
        "unfused: exp and tanh were in one kernel: m.py:3",
    ]
    assert "unfused" not in program_differences(read(APART), read(TOGETHER))


def test_an_operation_that_runs_alone_now_did_split():
    lines = """
    %k = f32[8,16]{1,0} fusion(%a), kind=kLoop, calls=%one, metadata={op_name="jit(g)/exp"}
    %l = f32[8,16]{1,0} tanh(%k), metadata={op_name="jit(g)/tanh"}
    """
    changed = dataclasses.replace(read(module(lines, ALONE[0])), known=Cost(flops=1))
    assert "unfused: exp and tanh were in one kernel: m.py:3" in program_differences(read(TOGETHER), changed)


def test_the_parts_that_grew_are_told_with_their_lines():
    before, after = (
        read(
            module(
                "\n".join(
                    f'%x{i} = f32[8,16]{{1,0}} copy(%a), metadata={{op_name="f" source_file="m.py" source_line={i + 5}}}'
                    for i in range(count)
                )
            )
        )
        for count in (1, 3)
    )
    assert program_differences(before, after).splitlines() == [
        "copies: 1 -> 3 (+200.00%)",
        "bytes accessed: 1,024 -> 3,072 (+200.00%)",
        "launches: 1 -> 3 (+200.00%)",
        "+ 2 x copy in m.py: m.py:7",
    ]
    assert program_differences(after, before).splitlines() == [
        "copies: 3 -> 1 (-66.67%)",
        "bytes accessed: 3,072 -> 1,024 (-66.67%)",
        "launches: 3 -> 1 (-66.67%)",
        "- 2 x copy in m.py: m.py:5",
    ]
