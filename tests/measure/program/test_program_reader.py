"""The facts read from compiled programs: those of `hlo/`, whose shapes `hlo/programs.py` has, and forms written by hand."""

import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from support.compiled_texts import (
    LINES,
    TEXTS,
    compile_here_or_for,
    computation,
    jitted,
    module,
    read,
    spec,
)
from support.programs import program_of

from perfsuite.measure.program.program import DonatedArgument

FACTS = {name: read(text) for name, text in TEXTS.items()}
EVERY = pytest.mark.parametrize("name", sorted(TEXTS))
BOTH = pytest.mark.parametrize("backend", ["cpu", "v5e"])


def outside_fusions(text: str) -> str:
    """The text without the computations that a fusion, a reduction or another kernel is made of."""
    called = set(re.findall(r"(?:calls|to_apply)=%([\w.-]+)", text))
    called -= set(re.findall(r" call\(.*?to_apply=%([\w.-]+)", text))
    parts = re.finditer(r"^(?:ENTRY )?%([\w.-]+) .*?^\}", text, re.MULTILINE | re.DOTALL)
    return "\n".join(part[0] for part in parts if part[1] not in called)


def opcodes(text: str) -> Counter[str]:
    return Counter(re.findall(r"^  (?:ROOT )?%\S+ = .*? ([a-z][a-z0-9-]*)\(", text, re.MULTILINE))


# Kernels -------------------------------------------------------------------------------------------------------------


@EVERY
def test_fusions_are_those_that_run_by_themselves(name):
    kernels = outside_fusions(TEXTS[name])
    kinds = Counter(fusion.what.partition(" ")[0] for fusion in FACTS[name].fusions)
    assert kinds == Counter(re.findall(r" fusion\(.*kind=(k\w+)", kernels))
    assert len(FACTS[name].fusions) == opcodes(kernels)["fusion"] > 0


def test_operations_are_the_kernels_that_do_something():
    text = module(
        """
        %start = (f32[8,16]{1,0}, f32[8,16]{1,0}, u32[]) copy-start(%a)
        %done = f32[8,16]{1,0} copy-done(%start)
        %cast = f32[128]{0} bitcast(%done)
        %five = f32[] constant(5)
        %sum = f32[8,16]{1,0} add(%a, %b)
        %all = (f32[128]{0}, f32[8,16]{1,0}) tuple(%cast, %sum)
        """
    )
    assert [(one.what, one.bytes) for one in read(text).operations] == [("copy-start", 2 * 512 + 4), ("add", 3 * 512)]


@pytest.mark.parametrize(
    ("work", "copies"),
    [("%x = f32[8,16]{0,1} copy(%p)", 1), ("%x = f32[8,16]{0,1} negate(%p)", 0)],
)
def test_a_fusion_of_nothing_but_a_copy_is_a_copy(work, copies):
    fused = computation("fused", "%p = f32[8,16]{1,0} parameter(0)", work, "%y = f32[128]{0} bitcast(%x)")
    program = read(module("%f = f32[128]{0} fusion(%a), kind=kLoop, calls=%fused", fused))
    assert (len(program.copies), len(program.fusions)) == (copies, 1)
    with_work = computation("fused", "%p = f32[8,16]{1,0} parameter(0)", work, "%y = f32[8,16]{1,0} exponential(%x)")
    assert read(module("%f = f32[8,16]{1,0} fusion(%a), kind=kLoop, calls=%fused", with_work)).copies == ()


# Products ------------------------------------------------------------------------------------------------------------

TRAIN = Counter({2 * 64 * 128 * 512: 12, 2 * 64 * 128 * 256: 3})
"""Of `programs.train_step`: two blocks with two products each of 64 x 128 x 512, and the logits, and for each product
two more in the other direction."""


@BOTH
def test_the_products_of_a_train_step(backend):
    products = FACTS[f"train_{backend}"].products
    assert Counter(product.flops for product in products) == TRAIN
    assert {product.dtypes for product in products} == {("bf16", "bf16") if backend == "v5e" else ("f32", "f32")}
    assert {product.precision for product in products} == {"default"}
    assert {product.what for product in products} == {
        "bf16 x bf16 convolution" if backend == "v5e" else "f32 x f32 dot"
    }
    assert len(FACTS["train_v5e"].float32_products) == 0
    assert len(FACTS["train_cpu"].float32_products) == len(products), "a CPU multiplies bfloat16 in float32"


