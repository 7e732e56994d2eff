"""Reading compiled HLO: compiler output kept in `hlo/` (made by `hlo/make.py`), forms of other backends, and errors."""

import re
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from properties.hlo_texts import written_modules
from support.compiled_texts import LINES as PROGRAMS
from support.compiled_texts import TEXTS, one_line

from perfsuite.measure.hlo import reader as hlo
from perfsuite.measure.hlo.scanner import HloError

MODULES = {name: hlo.parse_hlo(text) for name, text in TEXTS.items()}
EVERY = pytest.mark.parametrize("name", sorted(TEXTS))
BOTH = pytest.mark.parametrize("backend", ["cpu", "v5e"])


def instructions(module):
    return [instruction for computation in module.computations.values() for instruction in computation.instructions]


def entry(module):
    return module.computations[module.entry].instructions


def lines(text):
    """The lines of instructions, with the texts in quotes emptied."""
    return [
        re.sub(r'"(\\.|[^"\\])*"', '""', line) for line in text.splitlines() if re.match(r"  (ROOT )?%\S+ = ", line)
    ]


@EVERY
def test_every_instruction_is_read(name):
    found = instructions(MODULES[name])
    wanted = [re.match(r"  (ROOT )?%(\S+) = .*? ([a-z][a-z0-9-]*)\(", line).groups() for line in lines(TEXTS[name])]
    assert [("ROOT " if one.is_root else None, one.name, one.opcode) for one in found] == wanted
    assert len(found) > 10


@EVERY
def test_every_name_on_a_line_is_an_operand_or_a_call_or_waited_for(name):
    for line, instruction in zip(lines(TEXTS[name]), instructions(MODULES[name]), strict=True):
        waited_for = re.findall(r"%([\w.-]+)", instruction.attributes.get("control-predecessors", ""))
        named = re.findall(r"%([\w.-]+)", line.split(" = ", 1)[1])
        assert Counter(named) == Counter([*instruction.operands, *instruction.calls, *waited_for])


@EVERY
def test_parameters_and_result_of_the_entry_are_those_of_the_header(name):
    layout = re.search(r"entry_computation_layout=\{\((.*?)\)->(.*?)\}(?:, [a-z_]+=|$)", TEXTS[name], re.MULTILINE)
    shapes = [
        [
            (dtype, tuple(map(int, filter(None, dims.split(",")))))
            for dtype, dims in re.findall(r"(\w+)\[([\d,]*)\]", side)
        ]
        for side in layout.groups()
    ]
    parameters = sorted(
        (instruction for instruction in entry(MODULES[name]) if instruction.opcode == "parameter"),
        key=lambda instruction: instruction.parameter,
    )
    root = next(instruction for instruction in entry(MODULES[name]) if instruction.is_root)
    assert [instruction.parameter for instruction in parameters] == list(range(len(parameters)))
    assert [(shape.dtype, shape.dims) for one in parameters for shape in one.shapes] == shapes[0]
    assert [(shape.dtype, shape.dims) for shape in root.shapes] == shapes[1]


@BOTH
def test_a_stack_goes_from_the_operation_to_its_callers(backend):
    stacks = {
        instruction.stack
        for instruction in instructions(MODULES[f"train_{backend}"])
        if "_bernoulli" in instruction.op_name and len(instruction.stack) == 6
    }
    assert stacks
    for stack in stacks:
        assert [frame.function for frame in stack] == ["dropout", "block", "loss", "train_step", "main", "<module>"]
        at = [PROGRAMS[frame.line - 1] for frame in stack[:4]]
        for text, wanted in zip(at, ["random.bernoulli(", "dropout(", "block(", "value_and_grad(loss)"], strict=True):
            assert wanted in text
        assert {frame.file for frame in stack[:4]} == {"/project/programs.py"}
        assert {frame.file for frame in stack[4:]} == {"/project/make.py"}


@BOTH
def test_texts_in_quotes_may_hold_anything(backend):
    exp = next(one for one in instructions(MODULES[f"attributes_{backend}"]) if one.opcode == "exponential")
    assert exp.op_name == 'jit(attributes)/a "quoted" {brace}, calls=%nothing, \\ x=1 é/exp'
    assert exp.attributes["frontend_attributes"] == '{note={"k": ["v", "}"]},odd="say \\"hi\\", {",plain="yes"}'
    assert exp.calls == ()
    assert PROGRAMS[exp.stack[0].line - 1].strip() == "return jnp.exp(x) + 1"
    assert [frame.function for frame in exp.stack] == ["labelled", "attributes", "main", "<module>"]


