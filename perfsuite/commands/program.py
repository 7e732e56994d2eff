"""Print the estimated time of a function on a device, operation by operation.

The device need not be present. perfsuite compiles the function for arrays of
the types of --args. Without --args it calls the function, which takes no
arguments and returns perfsuite.call(step, ...), and compiles that call.
"""

import argparse
import collections
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from perfsuite.commands import CommandError
from perfsuite.commands.init import load_function
from perfsuite.measure.call import Call, call
from perfsuite.measure.compiler_stderr import compilers_silenced
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.program.program import EstimatedOperation, Program
from perfsuite.measure.program.program_metrics import alive_at_peak, named_places, why_no_time
from perfsuite.measure.targets.targets import TARGETS
from perfsuite.measure.words import in_a_line, number, plural
from perfsuite.report.tables import aligned

SUMMARY = "print the estimated time of a function, operation by operation"

EXAMPLES = """examples:
  perfsuite program model:loss --args "bf16[64,512]" "s32[64]" --target gpu-h100
  perfsuite program model:one_call --target tpu-v5e --target gpu-h100
"""

_ARRAY: Final = re.compile(r"(\w+?)(\d*)\[([\d, ]*)\]")
_SHORT: Final = {"bf": "bfloat", "f": "float", "s": "int", "u": "uint", "c": "complex", "pred": "bool"}
"""XLA's names of types, without their bits."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("function", metavar="MODULE:FUNCTION", help="the function or Class.method")
    parser.add_argument("--args", metavar="ARRAY", nargs="+", help='types of its arguments: "f32[8,128]" "int32[]"')
    parser.add_argument(
        "--target",
        metavar="TARGET",
        choices=TARGETS,
        action="append",
        help="gpu-h100, tpu-v5e, ...; several times for several",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print a table for each target, or for the present device."""
    if arguments.target:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the compilers are in other processes
    with compilers_silenced():
        function, _ = load_function(arguments.function)
        named_call = _call_of(arguments.function, function, arguments.args)
    for place, target in enumerate(arguments.target or [None]):
        with compilers_silenced():
            program = _compiled(named_call, target)
        print(*([""] if place else []), *operation_lines(program), sep="\n")
    return 0


def _call_of(name: str, function: Callable, specs: Sequence[str] | None) -> Call:
    """The call to compile: of the function with arrays of the types `specs`, or the one that it returns."""
    if specs:
        import jax  # not before JAX_PLATFORMS is set

        return call(function if hasattr(function, "lower") else jax.jit(function), *map(_array, specs))
    try:
        answer: Any = function()
    except Exception as error:
        answer = error
    if isinstance(answer, Call):
        return answer
    why = f"raises {in_a_line(answer)}" if isinstance(answer, Exception) else f"returns no call: {answer!r:.60}"
    raise CommandError(
        f'{name}() {why}. Give the types of its arguments, --args "f32[8,128]" ..., or name a function without '
        "arguments that returns perfsuite.call(step, ...)"
    )


def _array(spec: str) -> Any:
    """The array that "bf16[8,128]" or "bfloat16[8,128]" describes."""
    import jax  # not before JAX_PLATFORMS is set

    match = _ARRAY.fullmatch(spec)
    try:
        kind, bits, sizes = match.groups() if match else ("", "", "")
        shape = [int(size) for size in sizes.split(",")] if sizes else []
        described = jax.ShapeDtypeStruct(shape, jax.numpy.dtype(_SHORT.get(kind, kind) + bits))
    except (TypeError, ValueError):
        raise CommandError(f'--args {spec}: not the type of an array, such as "bf16[8,128]" or "int32[]"') from None
    if jax.dtypes.canonicalize_dtype(described.dtype) != described.dtype:
        raise CommandError(f"--args {spec}: JAX has no {described.dtype} unless JAX_ENABLE_X64=1 is set")
    return described


def _compiled(named_call: Call, target: str | None) -> Program:
    # Not before JAX_PLATFORMS is set: they import jax.
    from perfsuite.measure.program.compilation import compile_call
    from perfsuite.measure.program.lowering import runs_as_one
    from perfsuite.measure.runtime.programs import program_of_all

    try:
        if runs_as_one(named_call):
            return compile_call(named_call, target).program()
        return program_of_all(named_call, target)
    except Exception as error:
        text = str(error) if isinstance(error, MeasurementError) else f"{named_call.label}: {in_a_line(error)}"
        raise CommandError(text) from None


def operation_lines(program: Program) -> Iterator[str]:
    """What a program takes, and a table of its operations, the largest first."""
    device = program.target or program.device_kind
    us = program.estimated_us
    time = f"no estimated time{why_no_time(program)}" if us is None else f"estimated time {number(us)} us"
    yield f"{program.label} @ {device}, {plural(program.partitions, 'device')}: {time}"
    limits: dict[str, float] = collections.defaultdict(float)
    for operation in program.operations:
        limits["waiting for links" if operation.limit == "link" else operation.limit or ""] += operation.total_us
    if whole := sum(limits.values()):
        yield ", ".join(f"{limit} {100 * us / whole:.1f} %" for limit, us in sorted(limits.items()) if us)
    memory = "" if program.memory_bytes is None else f" of {number(program.memory_bytes)}"
    amounts = {"FLOP": program.flops, "bytes accessed": program.bytes_accessed, "bytes at the peak": program.peak_bytes}
    texts = (f"{'unknown' if amount is None else number(amount)} {what}" for what, amount in amounts.items())
    yield ", ".join(texts) + memory
    if program.fits is False:
        yield f"does not fit; {alive_at_peak(program)}"
    for words, operations in (("at least", program.at_least), ("at most", program.at_most)):
        if operations:
            yield f"{words} so much: {', '.join(named_places(operations))}"
    yield from aligned(_rows(program))


def _rows(program: Program) -> list[tuple[str, ...]]:
    """The head of the table and a row for each line of the user's; without columns in which nothing stands."""
    timed = program.known_us is not None
    lines: dict[tuple[str, ...], list[EstimatedOperation]] = collections.defaultdict(list)
    amounts: dict[tuple[str, ...], float] = collections.defaultdict(float)
    for operation in program.operations:
        key: tuple[str, ...] = operation.limit or "", operation.basis, operation.what, operation.where
        lines[key].append(operation)
        amounts[key] += operation.total_us if timed else operation.bytes * operation.runs
    table: list[tuple[str, ...]] = [
        ("us" if timed else "bytes", "share", "hidden us", "runs", "limit", "basis", "what", "line")
    ]
    for key in sorted(lines, key=lambda key: -amounts[key]):
        amount = "unknown" if timed and lines[key][0].estimated_us is None else number(amounts[key])
        share = f"{100 * amounts[key] / (sum(amounts.values()) or 1):.1f} %"
        hidden = round(sum((each.estimated_us or 0.0) * each.runs - each.total_us for each in lines[key]), 3)
        runs = sum(each.runs for each in lines[key])
        table.append((amount, share, number(hidden) if hidden else "", number(runs), *key))
    columns = [column for column in zip(*table, strict=True) if any(column[1:])]
    return list(zip(*columns, strict=True))
