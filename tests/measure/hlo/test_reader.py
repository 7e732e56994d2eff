"""Reading compiled HLO: compiler output kept in `hlo/` (made by `hlo/make.py`), forms of other backends, and errors."""

import ast
import json
import re
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from properties.hlo_texts import written_modules
from support.compiled_texts import LINES as PROGRAMS
from support.compiled_texts import TEXTS, one_line

from perfsuite.measure.hlo import reader as hlo
from perfsuite.measure.hlo.hlo_module import Frame, Shape
from perfsuite.measure.hlo.scanner import HloError

MODULES = {name: hlo.parse_hlo(text) for name, text in TEXTS.items()}
EVERY = pytest.mark.parametrize("name", sorted(TEXTS))
BOTH = pytest.mark.parametrize("backend", ["cpu", "v5e"])


def instructions(module):
    return [instruction for computation in module.computations.values() for instruction in computation.instructions]


def entry(module):
    return module.computations[module.entry].instructions


def entry_named(module):
    return {instruction.name: instruction for instruction in entry(module)}


def lines(text):
    """The lines of instructions, with the texts in quotes emptied."""
    return [
        re.sub(r'"(\\.|[^"\\])*"', '""', line) for line in text.splitlines() if re.match(r"  (ROOT )?%\S+ = ", line)
    ]


def test_there_is_a_text_for_every_program_and_backend():
    programs = {"train", "control", "sharded", "called_back", "attributes"}
    assert TEXTS.keys() == {f"{program}_{backend}" for program in programs for backend in ("cpu", "v5e")}


@EVERY
def test_every_computation_is_read(name):
    heads = re.findall(r"^(ENTRY )?%(\S+) \(.*\{$", TEXTS[name], re.MULTILINE)
    assert list(MODULES[name].computations) == [head for _, head in heads]
    assert [MODULES[name].entry] == [head for is_entry, head in heads if is_entry]


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
def test_operands_are_in_the_same_computation_and_calls_in_the_module(name):
    for computation in MODULES[name].computations.values():
        names = {instruction.name for instruction in computation.instructions}
        for instruction in computation.instructions:
            assert names.issuperset(instruction.operands)
            assert MODULES[name].computations.keys() >= set(instruction.calls)


@EVERY
def test_op_names_are_those_of_the_text(name):
    wanted = re.findall(r'metadata=\{.*?\bop_name="((?:\\.|[^"\\])*)"', TEXTS[name])
    shown = [instruction.op_name for instruction in instructions(MODULES[name]) if instruction.op_name]
    assert shown == [one.encode().decode("unicode_escape").encode("latin-1").decode() for one in wanted]


@EVERY
def test_stacks_are_where_the_text_has_a_frame_and_lie_in_the_functions_they_name(name):
    with_frame = [" stack_frame_id=" in line for line in lines(TEXTS[name])]
    stacks = [instruction.stack for instruction in instructions(MODULES[name])]
    assert [bool(stack) for stack in stacks] == with_frame
    places = {frame for stack in stacks for frame in stack if frame.file == "/project/programs.py"}
    assert places
    functions = {
        node.name: node for node in ast.walk(ast.parse("\n".join(PROGRAMS))) if isinstance(node, ast.FunctionDef)
    }
    for place in places:
        function = functions[place.function.split(".")[0]]
        assert function.lineno < place.line <= function.end_lineno
    # A reducer or a sharded function is traced without the frames of its caller.
    assert {one.stack[-1].function for one in entry(MODULES[name]) if one.stack} == {"<module>"}


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


@EVERY
def test_estimated_cycles_are_those_of_the_backend_config(name):
    raw = [line for line in TEXTS[name].splitlines() if re.match(r"  (ROOT )?%\S+ = ", line)]
    metrics = []
    for line in raw:
        config = line.partition(", backend_config=")[2]
        # A CPU custom call has an MLIR dictionary here, which is not JSON.
        window = json.loads(config).get("window_config", {}) if config.startswith('{"') else {}
        metrics.append(int(window["estimated_cycles"]) if "estimated_cycles" in window else None)
    assert [instruction.estimated_cycles for instruction in instructions(MODULES[name])] == metrics
    assert any(metrics) == name.endswith("v5e") or name == "called_back_v5e"


