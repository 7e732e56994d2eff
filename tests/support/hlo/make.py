"""Compiles programs.py for the CPU and for a TPU, and writes each text beside this file: `python tests/support/hlo/make.py`.

Runs on x86-64 Linux with libtpu. File names are written below `/project/`, so that the texts do not say where they were
made.
"""

import gzip
import os
import pathlib

import jax
import numpy as np
import programs
from jax.experimental import topologies
from jaxlib._hlo import HloModule

from perfsuite.measure.hlo.module import unpacked
from perfsuite.measure.targets.target_compiler import compile_for
from perfsuite.measure.targets.targets import target

HERE = pathlib.Path(__file__).resolve().parent


def write(name: str, text: str) -> None:
    text = text.replace(str(HERE), "/project").replace(os.path.dirname(np.__path__[0]), "/project/lib")
    (HERE / f"{name}.txt.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(name, len(text), (HERE / f"{name}.txt.gz").stat().st_size)


def tpu_text(lowered: jax.stages.Lowered, partitions: int) -> str:
    output = compile_for(target("tpu-v5e"), lowered.as_text(debug_info=True).encode(), partitions=partitions)
    return HloModule.from_serialized_hlo_module_proto(unpacked(output.hlo)).to_string()


def main() -> None:
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    mesh = jax.make_mesh((2, 2), ("data", "model"), devices=jax.devices()[:4])
    one = {
        "train": (jax.jit(programs.train_step, donate_argnums=(0, 1)), programs.train_arguments(), 1),
        "control": (jax.jit(programs.control), programs.control_arguments(), 1),
        "sharded": (jax.jit(programs.sharded(mesh)), programs.sharded_arguments(mesh), 4),
        "attributes": (jax.jit(programs.attributes), programs.attributes_arguments(), 1),
    }
    for name, (function, arguments, partitions) in one.items():
        traced = function.trace(*arguments)
        write(f"{name}_cpu", traced.lower().compile().as_text())
        write(f"{name}_v5e", tpu_text(traced.lower(lowering_platforms=("tpu",)), partitions))
    # JAX lowers calls of the host only for devices that it has, so this one needs libtpu in this process.
    arguments = programs.called_back_arguments()
    write("called_back_cpu", jax.jit(programs.called_back).lower(*arguments).compile().as_text())
    device = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices[0]
    placed = [
        jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=jax.sharding.SingleDeviceSharding(device)) for a in arguments
    ]
    write("called_back_v5e", jax.jit(programs.called_back).lower(*placed).compile().as_text())


if __name__ == "__main__":
    main()
