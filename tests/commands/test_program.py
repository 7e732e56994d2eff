"""`perfsuite program`: the estimated time of a function that a person names, and what it refuses."""

import dataclasses
import re
import sys

import jax
import pytest
from support.compiled_texts import ORIGIN, module, read
from support.cuda_needed import needs_cuda_plugin

from perfsuite.commands import main
from perfsuite.commands.program import operation_lines
from perfsuite.measure.installed import install
from perfsuite.measure.targets.targets import Rates

STEPS = """
import jax
import jax.numpy as jnp

from perfsuite import call

def product(x, w):
    return jnp.tanh(x @ w)

class Model:
    @staticmethod
    @jax.jit
    def step(x):
        return x.sum(), jnp.ones(3)

def one_call():
    return call(Model.step, jnp.ones((4, 8)))

def trainer(x):
    return Model.step(x), product(x, x.T)

def plain_call():
    return call(trainer, jnp.ones((4, 8)))

def no_call():
    return 3

def raises(x):
    raise RuntimeError("out of\\npatience")

SIZE = 3
"""


@pytest.fixture
def steps(project, monkeypatch):
    """A project with the module `lib_of_steps`."""
    project.makepyfile(lib_of_steps=STEPS)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield project
    sys.modules.pop("lib_of_steps", None)


