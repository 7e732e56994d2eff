"""Compiled programs read from their protos: those of `hlo/` (made by `hlo/make.py`), forms of other backends, damage."""

import base64
import contextlib
import re
import zlib
from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from properties.edits import edited_bytes
from support.compiled_texts import LINES, TEXTS, computation, module, parse, proto

from perfsuite.measure.hlo.module import Shape, SourceFrame, packed, read_module, unpacked

MODULES = {name: parse(text) for name, text in TEXTS.items()}
EVERY = pytest.mark.parametrize("name", sorted(TEXTS))
BOTH = pytest.mark.parametrize("backend", ["cpu", "v5e"])


def instructions(module):
    return [op for computation in module.computations.values() for op in computation.instructions]


def instruction(line, *before):
    """The instruction on a line after %a, %b and %c, and after the computations `before`."""
    return parse(module(line, *before)).computations["main"].root


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        (Shape("f32", ()), 4),
        (Shape("bf16", (3, 5)), 30),
        (Shape("pred", (7,)), 7),
        (Shape("s4", (3,)), 2),
        (Shape("s2", (5,)), 2),
        (Shape("f8e4m3fn", (9,)), 9),
        (Shape("f4e2m1fn", (9,)), 5),
        (Shape("c128", (2,)), 32),
        (Shape("s64", (2, 0)), 0),
        (Shape("token", ()), 0),
        (Shape("opaque", ()), 0),
    ],
)
def test_bytes_of_a_shape(shape, size):
    assert shape.bytes == size


@EVERY
def test_every_line_of_the_text_is_an_instruction_with_its_operands_and_calls(name):
    ops = {op.name: op for op in instructions(MODULES[name])}
    unquoted = re.sub(r'"(\\.|[^"\\])*"', '""', TEXTS[name])
    lines = re.findall(r"^  (ROOT )?%(\S+) = (.*? )?([a-z][a-z0-9-]*)\((.*)$", unquoted, re.MULTILINE)
    assert len(lines) == len(ops) > 10
    for root, own, _, opcode, rest in lines:
        op = ops[own]
        assert (bool(root), opcode) == (op.is_root, op.opcode)
        rest = re.sub(r"control-predecessors=\{.*?\}", "", rest)
        assert Counter(re.findall(r"%([\w.-]+)", rest)) == Counter([*op.operands, *op.calls])


@EVERY
def test_instructions_are_in_the_order_of_the_schedule(name):
    names = re.findall(r"^  (?:ROOT )?%(\S+) = ", TEXTS[name].partition("\nENTRY ")[2], re.MULTILINE)
    assert [op.name for op in MODULES[name].computations[MODULES[name].entry].instructions] == names


@EVERY
def test_parameters_and_result_of_the_entry_are_those_of_the_header(name):
    layout = re.search(r"entry_computation_layout=\{\((.*?)\)->(.*?)\}(?:, [a-z_]+=|$)", TEXTS[name], re.MULTILINE)
    arguments, results = (re.findall(r"(\w+)\[([\d,]*)\]", side) for side in layout.groups())
    entry = MODULES[name].computations[MODULES[name].entry]
    parameters = sorted((op for op in entry.instructions if op.opcode == "parameter"), key=lambda op: op.parameter)
    assert [op.parameter for op in parameters] == [*range(len(parameters))]
    shown = lambda ops: [(shape.dtype, ",".join(map(str, shape.dims))) for op in ops for shape in op.shapes]
    assert (shown(parameters), shown([entry.root])) == (arguments, results)


@BOTH
def test_a_stack_goes_from_the_operation_to_its_callers(backend):
    ops = [op for op in instructions(MODULES[f"train_{backend}"]) if "_bernoulli" in op.op_name]
    stacks = {op.stack for op in ops if len(op.stack) == 6}
    assert stacks
    for stack in stacks:
        assert [frame.function for frame in stack] == ["dropout", "block", "loss", "train_step", "main", "<module>"]
        for frame, code in zip(
            stack[:4], ["random.bernoulli(", "dropout(", "block(", "value_and_grad(loss)"], strict=True
        ):
            assert (frame.file, code in LINES[frame.line - 1]) == ("/project/programs.py", True)


@BOTH
def test_names_and_attributes_may_hold_anything(backend):
    exp = next(op for op in instructions(MODULES[f"attributes_{backend}"]) if op.opcode == "exponential")
    assert exp.op_name == 'jit(attributes)/a "quoted" {brace}, calls=%nothing, \\ x=1 é/exp'
    assert exp.frontend_attributes == {"note": '{"k": ["v", "}"]}', "odd": 'say "hi", {', "plain": "yes"}


