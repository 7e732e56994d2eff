"""Compiles one program for a device that need not be present, in a process of its own: `python -m ... <folder>`.

The folder holds `program.mlir`, a StableHLO text, and `request.json`:

    {"parent": pid, "platform": "tpu", "topology": {...}, "partitions": 1, "config": {...}, "options": {...}}

`topology` has the other arguments of `topologies.get_topology_desc`, `config` values of `jax.config`, `options` those
of `jax.jit(compiler_options=...)`. With `num_slices` in `topology` each slice has as many of the partitions, and
`unsplit_hlo` is the program before the compiler splits collectives between slices. The worker writes `result.json`:

    {"hlo": "...", "memory": {...}, "compile_seconds": s, "compiler": "...", "unsplit_hlo": null, "kernels": {...}}
    {"error": {"stage": "start", "parse", "compile" or "report", "type": "JaxRuntimeError", "message": "..."}}

An error of the type `CapabilityLost` has a sentence for the user.

A compiler may end its process: libtpu exits on an unknown flag, and a failed check of the compiler aborts. Those of
different platforms never meet in one process.
"""

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from perfsuite.measure.hlo.module import packed, proto_of_dump, read_module
from perfsuite.measure.io import write_atomically
from perfsuite.measure.private.capabilities import ABSENT_COMPILERS, CapabilityLost
from perfsuite.measure.serialise import plain
from perfsuite.measure.targets.kernel_code import holds_kernels, kernel_codes
from perfsuite.measure.targets.target_available import compiler_versions
from perfsuite.measure.targets.targets import COST_MODELS

REQUEST = "request.json"
PROGRAM = "program.mlir"
RESULT = "result.json"
KERNELS = "kernels"
"""The folder for what the compiler writes of the user's kernels."""

_DUMP = "dump"
_SPLIT = "cross-slice-rewrites"
"""The pass of libtpu that splits a collective into a part inside the slices and one between them."""

_PR_SET_PDEATHSIG = 1


def main(folder: Path) -> None:
    """Compile what the request in `folder` names. An error is a result too."""
    request = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
    _die_with(request["parent"])
    stage = "start"
    try:
        # Here, so that an installation that cannot be imported gives a result instead of a traceback.
        import jax
        from jax.experimental import topologies

        from perfsuite.measure.private import lowering

        ABSENT_COMPILERS.check("perf.program(target=...)")
        for name, value in request["config"].items():
            jax.config.update(name, value)
        topology = topologies.get_topology_desc(platform=request["platform"], **request["topology"])
        slices = request["topology"].get("num_slices", 1)
        devices = first_devices(topology.devices, request["partitions"], slices)
        stage = "parse"
        program = (folder / PROGRAM).read_bytes()
        module = lowering.parse_stablehlo(program)
        stage = "compile"
        start = time.perf_counter()
        options = request["options"]
        if slices > 1:  # the program before the pass that splits collectives between slices
            options |= {"xla_dump_to": str(folder / _DUMP), "xla_dump_hlo_pass_re": _SPLIT}
            options |= {"xla_dump_hlo_as_proto": True}
        elif request["platform"] == "cuda" and holds_kernels(program):  # the PTX of kernels
            options |= {"xla_dump_to": str(folder / KERNELS), "xla_dump_hlo_pass_re": "^$"}
            options |= {"xla_dump_emitter_re": "ptx"}
        executable = _compiled(lowering.compile_module, module, devices, options)
        seconds = time.perf_counter() - start
        stage = "report"
        unsplit = sorted((folder / _DUMP).glob(f"*.before_{_SPLIT}.hlo.pb"))
        hlo = packed(executable.hlo_modules()[0].as_serialized_hlo_module_proto())
        result = {
            "hlo": hlo,
            "memory": memory_statistics(executable.get_compiled_memory_stats()),
            "compile_seconds": seconds,
            "compiler": _compiler(request["platform"], devices[0].client.platform_version),
            "unsplit_hlo": packed(proto_of_dump(unsplit[0].read_bytes())) if unsplit else None,
            "kernels": plain(kernel_codes(folder / KERNELS, read_module(hlo))) if holds_kernels(program) else {},
        }
    except (Exception, CapabilityLost) as error:
        result = {"error": {"stage": stage, "type": type(error).__name__, "message": str(error)}}
    write_atomically(folder / RESULT, json.dumps(result))


def _compiled(compile_module: Callable, module: Any, devices: Sequence[Any], options: dict[str, Any]) -> Any:
    """The executable, without the costs of XLA's models where the compiler fails with them.

    It does for devices that it has no tables of, in words of its own in each version.
    """
    try:
        return compile_module(module, devices, options)
    except Exception:
        if COST_MODELS not in options:
            raise
    return compile_module(module, devices, {name: value for name, value in options.items() if name != COST_MODELS})


def first_devices(devices: Sequence[Any], partitions: int, slices: int) -> list[Any]:
    """As many devices of each slice, the first ones, slice after slice."""
    each, share = len(devices) // slices, partitions // slices
    return [device for start in range(0, len(devices), each) for device in devices[start : start + share]]


def _die_with(parent: int) -> None:
    """End when the process that asked ends: a killed test session must not leave a compile of minutes behind."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the process that asked is gone")


def memory_statistics(stats: Any) -> dict[str, int]:
    """XLA's memory statistics: "temp_size_in_bytes" and so on."""
    return {name: getattr(stats, name) for name in dir(stats) if name.endswith("_in_bytes")}


def _compiler(platform: str, build: str) -> str:
    """In one line: "TFRT TPU v5 lite, Built on Jun 17 2026 11:08:48 (1781719728) cl/933746096".

    The GPU's compiler names the device alone, so the versions of its packages follow.
    """
    lines = [line for line in build.splitlines() if line != "PJRT C API"]
    if platform != "tpu":
        lines += [f"{package} {version}" for package, version in compiler_versions(platform).items()]
    return ", ".join(lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    # The clean-up of jax and libtpu takes time, does nothing of use, and can fail.
    sys.stdout.flush()
    os._exit(0)
