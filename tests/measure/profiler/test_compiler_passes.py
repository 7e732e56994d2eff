"""`measure.profiler.compiler_passes`: which passes of the compiler take how long."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from support.libtpu_needed import needs_libtpu
from support.traces import on_cpu

from perfsuite.measure.profiler import compiler_passes
from perfsuite.measure.profiler.compiler_passes import (
    NO_COMPILE,
    NO_EVENTS,
    CompilerWatch,
    read_passes,
)
from perfsuite.measure.targets.target_flags import worker_environment

COMPILE = ("backend_compile_and_load", 10, 100, {})


def passes(found):
    return [(each.name, round(each.seconds * 1e6, 3), each.runs) for each in found.longest]


def host(**lines):
    return {"/host:CPU": lines}


# A trace that was made by hand.


def test_a_pass_is_named_with_the_seconds_of_all_its_runs_and_without_those_of_passes_inside(write_trace):
    compiler = [
        ("HLO passes (jit_f)", 10, 50, {}),
        ("algsimp", 12, 10, {}),
        ("algsimp", 30, 20, {}),
        ("dce", 35, 5, {}),
    ]
    found = read_passes(write_trace(host(python=[COMPILE], compiler=compiler)), "f")
    assert passes(found) == [("algsimp", 25, 2), ("HLO passes", 20, 1), ("dce", 5, 1)]
    assert (found.call, found.number, found.note) == ("f", 3, "")
    assert round(found.seconds * 1e6, 3) == 50


def test_a_compiler_in_the_threads_of_its_caller_and_in_those_of_its_own_is_read(write_trace):
    # jax 0.12 compiles in the caller's thread.
    python = [COMPILE, ("fusion", 20, 10, {}), ("Codegen", 40, 5, {})]
    other = [("FusionCompiler::Compile", 42, 50, {}), ("CSEPass", 50, 10, {})]
    found = read_passes(write_trace(host(python=python, codegen=other)), "f")
    assert passes(found) == [
        ("FusionCompiler::Compile", 40, 1),
        ("CSEPass", 10, 1),
        ("fusion", 10, 1),
        ("Codegen", 5, 1),
    ]


def test_what_waits_for_other_threads_counts_only_while_none_of_them_works(write_trace):
    python = [COMPILE, ("JitCompiler::Compile", 40, 60, {})]
    other = [("TaskDispatcher::dispatch", 42, 50, {})]
    found = read_passes(write_trace(host(python=python, codegen=other)), "f")
    assert passes(found) == [("TaskDispatcher::dispatch", 50, 1), ("JitCompiler::Compile", 10, 1)]


def test_of_what_waits_for_each_other_the_last_to_begin_works(write_trace):
    lines = {
        "python": [COMPILE],
        "a": [("TpuCompiler::Compile", 10, 90, {})],
        "b": [("XLA::TPU run backend", 50, 50, {})],
    }
    found = read_passes(write_trace(host(**lines)), "f")
    assert passes(found) == [("XLA::TPU run backend", 50, 1), ("TpuCompiler::Compile", 40, 1)]


def test_libtpus_threads_are_read_and_what_waits_for_them_is_not(write_trace):
    main = [("TpuCompiler::Compile", 12, 18, {}), ("XLA::TPU run backend", 20, 10, {}), ("dce", 12, 8, {})]
    python = [COMPILE, ("PjRtCApiCompiler::Compile(jit_f)", 11, 99, {})]
    emitter = [("XLA::TPU emitting for fusion.4", 20, 30, {}), ("DCE", 25, 5, {})]
    found = read_passes(write_trace(host(python=python, main=main, emitter=emitter)), "f")
    assert passes(found)[:3] == [("XLA::TPU emitting for fusion.4", 25, 1), ("dce", 8, 1), ("DCE", 5, 1)]
    assert {each.seconds for each in found.longest[3:]} == {0}


def test_what_is_no_pass_is_left_out(write_trace):
    lines = {
        "python": [("before", 0, 5, {}), COMPILE, ("after", 111, 5, {})],
        "compiler": [("fusion", 20, 10, {}), ("ThreadpoolListener::Record", 21, 1, {}), on_cpu("dot.1", 40, 10)],
        "tf_XLAEigen/7": [("ThunkExecutor::Execute", 20, 50, {})],
    }
    assert passes(read_passes(write_trace(host(**lines)), "f")) == [("fusion", 10, 1)]


def test_ten_are_named(write_trace):
    compiler = [(f"pass{number}", 10 + 5 * number, 1 + number / 10, {}) for number in range(12)]
    found = read_passes(write_trace(host(python=[COMPILE], compiler=compiler)), "f")
    assert [each.name for each in found.longest] == [f"pass{number}" for number in range(11, 1, -1)]
    assert found.number == 12


@pytest.mark.parametrize(("events", "note"), [([], NO_COMPILE), ([COMPILE], NO_EVENTS)])
def test_a_trace_without_passes_says_why(write_trace, events, note):
    found = read_passes(write_trace(host(python=[("anything", 0, 5, {}), *events])), "f")
    assert (found.longest, found.note) == ((), note)


# A real one.

FOR_A_TPU = """
import jax
import jax.numpy as jnp
from jax.experimental import topologies