def test_without_a_stack_there_is_the_line_of_the_metadata():
    op = instruction('%x = f32[8,16]{1,0} copy(%a), metadata={op_name="f/copy" source_file="m.py" source_line=3}')
    assert (op.op_name, op.stack) == ("f/copy", (SourceFrame("m.py", 3, ""),))


def test_a_loop_calls_its_condition_and_its_body():
    body, condition = (
        computation(name, f"%{name}_p = f32[8,16]{{1,0}} parameter(0)", line)
        for name, line in (
            ("body", "%next = f32[8,16]{1,0} negate(%body_p)"),
            ("condition", "%done = pred[] constant(true)"),
        )
    )
    config = 'backend_config={"known_trip_count":{"n":"8"}}'
    op = instruction(f"%w = f32[8,16]{{1,0}} while(%a), condition=%condition, body=%body, {config}", body, condition)
    assert (op.calls, op.trip_count) == (("condition", "body"), 8)


@pytest.mark.parametrize(
    ("header", "reused"),
    [
        (", input_output_alias={ {0}: (1, {}, may-alias), {1}: (2, {}, must-alias) }", {0: 1, 1: 2}),
        (", input_output_alias={ {0}: (0, {7}, may-alias), {1}: (0, {0}, may-alias) }", {0: 7, 1: 0}),
    ],
)
def test_arguments_whose_memory_is_reused_may_be_elements_of_one_tuple(header, reused):
    assert parse(module("%r = (f32[8,16]{1,0}, f32[8,16]{1,0}) tuple(%a, %b)", header=header)).reused == reused


@pytest.mark.parametrize(
    ("config", "cycles"),
    [
        ('{"window_config":{"estimated_cycles":"1826","x":["{"]},"y":"}"}', 1826),
        ('{"estimated_cycles":"-1"}', -1),
        ('{"estimated_cycles": 7}', 7),
        ('{"debug":"\\"estimated_cycles\\":\\"9\\""}', None),
        ("{}", None),
    ],
)
def test_estimated_cycles(config, cycles):
    assert instruction(f"%x = f32[8,16]{{1,0}} add(%a, %b), backend_config={config}").estimated_cycles == cycles


@pytest.mark.parametrize("dtype", ["s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "bf16", "f16", "f32", "f64"])
def test_the_value_of_a_constant_that_is_one_whole_number(dtype):
    assert instruction(f"%five = {dtype}[] constant(5)").literal == 5
    assert instruction(f"%many = {dtype}[2]{{0}} constant({{1, 2}})").literal is None
    if dtype[0] != "u":
        assert instruction(f"%less = {dtype}[] constant(-5)").literal == -5
    if "f" in dtype:
        for other in ("2.5", "inf", "nan"):
            assert instruction(f"%other = {dtype}[] constant({other})").literal is None


@pytest.mark.parametrize("config", ["1", "[1,2]", '"x"', "true", '{"known_trip_count":3}', "no JSON"])
def test_the_author_of_a_custom_call_may_write_anything(config):
    text = config.replace('"', '\\"')
    line = f'%x = f32[8,16]{{1,0}} custom-call(%a), custom_call_target="mine", backend_config="{text}"'
    assert (instruction(line).custom_call_target, instruction(line).trip_count) == ("mine", None)


def compiled(function, *arguments):
    executable = jax.jit(function).lower(*arguments).compile().runtime_executable()
    return executable.hlo_modules()[0].as_serialized_hlo_module_proto()


def test_floats_of_a_later_xla_are_stepped_over():
    text = TEXTS[min(TEXTS)]
    with_floats = proto(text) + b"\x99\x3f12345678" + b"\x9d\x3f1234"  # fields 1011, of the kinds 1 and 5
    assert read_module(packed(with_floats)) == read_module(packed(proto(text)))


def test_the_values_of_large_constants_are_left_out_and_nothing_else():
    weights = jax.random.normal(jax.random.key(0), (256, 256))
    text = packed(original := compiled(lambda x: x @ weights + 2, jnp.ones((4, 256))))
    assert len(original) > weights.nbytes > 20 * len(unpacked(text))
    whole = base64.b64encode(zlib.compress(original)).decode()
    assert read_module(text) == read_module(whole)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_damaged_proto_is_read_or_refused(data):
    damaged = data.draw(edited_bytes(proto(TEXTS["called_back_cpu"])))
    with contextlib.suppress(AttributeError, LookupError, TypeError, ValueError):
        read_module(base64.b64encode(zlib.compress(damaged)).decode())


@pytest.mark.parametrize("text", ["HloModule m", "", "AAAA", "é"])
def test_another_text_is_refused(text):
    with pytest.raises((ValueError, LookupError)):
        read_module(text)