COMPUTATION = "%f (x: f32[2]) -> f32[2] {\n  ROOT %x = f32[2]{0} parameter(0)\n}\n\n"


@pytest.mark.parametrize(
    ("line", "operands"),
    [
        ("%x = f32[2]{0} add(%a, %b)", ("a", "b")),
        ("%x = f32[2]{0} add(f32[2]{0} %a, f32[2]{0} %a)", ("a", "a")),
        ("%x = f32[2]{0} custom-call(%a, %b, %c, %a, %b, /*index=5*/%c)", ("a", "b", "c", "a", "b", "c")),
        ("x = f32[2]{0} add(a, b)", ("a", "b")),
        ("x = f32[2]{0} add(a, /*index=5*/b)", ("a", "b")),
        ("%x = f32[2]{0} constant({1, 2})", ()),
        ("%x = ((u32[3]{0}, pred[]), token[]) infeed(%a)", ("a",)),
        ("%x = token[] outfeed(%a, %b), outfeed_shape=(u32[3]{0}, pred[])", ("a", "b")),
    ],
)
def test_operands(line, operands):
    assert one_line(line).operands == operands


@pytest.mark.parametrize(
    ("attributes", "calls"),
    [
        ("to_apply=%f", ("f",)),
        ("calls=f", ("f",)),
        ("condition=%f, body=%g", ("f", "g")),
        ("branch_computations={%f, %g}", ("f", "g")),
        ("true_computation=%f, false_computation=%g", ("f", "g")),
        ("called_computations={%f}", ("f",)),
        ("window={size=2x3}, select=%f, scatter=%g", ("f", "g")),
    ],
)
def test_calls(attributes, calls):
    found = one_line(f"%x = f32[2]{{0}} call(%a), {attributes}", before=COMPUTATION + COMPUTATION.replace("%f", "%g"))
    assert found.calls == calls
    assert found.attributes.keys() <= {"window"}


def test_names_and_signatures_without_decoration():
    text = "HloModule m\n\nf {\n  x = f32[] parameter(0)\n  ROOT y = f32[] negate(x)\n}\n\nENTRY main {\n  a = f32[] parameter(0)\n"
    module = hlo.parse_hlo(text + "  ROOT m = f32[] map(a), dimensions={}, to_apply=f\n}\n")
    assert [(one.operands, one.calls) for one in entry(module)] == [((), ()), (("a",), ("f",))]


def test_the_header():
    text = (
        "HloModule jit_f, is_scheduled=true, input_output_alias={ {}: (3, {}, must-alias), {1,0}: (10, {2,1}, may-alias),"
        " {2}: (0, {}) }, buffer_donor={ (2, {}), (4, {1}) }, entry_computation_layout={(f32[2]{0})->(f32[2]{0}, /*index=5*/f32[])},"
        ' num_partitions=8, frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["x"=8]>}},\ndebug_attributes={\n  {"c"}:({log_mode=default})\n},'
        ' origin_recovery_table={\n  {"c"} : {"d"},\n  "\n    HloModule other, frontend_attributes={foo=\\"bar\\"}\n\n    ENTRY %e () -> s32[] {\n    }\n  "\n}\n\n\n'
    )
    module = hlo.parse_hlo(text + "ENTRY %e () -> s32[] {\n  ROOT %c = s32[] constant(1)\n}\n\n")
    assert module.reused == {3, 2, 0}
    assert (module.name, module.entry, list(module.computations)) == ("jit_f", "e", ["e"])


GOOD = """HloModule m, num_partitions=1

%f (x: f32[2]) -> f32[2] {
  %x = f32[2]{0} parameter(0)
  ROOT %y = f32[2]{0} negate(%x), metadata={op_name="f/neg"}
}

ENTRY %main (a: f32[2]) -> f32[2] {
  %a = f32[2]{0} parameter(0)
  ROOT %b = f32[2]{0} fusion(%a), kind=kLoop, calls=%f, backend_config={"a":{"b":["c"]}}
}
"""


