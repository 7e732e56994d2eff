"""Source locations leave a StableHLO text as numbers, and come back into the compiled program as lines."""

import re

import jax
import jax.numpy as jnp
import pytest
from support.compiled_texts import proto

from perfsuite import call
from perfsuite.measure.hlo.locations import number_locations, restoring
from perfsuite.measure.hlo.module import SourceFrame, packed, read_module
from perfsuite.measure.program.lowering import lower_call

X = jnp.ones((8, 8))


def product(x):
    return x @ x


def step(x):
    doubled = product(x) * 2
    return jnp.sort(doubled).sum(), jax.lax.cumsum(doubled)


def text_of(fn, *args, platform="tpu"):
    return lower_call(call(jax.jit(fn), *args), platform).text


def test_each_line_has_its_stack_and_no_location():
    located = number_locations(text_of(step, X))
    lines = located.lines()
    assert not any("loc(" in text for text, _ in lines)
    ((_, stack),) = [each for each in lines if "stablehlo.dot_general" in each[0]]
    assert (stack[0].file, stack[0].line) == (__file__, product.__code__.co_firstlineno + 1)


def test_another_caller_another_line_and_another_file_make_the_same_text():
    def called_from_elsewhere():
        return text_of(step, X)

    code = "import jax\nimport jax.numpy as jnp\n{}def f(x):\n    return jnp.sin(x @ x).sum()\n"
    texts = set()
    for blank, name in (("", "one.py"), ("\n\n\n", "two.py")):
        namespace: dict = {}
        exec(compile(code.format(blank), name, "exec"), namespace)
        texts.add(number_locations(text_of(namespace["f"], X)).text)
    assert len(texts) == 1
    assert number_locations(text_of(step, X)).text == number_locations(called_from_elsewhere()).text


def test_lines_come_back_into_the_compiled_program():
    """Of a program whose metadata has numbers, as a compiler leaves them there."""
    lowered = lower_call(call(jax.jit(step), X)).lowered
    executable = lowered.compile().runtime_executable()
    text = executable.hlo_modules()[0].to_string()
    text = re.sub(r'^(\d+) ".*"$', r'\1 "-"', text, flags=re.MULTILINE)
    text = re.sub(r"\bline=\d+", "line=1", text)
    stacks = {1: (SourceFrame("model.py", 42, "attention"), SourceFrame("train.py", 7, "step"))}
    module = read_module(packed(proto(text)), restored=restoring(stacks))
    ops = [op for computation in module.computations.values() for op in computation.instructions]
    assert {op.stack for op in ops} == {(), stacks[1]}


@pytest.mark.parametrize(
    ("location", "stack"),
    [
        ("loc(unknown)", ()),
        ('loc("x")', ()),
        ('loc("f"("a.py":3:4))', (SourceFrame("a.py", 3, "f"),)),
        ('loc("f"("a.py":3:4 to :9))', (SourceFrame("a.py", 3, "f"),)),
        (
            'loc("op"(callsite("f"("a.py":3:4) at "g"("b \\"c\\".py":5:6))))',
            (SourceFrame("a.py", 3, "f"), SourceFrame('b "c".py', 5, "g")),
        ),
        (
            'loc(callsite("f"("a.py":3:4) at "g"("b.py":5:6)))',
            (SourceFrame("a.py", 3, "f"), SourceFrame("b.py", 5, "g")),
        ),
        ('loc(fused["f"("a.py":3:4), "g"("b.py":5:6)])', (SourceFrame("a.py", 3, "f"),)),
        ('loc("outer"("inner"))', ()),
    ],
)
def test_every_form_of_a_location(location, stack):
    text = f"op loc(#loc7)\n#loc7 = {location}\n"
    located = number_locations(text)
    assert list(located.stacks.values()) == ([stack] if stack else [])
    assert "#" not in located.text