@EVERY
def test_attributes_are_parts_of_their_lines(name):
    for line, instruction in zip(TEXTS[name].splitlines(), _by_line(name), strict=True):
        for key, value in instruction.attributes.items() if instruction else ():
            assert f", {key}={value}" in line
            assert key not in ("metadata", "backend_config", "calls", "kind", "custom_call_target", "is_host_transfer")


def _by_line(name):
    found = iter(instructions(MODULES[name]))
    return [next(found) if re.match(r"  (ROOT )?%\S+ = ", line) else None for line in TEXTS[name].splitlines()]


@BOTH
def test_donated_parameters_are_reused(backend):
    module = MODULES[f"train_{backend}"]
    assert module.reused == set(range(10))
    assert module.name == "jit_train_step"
    assert MODULES[f"control_{backend}"].reused == set()


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
def test_a_product_is_at_its_line(backend):
    products = [
        instruction
        for instruction in instructions(MODULES[f"train_{backend}"])
        if instruction.opcode in ("dot", "convolution") and "->" in instruction.op_name
    ]
    assert len(products) >= 8
    for product in products:
        equation = re.search(r"\w+,\w+->\w+", product.op_name)[0]
        assert equation in PROGRAMS[product.stack[0].line - 1]


def test_equal_stacks_are_one_object():
    stacks = [instruction.stack for instruction in instructions(MODULES["train_v5e"]) if instruction.stack]
    assert len({id(stack) for stack in stacks}) == len(set(stacks)) < 30


@BOTH
def test_loops_and_conditionals_call_their_computations(backend):
    module = MODULES[f"control_{backend}"]
    loops = [instruction for instruction in instructions(module) if instruction.opcode == "while"]
    assert len(loops) == 2
    for loop in loops:
        roots = [module.computations[name].instructions[-1].shapes for name in loop.calls]
        assert roots == [(Shape("pred", ()),), loop.shapes]
    branches = [len(one.calls) for one in instructions(module) if one.opcode == "conditional"]
    assert branches == [2, 3]
    for opcode in ("sort", "scatter", "reduce-window"):
        assert all(len(one.calls) == 1 for one in instructions(module) if one.opcode == opcode)


def test_attributes_of_operations_are_kept_as_text():
    found = {}
    for name in ("control_v5e", "control_cpu"):
        for instruction in instructions(MODULES[name]):
            found.setdefault((name, instruction.opcode), []).append(instruction.attributes)
    gather, scatter = found["control_v5e", "gather"][0], found["control_v5e", "scatter"][0]
    assert gather["offset_dims"] == "{1}"
    assert gather["slice_sizes"] == "{1,8}"
    assert scatter["scatter_dims_to_operand_dims"] == "{0}"
    convolutions = found["control_v5e", "convolution"]
    assert {"window": "{size=3x3 stride=2x2 pad=0_1x0_0}", "dim_labels": "0b1f_01io->0b1f"} in convolutions
    assert {"dim_labels": "bf_io->bf", "operand_precision": "{highest,highest}"} in convolutions
    dots = found["control_cpu", "dot"]
    assert any(dot["lhs_contracting_dims"] == "{1}" and dot["rhs_contracting_dims"] == "{0}" for dot in dots)


def test_fusions_have_a_kind():
    for name in ("train_cpu", "train_v5e", "sharded_v5e"):
        counts = Counter(re.findall(r"kind=(k\w+)", TEXTS[name]))
        found = instructions(MODULES[name])
        assert Counter(one.fusion_kind for one in found if one.opcode == "fusion") == counts
        assert all(one.fusion_kind is None for one in found if one.opcode != "fusion")
        assert all(len(one.calls) == 1 for one in found if one.opcode == "fusion")