@pytest.mark.parametrize(
    ("was", "now", "line", "problem"),
    [
        ("HloModule m", "module @m", 1, "expected 'HloModule' and a name at the start"),
        (", num_partitions=1", ", input_output_alias={ {0}: 5 }", 1, "expected entries of input_output_alias"),
        ("%x = f32[2]{0} p", "%x = f32[2]{0 p", 4, "expected an operation"),
        ("negate(%x)", "negate(%x", 5, "unbalanced brackets: after '(' comes '}'"),
        ('"f/neg"', '"f/neg', 5, "unbalanced brackets: after '{' comes a text without its closing quote"),
        ("f32[2]{0} negate", "f32[2 negate", 5, "expected a shape, found 'f32[2 negate(%x), metadata="),
        ("parameter(0)\n  ROOT %y", "parameter(one)\n  ROOT %y", 4, "expected the number of a parameter, found 'one'"),
        ("ROOT %y", "%y", 6, "the computation 'f' has 0 ROOT instructions, not one"),
        ("ROOT %y", "ROOT %x", 5, "a second instruction 'x' in this computation"),
        (" -> f32[2] {\n  %x", " = f32[2] {\n  %x", 3, "expected a computation, found '%f (x: f32[2]) = f32[2] {'"),
        ("%f (", "%main (", 8, "a second computation 'main'"),
        ("%f (", "ENTRY %f (", 8, "a second entry, after 'f'"),
        ("ENTRY %main", "%main", 11, "cut short: it ends without an ENTRY computation"),
        ("calls=%f", "calls=%g", 10, "there is no computation 'g'"),
        ('["c"]}}', '["c"]', 10, "unbalanced brackets: after '{' comes the end"),
        (
            ', backend_config={"a":{"b":["c"]}}\n}\n',
            "\n",
            11,
            "cut short: it ends where an instruction or '}' should be",
        ),
        (', backend_config={"a":{"b":["c"]}}\n}\n', ", backend", 10, "expected the end of the line, found ', backend'"),
        ("\nENTRY", "\nwhat is this\nENTRY", 8, "expected a computation, found 'what is this'"),
    ],
)
def test_an_error_names_the_line_and_what_was_expected(was, now, line, problem):
    assert hlo.parse_hlo(GOOD).entry == "main"
    assert was in GOOD
    with pytest.raises(HloError) as caught:
        hlo.parse_hlo(GOOD.replace(was, now, 1))
    assert problem in str(caught.value)
    assert (caught.value.line, caught.value.problem in str(caught.value)) == (line, True)


@pytest.mark.parametrize("text", ["", "\n", "HloModule", "HloModule m", "HloModule m\n\n"])
def test_a_text_without_a_program_is_refused(text):
    with pytest.raises(HloError, match=r"line [13] of"):
        hlo.parse_hlo(text)


@pytest.mark.parametrize("opening", ["(", "{", "[", '"', "%x = (", '{"a":', "/*", "\\", "a="])
def test_endless_openings_are_refused_without_a_deep_stack(opening):
    start = GOOD.index("negate(") + len("negate(")
    for at in (0, len("HloModule m"), start, GOOD.index('"a":'), GOOD.index('"f/neg"') + 1):
        with pytest.raises(HloError):
            hlo.parse_hlo(GOOD[:at] + opening * 20_000)


def parses_or_is_refused(text):
    try:
        module = hlo.parse_hlo(text)
    except HloError as error:
        problem = error
    else:
        assert module.entry in module.computations
        return True
    assert 1 <= problem.line <= text.count("\n") + 1
    return False


def test_a_text_cut_short_anywhere_is_refused():
    text = TEXTS["called_back_v5e"].rstrip("\n")
    assert parses_or_is_refused(text)
    assert [at for at in range(len(text)) if parses_or_is_refused(text[:at])] == []


@settings(max_examples=200)
@given(
    st.text() | st.text().map(lambda text: f"HloModule m{text}") | st.text(st.sampled_from("HloModule m(){}[]%=,\n"))
)
@example("HloModule m\nENTRY f {\n}")
def test_any_text_is_read_or_refused(text):
    parses_or_is_refused(text)


@settings(max_examples=60)
@given(written_modules())
def test_what_is_written_is_read(written):
    text, module = written
    assert hlo.parse_hlo(text) == module