@BOTH
def test_products_in_loops_at_high_precision_and_with_a_window(backend):
    products = FACTS[f"control_{backend}"].products
    (image,) = [one for one in products if "conv_general_dilated" in one.op_name]
    # 16 x 16 to 8 x 8 by steps of 2, padded by one at the end: along each axis 8 positions of 3 less one outside. The
    # TPU's compiler makes batches of blocks with two columns of outputs (and rounds 4 blocks up to 8).
    assert image.flops == 2 * 4 * 8 * (2 * 23 * 23 if backend == "cpu" else 16 * 23 * 2 * 3)
    (precise,) = FACTS[f"control_{backend}"].high_precision_products
    assert (precise.precision, precise.flops) == ("highest", 2 * 32 * 32 * 32)
    assert precise.what.endswith(" at highest precision")
    (scanned,) = [one for one in products if "while" in one.op_name]
    assert scanned.flops == 2 * 32 * 32 * 32
    assert scanned.source.function == "scanned"
    assert len(products) == 4


# Collectives ---------------------------------------------------------------------------------------------------------

WHOLE, PART = 128 * 256 * 4, 64 * 256 * 4
EXCHANGED = {
    "all-gather": WHOLE,
    "all-reduce": 128 * 128 * 4,
    "all-to-all": 128 * 128 * 4,
    "collective-permute": PART,
    "reduce-scatter": WHOLE,
}
"""Of `programs.exchange` on each of 2 x 2 devices, by the shapes of `programs.sharded_arguments`."""


