"""From a call to its facts: the same in every process, kept on disk, and for the present device or another."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from support.compiled_texts import PROGRAMS, jitted, spec
from support.cuda_needed import UNAVAILABLE as NO_CUDA
from support.libtpu_needed import UNAVAILABLE, needs_libtpu
from support.programs import program_of

import perfsuite
from perfsuite.measure.call import call
from perfsuite.measure.program import compilation
from perfsuite.measure.program.compilation import Compilation, compile_call
from perfsuite.measure.program.program_diff import program_differences
from perfsuite.measure.program.program_metrics import gated_facts, metrics_of
from perfsuite.measure.targets import target_compiler
from perfsuite.measure.targets.target_compiler import CompileFailed

ROOT = Path(perfsuite.__path__[0]).parent

BACKENDS = pytest.mark.parametrize("backend", [None, pytest.param("tpu-v5e", marks=needs_libtpu)])


def step(params, x):
    hidden = jax.nn.gelu(x @ params["in"])
    return {name: value * 0.9 for name, value in params.items()}, jnp.sum(hidden @ params["out"])


def train(**options):
    params = {"in": spec(128, 256), "out": spec(256, 128)}
    return jitted(step, params, spec(64, 128), donate_argnums=0, **options)


@BACKENDS
def test_the_facts_of_a_step(backend):
    program = program_of(train(), backend)
    assert (program.label, program.target, program.partitions, program.cached) == ("step", backend, 1, False)
    assert program.flops == pytest.approx(2 * 2 * 64 * 128 * 256, rel=0.2)
    assert sum(product.flops for product in program.products) == 2 * 2 * 64 * 128 * 256
    assert {product.source.function for product in program.products} == {"step"}
    assert (len(program.reused_donations), program.alias_bytes) == (2, 2 * 128 * 256 * 4)
    assert program.argument_bytes == 2 * 128 * 256 * 4 + 64 * 128 * 4
    assert program.compile_seconds > 0
    assert program.lower_seconds > 0


def test_the_device_is_the_present_one_or_the_targets():
    here = program_of(train())
    assert here.device_kind == jax.devices()[0].device_kind
    assert (here.memory_bytes, here.rates, here.bound, here.fits) == (None,) * 4, "nothing is published of a CPU"
    assert here.compiler.startswith("jaxlib ")


@BACKENDS
def test_what_a_compiler_said_survives_json(backend):
    made = compile_call(train(), backend)
    read = Compilation.from_dict(json.loads(json.dumps(made.to_dict())))
    assert dataclasses.replace(read, stacks={}) == dataclasses.replace(made, stacks={})
    before, after = made.program(), read.program()
    assert program_differences(before, after) == ""
    assert [fusion.where for fusion in after.fusions] == [fusion.where for fusion in before.fusions] != []


# The cache of the present device (that of targets is target_compiler's) ----------------------------------------------


def test_a_program_of_the_present_device_is_compiled_once(tmp_path):
    first, again = (compile_call(train(), cache=tmp_path) for _ in range(2))
    assert (first.origin.cached, again.origin.cached) == (False, True)
    assert again.origin.compile_seconds == first.origin.compile_seconds
    assert dataclasses.replace(again, origin=first.origin) == first
    assert len(list(tmp_path.glob("*.gz"))) == 1


STEP_CHANGES = {
    "text": lambda: jitted(step, {"in": spec(128, 256), "out": spec(256, 64)}, spec(64, 128), donate_argnums=0),
    "donation": lambda: jitted(step, {"in": spec(128, 256), "out": spec(256, 128)}, spec(64, 128)),
    "options": lambda: train(compiler_options={"xla_cpu_enable_fast_math": True}),
}
FLAGS = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_enable_fast_math=true"
CHANGES = {
    "flags": lambda patch: patch.setenv("XLA_FLAGS", FLAGS),
    "config": lambda patch: patch.setattr(target_compiler, "CONFIG", (*target_compiler.CONFIG, "jax_enable_x64")),
    "cores": lambda patch: patch.setattr(os, "sched_getaffinity", lambda process: set(range(1000)), raising=False),
    "format": lambda patch: patch.setattr(compilation, "_FORMAT", 1000),
}


@pytest.mark.parametrize("change", [*STEP_CHANGES, *CHANGES])
def test_whatever_the_facts_depend_on_is_in_the_key(tmp_path, monkeypatch, change):
    compile_call(train(), cache=tmp_path)
    CHANGES.get(change, lambda patch: None)(monkeypatch)
    assert not compile_call(STEP_CHANGES.get(change, train)(), cache=tmp_path).origin.cached


# Targets -------------------------------------------------------------------------------------------------------------


def test_chips_are_for_a_target():
    with pytest.raises(ValueError, match=r"chips=\.\.\.\) is for a target; the present device is what it is"):
        compile_call(train(), chips=4)


AT_LINE = """
import jax
{lines}
@jax.jit
def moved(x, w):
    return jax.numpy.tanh(x @ w)
