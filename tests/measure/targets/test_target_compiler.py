"""What JAX itself would compile for a TPU, once, whatever happens to the process that compiles."""

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from support.compilers import skip_without_compiler
from support.libtpu_needed import needs_libtpu
from support.warm_compilers import WarmCompilers

import perfsuite
from perfsuite.measure.hlo.costs import CostModel
from perfsuite.measure.hlo.module import Instruction, read_module
from perfsuite.measure.private.capabilities import KERNEL_SCHEDULES
from perfsuite.measure.targets import target_available, target_compiler
from perfsuite.measure.targets.target_available import TargetError, TargetUnavailable
from perfsuite.measure.targets.target_compiler import CompileFailed, CompilerCrashed, compile_for, worker_environment
from perfsuite.measure.targets.target_worker import first_devices
from perfsuite.measure.targets.targets import TPUS, target

ROOT = Path(perfsuite.__path__[0]).parent
V5E = target("tpu-v5e")


def stablehlo(function, *shapes, platform="tpu") -> bytes:
    specs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    lowered = jax.jit(function).trace(*specs).lower(lowering_platforms=(platform,))
    return lowered.as_text(debug_info=True).encode()


SMALL = stablehlo(lambda x, y: jnp.tanh(x @ y).sum(axis=0), (256, 512), (512, 128))
HUGE = stablehlo(lambda x: x + 1, (400, 1024, 1024, 128))
"""200 GiB, more than any device has."""


def instructions(hlo: str) -> list[Instruction]:
    """Reading the StableHLO from its text loses nothing, but completes the `op_name` of some parameters."""
    computations = read_module(hlo).computations.values()
    return [dataclasses.replace(op, op_name="", stack=()) for one in computations for op in one.instructions]


# The same program as JAX compiles it ---------------------------------------------------------------------------------

REFERENCE = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding
from perfsuite.measure.hlo.module import packed


def step(weights, batch):
    def loss(weights):
        return jnp.sum(jnp.tanh(batch @ weights["in"]) @ weights["out"])

    grads = jax.grad(loss)(weights)
    return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, weights, grads), batch.mean(axis=0)


def facts(lowered):
    compiled = lowered.compile()
    memory = compiled.memory_analysis()
    return {
        "stablehlo": lowered.as_text(debug_info=True),
        "hlo": packed(compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()),
        "cost": compiled.cost_analysis(),
        "memory": {name: getattr(memory, name) for name in dir(memory) if name.endswith("_in_bytes")},
    }


def lowered(weights, batch, **jit):
    spec = lambda shape, sharding: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)
    return jax.jit(step, donate_argnums=0, **jit).lower(
        {"in": spec((256, 512), weights), "out": spec((512, 128), weights)}, spec((64, 256), batch)
    )


devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices
mesh = Mesh(np.array(devices[:4]), ("data",))
one = SingleDeviceSharding(devices[0])
whole, rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
print(json.dumps({
    "one device": facts(lowered(one, one)),
    "four devices": facts(lowered(whole, rows)),
    "four devices, one output given": facts(lowered(whole, rows, out_shardings=(None, rows))),
}))
"""


@pytest.fixture(scope="module")
def reference():
    """What `jax.jit(...).lower(...).compile()` gives for devices of a topology, in a process that loads libtpu."""
    found = subprocess.run(
        [sys.executable, "-c", REFERENCE], env=worker_environment(os.environ, "tpu"), capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


@needs_libtpu
@pytest.mark.parametrize(
    ("which", "partitions"), [("one device", 1), ("four devices", 4), ("four devices, one output given", 4)]
)
def test_the_program_is_the_one_that_jax_compiles(reference, which, partitions):
    expected = reference[which]
    compiled = compile_for(V5E, expected["stablehlo"].encode(), partitions=partitions)
    assert CostModel(read_module(compiled.hlo), {}).total().flops == pytest.approx(expected["cost"]["flops"], rel=1e-3)
    assert compiled.memory == expected["memory"]
    assert compiled.memory["alias_size_in_bytes"] > 0, "a donation was asked for"
    assert instructions(compiled.hlo) == instructions(expected["hlo"])
    assert ("all-reduce" in {op.opcode for op in instructions(compiled.hlo)}) == (partitions > 1)
    assert re.fullmatch(r"TFRT TPU v5 lite, Built on .* cl/\d+", compiled.compiler)
    assert compiled.compile_seconds > 0
    assert not compiled.cached


@needs_libtpu
@pytest.mark.parametrize("name", [known.name for known in TPUS])
def test_every_tpu_compiles_and_says_how_much_memory_it_has(name, monkeypatch, request):
    monkeypatch.setattr(target_compiler, "_exit_code", request.getfixturevalue("_compilers").exit_code)
    known = target(name)
    compiled = compile_for(known, SMALL)
    assert CostModel(read_module(compiled.hlo), {}).total().flops > 2 * 256 * 512 * 128
    assert known.device_kind in compiled.compiler
    with pytest.raises(CompileFailed) as failure:
        compile_for(known, HUGE)
    assert failure.value.out_of_memory
    assert not isinstance(failure.value, CompilerCrashed)
    # libtpu 0.0.50 puts the number of the error first: "E1000: CompileTimeHbmOom: ".
    assert re.match("RESOURCE_EXHAUSTED: (E1000: \\w+: )?Ran out of memory on HBM", failure.value.details)
    # libtpu 0.0.50 says in a second line of the first paragraph where its errors are explained.
    paragraph = failure.value.details.removeprefix("RESOURCE_EXHAUSTED: ").partition("\n\n")[0]
    assert failure.value.reason == " ".join(paragraph.split())
    (available,) = re.findall(r"available HBM \(([\d.]+)G\)", failure.value.reason)
    # libtpu 0.0.50 keeps 10 MB more for itself than 0.0.42, of three targets.
    assert float(available) == pytest.approx(known.memory_bytes / 2**30, abs=0.016)
    assert str(failure.value) == f"the compiler for {name} refused the program: {failure.value.reason}"


@pytest.mark.parametrize(("name", "before"), [("tpu-v5e", "tpu-v6e"), ("gpu-h100", "gpu-a100")])
def test_a_process_that_has_compiled_others_makes_the_same_program(monkeypatch, name, before):
    """Tests of other packages compile in such processes, which `WarmCompilers` keeps."""
    skip_without_compiler(name)
    wanted, other = target(name), target(before)
    text = stablehlo(lambda x, y: jnp.tanh(x @ y).sum(axis=0), (256, 512), (512, 128), platform=wanted.platform)
    cold = compile_for(wanted, text)
    compilers = WarmCompilers()
    monkeypatch.setattr(target_compiler, "_exit_code", compilers.exit_code)
    compile_for(other, stablehlo(lambda x: jnp.sort(x * 2), (512,), platform=other.platform))
    warm = compile_for(wanted, text)
    compilers.close()
    # The maps in a proto have another order in each process.
    assert read_module(warm.hlo) == read_module(cold.hlo)
    assert dataclasses.replace(warm, compile_seconds=cold.compile_seconds, hlo=cold.hlo) == cold


@needs_libtpu
def test_a_text_that_is_none_is_told_apart_from_a_refusal():
    with pytest.raises(TargetError, match=r"could not parse the program: MLIRError: .*nonsense"):
        compile_for(V5E, b"nonsense")


# The cache -----------------------------------------------------------------------------------------------------------

ENTRY = {"hlo": "HloModule m", "memory": {}, "compile_seconds": 2.0, "compiler": "TFRT"}


@pytest.fixture
def runs(monkeypatch):
    """Stands in for the worker, and is the list of its runs; `runs.entry` is what it gives."""

    class Runs(list):
        entry = ENTRY

        def run(self, target, stablehlo, request, environment):
            self.append(request)
            return self.entry

    runs = Runs()
    monkeypatch.setattr(target_compiler, "_run", runs.run)
    monkeypatch.setattr(target_compiler, "check_available", lambda platform: None)
    return runs


def failing(message):
    return {"error": {"stage": "compile", "type": "JaxRuntimeError", "message": message}}


def test_a_program_is_compiled_once(runs, tmp_path):
    first = compile_for(V5E, SMALL, cache=tmp_path)
    again = compile_for(V5E, SMALL, cache=tmp_path)
    assert (first.cached, again.cached, len(runs)) == (False, True, 1)
    assert again.compile_seconds == first.compile_seconds == 2.0
    assert (again.hlo, again.memory, again.compiler) == (first.hlo, first.memory, first.compiler)


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: {"target": target("tpu-v6e")},
        lambda patch: {"stablehlo": SMALL.replace(b"tanh", b"sine")},
        lambda patch: {"partitions": 4},
        lambda patch: {"chips": 8},
        lambda patch: {"partitions": 4, "slices": 2},
        lambda patch: {"options": {"xla_tpu_scoped_vmem_limit_kib": "16384"}},
        lambda patch: patch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_flag=true"),
        lambda patch: patch.setenv("XLA_FLAGS", "--xla_flag=true"),
        lambda patch: patch.setattr(target_compiler, "version", lambda package: "9.9"),
        lambda patch: patch.setattr(target_compiler, "compiler_versions", lambda platform: {"libtpu": "9.9"}),
        lambda patch: patch.setattr(target_compiler, "FORMAT", 0),
        lambda patch: patch.setattr(target_compiler, "CONFIG", ("jax_enable_x64",)),
    ],
)
def test_whatever_the_result_depends_on_is_in_the_key(runs, tmp_path, monkeypatch, change):
    arguments = {"target": V5E, "stablehlo": SMALL, "cache": tmp_path}
    compile_for(**arguments)
    assert not compile_for(**{**arguments, **(change(monkeypatch) or {})}).cached
    assert len(runs) == 2


def test_flags_that_say_nothing_are_not_in_the_key(runs, tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1 --xla_b")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--c=1 --d=2")
    compile_for(V5E, SMALL, cache=tmp_path)
    monkeypatch.setenv("XLA_FLAGS", " --xla_b --xla_force_host_platform_device_count=8 --xla_a=0  --xla_a=1 ")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--d=2 --c=1")
    monkeypatch.setenv("JAX_LOG_COMPILES", "1")
    assert compile_for(V5E, SMALL, cache=tmp_path).cached


def test_a_refusal_is_remembered(runs, tmp_path):
    runs.entry = failing("RESOURCE_EXHAUSTED: Ran out of memory.\n\nLargest allocations:\n 1. big")
    for _ in range(2):
        with pytest.raises(CompileFailed) as failure:
            compile_for(V5E, SMALL, cache=tmp_path)
        assert failure.value.out_of_memory
        assert failure.value.reason == "Ran out of memory."
        assert failure.value.details.endswith("1. big")
    assert len(runs) == 1


def test_a_failure_that_another_run_need_not_have_is_not_remembered(runs, tmp_path):
    runs.entry = failing("UNAVAILABLE: no socket")
    for _ in range(2):
        with pytest.raises(CompileFailed):
            compile_for(V5E, SMALL, cache=tmp_path)
    assert len(runs) == 2


ONCE = f"""
import sys
from pathlib import Path
from perfsuite.measure.targets.target_compiler import compile_for
from perfsuite.measure.targets.targets import target
import jax