@BOTH
def test_each_collective_that_was_asked_for_counts_once_with_the_bytes_of_its_larger_side(backend):
    program = FACTS[f"sharded_{backend}"]
    # The TPU's compiler gathers the weight as bfloat16, in which it multiplies.
    gathered = {"all-gather": WHOLE // 2} if backend == "v5e" else {}
    assert [(one.what, one.bytes) for one in sorted(program.collectives, key=lambda one: one.what)] == sorted(
        (EXCHANGED | gathered).items()
    )
    assert program.collective_bytes == sum((EXCHANGED | gathered).values())
    for one in program.collectives:
        primitive = one.op_name.rpartition("/")[2].replace("reduce_scatter", "psum_scatter")
        assert f"lax.{primitive}(" in LINES[one.source.line - 1]
    assert program.resharding == ()


def test_the_parts_of_a_chain_are_one_and_another_chain_is_another():
    assert opcodes(TEXTS["sharded_v5e"])["all-gather"] == 3, "the text has no chain any more"
    text = TEXTS["sharded_v5e"]
    one = re.search(r"^  %all-gather\S* = .*$", text, re.MULTILINE)[0]
    other = one.replace('chain_id="0"', 'chain_id="1"')
    assert other != one
    assert Counter(made.what for made in read(text.replace(one, other)).collectives)["all-gather"] == 2


SUM = computation("sum", "%p = f32[] parameter(0)", "%q = f32[] parameter(1)", "%s = f32[] add(%p, %q)")


@pytest.mark.parametrize("kind", ["all-gather", "all-reduce", "collective-permute"])
def test_an_asynchronous_collective_counts_once(kind):
    results = {
        "all-gather": ("(f32[8,16]{1,0}, f32[32,16]{1,0})", "dimensions={0}", 4 * 512),
        "all-reduce": ("f32[8,16]{1,0}", "to_apply=%sum", 512),
        "collective-permute": ("(f32[8,16]{1,0}, f32[8,16]{1,0}, u32[], u32[])", "source_target_pairs={{0,1}}", 512),
    }
    started, attribute, size = results[kind]
    text = module(
        f"""
        %start = {started} {kind}-start(%a), channel_id=1, {attribute}
        %done = f32[8,16]{{1,0}} {kind}-done(%start)
        """,
        SUM,
    )
    assert [(one.what, one.bytes) for one in read(text).collectives] == [(kind, size)]


@pytest.fixture(scope="module")
def rows():
    return NamedSharding(Mesh(np.array(jax.devices()[:8]), ("data",)), P("data"))


def test_what_the_partitioner_puts_in_is_resharding(rows):
    program = program_of(jitted(jnp.matmul, spec(64, 128, sharding=rows), spec(128, 256, sharding=rows)))
    assert program.partitions == 8
    assert [(one.what, one.bytes) for one in program.resharding] == [("all-gather", 128 * 256 * 4)]
    assert program.resharding == program.collectives


# The host, custom calls ----------------------------------------------------------------------------------------------


def test_calls_of_the_host():
    here, there = FACTS["called_back_cpu"], FACTS["called_back_v5e"]
    size = 128 * 128 * 4
    assert [(one.what, one.bytes) for one in here.host_transfers] == [("callback", 2 * size), ("callback", 4)]
    assert [one.what for one in there.host_transfers] == ["send", "recv"] * 2
    assert there.host_transfers[0].bytes >= size
    for program, name in ((here, "pure_callback"), (there, "pure_callback")):
        assert f"jax.{name}(" in LINES[program.host_transfers[0].source.line - 1]
    for name in ("train_cpu", "train_v5e", "control_v5e", "sharded_cpu"):
        assert FACTS[name].host_transfers == ()


# Donations -----------------------------------------------------------------------------------------------------------


def donation(path, parameter):
    return DonatedArgument(path, "float32[8,16]", 512, parameter)


def test_a_donation_that_no_output_took_is_lost_and_says_why():
    header = ", input_output_alias={ {0}: (0, {}, may-alias) }"
    program = read(
        module("%r = (f32[8,16]{1,0}) tuple(%a)", header=header),
        donations=[donation("args[0]", 0), donation("args[1]['w']", 1), donation("args[2]", None)],
    )
    assert (len(program.lost_donations), len(program.reused_donations)) == (2, 1)
    assert [(one.path, one.bytes, one.reason) for one in program.lost_donations] == [
        ("args[1]['w']", 512, "float32[8,16]: no output took its memory"),
        ("args[2]", 512, "the program does not use it"),
    ]


def test_arguments_packed_in_one_tuple_are_told_apart():
    """So a TPU's compiler has more than 2000 of them."""
    header = ", input_output_alias={ {0}: (0, {0}, may-alias), {1}: (0, {2}, may-alias) }"
    program = read(
        module("%r = (f32[8,16]{1,0}, f32[8,16]{1,0}) tuple(%a, %a)", header=header),
        donations=[donation(f"args[{number}]", number) for number in range(3)],
    )
    assert [one.path for one in program.lost_donations] == ["args[1]"]


# Names and places ----------------------------------------------------------------------------------------------------

NAMED = """%fused {{
  %p = f32[8,16]{{1,0}} parameter(0)
  %q = f32[8,16]{{1,0}} multiply(%p, %p), metadata={{op_name="{0}"}}
  ROOT %r = f32[8,16]{{1,0}} negate(%q), metadata={{op_name="jit(f)/neg"}}
}}"""


@pytest.mark.parametrize(
    ("op_name", "names"),
    [
        ("jit(f)/jit(_where)/select_n", {"jit", "f", "_where", "select_n"}),
        ("jit(f)/transpose(jvp(block))/mul", {"transpose", "jvp", "block", "mul"}),
        ("jit(f)/a/mul;jit(f)/b/add", {"a", "mul", "b", "add"}),
    ],
)
def test_the_names_of_a_fusion(op_name, names):
    program = read(module("%k = f32[8,16]{1,0} fusion(%a), kind=kLoop, calls=%fused", NAMED.format(op_name)))
    (fusion,) = program.fusions
    assert names | {"multiply", "negate", "neg"} <= fusion.names
    assert not any(character in name for name in fusion.names for character in "()/; ")
    assert fusion.op_names == {op_name, "jit(f)/neg"}


TABLES = f"""
FileNames
1 "{re.__file__}"
2 "/home/user/model.py"

FunctionNames
1 "helper"
2 "Model.__call__.<locals>.attention.<locals>.<genexpr>"

FileLocations
1 {{file_name_id=1 function_name_id=1 line=10 end_line=10 column=1 end_column=2}}
2 {{file_name_id=2 function_name_id=2 line=42 end_line=42 column=1 end_column=2}}

StackFrames
1 {{file_location_id=2 parent_frame_id=1}}
2 {{file_location_id=1 parent_frame_id=2}}
3 {{file_location_id=1 parent_frame_id=1}}
"""


def test_a_source_is_the_innermost_line_of_the_users_own():
    text = module(
        """
        %x = f32[8,16]{1,0} copy(%a), metadata={op_name="jit(f)/copy" stack_frame_id=2}
        %y = f32[8,16]{1,0} copy(%x), metadata={op_name="jit(f)/copy" stack_frame_id=3}
        %z = f32[8,16]{1,0} copy(%y), metadata={op_name="jit(f)/mul"}
        %w = f32[8,16]{1,0} copy(%z)
        """,
        header="\n" + TABLES,
    )
    mine, library, path, made_up = read(text).copies
    assert mine.where == "/home/user/model.py:42 in Model.__call__.<locals>.attention"
    assert mine.part == "copy in attention (model.py)"
    assert (library.source.file, library.part) == (re.__file__, f"copy in helper ({re.__file__.rpartition('/')[2]})")
    assert (path.where, path.part) == ("jit(f)/mul", "copy of mul")
    assert (made_up.where, made_up.part) == ("the compiler's own", "copy")


# Programs that do next to nothing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [None, "tpu-v5e"])
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (lambda: (), ()),
        (lambda tree: tree, ({},)),
        (lambda x, y: x @ y, (spec(0, 4), spec(4, 3))),
        (lambda x: x + 1, (spec(),)),
        (lambda x, unused: x, (spec(3), spec(5))),
    ],
    ids=["nothing", "empty tree", "no rows", "scalar", "unused"],
)
def test_programs_that_do_next_to_nothing(function, arguments, backend):
    program = compile_here_or_for(backend, function, *arguments)
    assert 0 <= program.flops <= 1
    assert (program.products, program.collectives, program.resharding, program.custom_calls) == ((),) * 4
    assert program.host_transfers == program.transposes == program.lost_donations == ()
    assert program.peak_bytes >= 0
    assert all(one.bytes == 0 for one in program.copies) or arguments[:1] in [(spec(),), (spec(3),)]


