"""How often loops run, from their conditions: written by hand, and as both compilers print them."""

import dataclasses

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from support.compiled_texts import TEXTS, jitted, parse, spec
from support.compilers import skip_without_compiler

from perfsuite.measure.hlo.loops import trip_counts
from perfsuite.measure.hlo.module import read_module
from perfsuite.measure.program.compilation import compile_call


def loop(start: str, limit: str, step: str, direction: str, *, arithmetic="add", turned=False, also="") -> str:
    """The text of a program with one loop, which asks for `also` too."""
    sides = "%limit, %i" if turned else "%i, %limit"
    root = f"\n  %other = pred[] {also}\n  ROOT %both = pred[] and(%other, %less)" if also else ""
    return f"""HloModule m

%body (state: (s32[], f32[4])) -> (s32[], f32[4]) {{
  %state = (s32[], f32[4]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %x = f32[4]{{0}} get-tuple-element(%state), index=1
  %step = s32[] {step}
  %next = s32[] {arithmetic}(%i, %step)
  ROOT %after = (s32[], f32[4]{{0}}) tuple(%next, %x)
}}

%condition (state: (s32[], f32[4])) -> pred[] {{
  %state = (s32[], f32[4]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %limit = s32[] {limit}
  %six = s32[] constant(6)
  {"" if also else "ROOT "}%less = pred[] compare({sides}), direction={direction}{root}
}}

ENTRY %main (n: s32[], x: f32[4]) -> (s32[], f32[4]) {{
  %n = s32[] parameter(0)
  %x = f32[4]{{0}} parameter(1)
  %start = s32[] {start}
  %copied = s32[] copy(%start)
  %state = (s32[], f32[4]{{0}}) tuple(%copied, %x)
  ROOT %loop = (s32[], f32[4]{{0}}) while(%state), condition=%condition, body=%body
}}
"""


def count(text: str) -> int | None:
    (found,) = trip_counts(parse(text)).counts.values()
    return found


def is_bound(text: str) -> bool:
    """Whether the loop may run less often."""
    found = trip_counts(parse(text))
    assert found.at_most <= found.counts.keys()
    return bool(found.at_most)


KNOWN = {"start": "constant(0)", "limit": "constant(8)", "step": "constant(1)", "direction": "LT"}

HOLDS = {
    "LT": int.__lt__,
    "LE": int.__le__,
    "GT": int.__gt__,
    "GE": int.__ge__,
    "NE": int.__ne__,
}


@given(st.integers(-20, 20), st.integers(-20, 20), st.integers(-4, 4), st.sampled_from(sorted(HOLDS)), st.booleans())
def test_counts_are_those_of_running_the_loop(start, limit, step, direction, turned):
    """Of 100 iterations at most: a loop that goes on runs for ever, or until its integer is at its end."""
    i, iterations = start, 0
    while (HOLDS[direction](limit, i) if turned else HOLDS[direction](i, limit)) and iterations <= 100:
        i, iterations = i + step, iterations + 1
    text = loop(f"constant({start})", f"constant({limit})", f"constant({step})", direction, turned=turned)
    assert count(text) == (iterations if iterations <= 100 else None)


@pytest.mark.parametrize(
    "changes",
    [
        {"start": "copy(%n)"},
        {"limit": "negate(%i)"},
        {"step": "negate(%i)"},
        {"arithmetic": "multiply"},
        {"direction": "EQ"},
    ],
)
def test_what_depends_on_data_or_on_more_than_a_sum_has_no_count(changes):
    assert count(loop(**KNOWN)) == 8
    assert count(loop(**(KNOWN | changes))) is None


def test_a_loop_that_counts_down_by_subtraction():
    assert count(loop("constant(9)", "constant(0)", "constant(2)", "GT", arithmetic="subtract")) == 5


@pytest.mark.parametrize(
    ("changes", "also", "expected", "bound"),
    [
        ({}, "", 8, False),
        ({}, "is-finite(%i)", 8, True),
        ({}, "compare(%i, %six), direction=LT", 6, False),
        ({"limit": "constant(3)"}, "compare(%i, %six), direction=NE", 3, False),
        ({}, "compare(%i, %six), direction=EQ", 8, True),
        ({"start": "constant(9)"}, "is-finite(%i)", 0, False),
        ({"limit": "negate(%i)"}, "is-finite(%i)", None, False),
        ({"limit": "negate(%i)"}, "compare(%i, %six), direction=LT", 6, True),
        ({"limit": "constant(2147483647)"}, "", 2**31 - 1, False),
        ({"limit": "constant(2147483647)"}, "is-finite(%i)", None, False),
    ],
)
def test_a_loop_that_asks_for_more_than_its_counter_runs_so_often_at_most(changes, also, expected, bound):
    text = loop(**(KNOWN | changes), also=also)
    assert (count(text), is_bound(text)) == (expected, bound)


def test_a_loop_that_goes_on_while_either_is_true_has_no_count():
    text = loop(**KNOWN, also="is-finite(%i)").replace("pred[] and(", "pred[] or(")
    assert (count(text), is_bound(text)) == (None, False)


def nested(x):
    """A loop of 3 in one of 4, whose limits are not constants of their own bodies until the compiler makes them so."""
    inner = lambda x: lax.while_loop(lambda s: s[0] < s[2], lambda s: (s[0] + 1, jnp.sin(s[1]), s[2]), (0, x, 3))[1]
    return lax.fori_loop(0, 4, lambda _, x: inner(x) * 2, x)


@pytest.mark.parametrize("target", [None, "tpu-v5e"])
def test_loops_in_loops_as_compiled(target):
    if target is not None:
        skip_without_compiler(target)
    module = read_module(compile_call(jitted(nested, spec(8, 128)), target).hlo)
    assert sorted(trip_counts(module).counts.values()) == [3, 4]


@pytest.mark.parametrize("name", sorted(name for name in TEXTS if name.endswith("cpu")))
def test_the_conditions_say_what_the_compiler_prints(name):
    module = parse(TEXTS[name])
    bare = {
        computation.name: dataclasses.replace(
            computation, instructions=tuple(dataclasses.replace(op, trip_count=None) for op in computation.instructions)
        )
        for computation in module.computations.values()
    }
    assert trip_counts(dataclasses.replace(module, computations=bare)) == trip_counts(module)