text, cache = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
compiled = compile_for(target({V5E.name!r}), text, cache=cache)
loaded = "libtpu" in Path("/proc/self/maps").read_text()
print(compiled.cached, compiled.compile_seconds, compiled.memory["argument_size_in_bytes"], loaded)
"""


@needs_libtpu
def test_two_processes_that_want_the_same_program_at_once_compile_it_once(tmp_path):
    (tmp_path / "program").write_bytes(SMALL)
    command = [sys.executable, "-c", ONCE, str(tmp_path / "program"), str(tmp_path / "cache")]
    with contextlib.ExitStack() as stack:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        both = [stack.enter_context(subprocess.Popen(command, cwd=ROOT, **pipes)) for _ in range(2)]
        for process in both:
            stack.callback(process.kill)
            assert process.stdout.readline() == "ready\n"
        for process in both:
            process.stdin.write("go\n")
            process.stdin.flush()
        (one, *facts), (other, *same) = (process.communicate(timeout=60)[0].split() for process in both)
    assert {one, other} == {"True", "False"}
    assert facts == same
    assert facts[-1] == "False", "a process that asks for a compile has loaded libtpu itself"


# The worker's end ----------------------------------------------------------------------------------------------------


def worker_is(monkeypatch, code):
    """Let a script be the worker; its folder is `folder`."""
    prelude = "import sys, os, time; from pathlib import Path; folder = Path(sys.argv[1])\n"
    monkeypatch.setattr(
        target_compiler, "_command", lambda folder: [sys.executable, "-c", prelude + textwrap.dedent(code), str(folder)]
    )


def workers(parent: int) -> list[int]:
    """The processes that `parent` started, by their `/proc/<pid>/stat`; zombies are not counted."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, of = path.read_text().rpartition(")")[2].split()[:2]
            if int(of) == parent and state != "Z":
                found.append(int(path.parent.name))
    return found