def test_a_collective_wrapped_in_an_asynchronous_start_counts_once():
    wrapped = computation(
        "wrapped",
        "%p = f32[8,16]{1,0} parameter(0)",
        "%g = f32[4,16]{1,0} reduce-scatter(%p), dimensions={0}, to_apply=%sum",
    )
    text = module(
        """
        %start = ((f32[8,16]{1,0}), f32[4,16]{1,0}, u32[]) async-start(%a), calls=%wrapped
        %update = ((f32[8,16]{1,0}), f32[4,16]{1,0}, u32[]) async-update(%start)
        %done = f32[4,16]{1,0} async-done(%update)
        """,
        SUM,
        wrapped,
    )
    assert [(one.what, one.bytes) for one in read(text).collectives] == [("reduce-scatter", 512)]
    assert [one.what for one in read(text).operations] == ["reduce-scatter"]


def test_a_callback_on_a_gpu_and_moves_to_host_memory_are_transfers():
    lines = (
        '%x = f32[8,16]{1,0} custom-call(%a), custom_call_target="xla_ffi_python_gpu_callback"',
        '%y = f32[8,16]{1,0} custom-call(%x), custom_call_target="MoveToHost"',
        "%t = token[] after-all()",
        "%s = (f32[8,16]{1,0}, u32[], token[]) send(%y, %t), is_host_transfer=true",
        "%o = token[] outfeed(%y, %t)",
        "%d = (f32[8,16]{1,0}, u32[], token[]) send(%y, %t)",
    )
    found = [one.what for one in read(module("\n".join(lines))).host_transfers]
    assert found == ["callback", "MoveToHost", "send", "outfeed"]


def test_custom_calls_are_those_that_a_program_asked_for():
    names = ("X64SplitLow", "ConcatBitcast", "GatherScatterIndicesBitpacked", "tpu_custom_call")
    lines = [f'%x{i} = f32[8,16]{{1,0}} custom-call(%a), custom_call_target="{name}"' for i, name in enumerate(names)]
    assert [one.what for one in read(module("\n".join(lines))).custom_calls] == ["tpu_custom_call"]
    assert [one.what for one in FACTS["attributes_cpu"].custom_calls] == ["lapack_spotrf_ffi"]
    assert [one.what for one in FACTS["attributes_v5e"].custom_calls] == ["Cholesky"]
    assert FACTS["sharded_v5e"].custom_calls == ()
    assert {"AsyncCollectiveStart", "X64Combine"} <= set(
        re.findall(r'custom_call_target="(\w+)"', TEXTS["sharded_v5e"] + TEXTS["attributes_v5e"])
    )