"""


def moved(lines, path):
    names: dict = {}
    path.write_text(AT_LINE.format(lines="\n" * lines))
    exec(compile(path.read_text(), str(path), "exec"), names)
    return call(names["moved"], spec(64, 128), spec(128, 256))


@needs_libtpu
def test_a_line_that_moved_is_no_other_program_and_is_told_as_it_is_now(tmp_path):
    before, after = (
        program_of(moved(lines, tmp_path / f"{name}.py"), "tpu-v5e", cache=tmp_path / "cache")
        for lines, name in ((0, "one"), (7, "two"))
    )
    assert (before.cached, after.cached) == (False, True)
    assert before.products[0].where == f"{tmp_path}/one.py:6 in moved"
    assert after.products[0].where == f"{tmp_path}/two.py:13 in moved"
    assert gated_facts(before) == gated_facts(after)


@needs_libtpu
def test_compiler_options_of_the_function_reach_the_targets_compiler():
    with pytest.raises(CompileFailed, match="no_such_option"):
        compile_call(train(compiler_options={"no_such_option": "1"}), "tpu-v5e")


# The same everywhere -------------------------------------------------------------------------------------------------

METRICS = """
import json, os, sys
if os.environ["PYTHONHASHSEED"] == "2":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
sys.path.insert(0, sys.argv[1])
from measure.program.test_compilation import metrics
print(json.dumps(metrics(*sys.argv[2:])))
"""


def metrics(*backends):
    """All metrics of a train step but times, for the present device and these."""
    step = call(jax.jit(PROGRAMS.train_step, donate_argnums=(0, 1)), *PROGRAMS.train_arguments())
    return {
        f"{backend} {metric.name}": [metric.value, metric.detail, metric.places]
        for backend in (None, *backends)
        for metric in metrics_of(compile_call(step, backend).program())
        if not metric.name.endswith(" seconds")
    }


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the cores of a process cannot be set here")
def test_the_facts_are_those_of_every_process_and_of_one_core(tmp_path):
    """A CUDA installation of the machine's makes no difference: here it is one that is broken.

    Both processes are fresh. In this one JAX may have traced an inner function for another test, and keeps its line.
    """
    backends = [*([] if UNAVAILABLE else ["tpu-v5e"]), *([] if NO_CUDA else ["gpu-h100"])]
    command = [sys.executable, "-c", METRICS, str(ROOT / "tests"), *backends]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    facts = []
    for more in (
        {"PYTHONHASHSEED": "1"},
        {"PYTHONHASHSEED": "2", "CUDA_ROOT": str(tmp_path), "CUDA_HOME": str(tmp_path)},
    ):
        done = subprocess.run(command, cwd=ROOT, env=environment | more, stdout=subprocess.PIPE, text=True, check=True)
        facts.append(json.loads(done.stdout))
    assert facts[0] == facts[1] != {}