def wait_for(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.005)
    return found


def compiling(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "libtpu.so" in Path(f"/proc/{pid}/maps").read_text()
    return False


@contextlib.contextmanager
def once_it_compiles(action):
    """Do `action(pid)` as soon as the worker that this process starts has loaded libtpu."""
    before = set(workers(os.getpid()))
    failed = []

    def watch():
        try:
            pid = wait_for(lambda: next(filter(compiling, set(workers(os.getpid())) - before), None))
            action(pid)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        assert failed == []


@needs_libtpu
def test_nothing_of_libtpu_reaches_the_terminal_or_the_disk(capfd):
    pids = []
    with once_it_compiles(pids.append):
        compile_for(V5E, SMALL)
    assert capfd.readouterr() == ("", "")
    assert list(Path("/tmp").glob(f"tpu_logs/*.{pids[0]}")) == []


@needs_libtpu
def test_a_worker_that_is_killed_costs_only_its_own_program(tmp_path):
    with (
        once_it_compiles(lambda pid: os.kill(pid, signal.SIGKILL)),
        pytest.raises(CompilerCrashed, match="the compiler for tpu-v5e crashed: its process was ended by SIGKILL"),
    ):
        compile_for(V5E, SMALL, cache=tmp_path)
    assert compile_for(V5E, SMALL, cache=tmp_path).hlo


@needs_libtpu
@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_the_worker():
    seen = []

    def interrupt(pid):
        seen.append(pid)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), once_it_compiles(interrupt):
        compile_for(V5E, SMALL)
    assert not Path(f"/proc/{seen[0]}").exists()


@needs_libtpu
def test_the_worker_ends_with_a_session_that_is_killed(tmp_path):
    (tmp_path / "program").write_bytes(SMALL)
    command = [sys.executable, "-c", ONCE, str(tmp_path / "program"), str(tmp_path / "cache")]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as session:
        assert session.stdout.readline() == "ready\n"
        session.stdin.write("go\n")
        session.stdin.flush()
        worker = wait_for(lambda: next(filter(compiling, workers(session.pid)), None))
        # Stopped, it would not end by itself.
        os.kill(worker, signal.SIGSTOP)
        session.kill()
        try:
            wait_for(lambda: not compiling(worker), seconds=10)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        session.communicate()
    assert list((tmp_path / "cache").glob("*.gz")) == []
    assert not compile_for(V5E, SMALL, cache=tmp_path / "cache").cached


def test_what_a_dying_worker_wrote_is_told(monkeypatch):
    monkeypatch.setattr(target_compiler, "check_available", lambda platform: None)
    worker_is(
        monkeypatch,
        """
        print("line on stdout", flush=True)
        print("W1121 04:00:00.1 1 unexpected worker hostname 'x'", file=sys.stderr)
        print("F1121 04:00:00.2 1 layout.cc:12] Check failed: rank == 2", file=sys.stderr, flush=True)
        print("    @     0x7f0000000000  (unknown)", file=sys.stderr, flush=True)
        os.kill(os.getpid(), 6)
        """,
    )
    with pytest.raises(CompilerCrashed) as crash:
        compile_for(V5E, SMALL)
    assert crash.value.reason == "its process was ended by SIGABRT"
    assert crash.value.details == "F1121 04:00:00.2 1 layout.cc:12] Check failed: rank == 2"
    assert str(crash.value).endswith(crash.value.details)