def test_collectives_have_their_groups():
    module = MODULES["sharded_v5e"]
    named = entry_named(module)
    start = next(one for one in named.values() if one.opcode == "collective-permute-start")
    done = next(one for one in named.values() if one.opcode == "collective-permute-done")
    assert done.operands == (start.name,)
    assert start.attributes["source_target_pairs"] == "{{0,1},{1,0},{2,3},{3,2}}"
    assert start.shapes[:2] == done.shapes * 2
    scatter = next(one for one in named.values() if one.opcode == "reduce-scatter")
    assert scatter.attributes["replica_groups"] == "{{0,2},{1,3}}"
    assert scatter.attributes["channel_id"] == "1"
    assert len(scatter.calls) == 1
    targets = {one.custom_call_target for one in instructions(module)}
    assert {"AsyncCollectiveStart", "AsyncCollectiveDone"} <= targets
    for opcode in ("all-gather", "all-reduce", "all-to-all", "collective-permute"):
        assert [one.opcode for one in instructions(MODULES["sharded_cpu"])].count(opcode) == 1


def test_callbacks_are_custom_calls_or_host_transfers():
    cpu = instructions(MODULES["called_back_cpu"])
    assert [one.custom_call_target for one in cpu if one.custom_call_target] == ["xla_ffi_python_cpu_callback"] * 2
    assert not any(one.is_host_transfer for one in cpu)
    tpu = [one.opcode for one in instructions(MODULES["called_back_v5e"]) if one.is_host_transfer]
    assert tpu == ["send", "send-done", "recv", "recv-done"] * 2
    send = next(one for one in entry(MODULES["called_back_v5e"]) if one.opcode == "send")
    assert send.shapes == (Shape("f32", (128, 128)), Shape("u32", ()), Shape("token", ()))
    assert send.attributes["sharding"] == "{{maximal device=0}, {maximal device=0}, {maximal device=0}}"


@BOTH
def test_texts_in_quotes_may_hold_anything(backend):
    exp = next(one for one in instructions(MODULES[f"attributes_{backend}"]) if one.opcode == "exponential")
    assert exp.op_name == 'jit(attributes)/a "quoted" {brace}, calls=%nothing, \\ x=1 é/exp'
    assert exp.attributes["frontend_attributes"] == '{note={"k": ["v", "}"]},odd="say \\"hi\\", {",plain="yes"}'
    assert exp.calls == ()
    assert PROGRAMS[exp.stack[0].line - 1].strip() == "return jnp.exp(x) + 1"
    assert [frame.function for frame in exp.stack] == ["labelled", "attributes", "main", "<module>"]


COMPUTATION = "%f (x: f32[2]) -> f32[2] {\n  ROOT %x = f32[2]{0} parameter(0)\n}\n\n"


# The lines from here on are written by hand after the forms that XLA prints; they are no compiler's output.
@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("f32[]", [Shape("f32", ())]),
        ("f32[]{:T(128)}", [Shape("f32", ())]),
        ("bf16[256,8]{1,0:T(8,128)(2,1)S(1)}", [Shape("bf16", (256, 8))]),
        ("f32[<=10,3]{1,0}", [Shape("f32", (10, 3))]),
        ("f32[0]{0}", [Shape("f32", (0,))]),
        ("()", []),
        ("token[]", [Shape("token", ())]),
        ("((f32[2]{0}, (u32[], s4[3]{0:E(4)})), pred[1]{0})", [Shape("f32", (2,)), Shape("u32", ()), Shape("s4", (3,)), Shape("pred", (1,))]),
        ("(f32[], f32[], f32[], f32[], f32[], /*index=5*/c64[2]{0})", [Shape("f32", ())] * 5 + [Shape("c64", (2,))]),
        ("b(f32[4]{0})", [Shape("f32", (4,))]),
        ("f8e4m3fn[4,2]{1,0}", [Shape("f8e4m3fn", (4, 2))]),
    ],
)  # fmt: skip
def test_shapes(text, shapes):
    assert one_line(f"%x = {text} custom-call(%a)").shapes == tuple(shapes)