def printed(capsys, *arguments):
    assert main(["program", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def cells(lines, what):
    """The cells of an operation's row, by the heads of the columns."""
    (top,) = [number for number, line in enumerate(lines) if "  share  " in line]
    heads = re.split(" {2,}", lines[top])
    starts = [lines[top].index(head) for head in heads]
    ends = [*starts[1:], None]
    rows = [[line[start:end].strip() for start, end in zip(starts, ends, strict=True)] for line in lines[top + 1 :]]
    (row,) = [row for row in rows if row[-2] == what]
    return dict(zip(heads, row, strict=True))


def test_the_operations_of_a_function_without_a_device(steps, capsys):
    """A CPU has no rates: then the bytes of its operations are what there is."""
    lines = printed(capsys, "lib_of_steps:product", "--args", "bf16[4,8]", "float32[8,16]")
    assert "no estimated time" in lines[0]
    assert "FLOP" in lines[1]
    assert "bytes" in cells(lines, "product")
    assert any(line.endswith("lib_of_steps.py:7 in product") for line in lines)


@needs_cuda_plugin
def test_the_estimated_time_on_a_target(steps, capsys):
    arguments = "--args", "bf16[4096,1024]", "bf16[1024,512]", "--target", "gpu-h100", "--target", "gpu-a100"
    lines = printed(capsys, "lib_of_steps:product", *arguments)
    between = lines.index("")
    of_h100, of_a100 = lines[:between], lines[between + 1 :]
    for target, rows in (("gpu-h100", of_h100), ("gpu-a100", of_a100)):
        assert rows[0].startswith(f"product @ {target}, 1 device: estimated time ")
        # 4.3 GFLOP, at the rates of bfloat16 and with the launch.
        assert 1 < float(cells(rows, "product")["us"]) < 100
    assert float(cells(of_a100, "product")["us"]) > float(cells(of_h100, "product")["us"])


@pytest.mark.parametrize("function", ["one_call", "plain_call"])
def test_a_function_without_arguments_returns_its_call(steps, capsys, function):
    """Of a function that is not jitted the programs that it runs count."""
    lines = printed(capsys, f"lib_of_steps:{function}")
    assert lines[0].startswith({"one_call": "step", "plain_call": "trainer"}[function])
    assert any("lib_of_steps.py:13 in Model.step" in line for line in lines)
    assert ("tanh" in "\n".join(lines)) == (function == "plain_call")


def test_a_row_sums_the_runs_of_a_line_and_what_links_hide_and_keep_waiting():
    rates = Rates({"fp32": 1e9}, 1024e6, "", link_bandwidth=1024e6, links=1)
    text = module(
        """
        %first = f32[8,16]{1,0} negate(%a), metadata={op_name="jit(f)/neg"}
        %start = f32[8,16]{1,0} all-reduce-start(%b), replica_groups={{0,1}}, to_apply=%add
        %second = f32[8,16]{1,0} negate(%first), metadata={op_name="jit(f)/neg"}
        %done = f32[8,16]{1,0} all-reduce-done(%start)
        %root = f32[8,16]{1,0} add(%second, %done)
        """,
        "%add (x: f32[], y: f32[]) -> f32[] {\n  %x = f32[] parameter(0)\n  %y = f32[] parameter(1)\n"
        "  ROOT %sum = f32[] add(%x, %y)\n}",
        header=", is_scheduled=true",
    )
    program = read(text, origin=dataclasses.replace(ORIGIN, rates=rates, partitions=2))
    lines = list(operation_lines(program))
    reduce, negate = cells(lines, "all-reduce"), cells(lines, "negate")
    each = {operation.what: operation.estimated_us for operation in program.operations}
    assert (float(negate["us"]), negate["runs"]) == (pytest.approx(2 * each["negate"], rel=1e-3), "2")
    assert float(reduce["us"]) == pytest.approx(program.waiting_us, rel=1e-3)
    assert float(reduce["hidden us"]) == pytest.approx(each["negate"], abs=1e-3), "what the second negation takes"
    assert float(reduce["us"]) == pytest.approx(each["all-reduce"] - each["negate"], rel=1e-3)


def test_an_operation_without_a_source_is_unknown_and_no_zero():
    text = module('%call = f32[8,16]{1,0} custom-call(%a), custom_call_target="nobody"', header=", is_scheduled=true")
    lines = list(operation_lines(read(text, origin=dataclasses.replace(ORIGIN, rates=Rates({"fp32": 1e9}, 1e9, "")))))
    assert "no source for nobody" in lines[0]
    assert cells(lines, "nobody")["us"] == "unknown"


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["lib_of_steps"], "lib_of_steps"),
        (["lib_without:step"], "lib_without"),
        (["lib_of_steps:SIZE"], "lib_of_steps:SIZE"),
        (["lib_of_steps:nothing"], "lib_of_steps:nothing"),
        (["lib_of_steps:product"], "--args"),
        (["lib_of_steps:no_call"], "3"),
        (["lib_of_steps:raises", "--args", "f32[]"], "RuntimeError: out of patience"),
        (["lib_of_steps:product", "--args", "f32[8,4]", "f32[8,4]"], "product: TypeError"),
        (["lib_of_steps:product", "--args", "f32[8,4", "f32[4]"], "--args f32[8,4:"),
        (["lib_of_steps:product", "--args", "f32[8,]", "f32[4]"], "--args f32[8,]:"),
        (["lib_of_steps:product", "--args", "float7[8]", "f32[4]"], "--args float7[8]:"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_compiled_is_named(steps, capsys, arguments, names):
    assert main(["program", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert names in captured.err.removeprefix("perfsuite program: ")
    assert len(captured.err.splitlines()) == 1


def test_wider_types_than_jax_has_are_refused(steps, capsys):
    with jax.enable_x64(False):
        assert main(["program", "lib_of_steps:product", "--args", "f64[8,4]", "f32[4]"]) == 2
        assert "JAX_ENABLE_X64=1" in capsys.readouterr().err


def test_a_target_without_its_compiler_says_how_to_install_it(steps, capsys, monkeypatch):
    monkeypatch.setattr("perfsuite.measure.targets.target_available.version", lambda package: None)
    assert main(["program", "lib_of_steps:one_call", "--target", "gpu-h100"]) == 2
    assert install("gpu") in capsys.readouterr().err


def test_an_unknown_target_is_refused_with_those_that_there_are(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["program", "lib_of_steps:one_call", "--target", "gpu-h1"])
    assert stopped.value.code == 2
    assert "gpu-h100" in capsys.readouterr().err