@pytest.mark.parametrize("words", ["Unknown command line flag 'xla_jf_dump_llo_text'", ""], ids=["a flag", "no word"])
@pytest.mark.parametrize("own", ["", "--xla_jf_dump_to=/tmp/own"])
def test_only_a_compiler_that_refuses_the_flags_of_schedules_is_asked_again_without(monkeypatch, tmp_path, own, words):
    """One that dies of anything else fails, and the next time it has the flags again: no entry lacks the kernels."""
    monkeypatch.setattr(target_compiler, "check_available", lambda platform: None)
    monkeypatch.setattr(KERNEL_SCHEDULES, "lost", lambda: "")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", own)
    worker_is(
        monkeypatch,
        f"""
        log, flags = Path({str(tmp_path / "log")!r}), os.environ["LIBTPU_INIT_ARGS"].strip()
        first, last = not log.exists(), flags.rpartition("xla_jf_dump_to=")[2]
        ours = flags.startswith({own!r}) and last.startswith(str(folder))
        log.open("a").write(("ours" if ours else flags) + chr(10))
        if first:
            print({words!r}, flush=True)
            os.kill(os.getpid(), 9)
        (folder / "result.json").write_text({json.dumps(ENTRY)!r})
        """,
    )
    kernel, cache = SMALL + b"// tpu_custom_call", tmp_path / "cache"
    crashes = contextlib.nullcontext() if words else pytest.raises(CompilerCrashed, match="ended by SIGKILL")
    with crashes:
        compile_for(V5E, kernel, cache=cache)
    assert compile_for(V5E, kernel, cache=cache).cached == bool(words)
    assert (tmp_path / "log").read_text() == f"ours\n{own if words else 'ours'}\n"


def test_a_worker_that_cannot_start_its_compiler_says_why(monkeypatch):
    monkeypatch.setattr(target_compiler, "check_available", lambda platform: None)
    worker_is(
        monkeypatch,
        """
        error = {"stage": "start", "type": "ImportError", "message": "no libtpu.so"}
        (folder / "result.json").write_text('{"error": ' + repr(error).replace("'", '"') + "}")
        """,
    )
    with pytest.raises(TargetUnavailable, match=r"tpu-v5e did not start: ImportError: no libtpu\.so"):
        compile_for(V5E, SMALL)


def test_a_worker_whose_jax_has_moved_a_name_says_so_in_a_sentence(monkeypatch):
    monkeypatch.setattr(target_compiler, "check_available", lambda platform: None)
    worker_is(
        monkeypatch,
        """
        from perfsuite.measure.private import lowering
        from perfsuite.measure.targets import target_worker

        object.__setattr__(lowering._DEVICES, "path", "NoList")
        target_worker.main(folder)
        """,
    )
    with pytest.raises(TargetUnavailable, match=r"^perf\.program\(target=\.\.\.\) does not work with jax"):
        compile_for(V5E, SMALL)


# What a compile needs ------------------------------------------------------------------------------------------------


def test_what_is_missing_is_said_before_anything_is_compiled(monkeypatch):
    monkeypatch.setattr(target_available, "version", lambda package: None)
    monkeypatch.setattr(target_compiler, "_command", lambda folder: pytest.fail("a worker was started"))
    monkeypatch.setattr(target_available.platform, "system", lambda: "Linux")
    monkeypatch.setattr(target_available.platform, "machine", lambda: "x86_64")
    with pytest.raises(TargetUnavailable, match="not installed"):
        compile_for(V5E, SMALL)


def test_too_few_chips_are_refused(runs):
    with pytest.raises(ValueError, match="the program needs 4 devices, and chips=1 is 1 device of tpu-v5e"):
        compile_for(V5E, SMALL, partitions=4, chips=1)
    with pytest.raises(ValueError, match="up to 256 devices, not 1000"):
        compile_for(V5E, SMALL, chips=1000)
    compile_for(target("tpu7x"), SMALL, partitions=2, chips=1)
    assert [request["topology"]["topology_name"] for request in runs] == ["tpu7x:2x2x1"]


