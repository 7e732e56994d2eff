"""Prints what every compiler makes of BERT-base's train step, as a Markdown table: python tests/perf/bert_over_targets.py

The step is that of `abstract_steps` at full size, without dropout. Of the devices none need be present. Its operations:

    export XLA_FLAGS=--xla_force_host_platform_device_count=8
    perfsuite program tests.perf.bert_over_targets:over_eight_devices --target tpu-v5e --target gpu-h100
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from perf.abstract_steps import flat_step, shapes
from perfsuite.measure.call import Call
from perfsuite.measure.program.compilation import compile_call
from perfsuite.measure.program.program import Program

TARGETS = ("tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "gpu-a100", "gpu-h100", "gpu-h200", "gpu-b200")
COLUMNS = ("TFLOP", "GB accessed", "peak GB", "of GB", "fits", "fusions", "custom calls", "lost donations")


def over_eight_devices() -> Call:
    """The step with its batch over eight devices."""
    return flat_step(shapes("full", dropout=0.0, attention="fused"), (8, 1))


def row(program: Program) -> str:
    """The facts of a program, a cell for each column."""
    cells = (
        f"{program.flops / 1e12:.2f}",
        f"{program.bytes_accessed / 1e9:.0f}",
        f"{program.peak_bytes / 1e9:.1f}",
        f"{program.memory_bytes / 1e9:.1f}",
        "yes" if program.fits else "no",
        len(program.fusions),
        len(program.custom_calls),
        len(program.lost_donations),
    )
    return " | ".join(map(str, cells))


def main() -> None:
    """Compile for one target after another."""
    print(f"| target | {' | '.join(COLUMNS)} |")
    print("|---" * (len(COLUMNS) + 1) + "|", flush=True)
    made = flat_step(shapes("full", dropout=0.0, attention="fused"))
    for target in sys.argv[1:] or TARGETS:
        program = compile_call(made, target).program()
        print(f"| `{target}` | {row(program)} |", flush=True)


if __name__ == "__main__":
    main()
