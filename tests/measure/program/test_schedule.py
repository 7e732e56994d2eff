"""What one run of a program starts: launches, iterations in a row, conditionals, collectives that nothing hides."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
from support.compiled_texts import ORIGIN, compile_here_or_for, computation, jitted, module, read, spec
from support.compilers import skip_without_compiler
from support.programs import program_of

from perfsuite.measure.program.program_metrics import metrics_of

TARGETS = pytest.mark.parametrize("target", [None, "tpu-v5e", "gpu-h100"])


def by_rows(xs):
    return lax.map(lambda x: jnp.tanh(x) * jnp.exp(-x), xs)


def nested(x):
    return lax.fori_loop(0, 4, lambda i, x: lax.fori_loop(0, 5, lambda j, x: jnp.sin(x) * x, x) + 1, x)


def until_small(x):
    return lax.while_loop(lambda x: x.sum() > 1, lambda x: jnp.sin(x) * x, x)


def chosen(predicate, x):
    return lax.cond(predicate, lambda x: jnp.sin(x @ x), lambda x: x + 1.0, x)


@TARGETS
def test_more_rows_are_as_many_more_steps_and_launches(target):
    few, many = (compile_here_or_for(target, by_rows, spec(rows, 256)) for rows in (64, 512))
    assert (few.sequential_steps, many.sequential_steps) == (64, 512)
    (loop,) = many.loops
    assert (loop.iterations, loop.runs, loop.source.function) == (512, 1, "by_rows")
    of_a_step = (many.launches - few.launches) / (512 - 64)
    assert of_a_step == sum(operation.runs for operation in many.operations if operation.runs > 1) / 512 >= 1


@TARGETS
def test_loops_in_loops_are_multiplied(target):
    assert compile_here_or_for(target, nested, spec(128, 256)).sequential_steps == 4 * 5


def test_without_a_trip_count_nothing_is_known_and_the_loop_is_named():
    program = compile_here_or_for(None, until_small, spec(128, 256))
    assert (program.launches, program.sequential_steps) == (None, None)
    assert [loop.source.function for loop in program.at_least] == ["until_small"]
    assert not {"launches", "sequential steps"} & {one.name.partition(" ")[2] for one in metrics_of(program)}


@TARGETS
def test_a_conditional_that_became_a_choice_is_found_by_its_line(target):
    one = compile_here_or_for(target, chosen, spec(dtype=jnp.bool_), spec(64, 64))
    mapped = compile_here_or_for(target, jax.vmap(chosen), spec(8, dtype=jnp.bool_), spec(8, 64, 64))
    assert [each.source.function for each in one.conditionals] == ["chosen"]
    assert mapped.conditionals == ()
    before, after = (next(m for m in metrics_of(each) if m.name.endswith("conditionals")) for each in (one, mapped))
    ((part, count),) = before.detail.items()
    assert (count, before.value, after.value, after.better) == (1, 1, 0, "higher")
    assert after.places[part] == mapped.selections[0].where == one.conditionals[0].where


BRANCHES = (
    computation("small", "%p = f32[8,16]{1,0} parameter(0)", "%s = f32[8,16]{1,0} sine(%p)"),
    computation(
        "large",
        "%q = f32[8,16]{1,0} parameter(0)",
        "%r = f32[8,16]{1,0} sine(%q)",
        "%t = f32[8,16]{1,0} bitcast(%r)",
        "%u = f32[8,16]{1,0} cosine(%t)",
    ),
)


def test_of_a_conditional_the_larger_branch_starts_and_bookkeeping_is_no_launch():
    text = module(
        """
        %number = s32[] constant(1)
        %buffer = f32[8,16]{1,0} custom-call(), custom_call_target="AllocateBuffer"
        %start = (f32[8,16]{1,0}, f32[8,16]{1,0}, u32[]) copy-start(%a)
        %done = f32[8,16]{1,0} copy-done(%start)
        %chosen = f32[8,16]{1,0} conditional(%number, %done, %b), branch_computations={%small, %large}
        %called = f32[8,16]{1,0} custom-call(%chosen), custom_call_target="mine"
        """,
        *BRANCHES,
    )
    assert read(text).launches == 1 + 2 + 1


LOOP = (
    computation(
        "condition", "%c = (s32[], f32[8,16]{1,0}) parameter(0)", "%i = s32[] get-tuple-element(%c), index=0",
        "%limit = s32[] constant(7)", "%more = pred[] compare(%i, %limit), direction=LT",
    ),
    computation(
        "body", "%d = (s32[], f32[8,16]{1,0}) parameter(0)", "%j = s32[] get-tuple-element(%d), index=0",
        "%x = f32[8,16]{1,0} get-tuple-element(%d), index=1", "%one = s32[] constant(1)", "%k = s32[] add(%j, %one)",
        '%y = f32[8,16]{1,0} sine(%x), metadata={op_name="jit(f)/write" source_file="m.py" source_line=3}',
        "%z = f32[8,16]{1,0} copy(%y)", "%e = (s32[], f32[8,16]{1,0}) tuple(%k, %z)",
    ),
)  # fmt: skip


def test_a_loop_of_the_compilers_own_has_the_line_of_what_it_runs_and_gives_it_to_the_rest():
    text = module(
        """
        %zero = s32[] constant(0)
        %state = (s32[], f32[8,16]{1,0}) tuple(%zero, %a)
        %loop = (s32[], f32[8,16]{1,0}) while(%state), condition=%condition, body=%body
        """,
        *LOOP,
    )
    program = read(text)
    assert [(loop.part, loop.where) for loop in program.loops] == [("loop of 7 iterations in m.py", "m.py:3")]
    assert [copy.where for copy in program.copies] == ["m.py:3"]
    steps = next(one for one in metrics_of(program) if one.name == "step sequential steps")
    assert (steps.value, steps.detail, steps.places) == (7, {"loop in m.py": 7}, {"loop in m.py": "m.py:3"})
    assert program.launches == 7 * 4, "the comparison, the addition, the sine and the copy"


GATHERED = "(f32[8,16]{1,0}, f32[32,16]{1,0}) all-gather-start(%a), channel_id=1, dimensions={0}"
WRAPPED = computation(
    "wrapped", "%w = f32[8,16]{1,0} parameter(0)",
    "%g = f32[32,16]{1,0} all-gather(%w), channel_id=1, dimensions={0}",
)  # fmt: skip


@pytest.mark.parametrize(
    ("meanwhile", "exposed"),
    [
        ("%x = f32[8,16]{1,0} sine(%b)", False),
        ('%x = f32[] custom-call(%b), custom_call_target="mine"', False),
        ("", True),
        ("%x = s32[] constant(3)\n%y = s32[] add(%x, %x)", True),
        ("%x = (f32[8,16]{1,0}, f32[8,16]{1,0}, u32[]) copy-start(%b)\n%y = f32[8,16]{1,0} copy-done(%x)", True),
        ("%x = f32[32,16]{1,0} all-gather(%b), channel_id=2, dimensions={0}", True),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_collective_is_exposed_where_the_device_computes_nothing_until_its_end(meanwhile, exposed, wrapped):
    start, end = GATHERED, "f32[32,16]{1,0} all-gather-done(%start)"
    if wrapped:
        start = "((f32[8,16]{1,0}), f32[32,16]{1,0}, u32[]) async-start(%a), calls=%wrapped"
        end = "f32[32,16]{1,0} async-done(%start)"
    before = "%before = f32[8,16]{1,0} cosine(%c)"
    text = module(
        f"{before}\n%start = {start}\n{meanwhile}\n%done = {end}",
        *[WRAPPED][: int(wrapped)],
        header=", is_scheduled=true",
    )
    program = read(text)
    assert program.exposed_collectives == (program.collectives if exposed else ())
    assert program.exposed_collective_bytes == 2048 * len(program.exposed_collectives)
    here = read(text, origin=dataclasses.replace(ORIGIN, device_kind="cpu"))
    assert (here.exposed_collectives, here.exposed_collective_bytes) == (None, None)


MESH = AbstractMesh((8,), ("device",))
ROWS, WHOLE = (NamedSharding(MESH, PartitionSpec(*names)) for names in (("device",), ()))


def layers(weights, x, barrier):
    for weight in weights:
        if barrier:
            weight, x = lax.optimization_barrier((weight, x))
        x = jax.nn.relu(x @ lax.with_sharding_constraint(weight, WHOLE))
    return x


@pytest.mark.parametrize(("target", "exposed"), [("tpu-v5e", 1), ("gpu-h100", 3)])
def test_collectives_before_a_barrier_are_exposed(target, exposed):
    skip_without_compiler(target)
    weights = [spec(4096, 4096, dtype=jnp.bfloat16, sharding=ROWS)] * 4
    x = spec(8192, 4096, dtype=jnp.bfloat16, sharding=ROWS)
    free, barred = (
        program_of(jitted(functools.partial(layers, barrier=barrier), weights, x), target) for barrier in (False, True)
    )
    assert (len(free.exposed_collectives), len(barred.exposed_collectives)) == (exposed, 4)
    assert set(barred.exposed_collectives) <= set(barred.collectives)
    assert {each.source.function for each in barred.exposed_collectives} == {"layers"}