from perfsuite.measure.call import call
from perfsuite.measure.first_call.first_call import first_call
from perfsuite.measure.profiler.compiler_passes import CompilerWatch

topology = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
device = jax.sharding.SingleDeviceSharding(topology.devices[0])
watch = CompilerWatch("f")
x = jax.ShapeDtypeStruct((256, 256), jnp.float32, sharding=device)
first_call(call(jax.jit(lambda x: jnp.tanh(x @ x)), x), watched=watch.block())
print(watch.passes.number)
print("\\n".join(each.name for each in watch.passes.longest))
"""


def compile_something():
    jax.jit(lambda x: jnp.tanh(x @ x).sum()).lower(jnp.ones((16, 16))).compile()


def watched(block):
    watch = CompilerWatch("f")
    with watch.block():
        block()
    return watch.passes


def test_the_compiler_of_the_cpu_names_its_passes():
    found = watched(compile_something)
    assert found.note == ""
    assert found.number > 20
    assert len(found.longest) == 10
    named = {each.name for each in found.longest}
    assert named & {"TaskDispatcher::dispatch", "ThunkEmitter::EmitEntryComputation", "FusionCompiler::Compile"}, (
        f"{sorted(named)}: XLA named its passes anew; see the names in compiler_passes.py"
    )
    assert not named & compiler_passes._WRAPPERS


@needs_libtpu
def test_libtpu_names_its_passes_for_a_tpu_that_is_not_there():
    ran = subprocess.run(
        [sys.executable, "-c", FOR_A_TPU],
        env=worker_environment(os.environ, "tpu"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    number, *named = ran.stdout.splitlines()
    assert int(number) > 100
    assert any(name.startswith(("XLA::TPU ", "LSRAv2 ")) for name in named), named
    assert not {"PjRtCApiCompiler::Compile", "backend_compile_and_load"} & set(named)


def test_a_block_that_compiles_nothing_has_no_passes():
    assert watched(lambda: None).note == NO_COMPILE


def test_a_trace_that_is_recorded_already_goes_on(tmp_path):
    with jax.profiler.trace(tmp_path):
        assert watched(compile_something).note.startswith(
            "a trace is being recorded already, and JAX records one at a time"
        )
        with jax.profiler.TraceAnnotation("still here"):
            pass
    (file,) = tmp_path.rglob("*.xplane.pb")
    assert b"still here" in file.read_bytes()


def test_a_profiler_that_fails_does_not_fail_the_block(monkeypatch):
    ran = []

    def broken(*_, **__):
        raise RuntimeError("no\nprofiler")

    monkeypatch.setattr(jax.profiler, "start_trace", broken)
    found = watched(lambda: ran.append(1))
    assert (found.note, ran) == ("RuntimeError: no profiler", [1])


def test_a_trace_that_cannot_be_read_does_not_fail_the_block(monkeypatch):
    def broken(path):
        raise RuntimeError("moved")

    monkeypatch.setattr(compiler_passes, "planes_of", broken)
    assert watched(compile_something).note == "RuntimeError: moved"


def test_an_error_of_the_block_stays_what_it_is_and_ends_the_trace():
    def fails():
        raise ValueError("of the block")

    with pytest.raises(ValueError, match="of the block"):
        watched(fails)
    assert watched(compile_something).note == ""