@pytest.mark.parametrize(
    ("line", "operands"),
    [
        ("%x = u32[4]{0} iota(), iota_dimension=0", ()),
        ("%x = f32[2]{0} add(%a, %b)", ("a", "b")),
        ("%x = f32[2]{0} add(f32[2]{0} %a, f32[2]{0} %a)", ("a", "a")),
        ("%x = f32[2]{0} add(f32[2]{0:T(128)S(1)} %a, (f32[2]{0}, (u32[])) %b)", ("a", "b")),
        ("%x = f32[2]{0} custom-call(%a, %b, %c, %a, %b, /*index=5*/%c)", ("a", "b", "c", "a", "b", "c")),
        ("x = f32[2]{0} add(a, b)", ("a", "b")),
        ("x = f32[2]{0} add(a, /*index=5*/b)", ("a", "b")),
        ("x = f32[2]{0} add(f32[2,3]{1,0} a, /*index=5*/(f32[], u32[]) b)", ("a", "b")),
        ("%x = f32[2]{0} constant({1, 2})", ()),
        ("%x = f32[2]{0} constant({...})", ()),
        ("%x = f32[2,2]{1,0} constant({ { /*i0=0*/ 1, nan }, { /*i0=1*/ -inf, 4 } })", ()),
        ("%x = c64[2]{0} constant({(1, 2), (-inf, nan)})", ()),
        ("%x = (f32[2,1]{1,0}, f32[2]{0}) constant(( { {1}, {2} }, {2, 42} ))", ()),
        ('%x = f32[] constant("%a (")', ()),
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


def test_metadata_may_name_the_source_itself():
    found = one_line(
        '%x = f32[] add(), metadata={op_type="add" op_name="f/add" source_file="a \\"b\\".py" source_line=12}'
    )
    assert found.stack == (Frame('a "b".py', 12, ""),)
    assert found.op_name == "f/add"


def test_metadata_of_other_fields():
    line = '%x = f32[] add(), metadata={op_type="a" source_line=1 profile_type={1} deduplicated_name="op_name=" scheduling_name="x"}'
    found = one_line(line)
    assert found.op_name == ""
    assert found.stack == ()


GPU = """HloModule jit_step, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }, num_partitions=2

%gemm_fusion_dot (p0: bf16[64,32], p1: bf16[32,16]) -> f32[64,16] {
  %p0 = bf16[64,32]{1,0} parameter(0)
  %p1 = bf16[32,16]{1,0} parameter(1)
  ROOT %dot = f32[64,16]{1,0} dot(%p0, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%sum (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %total = f32[] add(%x, %y)
}

%async_computation (q: f32[64,16]) -> f32[128,16] {
  %q = f32[64,16]{1,0} parameter(0)
  ROOT %gathered = f32[128,16]{1,0} all-gather(%q), channel_id=2, replica_groups=[1,2]<=[2], dimensions={0}
}, execution_thread="communication"

ENTRY %main (a: bf16[64,32], b: bf16[32,16]) -> f32[128,16] {
  %a = bf16[64,32]{1,0} parameter(0)
  %b = bf16[32,16]{1,0} parameter(1)
  %product = f32[64,16]{1,0} fusion(%a, %b), kind=kCustom, calls=%gemm_fusion_dot, backend_config={"operation_queue_id":"0","wait_on_operation_queues":[],"fusion_backend_config":{"kind":"__triton_gemm","triton_gemm_config":{"block_m":"64","num_warps":"4"}},"force_earliest_schedule":false}
  %gemm = (f32[64,16]{1,0}, s8[4194304]{0}) custom-call(%a, %b), custom_call_target="__cublas$gemm", backend_config={"operation_queue_id":"0","gemm_backend_config":{"alpha_real":1,"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]},"epilogue":"DEFAULT"}}
  %gemm.1 = f32[64,16]{1,0} get-tuple-element(%gemm), index=0
  %reduce-start = f32[64,16]{1,0} all-reduce-start(%gemm.1), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=%sum, backend_config={"collective_backend_config":{"is_sync":false}}
  %reduce-done = f32[64,16]{1,0} all-reduce-done(%reduce-start)
  %start = ((f32[64,16]{1,0}), f32[128,16]{1,0}, u32[]) async-start(%reduce-done), async_execution_thread="communication", calls=%async_computation
  %update = ((f32[64,16]{1,0}), f32[128,16]{1,0}, u32[]) async-update(%start)
  ROOT %done = f32[128,16]{1,0} async-done(%update), control-predecessors={%product}
}
"""


def test_the_forms_of_a_gpu_program():
    module = hlo.parse_hlo(GPU)
    named = entry_named(module)
    assert named["product"].fusion_kind == "kCustom"
    assert named["product"].calls == ("gemm_fusion_dot",)
    assert named["gemm"].custom_call_target == "__cublas$gemm"
    assert named["gemm"].shapes[1].bytes == 4194304
    assert named["reduce-start"].calls == ("sum",)
    assert named["start"].calls == ("async_computation",)
    assert named["start"].shapes == (Shape("f32", (64, 16)), Shape("f32", (128, 16)), Shape("u32", ()))
    assert named["done"].operands == ("update",)
    assert module.computations["async_computation"].instructions[1].attributes["replica_groups"] == "[1,2]<=[2]"


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
        ("negate(%x)", "negate(%z)", 5, "there is no instruction 'z' in this computation"),
        ('"f/neg"', '"f/neg', 5, "unbalanced brackets: after '{' comes a text without its closing quote"),
        ("f32[2]{0} negate", "f32[2 negate", 5, "expected a shape, found 'f32[2 negate(%x), metadata="),
        ("f32[2]{0} negate", "f32[two]{0} negate", 5, "expected an element type and sizes, found 'f32[two]'"),
        ("f32[2]{0} negate", "what[2]{0} negate", 5, "expected an element type and sizes, found 'what[2]'"),
        ("f32[2]{0} negate", "(f32[2] 5) negate", 5, "expected a shape, found '(f32[2] 5)'"),
        ("negate(%x)", "(%x)", 5, "expected an operation"),
        ("parameter(0)\n  ROOT %y", "parameter(one)\n  ROOT %y", 4, "expected the number of a parameter, found 'one'"),
        ("ROOT %y", "%y", 6, "the computation 'f' has 0 ROOT instructions, not one"),
        ("ROOT %y", "ROOT %x", 5, "a second instruction 'x' in this computation"),
        (" -> f32[2] {\n  %x", " = f32[2] {\n  %x", 3, "expected a computation, found '%f (x: f32[2]) = f32[2] {'"),
        (" -> f32[2] {\n  %x", " -> f32[2]\n  %x", 3, "expected a computation, found '%f (x: f32[2]) -> f32[2]'"),
        ("(x: f32[2])", "(x: f32[2]", 3, "expected a computation, found '%f (x: f32[2] -> f32[2] {'"),
        ("%f (", "%main (", 8, "a second computation 'main'"),
        ("%f (", "ENTRY %f (", 8, "a second entry, after 'f'"),
        ("ENTRY %main", "%main", 11, "cut short: it ends without an ENTRY computation"),
        ("calls=%f", "calls=%g", 10, "there is no computation 'g'"),
        ('["c"]}}', '["c"]', 10, "unbalanced brackets: after '{' comes the end"),
        ('["c"]}}', '["c]}}', 10, "unbalanced brackets: after '{' comes a text without its closing quote"),
        ('["c"]}}', '["c"]}}}', 10, "expected the end of the line, found '}'"),
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


@settings(max_examples=300)
@given(st.sampled_from(["attributes_v5e", "control_cpu", "sharded_v5e"]), st.data())
def test_a_damaged_text_is_read_or_refused(name, data):
    text = TEXTS[name]
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        removed = data.draw(st.integers(0, 40))
        added = data.draw(st.text(st.sampled_from('(){}[]",=%\\ \n/*0<é\ud800') | st.characters(), max_size=5))
        text = text[:start] + added + text[start + removed :]
    parses_or_is_refused(text)


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