def test_each_of_several_slices_has_as_many_devices(runs):
    compile_for(V5E, SMALL, partitions=32, slices=2)
    compile_for(V5E, SMALL, partitions=4, slices=2, chips=64)
    compile_for(V5E, SMALL, partitions=4, slices=1)
    asked = [request["topology"] for request in runs]
    assert [(topology["topology_name"], topology.get("num_slices")) for topology in asked] == [
        ("v5e:4x4", 2),
        ("v5e:4x8", 2),
        ("v5e:2x2", None),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partitions": 8, "slices": 3}, "slices=3 cannot share the 8 devices of the program equally"),
        ({"partitions": 8, "slices": 4, "chips": 18}, "slices=4 cannot share the chips=18 equally"),
        ({"partitions": 1, "slices": 2}, "slices=2 cannot share the 1 device of the program equally"),
        ({"partitions": 1024, "slices": 2}, "up to 256 devices, not 512"),
    ],
)
def test_slices_that_cannot_be_had_are_refused(runs, options, message):
    with pytest.raises(ValueError, match=message):
        compile_for(V5E, SMALL, **options)
    assert runs == []


@needs_libtpu
def test_compile_options_reach_the_compiler():
    with pytest.raises(CompileFailed, match="no_such_option") as failure:
        compile_for(V5E, SMALL, options={"no_such_option": "1"})
    assert not failure.value.out_of_memory
    assert compile_for(V5E, SMALL, options={"xla_tpu_scoped_vmem_limit_kib": "16384"}).hlo


@pytest.mark.parametrize(
    ("platform", "flags", "dropped"),
    [
        ("tpu", "--xla_dump_to='/a b' --xla_tpu_x=3", set()),
        ("cuda", "--xla_dump_to='/a b' --xla_gpu_x=2", {"LIBTPU_INIT_ARGS"}),
    ],
)
def test_the_worker_sees_the_environment_without_what_belongs_to_this_process(platform, flags, dropped):
    kept = {"HOME": "/home/user", "PYTHONPATH": "/code", "LIBTPU_INIT_ARGS": "--flag=1"}
    others = ("PYTHONWARNINGS", "JAX_COMPILATION_CACHE_DIR", "TPU_WORKER_HOSTNAMES", "TPU_LIBRARY_PATH", "CUDA_HOME")
    every = "--xla_force_host_platform_device_count=8 --xla_cpu_x=1 --xla_gpu_x=2 --xla_tpu_x=3 --xla_dump_to='/a b'"
    environment = worker_environment(
        {
            **kept,
            **dict.fromkeys(others, "x"),
            "CUDA_VISIBLE_DEVICES": "0",
            "XLA_FLAGS": every,
            "JAX_PLATFORMS": "cuda",
        },
        platform,
    )
    assert environment["XLA_FLAGS"] == flags
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == "/code"
    assert environment["JAX_PLATFORMS"] == "cpu"
    assert environment.get("CUDA_VISIBLE_DEVICES", "") == ""
    assert kept.keys() - environment.keys() == dropped
    assert not set(others) & set(environment)


def test_flags_may_be_in_a_file(tmp_path):
    (tmp_path / "flags").write_text("--xla_a=1\n--xla_force_host_platform_device_count=8\n")
    assert worker_environment({"XLA_FLAGS": str(tmp_path / "flags")}, "tpu")["XLA_FLAGS"] == "--xla_a=1"
    assert "XLA_FLAGS" not in worker_environment({"XLA_FLAGS": str(tmp_path / "none")}, "tpu")


def test_the_devices_are_the_first_of_each_slice():
    assert first_devices(range(8), 8, 1) == [*range(8)]
    assert first_devices(range(8), 3, 1) == [0, 1, 2]
    assert first_devices(range(8), 4, 2) == [0, 1, 4, 5]
    assert first_devices(range(8), 8, 4) == [*range(8)]


def test_the_worker_does_not_need_pytest():
    code = """
    import sys
    sys.modules["pytest"] = None
    import perfsuite.measure.targets.target_worker
    import perfsuite.measure.private.lowering
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
